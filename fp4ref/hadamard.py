"""The 16-point Hadamard transform with signs, in one fixed order of additions."""

import ml_dtypes
import numpy as np

from fp4ref.formats import F, Floats

POINTS = 16
STRIDES = (1, 2, 4, 8)
NORM = F(0.25)  # 1 / sqrt(POINTS): exact in bfloat16, and its own inverse's


def sign_vector(mask: int) -> Floats:
    """Return the 16 signs as +-1; bit i of the mask negates element i. Rules: HAD-1."""
    return np.where(mask >> np.arange(POINTS) & 1, F(-1), F(1))


def transform(values: Floats, mask: int) -> Floats:
    """Multiply by signs / 4, run the butterfly, round to bfloat16 (held as float32).

    values: [..., 16 n], bfloat16 values, for which signs / 4 is exact.

    Rules: HAD-1, HAD-2, HAD-3. Certificates: hadamard-signs, hadamard-order, hadamard-zeros, hadamard-masks.
    """
    with np.errstate(all="ignore"):
        sums = butterfly(grouped(values) * (sign_vector(mask) * NORM))
        return sums.astype(ml_dtypes.bfloat16).astype(F).reshape(values.shape)


def inverse(values: Floats, mask: int) -> Floats:
    """Undo `transform` up to its roundings: a quarter, the butterfly, then the signs; stays float32.

    Rules: HAD-6. Certificates: hadamard-inverse, hadamard-zeros-inverse, hadamard-masks-inverse.
    """
    with np.errstate(all="ignore"):
        return (butterfly(grouped(values) * NORM) * sign_vector(mask)).reshape(values.shape)


def grouped(values: Floats) -> Floats:
    """Return values [..., 16 n] as [..., n, 16], also where there are none."""
    return values.reshape(*values.shape[:-1], values.shape[-1] // POINTS, POINTS)


def butterfly(groups: Floats) -> Floats:
    """Return sums and differences at strides 1, 2, 4, 8 over the last axis [..., 16], each rounded to nearest even.

    Adding +0.0 at the end turns an exact zero into +0.

    Rules: HAD-2, HAD-3.
    """
    shape = groups.shape
    for stride in STRIDES:
        pairs = groups.reshape(*shape[:-1], POINTS // (2 * stride), 2, stride)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        groups = np.stack([low + high, low - high], axis=-2)
    return groups.reshape(shape) + F(0)
