"""Casts of other implementations: numbers to codes of one format, without blocks and scales.

Rules: PRO-1, PRO-2, PRO-9.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fp4ref.formats import E2M1, E4M3, E5M2, E8M0, Codec, Codes, F, Floats, Format
from fp4ref.names import VERSION, Names
from fp4ref.promise import Checked, Promise

FIELD_OF_INFINITY = 0xFF
MANTISSA_BITS = 23
MANTISSA = (1 << MANTISSA_BITS) - 1
HALF = 1 << (MANTISSA_BITS - 1)


@dataclass(frozen=True, kw_only=True)
class Cast:
    """A conversion to one format by another implementation.

    encode: takes float32 of any shape, every value allowed, and returns codes of the same shape, one per byte. An
    input of a narrower type is widened first, which is exact. promise: the releases that it models, and the inputs for
    which it has their codes.

    Rules: PRO-9, PRO-12.
    """

    name: str
    format: Format
    encode: Callable[[Floats], Codes]
    promise: Promise


CASTS: Names[Cast] = Names("cast", "see `fp4ref profiles casts`")


def nearest_power(values: Floats) -> Codes:
    """Return E8M0 codes of magnitudes: nearest, ties to the larger; past 2^-127, every subnormal number is 2^-126.

    NaN, infinity and overflow are FF. Rules: PRO-11, PRO-13.
    """
    bits = np.abs(np.asarray(values, F)).view(np.uint32)
    field, mantissa = (bits >> MANTISSA_BITS).astype(np.int64), bits & MANTISSA
    up = np.where(field == 0, mantissa > HALF, mantissa >= HALF)
    return np.minimum(field + up, FIELD_OF_INFINITY).astype(np.uint8)


def nearest_power_of_positive(values: Floats) -> Codes:
    """Return those of `nearest_power` for positive numbers, and FF, which is NaN, for others. Rules: PRO-13."""
    return np.where(np.asarray(values) > 0, nearest_power(values), np.uint8(FIELD_OF_INFINITY))


def _register(name: str, version: str, form: Format, encode: Callable[[Floats], Codes]) -> None:
    promise = Promise(versions=(version,), checked=Checked.RECORDED, how="on a CPU (x86-64)")
    CASTS.register(
        Cast(name=name, format=form, encode=encode, promise=promise), promise.source, [f"{name}{VERSION}{version}"]
    )


_TORCH, _ML_DTYPES, _ONNX, _ONNXRUNTIME = "2.13.0", "0.6.0", "1.23.2", "1.31.1"
for _name, _version, _codec in (
    ("torch.e4m3", _TORCH, Codec(format=E4M3, nan=(0x7F, 0xFF))),
    ("torch.e5m2", _TORCH, Codec(format=E5M2, nan=(0x7F, 0xFF), overflow=0x7C)),
    ("ml_dtypes.e2m1", _ML_DTYPES, Codec(format=E2M1, nan=(8, 0))),
    ("ml_dtypes.e4m3", _ML_DTYPES, Codec(format=E4M3, nan=(0x7F, 0xFF), overflow=0x7F)),
    ("ml_dtypes.e5m2", _ML_DTYPES, Codec(format=E5M2, nan=(0x7E, 0xFE), overflow=0x7C)),
    ("onnx.e2m1", _ONNX, Codec(format=E2M1, nan=(8, 0))),
    ("onnx.e4m3", _ONNX, Codec(format=E4M3, nan=(0x7F, 0xFF))),
    ("onnx.e5m2", _ONNX, Codec(format=E5M2, nan=(0x7E, 0xFE))),
    ("onnxruntime.e4m3", _ONNXRUNTIME, Codec(format=E4M3, nan=(0x7F, 0xFF))),
    ("onnxruntime.e5m2", _ONNXRUNTIME, Codec(format=E5M2, nan=(0x7F, 0xFF))),
):
    _register(_name, _version, _codec.format, _codec.encode)
_register("torch.e8m0", _TORCH, E8M0, nearest_power)
_register("ml_dtypes.e8m0", _ML_DTYPES, E8M0, nearest_power_of_positive)
