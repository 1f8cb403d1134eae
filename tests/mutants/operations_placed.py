"""Dequantizers, conversions of layouts and Hadamard transforms that are wrong somewhere only.

Each was written without the library of mistakes at hand. `says` is a regular expression of the cause and the place.
"""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_HERE = Path(__file__).parent
_BASE = runpy.run_path(str(_HERE / "conversions.py"))
_MORE = runpy.run_path(str(_HERE / "dequantizers.py"))
Dequantizer, MX, Tiles, Transform, E2M1 = (_BASE[n] for n in ("Dequantizer", "MX", "Tiles", "Transform", "E2M1"))
RowScaled, MX8 = _MORE["RowScaled"], _MORE["MX8"]
F, BF16 = np.float32, ml_dtypes.bfloat16
MUTANTS, CORRECT = [], []  # of quantizers: none here
PLACED = {}
NOT_SHOWN = None  # by no scales and codes that a quantizer makes


def declared(cls):
    """The way a kernel is called."""
    return _MORE["declared"](cls) if cls.operation == "dequantize" else _BASE["HOW"][cls.operation]


def mutant(says):
    def register(cls):
        PLACED[cls.__name__] = cls, says
        return cls

    return register


def before(array, rows):
    """Rows of an array with those of a mask replaced by the row before."""
    taken = np.where(rows, np.maximum(np.arange(len(array)) - 1, 0), np.arange(len(array)))
    return array[taken]


# Elements of dequantizers


@mutant(r"nibble.*row % 2 == 1|row % 2 == 1.*nibble")
class NibblesOfOddRows(Dequantizer):
    def nibbles(self, data):
        pairs = super().nibbles(data)
        pairs[1::2] = pairs[1::2, :, ::-1]
        return pairs


@mutant(r"sign.*column % 2 == 1|column % 2 == 1.*sign|high nibble.*sign|sign.*high nibble")
class SignOfHighNibbles(Dequantizer):
    def nibbles(self, data):
        return np.stack([data & 15, data >> 4 & 7], axis=2)


@mutant(r"sign of column - 1, where column % 2 == 1|sign of column - 1, in the last row and where column % 2 == 1")
class SignOfThePairInTheLastRow(Dequantizer):
    """The last row's odd elements take the sign of the even ones."""

    def nibbles(self, data):
        pairs = super().nibbles(data)
        pairs[-1:, :, 1] = pairs[-1:, :, 1] & 7 | pairs[-1:, :, 0] & 8
        return pairs


@mutant(r"column uses the code of the next column, where column % 16 == 7")
class NextCodeAtColumnSeven(Dequantizer):
    def nibbles(self, data):
        pairs = super().nibbles(data)
        flat = pairs.reshape(len(pairs), -1)
        flat[:, 7:-1:16] = flat[:, 8::16]
        return flat.reshape(pairs.shape)


@mutant(r"zeros lose their sign")
class MinusZeroIsZero(MX):
    def element(self, code):
        return super().element(code) + F(0)


@mutant(r"columns? (past|from).*64|last multiple of 64|64.*columns")
class ColumnsInWholes(Dequantizer):
    """Columns past the last multiple of 64 are left as the buffer was: zero."""

    def product(self, q, s, g):
        y = q * (s * g)
        whole = y.shape[1] // 64 * 64
        if whole:
            y[:, whole:] = 0
        return y


@mutant(r"codes of the row before, in the last row")
class LastRowBefore(Dequantizer):
    """The last row of all is that before it."""

    def nibbles(self, data):
        return before(super().nibbles(data), np.arange(len(data)) == len(data) - 1)


@mutant(r"code 0x7 is decoded as 5 instead of 6, code 0xf is decoded as -5 instead of -6, in rows from 128 on")
class OtherTableFarDown(Dequantizer):
    """6 is decoded as 5 in rows from 128 on."""

    def product(self, q, s, g):
        rows = np.arange(len(q))[:, None] >= 128
        return np.where(rows & (np.abs(q) == 6), np.copysign(F(5), q), q) * (s * g)


