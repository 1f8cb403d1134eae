"""Importing the function that a target names: `package.module:function` or `path/file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from fp4ref.errors import DomainError

PREFIX = "fp4ref_kernel_"  # of a kernel's module whose own name is taken


def load(target: str) -> Any:
    """Import the function of `package.module:function` or `path/file.py:function`.

    Errors: DomainError for a text of another form, and for a name that is not there; whatever the import raises.
    """
    place, colon, name = target.rpartition(":")
    if not (place and colon and name.replace(".", "_").isidentifier()):
        raise DomainError("kernel", repr(target), "package.module:function or file.py:function", "CNF-8")
    found = _module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise DomainError("kernel", f"no {name} in {place}", "a function of that module", "CNF-8")
        found = getattr(found, part)
    if not callable(found):
        raise DomainError("kernel", f"{target} is of type {type(found).__name__}", "a function", "CNF-8")
    return found


def _module(place: str) -> Any:
    """The module of a name or a file; what a kernel imports is looked for beside it last. Rules: CNF-15."""
    if not place.endswith(".py"):
        _look_in(Path.cwd())
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise DomainError("kernel", f"no file {place}", "a Python file", "CNF-8")
    name = _free_name(path)
    _look_in(path.resolve().parent)
    described = importlib.util.spec_from_file_location(name, path)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    sys.modules[name] = module
    described.loader.exec_module(module)
    return module


def _look_in(folder: Path) -> None:
    """Let imports look in a folder after all others, so that nothing in it stands for a library."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _free_name(path: Path) -> str:
    """The name of a kernel's file as a module, or one with a prefix where a module of that name is another file."""
    prefixed = f"{PREFIX}{path.stem}"
    if not path.stem.isidentifier():
        return prefixed
    try:
        known = importlib.util.find_spec(path.stem)
    except ValueError:  # a module without a specification
        return prefixed
    if known is None:
        return path.stem
    same = known.origin is not None and Path(known.origin).resolve() == path.resolve()
    return path.stem if same else prefixed
