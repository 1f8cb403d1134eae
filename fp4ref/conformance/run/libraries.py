"""A function of a C library as a subject: a signature says how it is called, and no wrapper is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fp4ref.conformance.run.run_options import DEFAULT, RunOptions
from fp4ref.conformance.run.runner import subject
from fp4ref.conformance.subjects.library.signature import Signature, facts_of, named, names, parse, read
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.errors import DomainError
from fp4ref.spec import Spec

__all__ = ["Signature", "library", "named", "names", "parse", "read"]


def library(target: str, signature: Signature, spec: Spec, options: RunOptions = DEFAULT, /, **changes: Any) -> Subject:
    """Return the subject of `library:function`, which is loaded in a process of its own.

    target: the path of a shared library, a colon, and the exported name of a function. signature: how it is called.
    changes: fields of the signature's declaration.

    Errors: DomainError for a target of another form and for a signature that the specification rules out;
    BackendError with the reason why the library cannot be loaded.

    Rules: CNF-16.
    """
    place, colon, name = target.rpartition(":")
    if not (place and colon and name):
        raise DomainError("library", repr(target), "libfile.so:function", "CNF-16")
    path = Path(place)
    if path.is_dir():
        raise DomainError("library", f"{place} is a folder", "a shared library", "CNF-16")
    signature.require(spec)
    found = str(path.resolve()) if path.exists() else place  # a bare name is looked up by the system
    record = {"signature": signature.record, "origin": signature.origin, "facts": facts_of(spec)}
    return replace(subject(f"{found}:{name}", record, options, **changes), name=target)
