"""Wrong scales: of the tensor, of blocks, and their bytes, everywhere or in one place.

No kernel knows the library of mistakes. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_PARTS = runpy.run_path(str(Path(__file__).with_name("parts.py")))
BFLOAT16, F, FLT_MAX, Rows, in_type = (_PARTS[name] for name in ("BFLOAT16", "F", "FLT_MAX", "Rows", "in_type"))
MUTANTS, mutant = _PARTS["mutants"]()
_KERNELS = runpy.run_path(str(Path(__file__).with_name("kernels.py")))
e4m3 = _KERNELS["e4m3"]
_PLACES = runpy.run_path(str(Path(__file__).with_name("places.py")))
ALL, MXFP4, MXFP8, NVFP4, RHT = (_PLACES[name] for name in ("ALL", "MXFP4", "MXFP8", "NVFP4", "RHT"))
Somewhere, Square, e4m3, value = (_PLACES[name] for name in ("Somewhere", "Square", "e4m3", "value"))
CORRECT = ()


@mutant("global-inf-zero", says="wrong on NaN, Inf only: S_enc is 0 for an infinite amax; .* cases fail", release=True)
class InfiniteAmaxHasNoRule(NVFP4):
    def global_scale(self, amax):
        return F(1) if amax == 0 else np.fmin(F(2688) / F(amax), FLT_MAX)


@mutant("", says="rounded up.*% 128 >= 96", multiple=(16, 16), release=True)
class LastWarpOfFour(Somewhere):
    """Blocks are dealt to 128 threads in order."""

    class Wrong(NVFP4):
        def scale_byte(self, t):
            byte = e4m3(t)
            return np.where((value(byte) < t) & (byte < 0x7E), byte + 1, byte).astype(np.uint8)

    def inside(self, row, column):
        return (row * -(-self.columns // 16) + column // 16) % 128 >= 96


@mutant("scale-sixth-below", says=r"the float32 below fp32\(1/6\)", release=True)
class SixthCut(NVFP4):
    def block_scale(self, amax, s_enc):
        return np.fmin(amax * (s_enc * np.nextafter(F(1) / F(6), F(0))), FLT_MAX)


@mutant("", says="by division, in bfloat16 only", dtypes=ALL, release=True)
class DividesBySixInBfloat16(Somewhere):
    class Wrong(NVFP4):
        def block_scale(self, amax, s_enc):
            return np.fmin(amax / F(6) * s_enc, FLT_MAX)

    inside = in_type("bfloat16")


@mutant("", says="1536.*in float16 only", dtypes=ALL, multiple=(1, 16), release=True)
class TopScaleOf256InFloat16(Somewhere):
    class Wrong(NVFP4):
        def global_scale(self, amax):
            s_enc = np.fmin(F(1536) / F(amax), FLT_MAX)
            return F(1) if amax == 0 or s_enc == 0 else s_enc

    inside = in_type("float16")


@mutant("", says="1792", release=True)
class ElementMaximumOfFour(NVFP4):
    def global_scale(self, amax):
        s_enc = np.fmin(F(1792) / F(amax), FLT_MAX)
        return F(1) if amax == 0 or s_enc == 0 else s_enc


@mutant("", says="FLOOR.*in float32 only", dtypes=ALL, multiple=(64, 64), release=True)
class FloorOfExponentInFloat32(Somewhere):
    """OCP's floor(log2(amax)) - emax."""

    right = MXFP8

    class Wrong(MXFP8):
        def block_scale(self, amax, s_enc):
            return amax

        def scale_byte(self, t):
            exponent = (np.asarray(t, F).view(np.uint32) >> 23).astype(int)
            return np.clip(exponent - 8, 0, 254).astype(np.uint8)

    inside = in_type("float32")


@mutant("", says="one too large.*in row 0", multiple=(16, 16), release=True)
class FirstRowsScalePlusOne(Somewhere):
    class Wrong(NVFP4):
        def scale_byte(self, t):
            byte = super().scale_byte(t)
            return np.where(byte < 0x7E, byte + 1, byte).astype(np.uint8)

    def inside(self, row, column):
        return row == 0


