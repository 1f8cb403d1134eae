"""Small aimed tensors on which a backend is compared with the golden model, the same in every run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.catalogue import PROFILES
from fp4ref.formats import E2M1, E8M0, STOCHASTIC_E2M1, F, Floats, grid, ignoring_float_warnings
from fp4ref.hadamard import POINTS
from fp4ref.layout import LAYOUTS
from fp4ref.quantized import DIRECTIONS, Direction, matrix_shape
from fp4ref.spec import Granularity, Spec
from fp4ref.specs import NVFP4, NVFP4_2D, STANDARD

SEED = 20260822
SIGNS = np.array([1, -1], F)
PEERS = (
    "torchao.nvfp4_2lvl",
    "torchao.nvfp4_1lvl",
    "torchao.mxfp4_floor",
    "torchao.mxfp8_e5m2_even",
    "modelopt.nvfp4",
    "modelopt.mxfp4",
    "compressed_tensors.nvfp4",
    "deepgemm.mxfp4_ue8m0",
    "fouroversix.nvfp4_mse",
    "fouroversix.nvfp4_static_4",
    "flashinfer.ref_nvfp4_te_pertoken",
    "flashinfer.ref_4over6_mae_448_fast",
    "jax.nvfp4",
    "microxcaling.mxfp8_e4m3_even",
    "te.fast_math_1d",
    "te.mxfp8_cast_only",
    "vllm.nvfp4_kernel",
)


@dataclass(frozen=True)
class Case:
    """One call of a quantizer, and the rules that it checks."""

    kind: str
    rules: tuple[str, ...]
    x: NDArray[Any]
    spec: Spec
    direction: Direction
    scale_layout: str
    random_bits: NDArray[np.uint8] | None
    to: str

    @property
    def id(self) -> str:
        """What tells the case from others, as `ties/nvfp4/float32/row/linear`."""
        return f"{self.kind}/{self.spec.name}/{self.x.dtype.name}/{self.direction}/{self.scale_layout}"

    @property
    def matrix(self) -> tuple[int, int]:
        """The matrix of the direction."""
        rows, columns = matrix_shape(self.x.shape)
        return (rows, columns) if self.direction == "row" else (columns, rows)


def specs() -> list[Spec]:
    """The standard's specifications, stochastic ones, and some of every kind of profile."""
    stochastic = [spec.replace(name=f"{spec.name} stochastic", element=STOCHASTIC_E2M1) for spec in (NVFP4, NVFP4_2D)]
    return [*STANDARD, *stochastic, *(PROFILES[name] for name in PEERS)]


