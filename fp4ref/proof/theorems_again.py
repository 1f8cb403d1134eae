"""Claims about theorems on a second quantization: which bytes return, and where an amax stays."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np

from fp4ref import api
from fp4ref.arithmetic import block_scale_te, dequantized_te, encoding_te, scaled_te
from fp4ref.catalogue import resolve
from fp4ref.formats import CUDA_E2M1, CUDA_E2M3, CUDA_E3M2, CUDA_E4M3, CUDA_E5M2, OCP_INT8, Codes, F, Floats
from fp4ref.packing import pack
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.code_values import patterns_of
from fp4ref.proof.golden_scales import _constants
from fp4ref.quantized import DirectionData, Quantized

MX_SPECS = ("mxfp4", "mxfp6-e2m3", "mxfp6-e3m2", "mxfp8-e4m3", "mxfp8-e5m2", "mxint8")
MX_VALUES = tuple(f"fp4ref.specs:{name.upper().replace('-', '_')}" for name in MX_SPECS)
BLOCK, SCALES = 32, 255  # of MX: elements of a block, and bytes that are numbers
ORDERED = {
    "e2m1": CUDA_E2M1,
    "e2m3": CUDA_E2M3,
    "e3m2": CUDA_E3M2,
    "e4m3": CUDA_E4M3,
    "e5m2": CUDA_E5M2,
    "int8": OCP_INT8,
}
SIGNIFICANDS = 1 << 23
TRIED = 4096  # significands of an amax whose blocks are computed
BYTES = np.arange(1, 0x7F, dtype=np.uint8)
UNIT = Fraction(1, 1 << 24)  # of one rounding, at most
ROUNDINGS = 9  # from a code and back to it, that of fp32(1 / 2688) included
LARGEST_SCALE, LARGEST_CODE = np.array([448], F), np.array([6], F)


def _values(name: str) -> Floats:
    """Return the finite values of the codes without a sign, those of the rule."""
    positive = patterns_of(name)[: 1 << (7 if name == "int8" else {4: 3, 6: 5, 8: 7}[CODE_BITS[name]])].view(F)
    return positive[np.isfinite(positive)]


CODE_BITS = {"e2m1": 4, "e2m3": 6, "e3m2": 6, "e4m3": 8, "e5m2": 8, "int8": 8}


def _blocks(name: str) -> tuple[Codes, Codes]:
    """Return blocks [n, 32] for every largest code, with all codes up to it of both signs, and these codes [n]."""
    codec = ORDERED[name]
    found, tops = [], []
    for top in range(len(_values(name))):
        below = np.arange(top + 1, dtype=np.uint8)
        minus = -below[1:] if codec.format.complement else below | codec.format.sign_bit
        every = np.concatenate([below, minus]).astype(np.uint8)
        rows = -(-len(every) // (BLOCK - 1))
        block = np.full((rows, BLOCK), top, np.uint8)
        block[:, 1:] = np.resize(every, (rows, BLOCK - 1))
        found.append(block)
        tops += [top] * rows
    return np.concatenate(found), np.array(tops)


def returned(tell: Tell) -> Replayed:
    """Quantize the values of blocks of every largest code under every scale byte.

    Rules: THM-1.
    """
    count = 0
    for done, name in enumerate(MX_SPECS):
        spec = resolve(name)
        element = spec.element.format.name
        blocks, tops = _blocks(element)
        for bytes_ in np.array_split(np.arange(SCALES, dtype=np.uint8), 16):
            codes = np.tile(blocks, (len(bytes_), 1))
            scales = np.repeat(bytes_, len(blocks))
            top = _values(element)[np.tile(tops, len(bytes_))]
            data = DirectionData(pack(codes, spec.element.format), scales[:, None], None)
            values = api.dequantize(Quantized(spec, codes.shape, "float32", "linear", data), backend="numpy")
            finite = np.isfinite(values).all(axis=1)
            again: Any = api.quantize(values[finite], name, backend="numpy").row
            after = api.dequantize(api.quantize(values[finite], name, backend="numpy"), backend="numpy")
            count += int(finite.sum())
            byte, mine = scales[finite], again.scales[:, 0]
            same = (byte == 0) | (top[finite] > _values(element)[-1] / 2)
            kept = (again.data == np.asarray(data.data)[finite]).all(axis=1) & (mine == byte)
            wrong = (same != kept) | ((mine >= byte) & ~same)
            wrong |= (after.view(np.uint32) != values[finite].view(np.uint32)).any(axis=1)
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                return Replayed(count, f"{name}: a block of byte {byte[at]:02X} and top {top[finite][at]:g}")
        tell((done + 1) / len(MX_SPECS))
    return Replayed(count)


def trips(tell: Tell) -> Replayed:
    """Make the amax of the values of an amax again, for all significands; then blocks by one that is kept.

    Rules: THM-2.
    """
    k = _constants(448)
    amax = (np.arange(SIGNIFICANDS, dtype=np.uint32) | np.uint32(127 << 23)).view(F)
    g = encoding_te(amax, k)
    byte = CUDA_E4M3.encode(block_scale_te(amax, g, k))
    code = CUDA_E2M1.encode(scaled_te(amax, LARGEST_SCALE, g, k))
    wrong = np.flatnonzero((byte != BYTES[-1]) | (code != 7))
    if len(wrong):
        at = int(wrong[0])
        return Replayed(at, f"the block of the amax {amax[at]!s} has byte {byte[at]:02X} and code {code[at]}")
    tell(0.3)
    moved = amax
    for _ in range(3):
        before, moved = moved, dequantized_te(LARGEST_CODE, LARGEST_SCALE, moved, k)
    wrong = np.flatnonzero(dequantized_te(LARGEST_CODE, LARGEST_SCALE, moved, k) != moved)
    if len(wrong):
        return Replayed(SIGNIFICANDS, f"the amax {amax[wrong[0]]!s} still moves in the fourth trip")
    if not (before != moved).any():
        return Replayed(SIGNIFICANDS, "no amax moves in the third trip")
    tell(0.5)
    witness = _rounded() or _kept(amax[:: SIGNIFICANDS // TRIED])
    return Replayed(SIGNIFICANDS + TRIED * len(BYTES) * 8, witness)


def _rounded() -> str | None:
    """Bound all roundings between bytes and the same bytes, in fractions."""
    high, low = ((1 + UNIT) / (1 - UNIT)) ** ROUNDINGS, ((1 - UNIT) / (1 + UNIT)) ** ROUNDINGS
    scale = [Fraction(float(value)) for value in patterns_of("e4m3")[: len(BYTES) + 1].view(F)]
    value = [Fraction(float(one)) for one in _values("e2m1")]
    for of in (scale, value):
        for index in range(1, len(of)):
            under = (of[index - 1] + of[index]) / 2
            over = (of[index] + of[index + 1]) / 2 if index + 1 < len(of) else 2 * of[index]
            if not under < of[index] * low <= of[index] * high < over:
                return f"{of[index]} rounds to another number"
    for byte in range(4, len(scale)):
        if 6 * (scale[byte - 1] + scale[byte]) / 2 / scale[byte] * low <= 5:
            return f"a block of byte {byte:02X} has a top code below 7"
    return None


def _kept(amaxes: Floats) -> str | None:
    """Compute blocks of all bytes with top code 7 again, by the amax that they had."""
    k, amax = _constants(448), amaxes[:, None]
    g, s = encoding_te(amax, k), CUDA_E4M3.decode(BYTES)
    byte = CUDA_E4M3.encode(block_scale_te(dequantized_te(LARGEST_CODE, s, amax, k), g, k))
    for code, value in enumerate(CUDA_E2M1.decode(np.arange(8, dtype=np.uint8))):
        again = CUDA_E2M1.encode(scaled_te(dequantized_te(value, s, amax, k), s, g, k))
        wrong = np.argwhere((byte != BYTES) | (again != code))
        if len(wrong):
            row, column = map(int, wrong[0])
            return f"byte {BYTES[column]:02X}, code {code} by the amax {amaxes[row]!s} does not return"
    return None


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about a second quantization."""
    golden: dict[str, Any] = {"subject": ClaimSubject.GOLDEN}
    te = tuple(f"fp4ref.arithmetic:{name}" for name in ("encoding_te", "block_scale_te", "scaled_te", "dequantized_te"))
    codecs = tuple(f"fp4ref.formats.codec:{name}" for name in ("Codec.encode", "_representatives", "Codec.decode"))
    yield ProofClaim(
        name="theorem-mx-returns/golden",
        rules=("THM-1",),
        method=Method.ARGUMENT,
        statement="A block of MX with finite values returns if its byte is 00 or its top is above half of the largest "
        "value; otherwise its byte gets smaller. Its values return.",
        domain=f"all blocks of {len(MX_SPECS)} specifications: their scale bytes, and the codes up to each largest one",
        size=SCALES * sum(comb(len(_values(resolve(name).element.format.name)) + 1, 2) for name in MX_SPECS),
        decide=returned,
        covers=(*whole.QUANTIZED[ClaimSubject.GOLDEN], *whole.DECODED[ClaimSubject.GOLDEN], *MX_VALUES),
        reduction="a code depends on its element and the block's scale, and the scale on the largest element; so each "
        "code is tried under each scale that a largest code makes",
        **golden,
    )
    yield ProofClaim(
        name="theorem-amax-stays/golden",
        rules=("THM-2",),
        method=Method.ARGUMENT,
        statement="The amax of NVFP4's values stays from the fourth trip on; by a kept amax a block with top code 7 "
        "and a byte above 00 returns, and a block whose byte is 04 or more has that code.",
        domain="all significands of an amax, all scale bytes above 00 and codes, without overflow and underflow",
        size=SIGNIFICANDS * (1 + len(BYTES) * 8),
        decide=trips,
        covers=(*te, *codecs, "fp4ref.formats.codec:CUDA_E4M3", "fp4ref.formats.codec:CUDA_E2M1"),
        reduction="a power of two in an amax moves through every operation; between bytes and themselves are at most "
        f"{ROUNDINGS} roundings, which together move no number to a tie: fractions show it for all, and "
        f"{TRIED} significands are computed",
        **golden,
    )