@mutant("", says="clamped above at 256", release=True)
class ScaleCappedAt256(NVFP4):
    def scale_byte(self, t):
        return e4m3(np.fmin(t, F(256)))


@mutant("", says="block scale of exactly 0 becomes 1", release=True)
class ZeroRowsScaleOne(Rows):
    def scale_byte(self, t):
        return np.where(t == 0, 0x38, e4m3(t)).astype(np.uint8)


@mutant("", says="clamped below at 2\\^-9", dtypes=BFLOAT16, release=True)
class RHTScaleNeverZero(RHT):
    def scale_byte(self, t):
        return np.fmax(e4m3(t), 1).astype(np.uint8)


@mutant("", says="truncated.*block % 16 == 15", multiple=(64, 64), release=True)
class ScaleCutInTheLastBlockOf16(Somewhere):
    class Wrong(NVFP4):
        def scale_byte(self, t):
            byte = e4m3(t)
            return np.where((value(byte) > t) & (byte < 0x7F), byte - 1, byte).astype(np.uint8)

    def inside(self, row, column):
        return column // 16 % 16 == 15


@mutant("", says="one too large.*rows or fewer", release=True)
class NextPowerInSmallTensors(Somewhere):
    right = MXFP4

    class Wrong(MXFP4):
        def scale_byte(self, t):
            return np.minimum(super().scale_byte(t) + 1, 254).astype(np.uint8)

    def inside(self, row, column):
        return self.rows < 32


def scale_up(self, t):
    byte = e4m3(t)
    return np.where((value(byte) < t) & (byte < 0x7E), byte + 1, byte).astype(np.uint8)


@mutant("scale-codec-", says="in rows past the last multiple of 16")
class ScaleUpInTheLastTileOf16(Somewhere):
    right = Rows

    class Wrong(Rows):
        scale_byte = scale_up

    def inside(self, row, column):
        return row >= self.rows // 16 * 16


def next_power(self, t):
    byte = MXFP8.scale_byte(self, t)
    return np.minimum(byte + 1, 254).astype(np.uint8)


@mutant("scale-|mx-", says="in rows from 128 on")
class MXNextPowerFromRow128(Somewhere):
    right = MXFP4

    class Wrong(MXFP4):
        scale_byte = next_power

    def inside(self, row, column):
        return row >= 128


def scale_cut(self, t):
    byte = e4m3(t)
    return np.where((value(byte) > t) & (byte < 0x7F), byte - 1, byte).astype(np.uint8)


@mutant("scale-codec-", says="in rows from 96 on", multiple=(16, 16))
class ScaleCutFromRow96(Somewhere):
    class Wrong(NVFP4):
        scale_byte = scale_cut

    def inside(self, row, column):
        return row >= 96


@mutant("scale-codec-", says="where row % 4 == 2")
class SquareScaleUpInOneRowOfFour(Somewhere):
    right = Square

    class Wrong(Square):
        scale_byte = scale_up

    def inside(self, row, column):
        return row % 4 == 2


@mutant("scale-codec-", says="where row % 32 == 5", dtypes=BFLOAT16)
class RHTOneRowOfAWarp(Somewhere):
    right = RHT

    class Wrong(RHT):
        scale_byte = scale_cut

    def inside(self, row, column):
        return row % 32 == 5


@mutant("scale-codec-", says="where row % 128 < 32")
class FirstQuarterOfATile(Somewhere):
    class Wrong(NVFP4):
        scale_byte = scale_up

    def inside(self, row, column):
        return row % 128 < 32


@mutant("mx-|scale-", says="in columns past the last multiple of 128")
class MXColumnsPast128(Somewhere):
    right = MXFP4

    class Wrong(MXFP4):
        scale_byte = next_power

    def inside(self, row, column):
        return column >= self.columns // 128 * 128


@mutant("scale-codec-", says="in columns past the last multiple of 32|last block")
class RowsColumnsPast32(Somewhere):
    right = Rows

    class Wrong(Rows):
        scale_byte = scale_cut

    def inside(self, row, column):
        return column >= self.columns // 32 * 32


