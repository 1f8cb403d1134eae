"""Differences of a profile from a specification in words, so that no name of a profile stands alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fp4ref.conformance.explain.formulas import formula
from fp4ref.conformance.mistakes.rounding_words import ROUNDINGS, RoundingWords
from fp4ref.formats import Codec
from fp4ref.spec import Amax, Granularity, Spec, Subnormals

SHOWN = 2  # differences that are said
FORMS = (
    ("global_scale", "the global scale"),
    ("block_scale", "the block scale"),
    ("working_scale", "the scale that divides"),
    ("scaled", "elements"),
)
GLOBALS = {
    Granularity.NONE: "none",
    Granularity.TENSOR: "one for the tensor",
    Granularity.ROW: "one for each row",
}
MAXIMA = {
    Amax.IGNORE_NAN: "maxima ignore NaN",
    Amax.PROPAGATE_NAN: "maxima keep NaN",
    Amax.PROPAGATE_IN_BLOCK: "block maxima keep NaN",
}
FIELDS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("block", lambda block: f"blocks are {block.rows}x{block.columns}"),
    ("global_scale", lambda by: f"global scales: {GLOBALS[by]}"),
    ("element_max", lambda top: "block maxima are mapped to the largest element" + (f", {top:g}" if top else "")),
    ("amax", lambda rule: MAXIMA[rule]),
    ("subnormals", lambda rule: "subnormal inputs " + ("are kept" if rule is Subnormals.KEEP else "become zeros")),
    (
        "hadamard",
        lambda turn: f"a Hadamard transform with signs {turn.signs:#06x}" if turn else "no Hadamard transform",
    ),
    ("four_over_six", lambda search: "4over6 is done, by its own rule" if search else "4over6 is not done"),
)


def differences(spec: Spec, profile: Spec) -> str:
    """Return the first differences of a profile in words, in the order of the computation. Rules: CNF-28."""
    said = list(dict.fromkeys(_differences(spec, profile)))
    return "; ".join(said[:SHOWN]) + (f" and {len(said) - SHOWN} more" if len(said) > SHOWN else "")


def _differences(spec: Spec, profile: Spec) -> Iterator[str]:
    for slot, words in FORMS:
        own, other = (getattr(one.arithmetic, slot) for one in (spec, profile))
        if own is not other and formula(own) != formula(other):
            yield f"{words}: {formula(other)}"
    yield from _codecs("block scales", spec.scale, profile.scale)
    yield from _codecs("elements", spec.element, profile.element)
    for name, said in FIELDS:
        if getattr(spec, name) != getattr(profile, name):
            yield said(getattr(profile, name))


def _codecs(what: str, own: Codec, other: Codec) -> Iterator[str]:
    """Yield the choices that another codec makes, in words; those of roundings are `ROUNDINGS`. Rules: E2M1-6."""
    if own.format != other.format:
        yield f"{what} are {other.format.name.upper()}"
    if own.rounding != other.rounding:
        known = {words.rounding: words for words in ROUNDINGS}
        yield known.get(other.rounding, RoundingWords(other.rounding, f"rounded {other.rounding}")).of(what, "are")
    if own.sign != other.sign:
        yield f"the sign of {what} is taken otherwise ({other.sign})"
    if own.nan != other.nan:
        yield f"NaN {what} become {' or '.join(f'{code:#04x}' for code in dict.fromkeys(other.nan))}"
    if own.overflow != other.overflow:
        yield f"{what} past the largest " + ("saturate" if other.overflow is None else f"become {other.overflow:#04x}")
    if own.infinity != other.infinity:
        code = other.overflow if other.infinity is None else other.infinity
        yield f"infinite {what} " + ("saturate" if code is None else f"become {code:#04x}")
