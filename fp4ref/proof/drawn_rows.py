"""Claims about whole calls with random bytes: each element is rounded by the byte at its own place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.formats import F
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST, UNIT
from fp4ref.proof.golden_scales import _once
from fp4ref.proof.transforms import E2M1_VALUES

SIX = 0x40C0  # as a bfloat16: a block with this maximum has the scale 1
BLOCK, ACROSS = 16, 65  # blocks in a row
SIZE = 256 * 2 * (SIX + 1)


def tensor() -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Return words and random bytes [rows, columns]: all bfloat16 up to 6 under all bytes, and a 6 in each block."""
    magnitude = np.arange(SIX + 1, dtype=np.uint16)
    each = np.concatenate([magnitude, magnitude | np.uint16(0x8000)])
    spare = -256 * len(each) % ((BLOCK - 1) * ACROSS)
    words, drawn = (
        np.append(part, np.zeros(spare, part.dtype)).reshape(-1, BLOCK - 1)
        for part in (np.repeat(each, 256), np.tile(np.arange(256, dtype=np.uint8), len(each)))
    )
    place = np.arange(len(words)) % BLOCK  # of the 6
    element = np.arange(BLOCK)[None]
    other = np.minimum(element - (element > place[:, None]), BLOCK - 2)
    six = element == place[:, None]
    words = np.where(six, np.uint16(SIX), np.take_along_axis(words, other, axis=1))
    drawn = np.where(six, np.uint8(0x5A), np.take_along_axis(drawn, other, axis=1))
    return words.astype(np.uint16).reshape(-1, BLOCK * ACROSS), drawn.astype(np.uint8).reshape(-1, BLOCK * ACROSS)


def codes_of(words: NDArray[np.uint16], drawn: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return codes that count the values that the sum, rounded once, has reached. Rules: SR-2, SR-3."""
    y = (words.astype(np.uint32) << 16).view(F)
    a = np.abs(y).astype(np.float64)
    total = _once(a + drawn / 256 * np.select([a >= 4, a >= 2], [2.0, 1.0], 0.5))
    index = sum((total >= value).astype(np.uint8) for value in E2M1_VALUES)
    return np.asarray(np.where(a >= E2M1_VALUES[-1], 7, index) | (words >> 15 << 3)).astype(np.uint8)


def rows(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize by rows, and the transpose by columns, and compare all codes."""
    words, drawn = tensor()
    codes = codes_of(words, drawn)
    want = codes[:, ::2] | codes[:, 1::2] << 4
    for number, direction in enumerate(("row", "column")):
        x = np.ascontiguousarray(words.T if number else words).view(ml_dtypes.bfloat16)
        bits: Any = whole._array(drawn, subject)
        q = api.quantize(  # type: ignore[call-overload]
            whole._array(x, subject),
            "nvfp4-sr",
            direction,
            amax=UNIT,
            random_bits=bits,
            backend=whole.BACKENDS[subject],
        )
        got = q.direction(direction)[0].mapped(whole._host)
        row, byte = np.nonzero(got.data != want)
        if len(row):
            at = int(row[0]), int(byte[0])
            said = f"{direction}: byte {at[1]} of row {at[0]} is {got.data[at]:02X}, needs {want[at]:02X}"
            return Replayed(number * words.size, said)
        if (got.scales != 0x38).any():
            return Replayed(number * words.size, f"{direction}: a scale byte is not 38")
        tell((number + 1) / 2)
    return Replayed(SIZE)


def claims() -> Iterator[ProofClaim]:
    """Yield the claim for each backend."""
    for subject in ON_HOST:
        yield ProofClaim(
            name=f"stochastic-rows/{subject}",
            rules=("SR-2", "SR-3"),
            method=Method.EXHAUSTIVE,
            subject=subject,
            statement="Each element is rounded by the random byte at its own place, by rows and by columns.",
            domain="all bfloat16 up to 6, of both signs, under all random bytes and the scale 1",
            size=SIZE,
            decide=partial(rows, subject),
            covers=(*whole.QUANTIZED[subject], whole.value_of("nvfp4-sr", "fp4ref.specs:NVFP4_SR", subject)),
        )
