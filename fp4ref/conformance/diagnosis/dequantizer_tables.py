"""Values that dequantizers take codes and scale bytes for by mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from fp4ref.formats import E2M1, Codes, F, Floats
from fp4ref.spec import Spec


def _byte_zero(value: float, s: Floats, byte: Codes) -> Floats:
    return np.where(byte == 0, F(value), s)


def _signed_like(byte: Codes, value: float) -> Floats:
    return np.where(byte & 0x80, F(-value), F(value))


Decoded = tuple[str, str, Callable[[Floats, Codes], Floats]]
DECODED_E8M0: tuple[Decoded, ...] = (
    *(
        (f"byte-0-{name}", f"scale byte 0 is decoded as {text} instead of 2^-127", partial(_byte_zero, value))
        for name, text, value in (("zero", "0", 0.0), ("one", "1", 1.0), ("normal", "2^-126", 2.0**-126))
    ),
    (
        "byte-255-infinite",
        "scale byte 0xFF is decoded as infinity",
        lambda s, byte: np.where(byte == 0xFF, F(np.inf), s),
    ),
    (
        "byte-shifted",
        "scale bytes are shifted into the exponent of a float32: 0x00 is 0, 0xFF is infinity",
        lambda s, byte: (byte.astype(np.uint32) << 23).view(F),
    ),
    (
        "byte-signed",
        "scale bytes are read as signed integers (int8)",
        lambda s, byte: np.ldexp(F(1), byte.view(np.int8).astype(np.int32) - 127).astype(F),
    ),
)
DECODED_E4M3: tuple[Decoded, ...] = (
    ("scale-flush", "subnormal scales are decoded as 0", lambda s, byte: np.where(byte & 0x78, s, F(0) * s)),
    (
        "scale-subnormal-normal",
        "subnormal scales are decoded as if they had a leading 1",
        lambda s, byte: np.where(byte & 0x78, s, np.copysign((1 + (byte & 7) / F(8)) * F(2.0**-7), s)),
    ),
    ("scale-unsigned", "the sign bit of a scale byte is ignored", lambda s, byte: np.abs(s)),
    (
        "scale-nan-480",
        "a NaN scale is decoded as 480",
        lambda s, byte: np.where(byte & 0x7F == 0x7F, _signed_like(byte, 480), s),
    ),
    (
        "scale-nan-infinite",
        "a NaN scale is decoded as infinity",
        lambda s, byte: np.where(byte & 0x7F == 0x7F, _signed_like(byte, np.inf), s),
    ),
    (
        "scale-nan-positive-only",
        "0xFF is decoded as -480, 0x7F as NaN",
        lambda s, byte: np.where(byte == 0xFF, F(-480), s),
    ),
    ("scale-e5m2", "scale bytes are decoded as E5M2", lambda s, byte: byte.view(ml_dtypes.float8_e5m2).astype(F)),
    ("scale-uint8", "scale bytes are converted as integers", lambda s, byte: byte.astype(F)),
)


def _signed(positive: Any) -> Floats:
    values = np.array(list(positive), F)
    return np.concatenate([values, -values])


def tables(spec: Spec) -> Iterator[tuple[str, str, Floats]]:
    """Values of codes that are decoded as another format's."""
    if spec.element.format is E2M1:
        right = np.array((0, 1, 2, 3, 4, 6, 8, 12), F) / F(2)
        yield "twos-complement", "codes are decoded as a table's end counted backwards", np.append(right, -right[::-1])
        yield "int4", "codes are decoded as integers of two's complement", np.array([*range(8), *range(-8, 0)], F)
        yield "sign-magnitude", "codes are decoded as integers with a sign", _signed(range(8))
        yield "uint4", "codes are decoded as integers without a sign", np.arange(16, dtype=F)
        yield "doubled", "codes are decoded as twice their values", _signed(right * 2)
        yield "e3m0", "codes are decoded as E3M0", _signed([0, *(2.0**k for k in range(-2, 5))])
        yield "flush", "the subnormal code is decoded as 0", _signed([0, 0, *right[2:]])
        yield "subnormal", "the subnormal code is decoded as a normal one", _signed([0, 0.75, *right[2:]])
        return
    floats = {
        kind: np.dtype(getattr(ml_dtypes, f"float8_{kind}")) for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")
    }
    for name, kind in (floats | {"int8": np.dtype(np.int8), "uint8": np.dtype(np.uint8)}).items():
        with np.errstate(all="ignore"):
            yield name, f"codes are decoded as {kind.name}", _all(kind)


def _all(kind: np.dtype[Any]) -> Floats:
    return np.arange(256).astype(np.uint8).view(kind).astype(F)
