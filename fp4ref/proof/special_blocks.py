"""Claims about whole calls with infinities and NaN: an infinity is a maximum, and a NaN beside it is none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.formats import CUDA_E2M1, F
from fp4ref.proof import whole
from fp4ref.proof.blocks import Pipeline, mx, nvfp4
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST
from fp4ref.spec import Subnormals

SPECIALS = (0x7F80, 0xFF80, 0x7FC0, 0xFFC0)  # infinities and NaN, as bfloat16
SMALLEST_NORMAL = 0x00800000
ENDS = (
    0,
    1,
    2,
    0x0040_0000,
    SMALLEST_NORMAL - 2,
    SMALLEST_NORMAL - 1,
    SMALLEST_NORMAL,
    SMALLEST_NORMAL + 1,
)  # of float32
INPUTS = {
    ClaimSubject.GOLDEN: ("fp4ref.model.quantize:inputs",),
    ClaimSubject.TORCH: ("fp4ref_torch.quantize:_inputs",),
    ClaimSubject.CPU: ("bits.h:flushing",),
}
BESIDE = (0, SMALLEST_NORMAL << 2)  # the largest other element of a block: none, or 2^-123
SPECS = {"nvfp4": "fp4ref.specs:NVFP4", "mxfp4": "fp4ref.specs:MXFP4"}


def _pipeline(spec: str) -> Pipeline:
    return nvfp4(float("inf")) if spec == "nvfp4" else mx(CUDA_E2M1)


def words(block: int) -> NDArray[np.uint16]:
    """Return blocks [n, block] with every two specials at every two places; others are powers of two."""
    pairs = [(i, j, a, b) for i, j in product(range(block), repeat=2) for a, b in product(SPECIALS, repeat=2)]
    found = np.tile((0x3F80 + 0x80 * (np.arange(block) % 9)).astype(np.uint16), (len(pairs), 1))
    for row, (i, j, a, b) in enumerate(pairs):
        found[row, i], found[row, j] = a, b
    return found


@np.errstate(all="ignore")
def blocks_of(spec: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize the blocks in rows of four, and compare codes, scale bytes and the amax."""
    pipe = _pipeline(spec)
    found = words(pipe.block)
    x = (found.astype(np.uint32) << 16).view(F)
    byte = pipe.byte(np.where(np.isnan(x), F(0), np.abs(x)).max(axis=1))
    codes = pipe.code(x, byte[:, None]).reshape(-1, 4 * pipe.block)
    want = codes[:, ::2] | codes[:, 1::2] << 4
    given: Any = whole._array(found.reshape(codes.shape).view(ml_dtypes.bfloat16), subject)
    got = api.quantize(given, spec, backend=whole.BACKENDS[subject]).direction("row")[0].mapped(whole._host)
    tell(1.0)
    for name, mine, its in (("data", got.data, want), ("scales", got.scales, byte)):
        (wrong,) = np.nonzero(mine.ravel() != its.ravel())
        if len(wrong):
            at = int(wrong[0])
            block = found[at // (pipe.block // 2) if name == "data" else at]
            said = f"{mine.ravel()[at]:02X}, needs {its.ravel()[at]:02X}"
            return Replayed(found.size, f"{name} of a block {' '.join(f'{word:04X}' for word in block)}: {said}")
    if pipe.largest is not None and got.amax.tobytes() != pipe.largest.tobytes():
        return Replayed(found.size, f"the amax is {got.amax}")
    return Replayed(found.size)


def _small() -> dict[str, NDArray[Any]]:
    """Return zeros, subnormal numbers and the first normal ones of both signs: all, or for float32 their ends too."""
    narrow = np.arange(0x100, dtype=np.uint32) << 16
    wide = np.concatenate([np.array(ENDS, np.uint32), narrow])
    half = np.arange(0x800, dtype=np.uint16)
    both = [np.concatenate([each, each | np.uint32(1 << 31)]).view(F) for each in (narrow, wide)]
    halves = np.concatenate([half, half | np.uint16(1 << 15)]).view(np.float16)
    return {"bfloat16": both[0].astype(ml_dtypes.bfloat16), "float32": both[1], "float16": halves}


@np.errstate(all="ignore")
def flushed(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize blocks of one small element alone, and beside 2^-123, where subnormal inputs are flushed and kept.

    Rules: NUM-5.
    """
    pipe, count = mx(CUDA_E2M1), 0
    for dtype, small in _small().items():
        for beside, kind in product(BESIDE, Subnormals):
            blocks = np.zeros((len(small), pipe.block), small.dtype)
            blocks[:, 3] = small
            blocks[:, 0] = np.array([beside], np.uint32).view(F)[0]
            x = blocks.astype(F)
            word = x.view(np.uint32)
            tiny = (word & 0x7FFFFFFF) < SMALLEST_NORMAL
            x = np.where(tiny & (kind is Subnormals.FLUSH), word & np.uint32(1 << 31), word).astype(np.uint32).view(F)
            byte = pipe.byte(np.abs(x).max(axis=1))
            codes = pipe.code(x, byte[:, None])
            spec = resolve("mxfp4").replace(name="small", subnormals=kind)
            given: Any = whole._array(blocks, subject)
            got = api.quantize(given, spec, backend=whole.BACKENDS[subject]).direction("row")[0].mapped(whole._host)
            wrong = (got.data != codes[:, ::2] | codes[:, 1::2] << 4).any(axis=1) | (got.scales[:, 0] != byte)
            count += len(small)
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                has = f"byte {got.scales[at, 0]:02X} and code {got.data[at, 1] >> 4:X}"
                said = f"{dtype}, {kind}: {float(small[at])!r} beside {float(blocks[at, 0])!r}"
                return Replayed(count, f"{said} has {has}, needs {byte[at]:02X} and {codes[at, 3]:X}")
        tell(count / FLUSHED)
    return Replayed(count)


FLUSHED = 4 * sum(len(each) for each in _small().values())


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about blocks."""
    for subject in ON_HOST:
        yield ProofClaim(
            name=f"small-inputs/{subject}",
            rules=("NUM-5",),
            method=Method.ARGUMENT,
            subject=subject,
            statement="Subnormal float32 inputs are used as they are, or flushed to zeros; normal ones never are.",
            domain="zeros, subnormal numbers and the first normal ones of bfloat16 and float16, and their ends in "
            "float32, alone in a block and beside a larger element",
            size=FLUSHED,
            decide=partial(flushed, subject),
            covers=(
                *whole.QUANTIZED[subject],
                *INPUTS.get(subject, ()),
                whole.value_of("mxfp4", SPECS["mxfp4"], subject),
            ),
            reduction="an input is flushed by a comparison of its magnitude with one number",
        )
    for spec, reference in SPECS.items():
        size = (16 if spec == "nvfp4" else 32) ** 3 * len(SPECIALS) ** 2
        for subject in ON_HOST:
            yield ProofClaim(
                name=f"special-blocks-{spec}/{subject}",
                rules=("BLK-2", "E2M1-4", "E2M1-5", *(("GLB-1", "GLB-3") if spec == "nvfp4" else ("E8M0-3",))),
                method=Method.EXHAUSTIVE,
                subject=subject,
                statement=f"In {spec}, an infinity is the maximum of its block, and a NaN is none.",
                domain="blocks with every two infinities and NaN, of both signs, at every two places",
                size=size,
                decide=partial(blocks_of, spec, subject),
                covers=(*whole.QUANTIZED[subject], whole.value_of(spec, reference, subject)),
            )