@mutant("scale-floor-0.0156-not-zero", says="below at 2\\^-6, unless it is 0, where block % 4 >= 2")
class NoSmallScalesInHalves(Somewhere):
    class Wrong(NVFP4):
        def scale_byte(self, t):
            return e4m3(np.where(t == 0, t, np.maximum(t, F(2.0**-6))))

    def inside(self, row, column):
        return column // 16 % 4 >= 2


@mutant("scale-codec-|scale-byte-plus-1", says="where block number % 32 >= 24")
class MXLastQuarterOfAWarp(Somewhere):
    """Blocks are dealt to 32 lanes in order."""

    right = MXFP8

    class Wrong(MXFP8):
        scale_byte = next_power

    def inside(self, row, column):
        return (row * -(-self.columns // 32) + column // 32) % 32 >= 24


@mutant("scale-codec-", says="% 64 == 63")
class LastLaneOfTwoWarps(Somewhere):
    right = Rows

    class Wrong(Rows):
        scale_byte = scale_up

    def inside(self, row, column):
        return (row * -(-self.columns // 16) + column // 16) % 64 == 63


@mutant("scale-codec-", says="truncated, in tensors of [0-9]+ rows and more only", multiple=(16, 16))
class TallMatrices(Somewhere):
    class Wrong(NVFP4):
        scale_byte = scale_cut

    def inside(self, row, column):
        return self.rows > 64


@mutant("scale-codec-", says="in bfloat16 only|in the last row", dtypes=ALL)
class LastRowInBfloat16(Somewhere):
    class Wrong(NVFP4):
        scale_byte = scale_up

    def inside(self, row, column):
        return (self.dtype.name == "bfloat16") & (row == self.rows - 1)


@mutant(
    "mx-fp16", says="rounded to float16 first, in float16 only", dtypes=("float32", "bfloat16", "float16"), release=True
)
class QuotientInHalfInFloat16(MXFP8):
    def block_scale(self, amax, s_enc):
        t = super().block_scale(amax, s_enc)
        return t.astype(np.float16).astype(F) if self.dtype.name == "float16" else t


@mutant("global-", says="S_enc.*(limit|infinite)")
class UnlimitedSquares(Square):
    def global_scale(self, amax):
        return F(1) if amax == 0 else (F(2688) / F(amax)) or F(1)


@mutant("global-", says="S_enc.*(limit|infinite)", dtypes=BFLOAT16)
class UnlimitedRHT(RHT):
    def global_scale(self, amax):
        return F(1) if amax == 0 else (F(2688) / F(amax)) or F(1)


@mutant("scale-nan", says="block with a NaN.*0x7f")
class RowsNanBlock7F(Rows):
    def blocks(self, x):
        found = super().blocks(x)
        self.nan = np.isnan(found).any(axis=2)
        return found

    def stored(self, byte):
        return np.where(self.nan, 0x7F, byte).astype(np.uint8)


@mutant("scale-nan", says="NaN.*0x7e")
class NanBlockSaturates(NVFP4):
    def blocks(self, x):
        found = super().blocks(x)
        self.nan = np.isnan(found).any(axis=2)
        return found

    def stored(self, byte):
        return np.where(self.nan, 0x7E, byte).astype(np.uint8)


@mutant("scale-codec-away", says="ties.*away.*in float16 only", dtypes=ALL)
class ScaleTiesAwayInFloat16(Somewhere):
    class Wrong(NVFP4):
        def scale_byte(self, t):
            byte = e4m3(t)
            above = np.minimum(byte + 1, 0x7E).astype(np.uint8)
            middle = (value(byte).astype(np.float64) + value(above)) / 2
            return np.where((t == middle) & (byte < 0x7E), above, byte).astype(np.uint8)

    def inside(self, row, column):
        return self.dtype.name == "float16"


@mutant("scale-floor|scale-zero", says="below at 2\\^-9")
class ZeroBlockByteOneRows(Rows):
    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where(byte == 0, 1, byte).astype(np.uint8)