# Scales of dequantizers


@mutant(r"NaN")
class NanScaleIs480(Dequantizer):
    def scale(self, byte):
        return np.where(byte & 127 == 127, F(480), super().scale(byte))


@mutant(NOT_SHOWN)
class NanScaleIsInfinite(MX):
    """Byte 255 is shifted into a float32's exponent."""

    def scale(self, byte):
        return np.where(byte == 0, F(2.0**-127), (byte.astype(np.uint32) << 23).view(F))


@mutant(r"subnormal")
class SubnormalScalesFlushed(Dequantizer):
    def scale(self, byte):
        return np.where(byte & 0x78 == 0, F(0), super().scale(byte))


@mutant(r"(row before|row - 1|previous row).*row % 128 == 0|row % 128 == 0.*(row before|row - 1|previous)")
class ScaleBeforeAtBorders(Dequantizer):
    """The first row of a tile takes the scales of the row before."""

    def taken(self, scales, rows, blocks):
        i = np.arange(rows)
        return before(super().taken(scales, rows, blocks), i % 128 == 0)


@mutant(r"uses the scale of the one before, in the last, partial block")
class LastPartialBlock(Dequantizer):
    """A last block that is not full takes the scale of the one before."""

    def __call__(self, data, scales, amax, rows, columns):
        self.partial = columns % 16 != 0
        return super().__call__(data, scales, amax, rows, columns)

    def taken(self, scales, rows, blocks):
        s = super().taken(scales, rows, blocks)
        if self.partial and blocks > 1:
            s[:, -1] = s[:, -2]
        return s


@mutant(r"last.*(partial|full|16)|partial.*block|past the last multiple of 16")
class NoPartialBlock(Dequantizer):
    """Elements of a last block that is not full are left zero."""

    def product(self, q, s, g):
        y = q * (s * g)
        whole = y.shape[1] // 16 * 16
        y[:, whole:] = 0
        return y


@mutant(r"rows? (from|past|>=).*128|128 rows|first tile")
class OneRowOfTiles(Dequantizer):
    """Rows from 128 on take the scales of the first 128."""

    def taken(self, scales, rows, blocks):
        s = super().taken(scales, rows, blocks)
        return s[np.arange(rows) % 128]


@mutant(NOT_SHOWN)
class ByteZeroFarDown(MX):
    """Byte 0 is 0 in rows from 64 on."""

    def scale(self, byte):
        s = super().scale(byte)
        return np.where((byte == 0) & (np.arange(len(byte))[:, None] >= 64), F(0), s)


