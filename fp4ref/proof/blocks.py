"""Whole tensors and the bytes that they must have: every value of a type in blocks of every scale byte.

The expected bytes come from exact fractions and from operations in double precision, each rounded once to float32.
Nothing of an implementation is used, packing and places of scales included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, CUDA_E5M2, CUDA_E8M0, Codec, F, Floats
from fp4ref.proof.golden_scales import _encoding, _factor, _once
from fp4ref.proof.steps import CodeSteps, magnitudes, steps

TYPES = {"float32": np.dtype(F), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
INFINITIES = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}  # patterns
ACROSS = 256  # blocks in a row
NEAR = 4  # patterns on either side of the place at which a code should begin
Patterns = NDArray[np.int64]


@dataclass(frozen=True)
class Pipeline:
    """A specification as its rules state it, for one global maximum.

    largest: the pattern of the global maximum, 0 without one. byte: of block maxima; code: of elements under a byte.
    """

    block: int
    element: Codec
    scale: Codec
    largest: Floats | None
    byte: Callable[[Floats], NDArray[np.uint8]]
    code: Callable[[Floats, Any], NDArray[np.uint8]]
    factor: Callable[[int], float]  # of elements under a byte
    slope: float  # of block maxima, before the codec of scales


def values_of(codec: Codec) -> NDArray[np.float64]:
    """Return the values of the finite codes without a sign, from fractions."""
    return np.array([float(value) for value in magnitudes(codec.format)[: codec.format.codes]])


@lru_cache
def _steps(codec: Codec) -> CodeSteps:
    return steps(codec)


def _encoded(codec: Codec, values: Floats) -> NDArray[np.uint8]:
    return _steps(codec).of(np.ascontiguousarray(values, F).view(np.uint32))


def nvfp4(largest: float) -> Pipeline:
    """Return NVFP4 under a global maximum. Rules: GLB-2, BLK-3, BLK-4, BLK-5."""
    top = np.array([largest], F)
    g = _encoding(top, 448)
    sixth = _once(g.astype(np.float64) * np.float64(_once(1.0 / 6.0)))
    factors = _factor(values_of(CUDA_E4M3).astype(F), g)

    def byte(maxima: Floats) -> NDArray[np.uint8]:
        return _encoded(CUDA_E4M3, _once(maxima.astype(np.float64) * sixth.astype(np.float64)))

    @np.errstate(all="ignore")
    def code(x: Floats, byte: Any) -> NDArray[np.uint8]:
        return _encoded(CUDA_E2M1, _once(x.astype(np.float64) * factors[byte].astype(np.float64)))

    return Pipeline(16, CUDA_E2M1, CUDA_E4M3, top, byte, code, lambda byte: float(factors[byte]), float(sixth[0]))


def mx(element: Codec) -> Pipeline:
    """Return an MX format whose scale is rounded up. Rules: MXS-1, BLK-10."""
    inverse, scales = np.float64(_once(1.0 / values_of(element)[-1])), values_of(CUDA_E8M0)

    def byte(maxima: Floats) -> NDArray[np.uint8]:
        return _encoded(CUDA_E8M0, _once(maxima.astype(np.float64) * inverse))

    @np.errstate(all="ignore")
    def code(x: Floats, byte: Any) -> NDArray[np.uint8]:
        return _encoded(element, _once(x.astype(np.float64) / scales[byte]))

    return Pipeline(32, element, CUDA_E8M0, None, byte, code, lambda byte: 1.0 / float(scales[byte]), float(inverse))


PIPELINES: dict[str, Callable[[], Pipeline]] = {
    "nvfp4": lambda: nvfp4(1.6015625),
    "mxfp4": lambda: mx(CUDA_E2M1),
    "mxfp8-e4m3": lambda: mx(CUDA_E4M3),
    "mxfp8-e5m2": lambda: mx(CUDA_E5M2),
}


@dataclass(frozen=True)
class KnownTensor:
    """A matrix and its bytes. codes: [rows, columns]. swept: elements that were chosen, block maxima apart."""

    x: NDArray[Any]
    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    amax: Floats | None
    swept: int

    @property
    def data(self) -> NDArray[np.uint8]:
        """The packed codes: element 0 in the low nibble, or one code a byte. Rules: PACK-1, PACK-3."""
        four = int(self.codes.max()) < 16
        return np.asarray(self.codes[:, ::2] | self.codes[:, 1::2] << 4, np.uint8) if four else self.codes


@lru_cache(maxsize=1)
def tensor(spec: str, dtype: str) -> KnownTensor:
    """Return a tensor with every value of a 16-bit type, or the deciding float32, in blocks of every scale byte.

    A block maximum is every magnitude that there is, or those around the place at which a scale byte begins.
    """
    pipe = PIPELINES[spec]()
    of, infinity = TYPES[dtype], INFINITIES[dtype]
    top = infinity - 1 if pipe.largest is None else int(_patterns(pipe.largest.astype(of))[0])
    maxima = np.arange(top + 1) if of.itemsize == 2 else _around_bytes(pipe, top)
    found = pipe.byte(_floats(maxima, of))
    blocks, codes, scales = [_alone(maxima, pipe.block)], [], [found]
    codes.append(_alone(pipe.code(_floats(maxima, of), found), pipe.block))
    last, swept = dict(zip(found.tolist(), maxima.tolist(), strict=True)), len(maxima)
    for byte, maximum in sorted(last.items()):
        places = _every(maximum, of, infinity) if of.itemsize == 2 else _around_codes(pipe, byte, maximum)
        swept += len(places)
        lanes = np.pad(places, (0, -len(places) % (pipe.block - 1)), mode="edge").reshape(-1, pipe.block - 1)
        whole = np.roll(np.insert(lanes, 0, maximum, axis=1), byte, axis=1)
        blocks.append(whole)
        codes.append(pipe.code(_floats(whole.ravel(), of), byte).reshape(whole.shape))
        scales.append(np.full(len(whole), byte, np.uint8))
    return _laid_out(pipe, of, np.concatenate(blocks), np.concatenate(codes), np.concatenate(scales), top, swept)


def _laid_out(
    pipe: Pipeline,
    of: np.dtype[Any],
    blocks: Patterns,
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    top: int,
    swept: int,
) -> KnownTensor:
    """Return blocks as rows of 256, the last block repeated; the global maximum is among them."""
    more = -len(blocks) % (ACROSS * 4)
    blocks, codes, scales = (np.concatenate([part, np.repeat(part[-1:], more, 0)]) for part in (blocks, codes, scales))
    shape = len(blocks) // ACROSS, ACROSS * pipe.block
    if pipe.largest is not None and not (blocks == top).any():
        raise ValueError("no block with the global maximum")
    x = blocks.astype(f"u{of.itemsize}").view(of).reshape(shape)
    return KnownTensor(x, codes.reshape(shape), scales.reshape(-1, ACROSS), pipe.largest, swept)


def _alone(first: Any, block: int) -> Any:
    """Return blocks whose only element other than 0 is the first one."""
    whole = np.zeros((len(first), block), first.dtype)
    whole[:, 0] = first
    return whole


def _every(maximum: int, of: np.dtype[Any], infinity: int) -> Patterns:
    """Return all numbers up to a magnitude, of either sign, and all NaN."""
    sign = 1 << (8 * of.itemsize - 1)
    parts = [np.arange(maximum + 1), np.arange(infinity + 1, sign)]
    return np.concatenate([*parts, *(part + sign for part in parts)])


def _around_codes(pipe: Pipeline, byte: int, maximum: int) -> Patterns:
    """Return float32 patterns on both sides of every place at which a code begins, of either sign."""
    return _sides(_edges(pipe.element) / pipe.factor(byte), maximum, lambda x: pipe.code(x, byte), signed=True)


def _around_bytes(pipe: Pipeline, top: int) -> Patterns:
    """Return block maxima on both sides of every place at which a scale byte begins, and the largest one."""
    return np.append(_sides(_edges(pipe.scale) / pipe.slope, top, pipe.byte, signed=False), top)


def _edges(codec: Codec) -> NDArray[np.float64]:
    """Return the smallest magnitudes that have each code but the first."""
    found = _steps(codec)
    new = np.append(False, found.codes[1:] != found.codes[:-1]) & (found.starts < INFINITIES["float32"])
    return found.starts[new].astype(np.uint32).view(F).astype(np.float64)


def _sides(
    edges: NDArray[np.float64], top: int, result: Callable[[Floats], NDArray[np.uint8]], *, signed: bool
) -> Patterns:
    """Return the patterns near edges up to a pattern; each edge inside must separate two results."""
    with np.errstate(all="ignore"):
        places = edges.astype(F)
    centre = _patterns(places[np.isfinite(places)])
    windows = np.clip(centre[:, None] + np.arange(-NEAR, NEAR + 1), 0, top)
    for window in windows[(centre > NEAR) & (centre < top - NEAR)]:
        if len(set(result(_floats(window, TYPES["float32"])).tolist())) < 2:
            raise ValueError(f"no edge near {window[NEAR]:08X}")
    found = np.unique(windows)
    return np.concatenate([found, found | 1 << 31]) if signed else found


def _floats(patterns: Patterns, of: np.dtype[Any]) -> Floats:
    return patterns.astype(f"u{of.itemsize}").view(of).astype(F)


def _patterns(values: NDArray[Any]) -> Patterns:
    return values.view(f"u{values.itemsize}").astype(np.int64)
