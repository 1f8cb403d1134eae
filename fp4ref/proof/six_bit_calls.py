"""Claims about whole calls of formats with 6-bit codes: four codes share three bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.formats import CUDA_E2M3, CUDA_E3M2
from fp4ref.proof import blocks, whole
from fp4ref.proof.blocks import TYPES
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.golden_scales import _once
from fp4ref.proof.packed_rows import _in_bytes
from fp4ref.quantized import DirectionData, Quantized

CODECS = {"mxfp6-e2m3": CUDA_E2M3, "mxfp6-e3m2": CUDA_E3M2}
VALUES = {"mxfp6-e2m3": "fp4ref.specs:MXFP6_E2M3", "mxfp6-e3m2": "fp4ref.specs:MXFP6_E3M2"}
POWERS = (-126, -40, 0, 7, 120)  # of the block maxima under which all elements are computed
INFINITE, NAN = 0x7F80, 0x7FC0  # bfloat16
ACROSS, BLOCK = 8, 32  # blocks in a row
SIZE = 1203200


class SixBitTensor:
    """A tensor with each element beside a maximum, and each maximum alone; and its codes and bytes by the rules."""

    def __init__(self, spec: str) -> None:
        pipe = blocks.mx(CODECS[spec])
        rows = []
        for power in POWERS:
            largest = int((np.array([1.75 * 2.0**power]).astype(ml_dtypes.bfloat16).view(np.uint16))[0])
            magnitudes = np.append(np.arange(largest + 1), NAN)
            x = np.concatenate([magnitudes, magnitudes | 0x8000])
            x = np.append(x, np.zeros(-len(x) % (BLOCK - 1), np.int64)).reshape(-1, BLOCK - 1)
            rows.append(np.concatenate([np.full((len(x), 1), largest), x], axis=1))
        alone = np.zeros((INFINITE, BLOCK), np.int64)
        alone[np.arange(INFINITE), np.arange(INFINITE) % BLOCK] = np.arange(INFINITE)
        words = np.concatenate([*rows, alone])
        words = np.concatenate([words, np.zeros((-len(words) % ACROSS, BLOCK), np.int64)])
        patterns = (words.astype(np.uint32) << 16).view(np.float32)
        maxima = np.where(np.isnan(patterns), 0, np.abs(patterns)).max(axis=1)
        self.scales: NDArray[np.uint8] = pipe.byte(maxima)
        codes = pipe.code(patterns, self.scales[:, None])
        self.x = words.astype(np.uint16).view(ml_dtypes.bfloat16).reshape(-1, ACROSS * BLOCK)
        self.codes = codes.astype(np.uint8).reshape(self.x.shape)


@lru_cache
def tensor(spec: str) -> SixBitTensor:
    """Return the tensor of a specification."""
    return SixBitTensor(spec)


def quantizes(spec: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize the tensor by rows, and its transpose by columns; compare scales and packed codes."""
    wanted = tensor(spec)
    data = _in_bytes(wanted.codes, 6)
    for number, direction in enumerate(("row", "column")):
        x = np.ascontiguousarray(wanted.x.T) if number else wanted.x
        q = api.quantize(whole._array(x, subject), spec, direction, backend=whole.BACKENDS[subject])  # type: ignore[call-overload]
        got = q.direction(direction)[0].mapped(whole._host)
        for name, mine, its in (("data", got.data, data), ("scales", got.scales, wanted.scales)):
            (wrong,) = np.nonzero(mine.ravel() != its.ravel())
            if len(wrong):
                at = int(wrong[0])
                said = f"byte {at} of the {name} is {mine.ravel()[at]:02X}, needs {its.ravel()[at]:02X}"
                return Replayed(wanted.x.size, f"{direction}: {said}")
        tell((number + 1) / 2)
    return Replayed(wanted.x.size)


@np.errstate(all="ignore")
def dequantizes(spec: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Dequantize each code, in each place of four, under each scale byte, to three types."""
    column = np.arange(256)
    codes = np.tile(((column + column // 64) % 64).astype(np.uint8), (256, 1))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], len(column) // BLOCK, axis=1)
    pipe = blocks.mx(CODECS[spec])
    want = _once(whole._decoded(pipe.element, codes) * np.repeat(whole._decoded(pipe.scale, scales), BLOCK, axis=1))
    parts = DirectionData(_in_bytes(codes, 6), scales, None).mapped(lambda part: whole._array(part, subject))
    for number, (to, kind) in enumerate(TYPES.items()):
        q = Quantized(resolve(spec), codes.shape, to, "linear", parts)
        got = whole._host_values(api.dequantize(q, to, backend=whole.BACKENDS[subject]))
        right, bits = want.astype(kind), f"u{kind.itemsize}"
        nan = np.isnan(want)
        row, place = np.nonzero(np.where(nan, ~np.isnan(got.astype(np.float32)), got.view(bits) != right.view(bits)))
        if len(row):
            said = (
                f"code {codes[row[0], place[0]]:02X}, place {place[0] % 4} of four, under the scale byte {row[0]:02X}"
            )
            return Replayed(number * codes.size, f"{said} is {got[row[0], place[0]]!s} as {to}")
        tell((number + 1) / len(TYPES))
    return Replayed(len(TYPES) * codes.size)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about calls."""
    for spec, codec in CODECS.items():
        element = codec.format.name.upper()
        for subject in whole.BACKENDS:
            value = whole.value_of(spec, VALUES[spec], subject)
            yield ProofClaim(
                name=f"quantize-{spec}-bfloat16/{subject}",
                rules=("MXS-1", "BLK-10", "E8M0-2", f"{element}-2", "PACK-4"),
                method=Method.EXHAUSTIVE,
                subject=subject,
                statement=f"Data and scales of {spec} follow the rules, by rows and by columns.",
                domain=f"all bfloat16 up to the maxima of {len(POWERS)} blocks, and all finite bfloat16 block maxima",
                size=SIZE,
                decide=partial(quantizes, spec, subject),
                covers=(*whole.QUANTIZED[subject], value),
            )
            yield ProofClaim(
                name=f"dequantize-{spec}/{subject}",
                rules=("DEQ-2", "DEQ-3", "PACK-4"),
                method=Method.EXHAUSTIVE,
                subject=subject,
                statement=f"Every code of {spec} under every scale byte has the value of the rules, in three types.",
                domain="all codes in each place of four, under all scale bytes",
                size=3 * 256 * 256,
                decide=partial(dequantizes, spec, subject),
                covers=(*whole.DECODED[subject], value),
            )
