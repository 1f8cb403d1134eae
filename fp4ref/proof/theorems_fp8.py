"""Claims about theorems on MXFP4 bytes that become FP8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fp4ref import api
from fp4ref.formats import CUDA_E4M3, CUDA_E5M2
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.code_values import E2M1 as MAGNITUDES
from fp4ref.proof.theorems_moved import EVERY, MX_BLOCK, _same, _values
from fp4ref.theorems.to_fp8 import Fp8, fp8_from_mxfp4

MX_BYTES = 255
FP8 = {"e4m3": (CUDA_E4M3, 14), "e5m2": (CUDA_E5M2, 28)}
TO = ("mxfp8-e4m3", "mxfp8-e5m2")


def as_fp8(tell: Tell) -> Replayed:
    """Move blocks of all codes with scales as far apart as the theorem allows, and one binade farther.

    Rules: THM-12.
    """
    count = 0
    for name, (codec, span) in FP8.items():
        for top in range(MX_BYTES):
            bytes_ = np.arange(max(top - span, 0), top + 1, dtype=np.uint8)[None]
            codes = np.tile(EVERY, (1, bytes_.shape[1]))
            moved = fp8_from_mxfp4(codes, bytes_, codec)
            count += 2
            if not isinstance(moved, Fp8):
                return Replayed(count, f"{name}: scale bytes {bytes_[0, 0]:02X} to {top:02X}: {moved}")
            signed = np.array([-float(MAGNITUDES[code & 7]) if code & 8 else float(MAGNITUDES[code]) for code in EVERY])
            want = np.tile(signed, bytes_.shape[1]) * np.repeat(2.0 ** (bytes_[0].astype(float) - 127), MX_BLOCK)
            got = codec.decode(moved.codes)[0].astype(np.float64) * 2.0**moved.exponent
            if not _same(got, want):
                return Replayed(count, f"{name}: scale bytes {bytes_[0, 0]:02X} to {top:02X} get other values")
            if top > span and isinstance(
                fp8_from_mxfp4(codes[:, : 2 * MX_BLOCK], np.array([[top, top - span - 1]], np.uint8), codec), Fp8
            ):
                return Replayed(count, f"{name}: scale bytes {top - span - 1:02X} and {top:02X} are moved")
            tell(count / (2 * len(FP8) * MX_BYTES))
    return Replayed(count)


def through_fp8(tell: Tell) -> Replayed:
    """Quantize the values of blocks of every largest code under every scale byte to MXFP8.

    Rules: THM-13.
    """
    tops = np.repeat(np.arange(8, dtype=np.uint8), MX_BYTES)
    scales = np.tile(np.arange(MX_BYTES, dtype=np.uint8), 8)
    codes = np.minimum(np.tile(np.arange(8, dtype=np.uint8), 4), tops[:, None]) | (EVERY & 8)
    values = _values("mxfp4", codes, scales[:, None])
    top = np.array([float(value) for value in MAGNITUDES])[tops]
    finite = ~((scales == 0xFD) & (top >= 4) | (scales == 0xFE) & (top >= 2))
    if (finite != np.isfinite(values).all(axis=1)).any():
        return Replayed(len(values), "other blocks have infinite values than the theorem says")
    for number, name in enumerate(TO):
        q: Any = api.quantize(values[finite], name, backend="numpy")
        after = api.dequantize(q, backend="numpy")
        wrong = np.flatnonzero((after.view(np.uint32) != values[finite].view(np.uint32)).any(axis=1))
        if len(wrong):
            byte, code = int(scales[finite][wrong[0]]), int(tops[finite][wrong[0]])
            return Replayed(len(values), f"{name}: the values of byte {byte:02X} with codes up to {code} change")
        tell((number + 1) / len(TO))
    return Replayed(len(TO) * len(values))


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about FP8."""
    decoded = (*whole.DECODED[ClaimSubject.GOLDEN], "fp4ref.specs:MXFP4")
    shared: dict[str, Any] = {"method": Method.ARGUMENT, "subject": ClaimSubject.GOLDEN}
    yield ProofClaim(
        name="theorem-moved-fp8/golden",
        rules=("THM-12",),
        statement="MXFP4 is moved to E4M3 under one power of two if its scales are at most 14 binades apart, to E5M2 "
        "if at most 28; with all codes, none that is wider.",
        domain="all largest scales with all that are as far below, and one more",
        size=MX_BYTES * sum(span + 2 for _, span in FP8.values()),
        decide=as_fp8,
        covers=("fp4ref.theorems.to_fp8:fp8_from_mxfp4",),
        reduction="elements share the power of two alone, so all scales between two are tried at once",
        **shared,
    )
    yield ProofClaim(
        name="theorem-through-fp8/golden",
        rules=("THM-13",),
        statement="MXFP8 keeps the values of an MXFP4 block if they are finite; these blocks are those of the theorem.",
        domain="all scale bytes with all largest codes, and all codes up to them, in two specifications",
        size=len(TO) * MX_BYTES * 8,
        decide=through_fp8,
        covers=(
            *whole.QUANTIZED[ClaimSubject.GOLDEN],
            *decoded,
            "fp4ref.specs:MXFP8_E4M3",
            "fp4ref.specs:MXFP8_E5M2",
        ),
        reduction="a code depends on its element and on the block's scale, and the scale on the largest element",
        **shared,
    )
