"""The specifications by name, and one function that registers a value of any kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from fp4ref.arithmetic import ARITHMETIC, Arithmetic
from fp4ref.arithmetic_checked import require_float32
from fp4ref.errors import DomainError, DTypeError
from fp4ref.formats import FORMATS, Format
from fp4ref.layout import LAYOUTS, Layout
from fp4ref.names import VERSION, Nameable, Names, has_vendor
from fp4ref.promise import Promise
from fp4ref.spec import Spec

PROFILES: Names[Spec] = Names("profile", "see `fp4ref profiles`")
PROMISES: dict[str, Promise] = {}
KINDS: dict[type, Names[Any]] = {Format: FORMATS, Layout: LAYOUTS, Arithmetic: ARITHMETIC, Spec: PROFILES}
OF_CHECKPOINTS = ("Convention", "Consumer", "Repair")  # kinds that are added when checkpoints are imported
UNSTATED = "not stated"  # of the source of a value
Value = TypeVar("Value", bound=Nameable)
ARITHMETIC.require(require_float32)


def add_kind(kind: type, names: Names[Any]) -> None:
    """Let `register` take values of one more type. Rules: SPC-4."""
    KINDS[kind] = names


def register_profile(spec: Spec, promise: Promise, also: Iterable[str] = ()) -> Spec:
    """Register a specification with its promise; each version is another name, NAME@VERSION.

    Rules: PRO-1, PRO-4, PRO-12.
    """
    base = spec.name.partition(VERSION)[0]
    versions = (f"{base}{VERSION}{version}" for version in promise.versions)
    PROMISES[spec.name] = promise
    return PROFILES.register(spec, promise.source, {*versions, *also} - {spec.name})


def register(value: Value, source: str = "", promise: Promise | None = None) -> Value:
    """Register a value under its own name, `vendor.name`, and return it.

    value: a format, layout, arithmetic or specification, or a convention, consumer or repair of checkpoints.
    source: where it comes from, and how far that was checked; lists show "not stated" if it is blank. promise: the
    same as data, for a specification that stands for an implementation. A specification needs its formats and its
    arithmetic registered first, since files hold their names.

    >>> import fp4ref
    >>> tiles = fp4ref.register(fp4ref.Layout("vendor.8x4", "m(8,*) k(4,*): m0 k0 k1 m1"), source="an example")
    >>> fp4ref.LAYOUTS["vendor.8x4"].offset(9, 0, columns=4)
    33
    >>> fp4ref.LAYOUTS.forget("vendor.8x4")

    Errors: DomainError for a name that is taken by other settings, or has no vendor.

    Rules: SPC-4, SPC-22.
    """
    names = KINDS.get(type(value))
    if names is None:
        needed = ", ".join(dict.fromkeys([*(kind.__name__ for kind in KINDS), *OF_CHECKPOINTS]))
        raise DTypeError("register", f"a {type(value).__name__}", f"one of {needed}", "SPC-4")
    if not isinstance(source, str):
        raise DTypeError("register", f"source of type {type(source).__name__}", "a str", "SPC-4")
    if not has_vendor(value.name):
        raise DomainError("register", f"{names.kind} {value.name!r}", "a name of the form vendor.name", "SPC-22")
    if isinstance(value, Spec):
        value.to_json()  # fails for what has no registered name
        if promise:
            register_profile(value, promise)
            return value
    registered: Value = names.register(value, source.strip() or UNSTATED)
    return registered


def resolve(spec: Spec | str) -> Spec:
    """Return the specification itself, or the one of that name."""
    return spec if isinstance(spec, Spec) else PROFILES[spec]
