"""Operations that are rounded toward zero, or away from it, instead of to nearest, and quotients with a limit.

A stage is run on arrays that count its operations. For example, NVFP4 scales elements by x * (1 / (s * (1 / S_enc))):
a reciprocal, a product, a division and a product, each of which a kernel may round toward zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref.arithmetic import FLT_MAX, Constants
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot, known, of
from fp4ref.formats import F

Stage = Callable[..., Any]
KINDS = {np.multiply: "product", np.divide: "division"}
LIMITED = "limited"
WAYS = (("zero", "toward zero"), ("away", "away from zero"))
WHICH = (  # name, words, kind and place from the end; None for all
    ("last-division", "the last division", ("division", -1)),
    ("division", "the division before the last", ("division", -2)),
    ("last-product", "the last product", ("product", -1)),
    ("product", "the product before the last", ("product", -2)),
    ("all", "every operation", None),
)
STAGES = (
    (Slot.GLOBAL, "global_scale", "S_enc is made"),
    (Slot.SCALE, "block_scale", "the block scale is made"),
    (Slot.ENCODE, "scaled", "elements are scaled"),
)
Which = tuple[str, int] | None


class _Run:
    """The operations of one run of a stage. chosen: the number of the one that is rounded `way`; None for all."""

    def __init__(self, chosen: int | None, way: str) -> None:
        self.chosen, self.way = chosen, way
        self.done: list[str] = []

    def rounded(self, ufunc: Any, inputs: Any) -> Any:
        """Return the result of an operation."""
        plain = ufunc(*inputs)
        if ufunc not in KINDS or np.asarray(plain).dtype != F:
            return plain
        self.done.append(KINDS[ufunc])
        if self.way == LIMITED:
            return np.clip(plain, -FLT_MAX, FLT_MAX) if ufunc is np.divide else plain
        if self.chosen not in {None, len(self.done) - 1}:
            return plain
        exact = ufunc(*(np.asarray(value, np.float64) for value in inputs))
        toward = F(0) if self.way == "zero" else np.copysign(F(np.inf), plain)
        far = np.abs(plain) > np.abs(exact) if self.way == "zero" else np.abs(plain) < np.abs(exact)
        return np.where(far & np.isfinite(plain), np.nextafter(plain, toward), plain)


class _Counted(np.ndarray[Any, Any]):
    """An array whose operations a run counts."""

    run: _Run | None = None  # of a view that a stage makes: that of its array

    def __array_finalize__(self, other: Any) -> None:
        """Take over the run of the array that this is a view of. NumPy gives this method its name."""
        self.run = getattr(other, "run", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **how: Any) -> Any:
        """Run an operation on what is inside, and count it. NumPy gives this method its name."""
        plain = tuple(np.asarray(value) if isinstance(value, _Counted) else value for value in inputs)
        if method != "__call__" or how or self.run is None:
            return getattr(ufunc, method)(*plain, **how)
        return _counted(self.run.rounded(ufunc, plain), self.run)


def _counted(value: Any, run: _Run) -> Any:
    if not isinstance(value, np.ndarray | np.floating):
        return value
    found = np.asarray(value).view(_Counted)
    found.run = run
    return found


def _run(stage: Stage, run: _Run, arguments: tuple[Any, ...], k: Constants) -> Any:
    return np.asarray(stage(*(_counted(np.asarray(value, F), run) for value in arguments), k))


@np.errstate(all="ignore")
def _directed(stage: Stage, which: Which, way: str, *given: Any) -> Any:
    *arguments, k = given
    chosen = None
    if which is not None:
        tried = _Run(-1, way)  # a run on one element, which counts
        _run(stage, tried, (np.ones((1, 1, 1, 1), F),) * len(arguments), k)
        kind, place = which
        found = [number for number, done in enumerate(tried.done) if done == kind]
        if len(found) < -place:
            return stage(*given)
        chosen = found[place]
    return _run(stage, _Run(chosen, way), tuple(arguments), k)


def directed() -> Iterator[Mistake]:
    """Mistakes in the direction of rounding."""
    for slot, field, made in STAGES:
        for name, words, which in WHICH:
            for way, toward in WAYS:
                changes: dict[str, Any] = {field: of(partial(_of_kernel, field, which, way))}
                yield known(
                    slot,
                    f"directed-{field.replace('_', '-')}-{name}-{way}",
                    f"{words} by which {made} is rounded {toward} instead of to nearest",
                    alone=True,
                    **changes,
                )


def limited_quotients() -> Iterator[Mistake]:
    """Quotients that are at most FLT_MAX, wherever a formula divides: a rule for scales of 0 beside another formula."""
    yield known(
        Slot.ENCODE,
        "encode-limited-quotients",
        "each quotient by which elements are scaled is at most FLT_MAX",
        special=True,
        scaled=of(partial(_of_kernel, "scaled", None, LIMITED)),
    )


def _of_kernel(field: str, which: Which, way: str, kernel: Kernel) -> Stage:
    return partial(_directed, getattr(kernel, field), which, way)
