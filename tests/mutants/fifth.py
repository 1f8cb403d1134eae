"""A sixth set of wrong quantizers: what threads of users report, and pairs of mistakes in stages that are far apart."""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "third.py"))
NVFP4, MXFP8, MXFP4, RHT, Stochastic = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "Stochastic"))
RowScaled, FourOverSix, Square = (_BASE[name] for name in ("RowScaled", "FourOverSix", "Square"))
e2m1, e4m3, tiled, value = (_BASE[name] for name in ("e2m1", "e4m3", "tiled", "value"))
by_boundaries = _BASE["by_boundaries"]
F, FLT_MAX = np.float32, np.finfo(np.float32).max
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


def swapped(codes):
    codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return codes[:, ::2] << 4 | codes[:, 1::2]


@mutant("element-inferred")
class SixteenthInTheTable(NVFP4):
    """The smallest value of the table is 0.0625; the middles are computed from it."""

    def encode(self, y):
        return by_boundaries(y, [0.03125, 0.53125, 1.25, 1.75, 2.5, 3.5, 5.0])


@mutant("mx-even")
class EvenScales(MXFP4):
    """The mantissa is rounded as E2M1 would round it, then its exponent is taken."""

    def block_scale(self, amax, s_enc):
        return amax

    def scale_byte(self, t):
        bits = (np.asarray(t, F).view(np.uint32).astype(np.int64) + 0x200000) >> 23
        return np.where(np.isnan(t), 255, np.clip(bits - 2, 0, 254)).astype(np.uint8)


@mutant("mx-log-floor|mx-floor")
class Log2OfTheQuotient(MXFP8):
    """floor(log2(amax)) - emax, clamped."""

    def block_scale(self, amax, s_enc):
        return amax

    def scale_byte(self, t):
        with np.errstate(divide="ignore", invalid="ignore"):
            exponent = np.floor(np.log2(np.asarray(t, F)))
        return np.where(np.isnan(t), 255, np.clip(np.nan_to_num(exponent, neginf=-200) - 8 + 127, 0, 254)).astype(
            np.uint8
        )


@mutant("scale-zero-inferred|scale-zero-nan")
class ZeroOverZero(NVFP4):
    """A block of zeros divides by its own amax."""

    def scale_byte(self, t):
        return np.where(t == 0, 0x7F, e4m3(t)).astype(np.uint8)


@mutant("amax-first-64")
class ColumnsOfOneTile(NVFP4):
    """The reduction covers the first 64 columns of each row."""

    def amax(self, x):
        return np.fmax.reduce(np.abs(x[:, :64]), axis=None, initial=F(0))


@mutant("search-max")
class LargestError(FourOverSix):
    """The candidates are compared by their largest error."""

    def total(self, errors):
        return errors.max(axis=-1)


@mutant("block-")
class SquaresStartAtEight(Square):
    """The groups of 16 rows begin at row 8."""

    def block_amax(self, blocks):
        rows = np.fmax.reduce(np.abs(blocks), axis=2, initial=F(0))
        moved = np.pad(rows, ((8, -(len(rows) + 8) % 16), (0, 0)))
        high = moved.reshape(len(moved) // 16, 16, rows.shape[1])
        return np.repeat(high.max(axis=1), 16, axis=0)[8 : len(rows) + 8]


@mutant("random-nibble")
class FourRandomBits(Stochastic):
    """Only the high nibble of a byte is used."""

    def drawn(self, bits):
        return bits & 0xF0


@mutant("bits-inverted")
class RandomBitsComplemented(Stochastic):
    def drawn(self, bits):
        return 255 - bits


@mutant("amax-raw")
class AmaxBeforeTheTransform(RHT):
    def read(self, x):
        self.before = np.fmax.reduce(np.abs(x), axis=None, initial=F(0))
        return self.transform(x)

    def amax(self, x):
        return self.before


@mutant("layout-inferred-16")
class QuartersReversed(NVFP4):
    """The four groups of 32 rows of a tile, the last first."""

    def place(self, scales):
        right = tiled(scales)
        return right.reshape(-1, 32, 4, 4)[:, :, ::-1].reshape(right.shape)


@mutant("sign-negative")
class ZeroWithoutSign(NVFP4):
    """`x < 0` instead of the sign bit."""

    def encode(self, y):
        code = e2m1(y)
        return np.where(y == 0, 0, code).astype(np.uint8)


@mutant("global-floor2")
class PowerOfTwoGlobal(NVFP4):
    """The global encode scale is rounded down to a power of two."""

    def global_scale(self, amax):
        s_enc = np.asarray(super().global_scale(amax), F)
        return (s_enc.view(np.uint32) & np.uint32(0xFF800000)).view(F)[()]


@mutant("mx-even", "nibbles")
class EvenAndSwapped(EvenScales):
    def pack(self, codes):
        return swapped(codes)


@mutant("global-448", "layout-linear")
class OneLevelLinear(NVFP4):
    """Two at once: the global scale maps amax to 448, and the scales are left as they are."""

    def global_scale(self, amax):
        s_enc = np.fmin(F(448) / F(amax), FLT_MAX)
        return F(1) if amax == 0 or s_enc == 0 else s_enc

    def place(self, scales):
        padded = np.zeros((-(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4), np.uint8)
        padded[: len(scales), : scales.shape[1]] = scales
        return padded


@mutant("bits-", "scale-codec-truncate")
class ReversedBitsScaleCut(Stochastic):
    def drawn(self, bits):
        return bits[:, :, ::-1]

    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where(value(byte) > t, byte - 1, byte).astype(np.uint8)


@mutant("hadamard-signs-none", "element-away")
class UnsignedAndAway(RHT):
    signs = np.ones(16, F)

    def encode(self, y):
        return e2m1(y, tie=lambda c, y: True)


@mutant("search-tie", "nibbles")
class TieTakesFourSwapped(FourOverSix):
    def better(self, first, second):
        return second <= first

    def pack(self, codes):
        return swapped(codes)


@mutant("scale-codec-up", "element-truncate")
class RowsUpAndCut(RowScaled):
    """Row-scaled: scales are rounded up, and elements are cut off."""

    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where((value(byte) < t) & (byte < 0x7E), byte + 1, byte).astype(np.uint8)

    def encode(self, y):
        code = np.searchsorted([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.abs(y).astype(np.float64), side="right") - 1
        return np.where(np.isnan(y), 7, code + 8 * np.signbit(y)).astype(np.uint8)


@mutant("amax-tail|amax-other|amax-inferred-columns-past-16", "layout-128x4-down")
class TailAndColumnMajor(NVFP4):
    """The last columns of each row are not in the amax, and tiles go down first."""

    def amax(self, x):
        return np.fmax.reduce(np.abs(x[:, : max(x.shape[1] // 16 * 16, 16)]), axis=None, initial=F(0))

    def place(self, scales):
        return tiled(scales, order=(3, 0, 2, 1, 4))
