"""Choosing the convention that a weight is written in, and what that convention has no place for."""

from __future__ import annotations

from collections.abc import Iterator

from fp4ref.checkpoints.convention import CONVENTIONS, Convention, Direction, families
from fp4ref.checkpoints.transfer.placing import PlacedWeight
from fp4ref.checkpoints.transfer.scales import Cost, StoredScale
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.errors import DomainError, UnknownNameError
from fp4ref.names import unknown


def require_family(to: str) -> None:
    """Refuse a target that is no convention and no family. Rules: CNV-1."""
    known = families()
    if to not in known and to not in CONVENTIONS:
        raise UnknownNameError(
            "convert", unknown(f"unknown convention {to!r}"), f"one of {', '.join([*known])}", "CNV-1"
        )


def choose(weight: Weight, to: str) -> Convention:
    """Return the convention of a family, or the one named, that can express a weight; of several, the weight's own.

    Errors: DomainError if none can.

    Rules: CNV-1, CNV-6.
    """
    candidates = [CONVENTIONS[to]] if to in CONVENTIONS else families()[to]
    fits = [each for each in candidates if expresses(each, weight)]
    own = weight.origin.get("convention")
    if fits:
        return next((each for each in fits if each.name == own), fits[0])
    scales = f"{weight.scale} scales" if weight.scale else f"a float scale per {weight.granularity}"
    block = f" of {weight.block[0]} x {weight.block[1]}" if weight.block[1] else ""
    stored = ", ".join(sorted({described(each) for each in candidates}))
    able = [name for name, members in families().items() if any(expresses(each, weight) for each in members)]
    others = f", or --to {', '.join(able)}" if able else ""
    got = f"{weight.module} is {weight.element} with {scales}{block}"
    raise DomainError("convert", got, f"{stored} for {to}{others}", "CNV-6")


def described(convention: Convention) -> str:
    """Return the formats of a convention in a few words."""
    scale = convention.scale or "float"
    block = f"{convention.block[0]} x {convention.block[1]}" if convention.block[1] else convention.granularity
    return f"{convention.element} with {scale} scales per {block}"


def expresses(convention: Convention, weight: Weight) -> bool:
    """Return True if a convention stores the same formats and blocks.

    A weight's own convention takes it as it is.

    Rules: CNV-6.
    """
    if (convention.element, convention.scale) != (weight.element, weight.scale):
        return False
    if weight.scale:
        return convention.block == weight.block
    if convention.name == weight.origin.get("convention"):
        return True
    alike = weight.granularity == convention.granularity
    return alike and (weight.block == convention.block or convention.granularity != "square")


def lost(placed: PlacedWeight) -> Iterator[str]:
    """Yield what a convention has no place for, in words that do not name the weight. Rules: CNV-65."""
    weight, convention = placed.weight, placed.convention
    if weight.input_scale is not None and convention.input_scale is None:
        yield f"an input scale, for which {convention.name} has no place"
    elif weight.input_scale is not None and weight.input_scale.cost(convention.input_direction) is not Cost.EXACT:
        yield from _unusable(weight.input_scale, convention.input_direction, "an input scale", convention)
    scale = weight.global_scale
    if scale is None:
        return
    if convention.global_scale is None and (scale.factors() != 1).any():
        yield f"a global scale, for which {convention.name} has no place"
    if convention.global_scale is not None:
        yield from _unusable(scale, convention.global_direction, "a global scale", convention)


def _unusable(scale: StoredScale, direction: Direction, kind: str, convention: Convention) -> Iterator[str]:
    """Yield that a scale is no positive finite number where it comes from, or becomes none. Rules: CKP-21."""
    if odd := scale.odd():
        yield f"{kind} of {odd}, no positive finite number"
    elif odd := scale.to(direction).odd():
        yield f"{kind} that is no positive finite number as {convention.name} stores it, but {odd}"
