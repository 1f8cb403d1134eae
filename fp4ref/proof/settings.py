"""Claims about settings: a specification is refused exactly where a rule refuses it, and the error names the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, product
from typing import Any, NamedTuple

from fp4ref.errors import DomainError
from fp4ref.formats import FORMATS, Codec, Rounding
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.spec import Block, FourOverSix, Granularity, Hadamard, Spec


class Picked(NamedTuple):
    """A format, and its rounding: the usual one is even, and up of E8M0."""

    format: str
    rounding: str = "even"

    def codec(self) -> Codec:
        """Return the codec."""
        return Codec(format=FORMATS[self.format], rounding=Rounding(self.rounding), nan=(0, 0))


USUAL = {name: Picked(name) for name in ("e2m1", "e4m3", "int8", "e5m2", "ue5m3", "e3m2")} | {
    "e8m0": Picked("e8m0", "up")
}
STOCHASTIC = Picked("e2m1", "stochastic")
ELEMENTS = (USUAL["e2m1"], STOCHASTIC, *(USUAL[name] for name in ("e4m3", "int8", "e8m0")))
SCALES = (
    *(USUAL["e4m3"], Picked("e4m3", "truncate")),
    *(USUAL[name] for name in ("e5m2", "ue5m3", "e8m0", "e2m1")),
    *(STOCHASTIC, USUAL["e3m2"]),
)
WITHOUT_SIGN = ("e8m0", "ue5m3")
NARROW = ("e2m1", "e3m2")
LARGEST = {"e2m1": 6.0, "e4m3": 448.0, "int8": 127 / 64, "e8m0": 2.0**127}
BLOCKS = tuple(product((0, 1, 2, 3, 16), (0, 8, 16, 24)))
ELEMENT_MAXIMA = (None, float("nan"), 0.0, 1.5, 6.0, 448.5)
MASKS = (-1, 0, 0xD7E8, 0xFFFF, 0x10000)
SCALE_MAXIMA = (float("nan"), -1.0, 0.0, 2.0**-9, 256.0, 448.0, 448.5)


class SpecSettings(NamedTuple):
    """The settings of a specification that rules exclude from each other."""

    element: Picked
    scale: Picked
    block: tuple[int, int]
    global_scale: Granularity
    element_max: float | None
    hadamard: bool
    four_over_six: bool

    def made(self) -> Spec:
        """Return the specification."""
        return Spec(
            name="some",
            element=self.element.codec(),
            scale=self.scale.codec(),
            block=Block(*self.block),
            global_scale=self.global_scale,
            element_max=self.element_max,
            hadamard=Hadamard() if self.hadamard else None,
            four_over_six=FourOverSix() if self.four_over_six else None,
        )

    def refusing(self) -> set[str]:
        """Return the rules that refuse the settings.

        Rules: SPC-2, SR-5, FOS-7, GLB-5, GLB-6, HAD-5, BLK-1.
        """
        (rows, columns), element, scale = self.block, self.element.format, self.scale.format
        stochastic, most = self.element.rounding == "stochastic", self.element_max
        by_row, without = (self.global_scale == name for name in ("row", "none"))
        searched = self.element == USUAL["e2m1"] and scale == "e4m3" and not without and rows in {1, 2, 16}
        reasons = {
            "BLK-1": rows == 0 or columns == 0,
            "SPC-2": element in WITHOUT_SIGN
            or scale in NARROW
            or self.scale.rounding == "stochastic"
            or not (most is None or 0 < most <= LARGEST[element]),
            "GLB-5": by_row and (rows != 1 or self.hadamard or stochastic),
            "GLB-6": scale == "e8m0" and not without,
            "SR-5": stochastic and scale == "e8m0",
            "FOS-7": self.four_over_six and (not searched or self.hadamard),
            "HAD-5": self.hadamard and columns % 16 != 0,
        }
        return {rule for rule, holds in reasons.items() if holds}


class Making(NamedTuple):
    """Settings by name, the function that makes a value of them, and the rules that refuse it."""

    named: object
    make: Callable[[], Any]
    rules: set[str]


def _alone() -> Iterator[Making]:
    """Yield the settings that a rule refuses whatever the others are. Rules: HAD-1, FOS-2, SR-1."""
    for mask in MASKS:
        yield Making(f"signs {mask:#x}", partial(Hadamard, mask), set() if 0 <= mask < 1 << 16 else {"HAD-1"})
    for most in SCALE_MAXIMA:
        make = partial(FourOverSix, scale_max=most)
        yield Making(f"4over6 scale_max {most}", make, set() if 0 < most <= LARGEST["e4m3"] else {"FOS-2"})
    for name in FORMATS:
        picked = Picked(name, "stochastic")
        yield Making(picked, picked.codec, set() if name == "e2m1" else {"SR-1"})


def _together() -> Iterator[Making]:
    """Yield every combination of settings that rules exclude from each other."""
    for each in product(ELEMENTS, SCALES, BLOCKS, Granularity, ELEMENT_MAXIMA, (False, True), (False, True)):
        settings = SpecSettings(*each)
        yield Making(settings, settings.made, settings.refusing())


def _refused(make: Callable[[], Any], rules: set[str]) -> str | None:
    """Return how a refusal, or a value that is made, differs from what rules say; None if it does not."""
    try:
        make()
    except DomainError as error:
        named = error.rule in rules and (
            error.rule != "SR-5" or all(word in error.got for word in ("stochastic", "e8m0"))
        )
        return None if named else f"refused by `{error}`, needs {' or '.join(sorted(rules)) or 'no refusal'}"
    return f"made, though {' and '.join(sorted(rules))} refuse it" if rules else None


SIZE = len(MASKS) + len(SCALE_MAXIMA) + len(FORMATS)
SIZE += 4 * len(ELEMENTS) * len(SCALES) * len(BLOCKS) * len(Granularity) * len(ELEMENT_MAXIMA)


def legal(tell: Tell) -> Replayed:
    """Make a value of all settings."""
    count = 0
    for named, make, rules in chain(_alone(), _together()):
        count += 1
        if said := _refused(make, rules):
            return Replayed(count, f"{named}: {said}")
        if count % 1000 == 0:
            tell(count / SIZE)
    return Replayed(count)


def claims() -> Iterator[ProofClaim]:
    """Yield the claim about settings."""
    yield ProofClaim(
        name="settings/golden",
        rules=("SPC-2", "SR-5", "FOS-7", "FOS-2", "GLB-5", "GLB-6", "HAD-5", "SR-1"),
        method=Method.EXHAUSTIVE,
        subject=ClaimSubject.GOLDEN,
        statement="A specification is refused exactly where rules refuse it, and the error names one of them.",
        domain=f"all combinations of {len(ELEMENTS)} elements, {len(SCALES)} scales, {len(BLOCKS)} blocks, global "
        f"scales, {len(ELEMENT_MAXIMA)} values of element_max, a transform and 4over6; some signs and scale_max",
        size=SIZE,
        decide=legal,
        covers=(
            "fp4ref.spec:_require_legal",
            "fp4ref.spec:Hadamard",
            "fp4ref.spec:FourOverSix",
            "fp4ref.formats.codec:Codec",
        ),
    )
