"""The fields of a specification that explain someone's bytes: each is changed alone, to every value that is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from fp4ref.arithmetic import ARITHMETIC
from fp4ref.catalogue import PROFILES
from fp4ref.errors import Fp4Error
from fp4ref.formats import Codec, Rounding, Sign, ignoring_float_warnings
from fp4ref.spec import Amax, Spec, Subnormals
from fp4ref.spec_json import differences

CODEC_FIELDS = ("rounding", "sign", "nan", "overflow", "infinity")
FIRST = 8  # pieces of evidence on which most changes fail at once


class FieldChange(NamedTuple):
    """A field, its value in the specification, and the value that makes all the bytes."""

    field: str
    ours: Any
    theirs: Any


@ignoring_float_warnings
def explaining_fields(spec: Spec, evidence: Sequence[Any], same: Callable[[Spec, Any], bool]) -> list[FieldChange]:
    """Return the changes of one field each after which the specification makes all evidence.

    same: True if a specification makes the bytes of one piece of evidence. The pieces that decide most come first.

    Rules: SPC-1, CNF-10.
    """
    found = []
    for changed in _changed(spec):
        if all(same(changed, piece) for piece in evidence[:FIRST]) and all(same(changed, p) for p in evidence[FIRST:]):
            found += [FieldChange(field, *pair) for field, pair in differences(spec, changed).items()][:1]
    return list(dict.fromkeys(found))


def _changed(spec: Spec) -> Iterator[Spec]:
    """Yield the specification with one field changed, those that have no meaning left out."""
    for field, value in _values(spec):
        try:
            changed = spec.replace(**{field: value})
        except Fp4Error:
            continue
        if changed != spec:
            yield changed


def _values(spec: Spec) -> Iterator[tuple[str, Any]]:
    known = [*PROFILES.values()]
    for role in ("element", "scale"):
        own: Codec = getattr(spec, role)
        others = [codec for other in known if (codec := getattr(other, role)).format == own.format]
        for name in CODEC_FIELDS:
            enums: Iterable[Any] = {"rounding": Rounding, "sign": Sign}.get(name, ())
            for value in dict.fromkeys([*enums, *(getattr(codec, name) for codec in others)]):
                if value is not Rounding.STOCHASTIC:
                    yield role, dataclasses.replace(own, **{name: value})
    yield from (("amax", value) for value in Amax)
    yield from (("subnormals", value) for value in Subnormals)
    for name in ("element_max", "four_over_six", "block", "global_scale"):
        yield from ((name, value) for value in dict.fromkeys(getattr(other, name) for other in known))
    yield from (("arithmetic", value) for value in ARITHMETIC.values())
