"""Importing the function that a target names: `package.module:function` or `path/file.py:function`."""

from __future__ import annotations

from typing import Any

from fp4ref.errors import DomainError
from fp4ref.modules import load_module


def load(target: str) -> Any:
    """Import the function of `package.module:function` or `path/file.py:function`.

    Errors: DomainError for a text of another form, and for a name that is not there; whatever the import raises.
    """
    place, colon, name = target.rpartition(":")
    if not (place and colon and name.replace(".", "_").isidentifier()):
        raise DomainError("kernel", repr(target), "package.module:function or file.py:function", "CNF-8")
    found: Any = load_module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise DomainError("kernel", f"no {name} in {place}", "a function of that module", "CNF-8")
        found = getattr(found, part)
    if not callable(found):
        raise DomainError("kernel", f"{target} is of type {type(found).__name__}", "a function", "CNF-8")
    return found
