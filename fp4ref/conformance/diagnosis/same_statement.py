"""Causes that say the same in other words: they make the same bytes of further inputs, wherever they hold.

For example, "scaled elements are rounded to the input's type, in float16 only" is "scaled elements are rounded to
float16, in float16 only". Only one of them is told. Where a cause is one byte for all, nothing is told beside it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from fp4ref.conformance import families
from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.hypotheses import ORDER, Hypothesis
from fp4ref.conformance.diagnosis.readings import FAILURES
from fp4ref.conformance.mistakes.exhibit import EVERY, Exhibit
from fp4ref.conformance.mistakes.kernel import Kernel, kernel_of
from fp4ref.conformance.mistakes.sides import code_side, scale_side
from fp4ref.formats import F
from fp4ref.quantized import Direction
from fp4ref.spec import Spec

PROBED = ("ragged", "axes", "positions", "element-ties", "block-scale-ties", "double-rounding", "zero-blocks", "nan")
PROBES, SMALL = 3, 1 << 12  # cases of a family, type and direction; elements of a case


def distinct(spec: Spec, items: Sequence[Item], found: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses of which no two say the same. Rules: CNF-28."""
    constants = [one for one in found if len(one.mistakes) == 1 and one.mistakes[0].constant]
    found = constants or found
    if len(found) < 2 or spec.stochastic:
        return list(found)
    wrong = [item.exhibit for item in items if not item.equal]
    kinds = list(dict.fromkeys((exhibit.dtype.name, exhibit.case.direction) for exhibit in wrong))
    probes = [probe for name, direction in kinds for probe in _probes(spec, name, direction)]
    kept: dict[Hashable, Hypothesis] = {}
    right = _made(Hypothesis(kernel_of(spec)), probes)
    for one in found:
        other_spec = one.kernel.spec != spec  # such as a profile, or another format
        made = None if other_spec or one.measured else _made(one, probes)
        unseen = made is None or made == right  # in probes, which then do not tell it from others
        key: Hashable = id(one) if unseen else (made, one.scales.name, one.data.name, one.padding, _places(one))
        other = kept.get(key)
        if other is None or _stage(one) > _stage(other):  # the nearest to what is written
            kept[key] = one
    return list(kept.values())


def _probes(spec: Spec, dtype: str, direction: Direction) -> Iterator[Exhibit]:
    seen: dict[str, int] = {}
    for case in families.cases(spec, directions=(direction,), dtypes=(dtype,), families=PROBED):
        seen[case.family] = seen.get(case.family, 0) + (0 < case.x.size <= SMALL)
        if 0 < case.x.size <= SMALL and seen[case.family] <= PROBES:
            yield Exhibit(case)


def _stage(hypothesis: Hypothesis) -> int:
    return max((ORDER.index(stage) for stage in hypothesis.stages), default=0)


def _places(hypothesis: Hypothesis) -> tuple[str, ...]:
    return tuple(mistake.place for mistake in hypothesis.mistakes)


def _everywhere(kernel: Kernel) -> Kernel | None:
    """Return the kernel whose mistakes hold everywhere."""
    changed: Kernel | None = kernel.but(placed=(), placed_values=())
    for _, apply in (*kernel.placed_values, *kernel.placed):
        changed = changed and apply(changed)
    return changed


@np.errstate(all="ignore")
def _made(hypothesis: Hypothesis, probes: Sequence[Exhibit]) -> tuple[bytes, ...] | None:
    """Return the bytes that a hypothesis makes of the probes, None if it makes none."""
    kernel, made = _everywhere(hypothesis.kernel), []
    if kernel is None:
        return None
    for probe in probes:
        try:
            side = scale_side(kernel, probe, EVERY)
            amax = np.zeros(0, F) if side.amax is None else np.asarray(side.amax, F)
            made.append(amax.tobytes() + side.scales.tobytes() + code_side(kernel, side).tobytes())
        except FAILURES:
            return None
    return tuple(made) or None
