"""Dequantizers, conversions of layouts, transforms and products that are wrong in ways of their own.

Each was written before the diagnosis was read; the text is a regular expression of the cause and the place.
"""

import runpy
from pathlib import Path

import numpy as np

_HERE = Path(__file__).parent
_BASE = runpy.run_path(str(_HERE / "operations_placed.py"))
Dequantizer, MX, Tiles, Transform, RowScaled, MX8, declared = (
    _BASE[name] for name in ("Dequantizer", "MX", "Tiles", "Transform", "RowScaled", "MX8", "declared")
)
_PRODUCTS = runpy.run_path(str(_HERE / "products_placed.py"))
product, ended, shifted, index, depth_of, scales_of, as_it_is, BIAS, bf16 = (
    _PRODUCTS[name]
    for name in ("product", "ended", "shifted", "index", "depth_of", "scales_of", "as_it_is", "BIAS", "bf16")
)
F = np.float32
MUTANTS, CORRECT = [], []  # of quantizers: none here
PLACED = {}


def mutant(says):
    def register(cls):
        PLACED[cls.__name__] = cls, says
        return cls

    return register


@mutant(r"scale.*row - 64.*rows from 64 on|rows from 64 on")
class ScalesOfTheFirst64Rows(Dequantizer):
    """A shared array of scales that is filled once."""

    def taken(self, scales, rows, blocks):
        return super().taken(scales, rows, blocks)[np.arange(rows) % 64]


@mutant(r"(bias 8|half|2\^-1|0\.5).*block % 2 == 1|block % 2 == 1")
class OddBlocksHalved(Dequantizer):
    """The second of two scales in a register is decoded with another bias."""

    def product(self, q, s, g):
        odd = np.arange(q.shape[1]) // 16 % 2 == 1
        return q * (np.where(odd, s * F(0.5), s) * g)


@mutant(r"8.*last column|last column|code 7|6")
class LargestCodeIsEight(MX):
    """2^3 for the code that a formula without saturation continues."""

    def element(self, code):
        values = super().element(code)
        return np.where(code & 7 == 7, np.copysign(F(8), values), values)


@mutant(r"amax.*not|global scale|without|amax is (missing|ignored|1)|S_dec")
class AmaxIgnoredFromRow128(Dequantizer):
    """The global scale is multiplied in by the first tile only."""

    def product(self, q, s, g):
        return np.where(index(q)[:, None] >= 128, q * s, q * (s * g))


@mutant(r"sign.*scale|scale.*sign|negative")
class ScaleByteIsSigned(MX8):
    """int8_t: bytes from 128 on are negative exponents."""

    def scale(self, byte):
        return np.ldexp(F(1), byte.astype(np.int8).astype(int) - 127).astype(F)


@mutant(r"code 0x8 is decoded as \+0 instead of -0")
class MinusZeroIsLost(Dequantizer):
    """A table without a sign for its first value."""

    def element(self, code):
        return super().element(code) + F(0)


@mutant(r"the factor of a block.*rounded to bfloat16")
class FactorIsKeptNarrow(Dequantizer):
    """A factor of both scales in shared memory of 16 bits."""

    def product(self, q, s, g):
        return q * bf16(s * g)


@mutant(r"reverse order within words of 4")
class TilesWithWordsReversed(Tiles):
    def last(self, tiled):
        return tiled.reshape(-1, 4)[:, ::-1].reshape(tiled.shape)


@mutant(r"scale bytes of rows r and r \^ 32 are exchanged")
class TilesWithQuartersExchanged(Tiles):
    def padded(self, scales):
        padded = super().padded(scales)
        return padded[np.arange(len(padded)) ^ 32]


@mutant(r"sign.*row % 2 == 1|row % 2 == 1")
class NoSignsInOddRows(Transform):
    def __call__(self, x):
        y = super().__call__(x)
        kernel = Transform()
        kernel.signs = np.ones(16, F)
        y[1::2] = kernel(x)[1::2]
        return y


def running_sums_in_bfloat16(y, alpha, **_):
    return bf16(y) * alpha


PRODUCTS = {
    "depth of whole 32": (
        product("nvfp4", fix=depth_of(lambda k, depth: (k < depth // 32 * 32) | (depth < 32))),
        r"last multiple of 32",
    ),
    "sums in bfloat16": (product("mxfp8-e4m3", running_sums_in_bfloat16), r"bfloat16"),
    "alpha twice": (product("nvfp4", lambda y, s, **_: y * s * s), r"twice|squared"),
    "scales of A exchanged in pairs": (
        product(
            "mxfp4",
            fix=scales_of(lambda s: s[np.minimum(index(s) ^ 1, len(s) - 1)]),
            fix_b=as_it_is,
        ),
        r"scales of A.*(\^ ?1|exchanged)|exchanged.*scales of A",
    ),
    "last column lost": (
        product("nvfp4", ended(lambda y: np.where(np.arange(y.shape[1]) < max(y.shape[1] - 1, 1), y, F(0)))),
        r"last column",
    ),
    "bias of the row": (
        product("nvfp4", lambda y, s, bias, **_: y * s + bias[index(y) % len(bias)][:, None], **BIAS),
        r"bias.*row",
    ),
    "odd rows negated": (
        product("mxfp4", ended(lambda y: np.where(index(y)[:, None] % 2 == 1, -y, y))),
        r"(negat|sign|-1).*row % 2 == 1|row % 2 == 1.*(negat|sign|-1)",
    ),
}