def cases() -> Iterator[Case]:
    """Every kind of input under every specification in both directions; types and layouts take turns."""
    rng = np.random.default_rng(SEED)
    turn = itertools.count()
    for spec in specs():
        for kind, rules, values in inputs(spec, rng):
            for direction in DIRECTIONS:
                number = next(turn)
                dtype, layout = list(INPUT_DTYPES)[number % 3], list(LAYOUTS)[number // 2 % len(LAYOUTS)]
                x = _suited(values, spec, direction, dtype)
                about = (*rules, *spec_rules(spec, direction), *LAYOUT_RULES[layout])
                shape = matrix_shape(x.shape)
                bits = rng.integers(0, 256, shape if direction == "row" else shape[::-1], np.uint8)
                drawn = bits if spec.stochastic else None
                yield Case(kind, about, x, spec, direction, layout, drawn, list(INPUT_DTYPES)[number % 7 % 3])


LAYOUT_RULES = {
    "linear": ("LAY-1",),
    "linear_padded": ("LAY-2",),
    "tiled_128x4": ("LAY-3", "LAY-5"),
    "tiled_8x4": ("LAY-4", "LAY-5"),
}


def spec_rules(spec: Spec, direction: Direction) -> tuple[str, ...]:
    """What a specification adds to the rules of an input."""
    mx = spec.scale.format is E8M0
    scaling = {Granularity.NONE: ("GLB-6",), Granularity.TENSOR: ("GLB-1", "GLB-2"), Granularity.ROW: ("GLB-5",)}
    return (
        *(() if spec in STANDARD or spec.stochastic else ("PRO-1", "PRO-3")),
        *(("BLK-10",) if mx else ("BLK-3", "BLK-4")),
        *scaling[spec.global_scale],
        *(("BLK-7",) if spec.block.rows > 1 else ()),
        *(("BLK-8",) if direction == "column" else ()),
        *(("HAD-2", "HAD-4") if spec.hadamard and direction == "column" else ()),
        *(("FOS-6",) if spec.four_over_six else ()),
        *(("SR-2",) if spec.stochastic else ()),
    )


def inputs(spec: Spec, rng: np.random.Generator) -> Iterator[tuple[str, tuple[str, ...], Floats]]:
    """Kind, rules and float32 values of the inputs that are aimed at a specification."""
    codec = {"e2m1": ("E2M1-3",), "e4m3": ("E4M3-2",), "e5m2": ("E5M2-2",)}[spec.element.format.name]
    scale = ("E8M0-2", "MXS-1") if spec.scale.format is E8M0 else ("E4M3-2", "BLK-3")
    ties, scale_ties = element_ties(spec), block_scale_ties(spec)
    specials = rng.standard_normal((6, 40)).astype(F)
    specials[0, ::5], specials[1, :] = np.nan, -np.nan
    specials[2, 3], specials[3, 7], specials[4, :3] = np.inf, -np.inf, (np.nan, -np.inf, -0.0)
    zeros = np.where(rng.random((5, 70)) < 0.5, F(0), F(-0.0))
    zeros[2:, 33:40] = rng.standard_normal((3, 7))
    tiny = np.ldexp(rng.standard_normal((4, 50)), rng.integers(-150, -120, (4, 50))).astype(F)
    wide = np.ldexp(rng.standard_normal((7, 66)), rng.integers(-40, 40, (7, 66))).astype(F)
    powers = np.ldexp(F(1), rng.integers(-12, 12, (6, 64))).astype(F) * rng.choice(SIGNS, (6, 64))
    yield "ties", codec, ties
    yield "near-ties", codec, beside(ties, rng)
    yield "scale-ties", scale, scale_ties
    yield "near-scale-ties", scale, beside(scale_ties, rng)
    yield "powers", ("BLK-5" if spec.scale.format is not E8M0 else "BLK-10",), powers
    yield "zeros", ("E2M1-2", "GLB-3"), zeros
    yield "specials", ("BLK-2", "E2M1-5" if spec.element.format is E2M1 else "E4M3-4"), specials
    yield "subnormal", ("NUM-1", "NUM-5"), tiny
    yield "wide", ("BLK-6",), wide
    for shape in ((1, 1), (3, 17), (130, 5), (5, 129), (33, 34)):
        yield f"ragged {shape[0]}x{shape[1]}", ("BLK-1", "PACK-2"), rng.standard_normal(shape).astype(F)
    yield "axes", ("NUM-4",), rng.standard_normal((2, 8, 20)).astype(F)
    for shape in ((0, 16), (16, 0)):
        yield f"empty {shape[0]}x{shape[1]}", ("BLK-9",), np.zeros(shape, F)


def beside(values: Floats, rng: np.random.Generator) -> Floats:
    """Each value or one of its two neighbours in float32; no zeros."""
    moved: Floats = (values.view(np.int32) + rng.integers(-1, 2, values.shape, np.int32)).view(F)
    return moved


def element_ties(spec: Spec) -> Floats:
    """Rows of ties in units of a block scale that is a power of two, in blocks that hold the largest element."""
    values = grid(spec.element.format)[:-1].astype(F)
    midpoints = (values[:-1] + values[1:]) / 2
    width = 2 * spec.block.columns
    rows = []
    for row, exponent in enumerate((0, -1, -4, 3)):
        line = np.resize(np.roll(midpoints, 11 * row), width) * SIGNS[np.arange(width) % 2]
        line[:: spec.block.columns] = values[-1]
        rows.append(np.ldexp(line, exponent))
    return np.array(rows, F)


def block_scale_ties(spec: Spec) -> Floats:
    """Blocks whose largest magnitude puts the scale on a tie, or on a power of two, or 2^-10 of the largest scale."""
    top, width = F(spec.element.format.max), spec.block.columns
    if spec.scale.format is E8M0:
        maxima = np.ldexp(F(1), [-127, -100, -1, 0, 1, 60, 100, 110]) * np.array([[1], [1.75], [top / 512]], F)
    else:
        values = grid(spec.scale.format)[:-1].astype(F)
        maxima = top * ((values[:-1] + values[1:]) / 2)[[0, 1, 7, 8, 40, 63, 80, 99, 118, 120, 124, 125]].reshape(3, 4)
    blocks: Floats = np.repeat(maxima.astype(F), width, axis=1) * np.resize(
        np.array([1, -0.5, 0.3, -0.26, 0.7], F), width * maxima.shape[1]
    )
    blocks[:, ::width] = maxima
    if spec.global_scale is not Granularity.NONE:
        blocks[:, 1] = top * F(spec.scale_max)
    return blocks


@ignoring_float_warnings
def _suited(values: Floats, spec: Spec, direction: Direction, dtype: str) -> NDArray[Any]:
    """The values in a type, and with the rows, that the specification takes."""
    if spec.hadamard and direction == "column":
        dtype = "bfloat16"
        rows = matrix_shape(values.shape)[0]
        values = np.pad(values.reshape(rows, values.shape[-1]), ((0, -rows % POINTS), (0, 0)))
    return values.astype(INPUT_DTYPES[dtype])
