"""Directions: scales that are plausible only if they were stored as another convention stores them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from fp4ref.checkpoints.anchors import largest_input, usual_amax
from fp4ref.checkpoints.convention import Direction, ScaleWay
from fp4ref.checkpoints.findings import ERROR, LintFinding, finding
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.checkpoints.measure import Measured
from fp4ref.checkpoints.scalars import bad, number_facts, numbers
from fp4ref.formats import FORMATS

FAR, NEAR = 300.0, 40.0  # how far the declared reading must be from the anchor, and how near the other one
FAR_ALONE, NEAR_ALONE, USUAL = 1e4, 1e3, 0.1  # without an anchor: the amax of a weight is near 0.1
LARGEST_ACTIVATION = 2e5
MARGIN = 8.0  # of a bound that a norm gives


def check_directions(found: Recognized, measured: list[Measured]) -> Iterator[LintFinding]:
    """Yield global, block and input scales whose direction is implausible. Rules: CKP-20."""
    anchor = usual_amax(found)
    amaxes = [each.largest for each in measured if each.largest > 0]
    wrong: dict[str, list[str]] = {}
    for each in measured:
        name, said = _weight(each, anchor)
        if said:
            wrong.setdefault(said, []).append(name)
    for said, names in wrong.items():
        about = f"{anchor:.3g}, the median amax of the matrices in high precision" if anchor else "any usual weight"
        text = f"stored as {said}: as declared, decoded values reach {max(amaxes):.3g}, far from {about}"
        yield finding("scale-direction", ERROR, names, text, evidence={"anchor": anchor})
    inputs: dict[str, list[str]] = {}
    for group in found.groups:
        name, said = _input(found, group)
        if said:
            inputs.setdefault(said, []).append(name)
    for said, names in inputs.items():
        yield finding("scale-direction", ERROR, names, f"stored as {said}: as declared, no input can be so large")


def _readings(direction: Direction, stored: float) -> dict[str, float]:
    """Return the amax that a stored scale means in each direction, that of the convention left out."""
    constant = direction.constant
    readings = {
        "a multiplier": Direction(ScaleWay.MULTIPLIER, constant),
        "a divisor": Direction(ScaleWay.DIVISOR, constant),
        "the amax itself": Direction(ScaleWay.AMAX, constant),
    }
    return {said: other.amax(stored) for said, other in readings.items() if other.way is not direction.way}


def _weight(measured: Measured, anchor: float | None) -> tuple[str, str]:
    """Return a scale's name and the direction in which it is stored; "" if the declared one is plausible."""
    group = measured.group
    tensor = group.parts.get("global_scale")
    if tensor is None:
        return _float_scales(measured, anchor)
    values = numbers(tensor)
    if (
        not values
        or any(map(bad, values))
        or not measured.largest
        or group.convention.global_direction.way is ScaleWay.NONE
    ):
        return tensor.name, ""
    direction = group.convention.global_direction
    ratio = measured.largest / direction.amax(values[0])  # decoded amax per declared amax: near 1 if scales are full
    others = {said: ratio * amax for said, amax in _readings(direction, values[0]).items()}
    return tensor.name, _implausible(measured.largest, others, anchor)


def _implausible(declared: float, others: dict[str, float], anchor: float | None) -> str:
    near, far = (NEAR, FAR) if anchor else (NEAR_ALONE, FAR_ALONE)
    centre = anchor or USUAL

    def distance(value: float) -> float:
        return abs(math.log(value / centre)) if 0 < value < math.inf else math.inf

    best = min(others, key=lambda said: distance(others[said]))
    return best if distance(declared) > math.log(far) and distance(others[best]) < math.log(near) else ""


def _float_scales(measured: Measured, anchor: float | None) -> tuple[str, str]:
    """Judge the float scales of FP8 weights."""
    group = measured.group
    tensor = group.parts.get("scales")
    if tensor is None or group.convention.scale:
        return "", ""
    values = [value for value in numbers(tensor) if not bad(value)]
    if not values or not measured.largest or number_facts(tensor).exponents:
        return tensor.name, ""
    top = FORMATS[group.convention.element].max
    return tensor.name, _implausible(measured.largest, {"a reciprocal": top / median(values)}, anchor)


def _input(found: Recognized, group: TensorGroup) -> tuple[str, str]:
    """Return an input scale's name and the direction in which it is stored; "" if the declared one is plausible."""
    tensor, direction = group.parts.get("input_scale"), group.convention.input_direction
    values = numbers(tensor)
    if tensor is None or not values or bad(values[0]) or values[0] == 1 or not group.shape:
        return "", ""
    if values[0] < 1e-20 or values[0] > 1e20:
        return "", ""
    bound = (
        largest_input(found, group)
        if not any(".pre_quant_scale" in name for name in found.checkpoint.tensors)
        else None
    )
    limit = bound * MARGIN if bound else LARGEST_ACTIVATION
    if direction.amax(values[0]) <= limit:
        return "", ""
    others = _readings(direction, values[0])
    best = min(others, key=lambda said: abs(math.log(others[said] / 8)))
    return tensor.name, best if 1e-3 < others[best] <= limit else ""
