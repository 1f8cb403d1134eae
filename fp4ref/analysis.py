"""Measure quantization on given data: error, saturation, underflow, and the scales that were used."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import api, arrays, packing
from fp4ref.catalogue import resolve
from fp4ref.formats import F, Format, grid, ignoring_float_warnings
from fp4ref.quantized import Direction, DirectionData, Quantized, matrix_shape
from fp4ref.spec import Granularity, Spec

CHUNK = 1 << 20  # elements that are dequantized and compared at a time


@dataclass
class ErrorStatistics:
    """Sums over the elements of one tensor, or of several of one specification that were added.

    The error of an element is y - x: x as given, y as dequantized to float32, both exact in float64. Where x is NaN
    or infinite, or y is, the element counts in `elements` and in `nonfinite`, and nowhere else.

    scale_format: of the scale bytes. elements: all. nonfinite: those without an error. nonzero: those whose relative
    error |y - x| / |x| exists. saturated: the code is the largest and |x| > |y|. underflowed: x is not zero and y is.
    signal, noise: sums of x * x and of (y - x) * (y - x). relative, relative_max: sum and maximum of relative errors.
    error_max: the maximum of |y - x|. scales: int64 [256], blocks by scale byte; a 2D block counts once for each row.
    """

    scale_format: Format
    elements: int = 0
    nonfinite: int = 0
    nonzero: int = 0
    saturated: int = 0
    underflowed: int = 0
    signal: float = 0.0
    noise: float = 0.0
    relative: float = 0.0
    relative_max: float = 0.0
    error_max: float = 0.0
    scales: NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, np.int64))

    @property
    def sqnr(self) -> float:
        """Signal to quantization noise in decibel, 10 log10(signal / noise); inf without noise, NaN without elements.

        A tensor of zeros that stays zero has no noise.
        """
        if self.elements == self.nonfinite:
            return math.nan
        if not self.noise:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    @property
    def relative_mean(self) -> float:
        """Mean of |y - x| / |x| over the elements that are not zero; 0 without any."""
        return self.relative / self.nonzero if self.nonzero else 0.0

    def share(self, count: int) -> float:
        """Return a count as a part of all elements; 0 without any."""
        return count / self.elements if self.elements else 0.0

    def __add__(self, other: ErrorStatistics) -> ErrorStatistics:
        """Return the statistics of both sets of elements together."""
        largest = {name: max(getattr(self, name), getattr(other, name)) for name in ("relative_max", "error_max")}
        names = [f.name for f in dataclasses.fields(self) if f.name != "scale_format"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return ErrorStatistics(self.scale_format, **(sums | largest))

    @property
    def zero_scales(self) -> int:
        """Blocks whose scale is zero; a format of powers of two has no zero."""
        return int(self.scales[0]) if not self.scale_format.powers_of_two else 0

    @property
    def powers(self) -> dict[int, int]:
        """Blocks by the exponent of their scale, floor(log2(scale)), ascending; zero and NaN are in none."""
        first = 1 if not self.scale_format.powers_of_two else 0
        values = grid(self.scale_format)[first : self.scale_format.codes]
        exponents = np.frexp(values)[1] - 1
        counts = self.scales[first : self.scale_format.codes]
        return {int(e): int(counts[exponents == e].sum()) for e in np.unique(exponents[counts > 0])}

    def to_record(self) -> dict[str, Any]:
        """Return numbers for JSON; infinities and NaN as text, scales by byte in hex."""
        derived = {"sqnr_db": self.sqnr, "relative_mean": self.relative_mean}
        sums = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in {"scales", "scale_format"}
        }
        numbers = {name: n if math.isfinite(n) else str(n) for name, n in (sums | derived).items()}
        used = {f"{byte:02x}": int(count) for byte, count in enumerate(self.scales) if count}
        return numbers | {"scale_format": self.scale_format.name, "scales": used}


def natural_direction(spec: Spec | str) -> Direction:
    """Return the direction to show: columns for a Hadamard transform, which rows do not have. Rules: HAD-5."""
    return "column" if resolve(spec).hadamard is not None else "row"


def error_statistics(
    x: Any, spec: Spec | str, direction: Direction | None = None, backend: str | None = None
) -> ErrorStatistics:
    """Quantize a tensor, dequantize it, and sum up what became of its elements.

    x: [..., K], float32, bfloat16 or float16, on the CPU. With a Hadamard transform x is rounded to bfloat16 first,
    and the transform is undone before the comparison with x as it was given. direction: None is the natural one.
    Beyond x and its bytes, memory is bounded: the comparison runs over parts.

    Errors: those of `quantize`; DomainError for a stochastic specification, whose error depends on its bits.

    >>> import numpy as np, fp4ref
    >>> fp4ref.error_statistics(np.float32([[6, 5, 0.1, -3] * 4]), fp4ref.NVFP4).underflowed
    4

    Rules: DEQ-1, HAD-5, HAD-6.
    """
    spec = resolve(spec)
    direction = natural_direction(spec) if direction is None else direction
    values = arrays.to_numpy("error_statistics", x)
    narrowed = values.astype(ml_dtypes.bfloat16) if spec.hadamard is not None else values
    q = api.quantize(narrowed, spec, direction, backend=backend)
    data, (rows, columns) = q.direction(direction)
    matrix = values.reshape(matrix_shape(values.shape))
    given = matrix if direction == "row" else matrix.T
    result = ErrorStatistics(spec.scale.format, scales=np.bincount(data.scales.ravel(), minlength=256).astype(np.int64))
    step = max(1, CHUNK // max(columns, 1))
    for start in range(0, rows, step):
        rows_here = slice(start, min(start + step, rows))
        part = _part(q, direction, rows_here)
        undo = spec.hadamard is not None and direction == "column"
        y = api.dequantize(part, "float32", direction, inverse_hadamard=undo, backend=backend)
        largest = _largest_codes(part.direction(direction)[0].data, spec, y.shape)
        result += _compared(spec, given[rows_here].astype(np.float64), y.astype(np.float64), largest)
    return result


def _part(q: Quantized, direction: Direction, rows: slice) -> Quantized:
    """Return some rows of one direction as a result; 2D blocks repeat their scale for each row. Rules: LAY-1."""
    data, (_, columns) = q.direction(direction)
    own = q.spec.global_scale is Granularity.ROW
    bytes_ = DirectionData(data.data[rows], data.scales[rows], data.amax[rows] if own else data.amax)
    count = rows.stop - rows.start
    shape = (count, columns) if direction == "row" else (columns, count)
    row, column = (bytes_, None) if direction == "row" else (None, bytes_)
    return dataclasses.replace(q, shape=shape, row=row, column=column)


def _largest_codes(data: NDArray[np.uint8], spec: Spec, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return where the code is the largest magnitude."""
    element = spec.element.format
    codes = packing.unpack(data, shape[1], element)
    return np.asarray(np.abs(spec.element.decode(codes)) == F(element.max))


@ignoring_float_warnings
def _compared(
    spec: Spec, x: NDArray[np.float64], y: NDArray[np.float64], largest: NDArray[np.bool_]
) -> ErrorStatistics:
    """Return statistics of some elements, without scales."""
    finite = np.isfinite(x) & np.isfinite(y)
    nonzero = finite & (x != 0)
    error = np.abs(np.where(finite, y - x, 0))
    relative = np.where(nonzero, error / np.abs(x), 0)
    magnitude = np.where(finite, x, 0).ravel()
    return ErrorStatistics(
        spec.scale.format,
        elements=x.size,
        nonfinite=int(x.size - np.count_nonzero(finite)),
        nonzero=int(np.count_nonzero(nonzero)),
        saturated=int(np.count_nonzero(finite & largest & (np.abs(x) > np.abs(y)))),
        underflowed=int(np.count_nonzero(nonzero & (y == 0))),
        signal=float(magnitude @ magnitude),
        noise=float(error.ravel() @ error.ravel()),
        relative=float(relative.sum()),
        relative_max=float(relative.max(initial=0)),
        error_max=float(error.max(initial=0)),
    )
