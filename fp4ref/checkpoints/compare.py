"""Two manifests, compared: same bytes, values or decisions, and for each tensor the first difference."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from fp4ref.checkpoints.manifest import TensorSignature

ONE = struct.pack(">f", 1).hex()


class Sameness(IntEnum):
    """Degrees of agreement of two tensors, the least first."""

    NOTHING = 0  # quantized on one side only, another form, another shape, or stored on one side only
    DECISIONS = 1  # the same form and shape
    VALUES = 2  # the same decoded numbers: zeros of either sign count as equal
    BYTES = 3


class TensorDifference(NamedTuple):
    """A tensor that differs. kind: of the difference, for grouping. text: with the values of both sides."""

    name: str
    sameness: Sameness
    kind: str
    text: str


class ManifestComparison(NamedTuple):
    """The result for all tensors: the least sameness of any, and every difference."""

    tensors: int
    differences: list[TensorDifference]

    @property
    def sameness(self) -> Sameness:
        """The least sameness of any tensor."""
        return min((each.sameness for each in self.differences), default=Sameness.BYTES)

    def to_record(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        rows = [{**each._asdict(), "sameness": each.sameness.name.lower()} for each in self.differences]
        return {"tensors": self.tensors, "sameness": self.sameness.name.lower(), "differences": rows}


def compare(one: Mapping[str, TensorSignature], two: Mapping[str, TensorSignature]) -> ManifestComparison:
    """Compare two manifests by logical names. Rules: CNV-17."""
    names = [*dict.fromkeys([*one, *two])]
    found = (_difference(name, one.get(name), two.get(name)) for name in names)
    return ManifestComparison(len(names), [each for each in found if each is not None])


def _difference(name: str, one: TensorSignature | None, two: TensorSignature | None) -> TensorDifference | None:
    """Return the first stage at which a tensor differs; None if it does not."""
    if one is None or two is None:
        return TensorDifference(name, Sameness.NOTHING, *_on_one_side(one, two))
    if one == two:
        return None
    if (apart := _decisions(one, two)) is not None:
        return TensorDifference(name, Sameness.NOTHING, *apart)
    kind, text = _stage(one, two)
    if _same_values(one, two):
        return TensorDifference(name, Sameness.VALUES, "same values in other bytes", f"{kind}, {text}")
    return TensorDifference(name, Sameness.DECISIONS, kind, text)


def _same_values(one: TensorSignature, two: TensorSignature) -> bool:
    return one.quantized and two.quantized and one.values == two.values


def _on_one_side(one: TensorSignature | None, two: TensorSignature | None) -> tuple[str, str]:
    there = one or two
    assert there is not None
    return "only in B" if one is None else "only in A", there.form


def _decisions(one: TensorSignature, two: TensorSignature) -> tuple[str, str] | None:
    """Return the decision that differs: to quantize, the format, the shape; None if none does."""
    if one.quantized is not two.quantized:
        return "quantized in A only" if one.quantized else "quantized in B only", f"{one.form} and {two.form}"
    if one.form != two.form:
        return "another format", f"{one.form} and {two.form}" + ", the same values" * _same_values(one, two)
    if one.shape != two.shape:
        return "another shape", f"{[*one.shape]} and {[*two.shape]}"
    return None


def _stage(one: TensorSignature, two: TensorSignature) -> tuple[str, str]:
    """Return the first stage that differs, in the order in which a quantizer computes them."""
    if not one.quantized:
        return "other values", one.form
    if one.factor != two.factor:
        return _global_scale(one.factor, two.factor)
    return "another block scale" if one.scales != two.scales else "other codes", one.form


def _global_scale(one: str, two: str) -> tuple[str, str]:
    """Return how far two global scales are apart, where their texts are numbers."""
    texts = [text or ONE for text in (one, two)]
    if any(len(text) != len(ONE) for text in texts):
        return "another global scale", "of one or more matrices"
    a, b = (struct.unpack(">f", bytes.fromhex(text))[0] for text in texts)
    near = abs(int(texts[0], 16) - int(texts[1], 16)) == 1
    ratio = f"B / A = {b / a:.9g}" if a else f"{a} and {b}"
    return "a global scale an ulp apart" if near else "another global scale", ratio
