"""Move MXFP4 bytes to FP8 codes under one power of two, without changing a value."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError, ShapeError
from fp4ref.formats import CUDA_E4M3, CUDA_E5M2, E2M1, E8M0, Codec, Codes, Format, grid
from fp4ref.theorems.moving import MXFP4_BLOCK, NAN_E8M0, Inexact

CODECS = {codec.format.name: codec for codec in (CUDA_E4M3, CUDA_E5M2)}
ODD = (1, 3)  # every E2M1 magnitude is one of these times a power of two


class Fp8(NamedTuple):
    """FP8 codes [M, K], one a byte, whose values times 2^exponent are those that were asked for."""

    codes: Codes
    exponent: int


def fp8_from_mxfp4(codes: Codes, scales: Codes, to: Codec = CUDA_E4M3) -> Fp8 | Inexact:
    """Return the FP8 codes with the values of MXFP4 bytes under the smallest such power of two, if there is one.

    codes: uint8 [M, K], one a byte. scales: uint8 [M, ceil(K / 32)], linear. to: of E4M3 or E5M2. Elements of a block
    with a NaN scale become NaN codes. An Inexact names the first block that does not fit beside the largest values.

    Errors: ShapeError for other scales, DomainError for another format.

    Rules: THM-12. Certificates: theorem-moved-fp8.
    """
    if to.format.name not in CODECS:
        raise DomainError("fp8_from_mxfp4", to.format.name, f"one of {', '.join(CODECS)}", "THM-12")
    rows, columns = codes.shape
    blocks = -(-columns // MXFP4_BLOCK)
    if scales.shape != (rows, blocks):
        raise ShapeError("fp8_from_mxfp4", f"scales {list(scales.shape)}", f"{[rows, blocks]}")
    powers = np.repeat(scales.astype(np.int64) - E8M0.bias, MXFP4_BLOCK, axis=1)[:, :columns]
    nan = np.repeat(scales == NAN_E8M0, MXFP4_BLOCK, axis=1)[:, :columns]
    magnitudes = grid(E2M1)[codes & 7]
    exponents = powers + np.frexp(magnitudes)[1]
    lowest, highest = _bounds(exponents, magnitudes, nan, to.format)
    chosen = int(highest.max()) if highest.size else 0  # the smallest exponent under which nothing is too large
    wrong = (lowest < chosen) & (magnitudes > 0) & ~nan
    if wrong.any():
        places = np.add.reduceat(wrong, range(0, columns, MXFP4_BLOCK), axis=1) > 0
        row, block = (int(place[0]) for place in np.nonzero(places))
        reason = f"elements are too small for {to.format.name} under 2^{chosen}, which the largest ones need"
        return Inexact(reason, int(places.sum()), row, block)
    # Powers of blocks that have zeros only may be far away: their elements are zeros of their signs.
    shift = np.where(magnitudes > 0, powers - chosen, 0)
    values = np.ldexp(np.where(codes & 8, -magnitudes, magnitudes), shift)
    found = to.encode(np.where(nan, np.nan, values).astype(np.float32))
    return Fp8(found, chosen)


def _bounds(
    exponents: NDArray[np.int64], magnitudes: NDArray[np.float64], nan: NDArray[np.bool_], form: Format
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the largest exponent under which each element is a value, and the smallest one of those that are not 0."""
    values = grid(form)[1 : form.codes]
    lowest, highest = np.zeros(exponents.shape, np.int64), []
    for odd in ODD:
        able = np.frexp(values[np.frexp(values)[0] == np.frexp(float(odd))[0]])[1]
        its = (np.frexp(magnitudes)[0] == np.frexp(float(odd))[0]) & ~nan
        lowest = np.where(its, exponents - int(able.min()), lowest)
        highest.append(exponents[its] - int(able.max()))
    return lowest, np.concatenate(highest)
