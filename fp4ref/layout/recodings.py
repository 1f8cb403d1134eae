"""Changes of scales that Marlin makes beside moving them, which no layout expresses.

Rules: LAY-18.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError
from fp4ref.formats import CUDA_E4M3, E4M3

Bytes = NDArray[np.uint8]
RAISED = 2.0**7  # every scale is multiplied by this
LEAST = 2.0  # its byte, 80, is the first one with the highest bit, on which the kernel counts; what is less becomes 0
BIAS = 15  # of S0E5M3, float16's
BIASES_APART = 6  # of E4M3 and E2M1
HALF_APART, BFLOAT_APART = 14, 126  # the biases of float16 and bfloat16 less that of E2M1
LAST_E8M0 = 249  # the last byte that may grow by that


def to_marlin_nvfp4(scales: Bytes, *, half: bool = False) -> tuple[Bytes, float]:
    """Recode E4M3 scales as the S0E5M3 bytes that Marlin reads; return them, and the factor that is in them.

    scales: bytes of any shape, before or after `vllm.marlin_scale_nvfp4` moves them; none negative, no NaN.
    half: True for float16 activations, for which the factor is 1. Else it is the largest power of two that leaves no
    scale above 448; the global scale is to be divided by it. Scales that stay below 2^-6 become 0.

    >>> import numpy as np
    >>> from fp4ref.layout.recodings import to_marlin_nvfp4
    >>> made, factor = to_marlin_nvfp4(np.uint8([0x38, 0x01, 0x00]))  # 1, 2^-9, 0
    >>> made.tobytes().hex(), factor
    ('f0a800', 256.0)

    Errors: DomainError. Rules: LAY-18, E4M3-1.
    """
    if scales.size and int(scales.max()) >= E4M3.codes:
        got = f"scale byte {int(scales.max()):02X}"
        raise DomainError("to_marlin_nvfp4", got, f"bytes up to {E4M3.codes - 1:02X}: no sign, no NaN", "LAY-18")
    values = CUDA_E4M3.decode(scales).astype(np.float64)
    largest = values.max(initial=0.0)
    factor = 1.0 if half or not largest else 2.0 ** int(np.frexp(E4M3.max / largest)[1] - 1)
    raised = values * factor * RAISED
    fraction, exponent = np.frexp(raised)  # a fraction of 4 bits: 1/2 and three of mantissa
    codes = (exponent - 1 + BIAS) * 8 + (fraction * 16).astype(np.int64) - 8
    return np.where(raised < LEAST, 0, codes).astype(np.uint8), factor


def from_marlin_nvfp4(scales: Bytes, factor: float) -> Bytes:
    """Return the E4M3 bytes that `to_marlin_nvfp4` made into these bytes with this factor; those that it lost are 0.

    Errors: DomainError for a byte that stands for no E4M3 value. Rules: LAY-18, E4M3-1.
    """
    exponent, mantissa = np.divmod(scales.astype(np.int64), 8)
    values = np.where(scales == 0, 0.0, np.ldexp(mantissa + 8.0, exponent - BIAS - 3)) / (factor * RAISED)
    codes = CUDA_E4M3.encode(values.astype(np.float32))
    wrong = CUDA_E4M3.decode(codes) != values
    if wrong.any():
        got = f"scale byte {int(scales[wrong].flat[0]):02X} with factor {factor:g}"
        raise DomainError("from_marlin_nvfp4", got, "that of an E4M3 value", "LAY-18")
    return codes


def to_marlin_global_scale(scale: NDArray[np.float32], factor: float, *, half: bool = False) -> NDArray[np.float32]:
    """Return the global scale by which Marlin multiplies, from the one that decodes E4M3 scales.

    scale: float32 of any shape. factor, half: as `to_marlin_nvfp4` returned it and got it. The result makes up for the
    factor, for 2^7, and for the exponent of an E2M1 value, whose bits the kernel puts into bfloat16 or float16.

    >>> import numpy as np
    >>> from fp4ref.layout.recodings import to_marlin_global_scale
    >>> to_marlin_global_scale(np.float32([0.5]), 256.0, half=True).tolist()
    [0.25]

    Rules: LAY-18.
    """
    raised = 2.0 ** (HALF_APART if half else BFLOAT_APART) / RAISED
    return np.asarray(np.asarray(scale * np.float32(raised), np.float32) / np.float32(factor), np.float32)


def to_marlin_mxfp4_a8(scales: Bytes) -> Bytes:
    """Recode E8M0 scales as Marlin reads them beside FP8 activations: 2^6 times as large.

    Errors: DomainError for a byte past F9. Rules: LAY-18, E8M0-1.
    """
    if scales.size and int(scales.max()) > LAST_E8M0:
        got = f"scale byte {int(scales.max()):02X}"
        raise DomainError("to_marlin_mxfp4_a8", got, f"bytes up to {LAST_E8M0:02X}", "LAY-18")
    return scales + np.uint8(BIASES_APART)