@mutant(r"16 columns share a scale")
class BlocksOf16(MX):
    """Scale j of a block of 16 instead of 32."""

    def __call__(self, data, scales, rows, columns):
        s = self.scale(scales)
        q = self.element(self.nibbles(data).reshape(rows, 2 * data.shape[1])[:, :columns])
        j = np.minimum(np.arange(columns) // 16, s.shape[1] - 1)
        return (q * s[:, j]).astype(F)


@mutant(NOT_SHOWN)
class LargestScaleIsInfinite(MX):
    def scale(self, byte):
        return np.where(byte == 254, F(np.inf), super().scale(byte))


# Global scales of dequantizers


@mutant(r"amax.*(first row|row 0).*(128|tile)|amax.*128")
class AmaxOfTheTile128(RowScaled):
    """Rows from 128 on take the amax of their row in the first tile."""

    def amaxes(self, amax):
        return amax[np.arange(len(amax)) % 128]


@mutant(r"amax.*(next|after|neighbour).*row % 8 == 7|row % 8 == 7.*amax")
class AmaxAtWarpEnds(RowScaled):
    def amaxes(self, amax):
        rows = np.arange(len(amax))
        taken = np.where(rows % 8 == 7, np.minimum(rows + 1, len(amax) - 1), rows)
        return amax[taken]


@mutant(r"amax.*bfloat16|bfloat16.*amax")
class AmaxInBfloat16(Dequantizer):
    def global_scale(self, amax):
        return amax.astype(BF16).astype(F) / F(2688)


@mutant(r"bfloat16")
class ResultsInBfloat16(Dequantizer):
    def product(self, q, s, g):
        return (q * (s * g)).astype(BF16)


@mutant(NOT_SHOWN)
class NanElementsSaturate(MX8):
    def __call__(self, data, scales, rows, columns):
        return super().__call__(np.where(data & 127 == 127, data - 1, data).astype(np.uint8), scales, rows, columns)


# Conversions


@mutant(r"rows? (from|past|>=).*128|first tile|row >= 128")
class OnlyFirstTile(Tiles):
    """Rows from 128 on are not written."""

    def padded(self, scales):
        out = super().padded(scales)
        out[128:] = 0
        return out


@mutant(r"(row before|row - 1|previous).*row % 32 == 31|row % 32 == 31.*(row before|row - 1|previous)")
class RowBeforeAtWarpEnds(Tiles):
    def padded(self, scales):
        out = super().padded(scales)
        out[: len(scales)] = before(
            scales if out.shape[1] == scales.shape[1] else out[: len(scales)], np.arange(len(scales)) % 32 == 31
        )
        return out


@mutant(r"last multiple of 4|last.*4|4.*blocks")
class BlocksInWholes(Tiles):
    """Blocks past the last multiple of 4 are not written."""

    def padded(self, scales):
        out = super().padded(scales)
        out[:, scales.shape[1] // 4 * 4 :] = 0
        return out


@mutant(r"scale bytes.*(reverse order within words of 2|columns c and c \^ 1 are exchanged), where row % 2 == 1")
class BlocksExchanged(Tiles):
    """Blocks 2j and 2j + 1 are exchanged in odd rows."""

    def padded(self, scales):
        out = super().padded(scales)
        out[1::2] = out[1::2].reshape(-1, out.shape[1] // 2, 2)[:, :, ::-1].reshape(-1, out.shape[1])
        return out


@mutant(NOT_SHOWN)
class NanBytesCleared(Tiles):
    def padded(self, scales):
        out = super().padded(scales)
        return np.where(out == 0x7F, 0, out).astype(np.uint8)


@mutant(r"scale bytes above 0x78 become 0x78")
class BytesClamped(Tiles):
    """Bytes above 0x78 become 0x78."""

    def padded(self, scales):
        return np.minimum(super().padded(scales), 0x78)


# Transforms


@mutant(r"input 15 of each 16 has the opposite sign")
class LastSignLost(Transform):
    """The sign of the last point is lost."""

    signs = Transform.signs.copy()
    signs[15] = 1


@mutant(r"bfloat16.*(stage|add|butterfl|round)|round.*bfloat16")
class StagesInBfloat16(Transform):
    def sums(self, y):
        for stride in (1, 2, 4, 8):
            pairs = y.reshape(len(y), 8 // stride, 2, stride)
            y = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(len(y), 16)
            y = y.astype(BF16).astype(F)
        return y + F(0)


@mutant(r"row % 2 == 1")
class OddRowsMissing(Transform):
    """Odd rows are not transformed."""

    def __call__(self, x):
        made = super().__call__(x).reshape(-1, x.shape[-1])
        made[1::2] = x.reshape(made.shape)[1::2]
        return made.reshape(x.shape)


@mutant(r"transform is not applied, in blocks past the last multiple of 2")
class LastGroupMissing(Transform):
    """Columns past the last multiple of 32 are not transformed."""

    def __call__(self, x):
        made = super().__call__(x)
        whole = x.shape[-1] // 32 * 32
        made[..., whole:] = x[..., whole:]
        return made


@mutant(r"no signs are applied, in rows from 64 on")
class NoSignsFarDown(Transform):
    """Rows from 64 on have no signs."""

    def __call__(self, x):
        flat = x.reshape(-1, x.shape[-1])
        made = super().__call__(flat)
        plain = Transform()
        plain.signs = np.ones(16, F)
        made[64:] = plain(flat[64:])
        return made.reshape(x.shape)
