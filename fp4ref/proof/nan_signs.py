"""Claims about the signs of NaN, on specifications whose codes keep them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, Codec, F
from fp4ref.proof import blocks, whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST
from fp4ref.proof.special_blocks import words
from fp4ref.spec import Amax
from fp4ref.specs import NVFP4

NAN_CODES, NAN_SCALES = (0x7, 0xF), (0x7F, 0xFF)  # by sign bit
SPEC = NVFP4.replace(
    name="signs",
    element=Codec(format=CUDA_E2M1.format, nan=NAN_CODES),
    scale=Codec(format=CUDA_E4M3.format, nan=NAN_SCALES),
)
DIVIDING = SPEC.replace(arithmetic=resolve("jax.nvfp4").arithmetic)  # 0 * (1 / 0) is the scale of a block of zeros
DIVISION = ("arithmetic.h:arithmetic::jax::block_scale", "arithmetic.h:arithmetic::jax::apply")
GIVEN, BLOCK = 2688.0, 16
PAIRS = BLOCK * (BLOCK - 1) // 2
SIZE = 16 * BLOCK**3 + 2 * (4 * PAIRS + 2 * BLOCK) * BLOCK


def _nan_among_zeros() -> NDArray[np.uint16]:
    """Return blocks of zeros of either sign, with a NaN of either sign at every two places."""
    found = words(BLOCK)
    nan = (found & 0x7FFF) > 0x7F80
    special = (found & 0x7FFF) >= 0x7F80
    kept = (special == nan).all(axis=1)
    among = np.where(nan, found, np.uint16(0x8000) * (np.arange(BLOCK) % 3 == 0)).astype(np.uint16)
    return np.unique(among[kept], axis=0)


@np.errstate(all="ignore")
def signs(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize blocks with every two specials at every two places, and NaN among zeros whose scale is NaN."""
    found = words(BLOCK)
    x = (found.astype(np.uint32) << 16).view(F)
    nan, own = np.isnan(x), np.where(np.signbit(x), *NAN_CODES[::-1])
    pipe = blocks.nvfp4(GIVEN)
    byte = pipe.byte(np.where(nan, F(0), np.abs(x)).max(axis=1))
    witness = _compared(SPEC, found, GIVEN, np.where(nan, own, pipe.code(x, byte[:, None])), byte, subject)
    if witness:
        return Replayed(x.size, witness)
    among = _nan_among_zeros()
    x = (among.astype(np.uint32) << 16).view(F)
    nan, own = np.isnan(x), np.where(np.signbit(x), *NAN_CODES[::-1])
    for number, kind in enumerate((Amax.IGNORE_NAN, Amax.PROPAGATE_IN_BLOCK)):
        made = number == 0  # from zeros; else from a magnitude, which has no sign
        scale = np.full(len(x), NAN_SCALES[made])
        codes = np.where(nan, own, NAN_CODES[made])
        witness = _compared(DIVIDING.replace(amax=kind), among, 0.0, codes, scale, subject)
        if witness:
            return Replayed(SIZE // 2, f"{kind}: {witness}")
        tell((number + 1) / 2)
    return Replayed(SIZE)


def _compared(spec: Any, x: Any, amax: float, codes: Any, scales: Any, subject: ClaimSubject) -> str:
    """Quantize, and return the first code or scale byte that differs, in words."""
    quantize: Any = api.quantize
    given = whole._array(np.array([amax], F), subject)
    rows = x.view(ml_dtypes.bfloat16).reshape(-1, 4 * BLOCK)
    q = quantize(whole._array(rows, subject), spec, amax=given, backend=whole.BACKENDS[subject])
    got = q.direction("row")[0].mapped(whole._host)
    mine = np.stack([got.data & 15, got.data >> 4], axis=-1).reshape(codes.shape)
    for name, its, want in (("code", mine, codes), ("scale byte", got.scales.ravel(), scales)):
        wrong = np.argwhere(its != want)
        if len(wrong):
            place = tuple(wrong[0])
            block = " ".join(f"{word:04X}" for word in x[place[0]])
            where = f" {place[1]}" if name == "code" else ""
            return f"{name}{where} of a block {block} is {its[place]:02X}, needs {want[place]:02X}"
    return ""


def claims() -> Iterator[ProofClaim]:
    """Yield the claim for each backend."""
    for subject in ON_HOST:
        yield ProofClaim(
            name=f"nan-signs/{subject}",
            rules=("NUM-2",),
            method=Method.ARGUMENT,
            subject=subject,
            statement="A NaN has the sign of the element if that is one, else of the scale; one that an operation made "
            "has its sign bit set.",
            domain="blocks with every two of infinities and NaN at every two places, and zeros with every two NaN "
            "whose scale is NaN, made by an operation or from a NaN",
            size=SIZE,
            decide=partial(signs, subject),
            covers=(
                *whole.QUANTIZED[subject],
                whole.value_of("nvfp4", whole.VALUES["nvfp4"], subject),
                *(DIVISION if subject is ClaimSubject.CPU else ()),
            ),
            reduction="a code depends on the element and the scales alone, and elements that are NaN of either sign "
            "and none meet scales that are NaN of either sign and none",
        )
