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
from fp4ref.formats import CUDA_E2M1, F
from fp4ref.proof import whole
from fp4ref.proof.blocks import Pipeline, mx, nvfp4
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST

SPECIALS = (0x7F80, 0xFF80, 0x7FC0, 0xFFC0)  # infinities and NaN, as bfloat16
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


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about blocks."""
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
                needs="torch" if subject is ClaimSubject.TORCH else "",
            )
