"""The digest of decoded numbers against fractions: equal if and only if all the numbers are."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fp4ref.checkpoints.access import WeightPiece
from fp4ref.checkpoints.convention import Direction, ScaleWay
from fp4ref.checkpoints.decoded_digest import DecodedDigest
from fp4ref.checkpoints.transfer.scales import StoredScale
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.formats import FORMATS, Codec

FORMS = (("e2m1", "e4m3", 16), ("e2m1", "e8m0", 32), ("e4m3", "e8m0", 32), ("e4m3", "e4m3", 16))
SCALES = {"e4m3": [0x38, 0x30, 0x40, 0x3C, 0, 0x7F, 0xB8], "e8m0": [126, 127, 128, 125, 255]}
MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def values_of(name: str) -> list[float]:
    top = (1 << FORMATS[name].bits) - 1
    codec = Codec(format=FORMATS[name], nan=(top, top))
    return [float(each) for each in codec.decode(np.arange(top + 1, dtype=np.uint8))]


VALUES = {name: values_of(name) for name in ("e2m1", "e4m3", "e8m0")}


def drawn(rng: np.random.Generator) -> tuple[Weight, WeightPiece]:
    """A row of few different numbers, so that rows in other formats often have the same ones."""
    element, scale, width = FORMS[rng.integers(len(FORMS))]
    columns = int(rng.choice([16, 31, 32]))
    codes = rng.choice(rng.choice(14, rng.integers(1, 4)) + rng.integers(2), columns + columns % 2)
    if element == "e2m1":
        packed = codes[0::2] | codes[1::2] << 4
    else:
        shift = 2.0 ** int(rng.integers(-1, 2))
        table = [VALUES["e4m3"].index(each * shift) for each in MAGNITUDES]
        packed = np.array([table[code & 7] | (code >> 3) << 7 for code in codes[:columns]])
        if rng.random() < 0.3:
            packed[rng.integers(columns)] = rng.integers(256)
    scales = rng.choice(SCALES[scale], (1, -(-columns // width)))
    factor = [1.0, 0.5, 1.5, 0.3][rng.integers(4)]
    piece = WeightPiece(0, 0, packed[None].astype(np.uint8), scales.astype(np.uint8))
    return weight_of(element, scale, width, columns, piece, factor), piece


def weight_of(element: str, scale: str, width: int, columns: int, piece: WeightPiece, factor: float) -> Weight:
    stored = StoredScale(np.array([factor], np.float32), Direction(ScaleWay.MULTIPLIER))
    return Weight(
        module="m",
        element=element,
        scale=scale,
        block=(1, width),
        shape=(1, columns),
        read=lambda multiple: iter([piece]),
        global_scale=stored,
    )


def exactly(weight: Weight, piece: WeightPiece) -> tuple[Any, ...]:
    """The numbers as fractions; NaN as a word."""
    factor, found = Fraction(float(weight.multiplier())), list[Any]()
    assert piece.scales is not None
    for column in range(weight.columns):
        code = (
            int(piece.packed[0, column // 2]) >> 4 * (column % 2) & 15
            if weight.bits == 4
            else int(piece.packed[0, column])
        )
        value = VALUES[weight.element][code]
        scale = VALUES[weight.scale][int(piece.scales[0, column // weight.block[1]])]
        known = math.isfinite(value) and math.isfinite(scale)
        found.append(Fraction(value) * Fraction(scale) * factor if known else "NaN")
    return tuple(found)


def digest_of(weight: Weight, *pieces: WeightPiece) -> str:
    found = DecodedDigest(weight, 9)
    for piece in pieces:
        found.add(piece)
    return found.text()


@pytest.mark.rule("CNV-16")
def test_digests_are_equal_where_the_numbers_are() -> None:
    rng = np.random.default_rng(5)
    by_numbers: dict[tuple[Any, ...], str] = {}
    by_digest: dict[tuple[int, str], tuple[Any, ...]] = {}
    formats: dict[tuple[Any, ...], set[tuple[str, str]]] = {}
    for _ in range(1500):
        weight, piece = drawn(rng)
        numbers, text = exactly(weight, piece), digest_of(weight, piece)
        assert by_numbers.setdefault(numbers, text) == text
        assert by_digest.setdefault((len(numbers), text), numbers) == numbers
        formats.setdefault(numbers, set()).add((weight.element, weight.scale))
    assert sum(len(each) > 1 for each in formats.values()) > 30


@pytest.mark.rule("CNV-16")
def test_a_digest_does_not_depend_on_pieces_and_orders_count() -> None:
    rng = np.random.default_rng(2)
    packed, scales = (rng.integers(0, 126, (8, 16), np.uint8), rng.integers(1, 126, (8, 2), np.uint8))
    whole = WeightPiece(0, 0, packed, scales)
    weight = weight_of("e2m1", "e4m3", 16, 32, whole, 0.3)
    parts = [WeightPiece(0, row, packed[row : row + 3], scales[row : row + 3]) for row in (0, 3, 6)]
    assert digest_of(weight, whole) == digest_of(weight, *parts)
    moved = WeightPiece(0, 0, packed[::-1].copy(), scales[::-1].copy())
    assert digest_of(weight, whole) != digest_of(weight, moved)
