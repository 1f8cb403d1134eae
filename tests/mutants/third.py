"""A fourth set of wrong quantizers: every stage once more, and two of them at once, each as a kernel's author errs."""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "quantizers.py"))
NVFP4, MXFP8, MXFP4, RHT, Stochastic = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "Stochastic"))
ScaleUp, QuarterInstead = (_BASE[name] for name in ("ScaleUp", "QuarterInstead"))
e2m1, e4m3, tiled, value = (_BASE[name] for name in ("e2m1", "e4m3", "tiled", "value"))
F, FLT_MAX = np.float32, np.finfo(np.float32).max
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
mutants = _BASE["mutants"]
MUTANTS, mutant = mutants()


class RowScaled(NVFP4):
    """Every row has a global scale of its own."""

    spec = "nvfp4-row-scaled"

    def __call__(self, x, dtype):
        parts = [super(RowScaled, self).__call__(x[i : i + 1], dtype) for i in range(len(x))]
        if not parts:
            return (*super().__call__(x, dtype)[:2], np.zeros(0, F))
        data, amaxes = np.concatenate([part[0] for part in parts]), np.concatenate([part[2] for part in parts])
        return data, tiled(np.concatenate([part[1] for part in parts])), amaxes

    def place(self, scales):
        return scales


class Square(NVFP4):
    """Blocks of 16 x 16."""

    spec = "nvfp4-2d"

    def block_amax(self, blocks):
        rows = np.fmax.reduce(np.abs(blocks), axis=2, initial=F(0))
        high = np.pad(rows, ((0, -len(rows) % 16), (0, 0))).reshape(-(-len(rows) // 16), 16, rows.shape[1])
        return np.repeat(high.max(axis=1), 16, axis=0)[: len(rows)]


class FourOverSix(NVFP4):
    """Two candidates for each block."""

    spec = "nvfp4-4over6"

    def __call__(self, x, dtype):
        amax = self.amax(x)
        s_enc = self.global_scale(amax)
        blocks = self.blocks(x)
        t = self.block_amax(blocks) / F(6) * s_enc
        found = []
        for tried in (t, t * F(1.5)):
            byte = self.scale_byte(tried)
            codes = self.encode(self.element(blocks, value(byte), s_enc, tried))
            values = (GRID[codes & 7] * np.where(codes & 8, -1, 1)).astype(F)
            found.append((self.error(values, value(byte), amax, s_enc, blocks), codes, byte))
        (first, codes, byte), (second, other, other_byte) = found
        better = self.better(first, second)
        codes = np.where(better[:, :, None], other, codes).reshape(len(x), blocks.shape[1] * 16)[:, : x.shape[1]]
        return self.pack(codes), self.place(np.where(better, other_byte, byte)), np.array([amax], F)

    def better(self, first, second):
        return second < first

    def error(self, q, s, amax, s_enc, x):
        return self.total(np.abs(q * s[:, :, None] * amax / F(2688) - x))

    def total(self, errors):
        total = errors[..., 0]
        for i in range(1, errors.shape[-1]):
            total = total + errors[..., i]
        return total


CORRECT = (RowScaled, Square, FourOverSix)


def by_boundaries(y, boundaries):
    """A chain of `if (y > b)`."""
    code = np.searchsorted(boundaries, np.abs(y), side="left")
    return np.where(np.isnan(y), 7, code + 8 * np.signbit(y)).astype(np.uint8)


# Elements


@mutant("element-down")
class ChainOfGreater(NVFP4):
    """All seven comparisons are strict."""

    def encode(self, y):
        return by_boundaries(y, [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


@mutant("element-ties-odd")
class TiesToOdd(MXFP4):
    def encode(self, y):
        return e2m1(y, tie=lambda c, y: c % 2 == 0)


@mutant("element-ties-up")
class FloorOfPlusHalf(MXFP4):
    """floor(y + half a step) of the signed value: halves of negative numbers go up, to zero."""

    def encode(self, y):
        up, down = e2m1(y, tie=lambda c, y: True), by_boundaries(y, [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
        return np.where(y < 0, down, up).astype(np.uint8)


@mutant("element-floor")
class FloorOfSigned(MXFP4):
    def encode(self, y):
        with np.errstate(invalid="ignore"):
            low = np.searchsorted(GRID, np.abs(y), side="right") - 1
            high = np.minimum(np.searchsorted(GRID, np.abs(y), side="left"), 7)
        code = np.where(np.signbit(y), high, low)
        return np.where(np.isnan(y), 7, code + 8 * np.signbit(y)).astype(np.uint8)


@mutant("element-inferred")
class TableTypo(NVFP4):
    def encode(self, y):
        code = e2m1(y)
        magnitude = np.abs(y)
        return np.where((magnitude > 3.25) & (magnitude <= 3.5), 6 + 8 * np.signbit(y), code).astype(np.uint8)


@mutant("element-through-e4m3")
class ElementsThroughE4M3(MXFP4):
    def encode(self, y):
        return e2m1(y.astype(E4M3).astype(F))


@mutant("element-inferred-codes|sign-nonzero")
class SignAfterRounding(NVFP4):
    def encode(self, y):
        code = e2m1(y)
        return np.where(code == 8, 0, code).astype(np.uint8)


@mutant("nan-7-signed")
class NaNWithSign(NVFP4):
    def encode(self, y):
        return np.where(np.isnan(y), 7 + 8 * np.signbit(y), e2m1(y)).astype(np.uint8)


@mutant("element-clamp-4")
class SaturatesAtFour(NVFP4):
    def encode(self, y):
        code = e2m1(y)
        return (np.minimum(code & 7, 6) | code & 8).astype(np.uint8)


@mutant("element-truncate")
class MantissaCutMX(MXFP8):
    def encode(self, y):
        clipped = np.clip(y, -448, 448).astype(F)
        near = np.abs(clipped).astype(E4M3).view(np.uint8).astype(int)
        over = value(near.astype(np.uint8)) > np.abs(clipped)
        code = np.where(over, near - 1, near) + 128 * np.signbit(clipped)
        return np.where(np.isnan(y), 0x7F, code).astype(np.uint8)


@mutant("element-inferred")
class ConstantAdded(NVFP4):
    """A rounding constant that belongs to another step is left in."""

    def encode(self, y):
        return e2m1(y + np.copysign(F(0.125), y))


# Scales


@mutant("scale-codec-away")
class ScaleTiesAway(NVFP4):
    """Integer rounding of the mantissa: add half of the last place and cut."""

    def scale_byte(self, t):
        byte = e4m3(t)
        above = np.minimum(byte + 1, 0x7E).astype(np.uint8)
        middle = (value(byte).astype(np.float64) + value(above)) / 2
        return np.where((t == middle) & (byte < 0x7E), above, byte).astype(np.uint8)


@mutant("mx-quotient-round")
class NearestExponent(MXFP4):
    def scale_byte(self, t):
        with np.errstate(divide="ignore", invalid="ignore"):
            exponent = np.rint(np.log2(t.astype(np.float64)))
        return np.where(t > 0, np.clip(np.nan_to_num(exponent, posinf=127) + 127, 0, 254), 0).astype(np.uint8)


@mutant("mx-ceil-no-emax")
class ForgotEmax(MXFP8):
    def block_scale(self, amax, s_enc):
        return amax


@mutant("scale-byte-zero-1")
class ZeroScaleOne(NVFP4):
    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where(byte == 0, 0x38, byte).astype(np.uint8)


@mutant("block-last-element|block-inferred-1")
class LastOfSixteenMissing(NVFP4):
    def block_amax(self, blocks):
        return np.fmax.reduce(np.abs(blocks[:, :, :15]), axis=2, initial=F(0))


@mutant("block-2-across")
class AmaxOfTwoBlocks(NVFP4):
    """The shuffle goes one lane too far: two blocks share their maximum, both write it."""

    def block_amax(self, blocks):
        own = super().block_amax(blocks)
        padded = np.pad(own, ((0, 0), (0, own.shape[1] % 2)))
        both = padded.reshape(len(own), padded.shape[1] // 2, 2).max(axis=2, initial=0)
        return np.repeat(both, 2, axis=1)[:, : own.shape[1]]


@mutant("amax-used-bf16")
class TensorAmaxBf16(NVFP4):
    def used_amax(self, amax, x):
        return F(BF16(amax))


@mutant("block-floor-1e-04")
class MXAmaxClamped(MXFP4):
    def block_amax(self, blocks):
        return np.maximum(super().block_amax(blocks), F(1e-4))


@mutant("global-upside-down")
class GlobalInverted(NVFP4):
    def global_scale(self, amax):
        return F(1) if amax == 0 else np.fmin(F(amax) / F(2688), FLT_MAX)


@mutant("encode-global-one|encode-no-global")
class ElementsWithoutGlobal(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(F(1) / s, FLT_MAX)[:, :, None]


@mutant("amax-only-row")
class AmaxOfTheFirstRow(NVFP4):
    def amax(self, x):
        return np.fmax.reduce(np.abs(x[:1]), axis=None, initial=F(0))


@mutant("global-bf16")
class GlobalScaleBf16(NVFP4):
    def global_scale(self, amax):
        return F(BF16(super().global_scale(amax)))


@mutant("global-448")
class Only448(NVFP4):
    def global_scale(self, amax):
        s_enc = np.fmin(F(448) / F(amax), FLT_MAX)
        return F(1) if amax == 0 or s_enc == 0 else s_enc


@mutant("encode-unrounded")
class UnroundedScaleUsed(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(s_enc / t, FLT_MAX)[:, :, None]


@mutant("encode-fp16")
class ReciprocalHalf(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(F(1) / (s * (F(1) / s_enc)), FLT_MAX).astype(np.float16).astype(F)[:, :, None]


@mutant("encode-double")
class InDouble(NVFP4):
    """A C++ literal without an f: double from here on."""

    def element(self, blocks, s, s_enc, t):
        return (blocks.astype(np.float64) / (s.astype(np.float64) / np.float64(s_enc))[:, :, None]).astype(F)


# Bytes


@mutant("nibbles")
class HighNibbleFirst(MXFP4):
    def pack(self, codes):
        codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
        return codes[:, ::2] << 4 | codes[:, 1::2]


@mutant("data-order-inferred-8|data-bytes-reversed-8")
class EightBytesReversed(MXFP8):
    def pack(self, codes):
        width = codes.shape[1] // 8 * 8
        swapped = codes[:, :width].reshape(len(codes), width // 8, 8)[:, :, ::-1].reshape(len(codes), width)
        return np.concatenate([swapped, codes[:, width:]], axis=1)


@mutant("data-halves-16|data-order-inferred-16")
class InterleavedLanes(NVFP4):
    """Two vectors of eight are zipped, as a conversion of pairs does it."""

    def pack(self, codes):
        width = codes.shape[1]
        padded = np.pad(codes, ((0, 0), (0, -width % 16)))
        groups = padded.reshape(len(codes), padded.shape[1] // 16, 2, 8)
        return NVFP4.pack(self, groups.transpose(0, 1, 3, 2).reshape(padded.shape)[:, :width])


@mutant("data-order-inferred-8|data-interleaved-8")
class EvenThenOdd(MXFP4):
    def pack(self, codes):
        width = codes.shape[1] // 8 * 8
        out = codes.copy()
        groups = codes[:, :width].reshape(len(codes), width // 8, 8)
        out[:, :width] = groups[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(len(codes), width)
        return NVFP4.pack(self, out)


@mutant("sign-low")
class SignLowest(NVFP4):
    def encode(self, y):
        code = e2m1(y)
        return (((code & 7) << 1) | code >> 3).astype(np.uint8)


@mutant("layout-order-128x4-4|layout-inferred-512")
class RowsByFours(NVFP4):
    def place(self, scales):
        return tiled(scales, order=(0, 3, 2, 1, 4), inner=4)


@mutant("layout-128x4-down")
class TilesColumnMajor(MXFP8):
    def place(self, scales):
        right = tiled(scales)
        return tiled(scales, order=(3, 0, 2, 1, 4)).reshape(right.shape)


@mutant("layout-128x4-twice")
class SwizzledTwice(NVFP4):
    def place(self, scales):
        once = tiled(scales)
        return tiled(once)


@mutant("layout-inferred-64")
class XorLeftIn(NVFP4):
    """The word of a row in a tile is still at the place it has in shared memory: xor with the row."""

    def place(self, scales):
        right = tiled(scales)
        words = right.reshape(-1, 32, 4, 4)
        out = np.empty_like(words)
        for row in range(32):
            for word in range(4):
                out[:, row, word ^ (row & 3)] = words[:, row, word]
        return out.reshape(right.shape)


@mutant("layout-compact")
class ColumnsNotPadded(NVFP4):
    """The rows of a tile are 4 bytes, but the last tile of a row of tiles has as many columns as are left."""

    def place(self, scales):
        right = tiled(scales)
        rows, columns = scales.shape
        out, at = np.zeros(right.size, np.uint8), 0
        padded = np.zeros((right.shape[0], columns), np.uint8)
        padded[:rows] = scales
        for i in range(0, right.shape[0], 128):
            for j in range(0, columns, 4):
                tile = padded[i : i + 128, j : j + 4].reshape(4, 32, -1).transpose(1, 0, 2).ravel()
                out[at : at + tile.size] = tile
                at += tile.size
        return out.reshape(right.shape)


# Directions and transforms


@mutant("block-one-row")
class SquareOfRows(Square):
    def block_amax(self, blocks):
        return NVFP4.block_amax(self, blocks)


@mutant("block-inferred-128")
class SquareOfEightRows(Square):
    def block_amax(self, blocks):
        rows = np.fmax.reduce(np.abs(blocks), axis=2, initial=F(0))
        high = np.pad(rows, ((0, -len(rows) % 16), (0, 0))).reshape(-(-len(rows) // 16), 16, rows.shape[1])
        return np.repeat(high[:, :8].max(axis=1), 16, axis=0)[: len(rows)]


@mutant("hadamard-signs-after")
class SignsAfter(RHT):
    def transform(self, x):
        y = self.sums(x.reshape(len(x), x.shape[1] // 16, 16) * F(0.25)) * self.signs
        return self.rounded(y).reshape(x.shape)


@mutant("hadamard-through-fp16")
class HalfInTheButterfly(RHT):
    def rounded(self, y):
        with np.errstate(over="ignore"):
            return super().rounded(y.astype(np.float16).astype(F))


@mutant("hadamard-sixteenth")
class Sixteenth(RHT):
    def transform(self, x):
        return super().transform(x) * F(0.25)


# Tails, draws, races


@mutant("dropped-columns-16")
class PartialBlockDropped(NVFP4):
    def stored(self, byte):
        byte = byte.copy()
        if self.columns % 16:
            byte[:, -1] = 0
        return byte

    def read(self, x):
        self.columns = x.shape[1]
        return x

    def pack(self, codes):
        codes = codes.copy()
        codes[:, self.columns // 16 * 16 :] = 0
        return super().pack(codes)


@mutant("bits-inferred-2")
class BitsOfPairsShared(Stochastic):
    def drawn(self, bits):
        return np.repeat(bits[:, :, ::2], 2, axis=2)


@mutant("random-half-bit")
class BitsCentred(Stochastic):
    def drawn(self, bits):
        return bits + 0.5


@mutant("unwritten-inferred-offsets")
class OneTileOfScales(NVFP4):
    def place(self, scales):
        out = tiled(scales)
        out.reshape(-1)[512:] = 0
        return out


@mutant("stored-late-rows")
class ScalesOneRowLate(MXFP8):
    def stored(self, byte):
        return np.roll(byte, 1, axis=0)


@mutant("input-fp16")
class InputHalf(MXFP8):
    def read(self, x):
        return x.astype(np.float16).astype(F)


# Two candidates, row scales


@mutant("search-tie")
class TieTakesFour(FourOverSix):
    def better(self, first, second):
        return second <= first


@mutant("search-mse")
class SquaredErrors(FourOverSix):
    def error(self, q, s, amax, s_enc, x):
        return self.total((q * s[:, :, None] * amax / F(2688) - x) ** 2)


@mutant("search-six|search-missing")
class NeverFour(FourOverSix):
    def better(self, first, second):
        return np.zeros(first.shape, bool)


@mutant("amax-row-reported|amax-tensor")
class TensorAmaxForRows(RowScaled):
    def __call__(self, x, dtype):
        self.whole = np.fmax.reduce(np.abs(x), axis=None, initial=F(0))
        return super().__call__(x, dtype)

    def used_amax(self, amax, x):
        return self.whole


# Two at once


@mutant("scale-codec-up", "layout-128x4-down")
class UpAndColumnMajor(NVFP4):
    def scale_byte(self, t):
        return ScaleUp.scale_byte(self, t)

    def place(self, scales):
        return tiled(scales, order=(3, 0, 2, 1, 4)).reshape(tiled(scales).shape)


@mutant("element-truncate", "nibbles")
class CutAndSwapped(MXFP4):
    def encode(self, y):
        with np.errstate(invalid="ignore"):
            code = np.searchsorted(GRID, np.abs(y), side="right") - 1
        return np.where(np.isnan(y), 7, np.minimum(code, 7) + 8 * np.signbit(y)).astype(np.uint8)

    def pack(self, codes):
        return HighNibbleFirst.pack(self, codes)


@mutant("scale-4", "data-halves-16|data-order-inferred-16")
class ZippedAndFour(NVFP4):
    def block_scale(self, amax, s_enc):
        return QuarterInstead.block_scale(self, amax, s_enc)

    def pack(self, codes):
        return InterleavedLanes.pack(self, codes)


@mutant("element-down", "scale-codec-truncate")
class StrictAndScaleCut(NVFP4):
    def encode(self, y):
        return ChainOfGreater.encode(self, y)

    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where(value(byte) > t, byte - 1, byte).astype(np.uint8)
