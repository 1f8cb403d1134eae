"""Call a kernel on ranges of bit patterns: inputs are built and results compared where they are.

A block holds its maximum in a lane that moves from block to block, with either sign, and patterns in the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.run.sweep_arrays import NumpyArrays, TorchArrays
from fp4ref.conformance.run.sweep_trial import Sweep, SweepPart
from fp4ref.conformance.subjects.calling import named_results, present, require_shape
from fp4ref.conformance.subjects.failures import Wrong, raised
from fp4ref.conformance.subjects.guards import UNWRITTEN, Arrays, host, numpy_dtype
from fp4ref.conformance.subjects.subject import Declaration, Job, Output
from fp4ref.layout import layout

WIDTH = 4096  # columns of x, about
EXPONENTS = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}  # the pattern of infinity


def attempt(function: Callable[..., Any], declared: Declaration, sweep: Sweep) -> dict[str, Any]:
    """Call a kernel once, and tell which codes and scales differ; nothing that it raises gets out.

    Rules: CNF-9, CNF-46.
    """
    try:
        return _SweepCall(sweep, declared).made(function)
    except Wrong as wrong:
        return {"finding": wrong.finding}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the code on trial may raise anything
        return {"finding": raised(error, function)}


class _SweepCall:
    """A call of a sweep: x by patterns, and the codes and scale bytes that it should have.

    patterns, codes: [rows, blocks, block]. scales: uint8 [rows, blocks], on the host.
    """

    def __init__(self, sweep: Sweep, declared: Declaration) -> None:
        self.sweep, self.declared = sweep, declared
        self.library = Arrays(declared.arrays, declared.device)
        self.own = NumpyArrays() if declared.arrays == "numpy" else TorchArrays(declared.device)
        self.size = numpy_dtype(sweep.dtype).itemsize
        self.sign = 1 << (8 * self.size - 1)
        unit = lcm(4 * sweep.block, sweep.multiple[1])
        self.columns = -(-WIDTH // unit) * unit
        pieces = [self._blocks(part) for part in sweep.parts]
        counts = [len(patterns) for patterns, _ in pieces]
        scales = np.repeat([sweep.steps[part.steps].byte for part in sweep.parts], counts).astype(np.uint8)
        leads = int(sweep.lead is not None)
        across = self.columns // sweep.block - leads
        self.rows = -(-len(scales) // (across * sweep.multiple[0])) * sweep.multiple[0]
        self.scales = np.pad(scales, (0, self.rows * across - len(scales)), mode="edge").reshape(self.rows, across)
        self.patterns, self.codes = (self._in_rows([piece[i] for piece in pieces], across, leads) for i in (0, 1))
        if sweep.lead is not None:
            pattern, byte, code = sweep.lead
            self.patterns[:, 0], self.codes[:, 0] = 0, 0
            self.patterns[:, 0, 0], self.codes[:, 0, 0] = self._narrow(pattern), code
            self.scales = np.pad(self.scales, ((0, 0), (1, 0)), constant_values=byte)

    def _narrow(self, pattern: int) -> int:
        """Return a pattern as an integer of the width of x."""
        return pattern - 2 * self.sign if self.own.signed and pattern >= self.sign else pattern

    def _in_rows(self, pieces: list[Any], across: int, leads: int) -> Any:
        """Return blocks in rows, the last ones repeated to fill the last row, and room for blocks before each row."""
        blocks = pieces[0] if len(pieces) == 1 else self.own.joined(pieces)
        whole = self.own.like(blocks, self.rows, across + leads, self.sweep.block)
        full, rest = divmod(len(blocks), across)
        whole[:full, leads:] = blocks[: full * across].reshape(full, across, self.sweep.block)
        if full < self.rows:
            whole[full:, leads:] = blocks[-1]
            whole[full, leads : leads + rest] = blocks[len(blocks) - rest :]
        return whole

    def _blocks(self, part: SweepPart) -> tuple[Any, Any]:
        """Return the blocks of a part, patterns and codes; its first pattern fills the last group of blocks."""
        block, steps = self.sweep.block, self.sweep.steps[part.steps]
        count = part.stop - part.start
        missing = -count % (block * (block - 1))
        patterns = self.own.patterns(part.start, count + missing, self.size)
        patterns[count:] = self._narrow(part.start)
        lengths = np.diff(np.clip(np.append(steps.starts, part.stop), part.start, part.stop))
        codes = self.own.runs(np.append(steps.codes, np.uint8(steps.of(part.start))), np.append(lengths, missing))
        maxima = [steps.maximum | self.sign * (lane & 1) for lane in range(block)]
        return (
            self._with_maxima(patterns, [self._narrow(pattern) for pattern in maxima]),
            self._with_maxima(codes, [steps.of(pattern) for pattern in maxima]),
        )

    def _with_maxima(self, values: Any, maxima: list[int]) -> Any:
        """Return blocks of values, each with one of the maxima in the lane of its number in a group.

        From one maximum of a group to the next there are a whole block and one element.
        """
        block = len(maxima)
        swept = values.reshape(-1, block - 1, block)
        whole = self.own.like(values, len(swept), block * block)
        whole[:, :-1].reshape(len(swept), block - 1, block + 1)[:, :, 1:] = swept
        for lane, maximum in enumerate(maxima):
            whole[:, lane * (block + 1)] = maximum
        return self.own.turned(whole.reshape(-1, block), self.sweep.turn)

    def made(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Call the kernel, and return how its results differ."""
        outputs = self._outputs()
        given = [self._argument(name) for name in self.declared.inputs]
        named: dict[str, Any] = {}
        if self.declared.out_buffers:
            for name, output in outputs.items():
                count = int(np.prod(output.shape)) * numpy_dtype(output.dtype).itemsize
                named[name] = self.library.view(self.library.bytes(count, UNWRITTEN[name]), output.dtype, output.shape)
        returned = function(*given, **({"out": tuple(named.values())} if named else {}))
        self.library.finish()
        named = named or named_results(returned, self.declared, Job({}, outputs))
        for name, output in outputs.items():
            if present(name, named.get(name), output, self.declared):
                require_shape(name, tuple(named[name].shape), output, self.declared)
        found = {"rows": self.rows, "columns": self.columns}
        return (
            found | self._codes(named.get("data")) | self._scales(named.get("scales")) | self._amax(named.get("amax"))
        )

    def _outputs(self) -> dict[str, Output]:
        form = layout(self.declared.scale_layout)
        found = {
            "data": Output((self.rows, self.columns * self.sweep.bits // 8), "uint8"),
            "scales": Output(form.padded_shape(*self.scales.shape), "uint8", stored=self.scales.shape),
        }
        if "amax" in self.sweep.given:
            found["amax"] = Output((self.rows if self.sweep.amaxes else 1,), "float32")
        return {name: found[name] for name in self.declared.outputs if name in found}

    def _argument(self, name: str) -> Any:
        if name in {"rows", "columns"}:
            return getattr(self, name)
        if name == "x":
            flat = self.patterns.reshape(self.rows, self.columns)
            return self.own.x(flat if self.declared.direction == "row" else flat.T, self.sweep.dtype)
        return self.own.floats([self.sweep.given[name]] * (self.rows if self.sweep.amaxes else 1))

    def _codes(self, data: Any) -> dict[str, Any]:
        """Return the number of codes that differ, of numbers and of NaN, and the first one."""
        if data is None:
            return {}
        want = self.codes.reshape(self.rows, self.columns)
        got = self.own.bytes(data).reshape(self.rows, -1)
        if not bool((got != (want if self.sweep.bits == 8 else want[:, ::2] | want[:, 1::2] << 4)).any()):
            return {}
        got = got if self.sweep.bits == 8 else self.own.pairs(got & 15, got >> 4)
        patterns, wrong = self.patterns.reshape(self.rows, self.columns), got != want
        nan = (patterns & (self.sign - 1)) > EXPONENTS[self.sweep.dtype]
        numbers = wrong & ~nan
        counts = {"codes": int(numbers.sum()), "nan": int((wrong & nan).sum())}
        chosen = host(numbers if counts["codes"] else wrong)
        row, column = divmod(int(chosen.argmax()), self.columns)
        pattern = int(patterns[row, column]) & (2 * self.sign - 1)
        place = self._beside(row, column // self.sweep.block)
        return counts | {"first": [pattern, *place, int(got[row, column]), int(want[row, column])]}

    def _beside(self, row: int, block: int) -> list[int]:
        """Return the maximum and the scale byte of a block."""
        values = host(self.patterns[row, block]).astype(np.int64) & (self.sign - 1)
        return [int(values[values <= EXPONENTS[self.sweep.dtype]].max()), int(self.scales[row, block])]

    def _scales(self, scales: Any) -> dict[str, Any]:
        """Return the number of scale bytes that differ, padding apart, and the first one."""
        if scales is None:
            return {}
        place = _places(self.declared.scale_layout, *self.scales.shape)
        got = host(self.own.bytes(scales)).reshape(-1)[place].reshape(self.scales.shape)
        wrong = np.argwhere(got != self.scales)
        if not len(wrong):
            return {}
        row, block = (int(each) for each in wrong[0])
        return {"scales": len(wrong), "first_scale": [*self._beside(row, block), int(got[row, block])]}

    def _amax(self, amax: Any) -> dict[str, Any]:
        if amax is None or "amax" not in self.sweep.given:
            return {}
        wrong = int((host(amax).reshape(-1) != np.float32(self.sweep.given["amax"])).sum())
        return {"amax": wrong} if wrong else {}


@lru_cache(maxsize=4)
def _places(name: str, rows: int, blocks: int) -> NDArray[np.intp]:
    """Return the offset of each scale byte of a matrix in a layout, row after row."""
    order, count = layout(name), rows * blocks
    numbers = np.arange(count).reshape(rows, blocks)
    planes = (order.from_linear((numbers >> shift & 0xFF).astype(np.uint8)) for shift in (0, 8, 16, 24))
    stored = sum(plane.reshape(-1).astype(np.int64) << 8 * i for i, plane in enumerate(planes))
    (places,) = np.nonzero(np.asarray(order.valid(rows, blocks)).reshape(-1))
    offsets = np.zeros(count, np.intp)
    offsets[np.asarray(stored)[places]] = places
    return offsets
