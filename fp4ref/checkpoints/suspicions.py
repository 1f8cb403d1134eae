"""Suspicions: defects that no byte proves, with the evidence and its strength, or "cannot tell"."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.anchors import floats, norm_of
from fp4ref.checkpoints.findings import WARNING, LintFinding, finding
from fp4ref.checkpoints.groups import Recognized
from fp4ref.checkpoints.measure import Measured
from fp4ref.checkpoints.permutations import exchanged

EXPLAINED = 0.12  # share of variance beyond chance that shows rows and columns
LESS = 0.5  # of it, at most, in the declared layout
SURE = 6.0  # standard deviations
Numbers = NDArray[np.float64]


def suspect_layout(measured: list[Measured]) -> Iterator[LintFinding | str]:
    """Yield scales whose rows and columns show only in the other layout, or that it cannot be told.

    A writer lays out all scales alike: where some show the other layout and none the declared one, those that show
    neither clearly belong to them if together they lean that way.

    Rules: CKP-42, CKP-43.
    """
    known = [each for each in measured if each.structure is not None]
    alike: dict[tuple[str, str], list[Measured]] = {}
    for each in known:
        alike.setdefault((each.group.convention.name, each.group.layout.name), []).append(each)
    for (_, layout), members in alike.items():
        wrong = [each for each in members if _shows(each, 1) and each.blocks >= 512]
        right = [each for each in members if _shows(each, 0)]
        rest = [each for each in members if each not in wrong and each not in right]
        if not wrong:
            continue
        other, declared = max((each.structure or (0.0, 0.0))[::-1] for each in wrong)
        text = f"rows and columns explain {declared:.0%} of the log scales in layout {layout}, {other:.0%} in the other"
        shares = np.sum([each.structure or (0.0, 0.0) for each in rest], 0) if rest else np.zeros(2)
        if rest and not right and shares[1] > shares[0]:
            text += (
                f"; {len(rest)} more show neither alone, but lean to the other together, and the same writer made all"
            )
            wrong = members
        elif rest:
            yield f"scale layout: cannot tell for {len(rest)} of {len(members)} tensors, which show neither clearly"
        names = [each.group.parts["scales"].name for each in wrong]
        yield finding("scale-layout", WARNING, names, text, evidence={"declared": declared, "other": other})
    if known and not any(max(each.structure or (0, 0)) > EXPLAINED for each in known):
        yield "scale layout: cannot tell, rows and columns explain no more of the scales than chance"


def _shows(found: Measured, layout: int) -> bool:
    """Return True if the scales of a group show a layout, the declared one (0) or the other (1), and not both.

    Rules: CKP-42.
    """
    shares = found.structure or (0.0, 0.0)
    return shares[layout] > EXPLAINED and shares[1 - layout] < LESS * shares[layout]


def suspect_nibbles(found: Recognized, measured: list[Measured]) -> Iterator[LintFinding | str]:
    """Compare column energies with the norms that feed the matrices, as stored and with nibbles exchanged.

    Rules: CKP-23, CKP-48.
    """
    by_norm: dict[str, tuple[Numbers, Numbers, Numbers, list[str]]] = {}
    for each in measured:
        tensor = norm_of(found, each.group)
        if tensor is None or each.group.convention.bits != 4 or not (each.energy > 0).all():
            continue
        weight = np.abs(floats(tensor)).astype(np.float64)
        if not (np.isfinite(each.energy).all() and (weight > 0).all()):
            continue
        log = np.log(each.energy)
        energy, other, _, names = by_norm.get(tensor.name, (np.zeros_like(log), np.zeros_like(log), log, []))
        turned = log[exchanged(each.group.convention.packing, len(log))]
        names = [*names, each.group.parts["codes"].name]
        by_norm[tensor.name] = energy + log, other + turned, np.log(weight), names
    if not by_norm:
        return
    scores = [(_score(energy, norm), _score(other, norm)) for energy, other, norm, _ in by_norm.values()]
    declared, swapped = (abs(sum(each)) / math.sqrt(len(scores)) for each in zip(*scores, strict=True))
    names = [name for *_, each in by_norm.values() for name in each]
    if swapped > SURE and declared < swapped / 2:
        text = f"column energies follow the norms by {swapped:.1f} standard deviations with nibbles exchanged,"
        text += f" by {declared:.1f} as declared"
        packed = {each.group.convention.name for each in measured if each.group.parts["codes"].name in names}
        alike = [each.group.parts["codes"].name for each in measured if each.group.convention.name in packed]
        if len(alike) > len(names):
            text += f"; no norm feeds {len(alike) - len(names)} of these, which the same writer packed"
        yield finding("nibble-order", WARNING, alike, text, evidence={"declared": declared, "exchanged": swapped})
    elif max(declared, swapped) < SURE:
        yield f"nibble order: cannot tell, column energies follow the norms by {declared:.1f} standard deviations only"


def _score(energy: Numbers, norm: Numbers) -> float:
    """Return the correlation in standard deviations, by Fisher's transform."""
    if np.ptp(energy) == 0 or np.ptp(norm) == 0 or len(norm) < 16:
        return 0.0
    correlation = float(np.clip(np.corrcoef(energy, norm)[0, 1], -0.999, 0.999))
    return math.atanh(correlation) * math.sqrt(len(norm) - 3)
