"""Wrong numbers: maxima, scales, elements and searches, as authors of C, CUDA and Triton kernels get them wrong.

Every kernel was written before the diagnosis was read. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "unseen_elements.py"))
NVFP4, MXFP8, MXFP4, RHT, Square = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "Square"))
Somewhere, Rows, Column, FourOverSix = (_BASE[name] for name in ("Somewhere", "Rows", "Column", "FourOverSix"))
ALL, BF16, E5M2, F, FLT_MAX = (_BASE[name] for name in ("ALL", "BF16", "E5M2", "F", "FLT_MAX"))
value, truncated, away, down, odd = (_BASE[name] for name in ("value", "truncated", "away", "down", "odd"))
_KERNELS = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
e4m3, Stochastic, GRID = (_KERNELS[name] for name in ("e4m3", "Stochastic", "GRID"))
_SCALES = runpy.run_path(str(Path(__file__).parent / "unseen_scales.py"))
mutant, MUTANTS = (_SCALES[name] for name in ("mutant", "MUTANTS"))
MUTANTS.clear()
BFLOAT16, RELEASE = ("bfloat16",), True


class MXFP8E5M2(MXFP8):
    spec, top, form, emax = "mxfp8-e5m2", 57344, E5M2, 15

    def encode(self, y):
        code = np.clip(y, -self.top, self.top).astype(self.form).view(np.uint8)
        return np.where(np.isnan(y), 0x7F, code).astype(np.uint8)


class MXFP8Column(MXFP8):
    direction = "column"


CORRECT = (MXFP8E5M2, MXFP8Column)


def in_type(name):
    def inside(self, row, column):
        return self.dtype.name == name

    return inside


# Maxima


@mutant("", says="block maxima are max x.*instead of max")
class SignedBlockMaxima(NVFP4):
    """tl.max(x), and 0 if all are negative."""

    def block_amax(self, blocks):
        return np.fmax.reduce(blocks, axis=2, initial=F(0))


@mutant("", says="amax is max x.*instead of max", multiple=(16, 16), dtypes=BFLOAT16)
class SignedTensorMaximum(NVFP4):
    def amax(self, x):
        return np.fmax.reduce(x, axis=None, initial=F(0))


@mutant("", says="block maxima are \\|max x\\| instead", multiple=(128, 128))
class AbsoluteOfTheSignedMaximum(NVFP4):
    """fabsf after the reduction, and not before it."""

    def block_amax(self, blocks):
        return np.abs(np.fmax.reduce(blocks, axis=2, initial=-FLT_MAX) + F(0))


@mutant("", says="block maxima.*max x instead of max", multiple=(64, 64), dtypes=ALL)
class MXSignedBlockMaxima(MXFP8):
    def block_amax(self, blocks):
        return np.fmax.reduce(blocks, axis=2, initial=F(0))


@mutant("", says="block maxima are max x.*in bfloat16 only", multiple=(16, 16), dtypes=ALL)
class SignedMaximaInBfloat16(Somewhere):
    class Wrong(NVFP4):
        def block_amax(self, blocks):
            return np.fmax.reduce(blocks, axis=2, initial=F(0))

    inside = in_type("bfloat16")


@mutant("", says="block maxima.*max x instead of max", multiple=(128, 128), dtypes=BFLOAT16)
class SquareSignedMaxima(Square):
    def block_amax(self, blocks):
        return super().block_amax(np.fmax(blocks, F(0)))


@mutant("", says="amax is max x.*instead of max")
class RowsSignedMaximum(Rows):
    def row_amax(self, x):
        return np.fmax.reduce(x, axis=1, initial=F(0))


@mutant("", says="NaN")
class NanReachesTheTensorMaximum(NVFP4):
    """jnp.max, which returns NaN, where fmaxf skips it; the others then use a scale of 1."""

    def amax(self, x):
        return F(np.abs(x).max(initial=F(0)))

    def global_scale(self, amax):
        return F(1) if np.isnan(amax) else super().global_scale(amax)


@mutant("", says="amax is clamped below at 1e-05")
class RowMaximaAtLeast(Rows):
    def row_amax(self, x):
        return np.fmax(super().row_amax(x), F(1e-5))


@mutant("", says="miss the elements at places 3, 7, 11 and 15", multiple=(16, 16))
class LastOfFourFloatsForgotten(NVFP4):
    """max(max(v.x, v.y), v.z)."""

    def block_amax(self, blocks):
        return super().block_amax(blocks[:, :, np.arange(16) % 4 != 3])


@mutant("", says="first half of the block")
class HalfOfA32Block(MXFP4):
    """16 threads reduce what 32 elements share."""

    def block_amax(self, blocks):
        return super().block_amax(blocks[:, :, :16])


@mutant("", says="block maxima miss the first element", dtypes=BFLOAT16, multiple=(16, 16))
class ColumnMissesItsFirstElement(Column):
    """for (i = 1; i < 16; i++)."""

    def block_amax(self, blocks):
        return super().block_amax(blocks[:, :, 1:])


@mutant("", says="first half of the block, where block % 2 == 1", dtypes=BFLOAT16)
class HalfOfOddBlocks(Somewhere):
    right = MXFP8

    class Wrong(MXFP8):
        def block_amax(self, blocks):
            return super().block_amax(blocks[:, :, :16])

    def inside(self, row, column):
        return column // 32 % 2 == 1


@mutant("", says="last.*partial block")
class TailPaddedWithOnes(NVFP4):
    """tl.load(..., other=1.0)."""

    def blocks(self, x):
        made = super().blocks(x)
        if x.shape[1] % 16:
            made = made.copy()
            made[:, -1, x.shape[1] % 16 :] = 1
        return made


@mutant("", says="last partial block sees infinities")
class MXTailPaddedWithInfinity(MXFP8):
    """tl.load(..., other=-inf), and the absolute value after it."""

    def block_amax(self, blocks):
        amax = super().block_amax(blocks)
        if self.columns % 32:
            amax[:, -1] = np.inf
        return amax

    def read(self, x):
        self.columns = x.shape[1]
        return x


@mutant("", says="amax / 6 is returned", multiple=(16, 16))
class ReturnedAmaxOverSix(NVFP4):
    def told(self, amax):
        return amax / F(6)


# Scales


@mutant("", says="by division, in bfloat16 only", dtypes=ALL)
class DividesBySixInBfloat16(Somewhere):
    class Wrong(NVFP4):
        def block_scale(self, amax, s_enc):
            return np.fmin(amax / F(6) * s_enc, FLT_MAX)

    inside = in_type("bfloat16")


@mutant("", says="1536.*in float16 only", dtypes=ALL, multiple=(1, 16))
class TopScaleOf256InFloat16(Somewhere):
    class Wrong(NVFP4):
        def global_scale(self, amax):
            s_enc = np.fmin(F(1536) / F(amax), FLT_MAX)
            return F(1) if amax == 0 or s_enc == 0 else s_enc

    inside = in_type("float16")


@mutant("", says="1792")
class ElementMaximumOfFour(NVFP4):
    def global_scale(self, amax):
        s_enc = np.fmin(F(1792) / F(amax), FLT_MAX)
        return F(1) if amax == 0 or s_enc == 0 else s_enc


@mutant("", says="FLOOR.*in float32 only", dtypes=ALL, multiple=(64, 64))
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


@mutant("", says="amax / 448")
class E5M2WithTheMaximumOfE4M3(MXFP8E5M2):
    def block_scale(self, amax, s_enc):
        return amax / F(448)


@mutant("", says="one too large.*in row 0", multiple=(16, 16))
class FirstRowsScalePlusOne(Somewhere):
    class Wrong(NVFP4):
        def scale_byte(self, t):
            byte = super().scale_byte(t)
            return np.where(byte < 0x7E, byte + 1, byte).astype(np.uint8)

    def inside(self, row, column):
        return row == 0


@mutant("", says="rounded up", multiple=(128, 128))
class SquareScaleUp(Square):
    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where((value(byte) < t) & (byte < 0x7E), byte + 1, byte).astype(np.uint8)


@mutant("", says="clamped above at 256")
class ScaleCappedAt256(NVFP4):
    def scale_byte(self, t):
        return e4m3(np.fmin(t, F(256)))


@mutant("", says="block scale of exactly 0 becomes 1")
class ZeroRowsScaleOne(Rows):
    def scale_byte(self, t):
        return np.where(t == 0, 0x38, e4m3(t)).astype(np.uint8)


@mutant("", says="clamped below at 2\\^-9", dtypes=BFLOAT16)
class RHTScaleNeverZero(RHT):
    def scale_byte(self, t):
        return np.fmax(e4m3(t), 1).astype(np.uint8)


@mutant("", says="bf16.*overflows to infinity", dtypes=BFLOAT16, multiple=(16, 16))
class SquareReciprocalInBfloat16(Square):
    def element(self, blocks, s, s_enc, t):
        factor = np.fmin(F(1) / (s * (F(1) / s_enc)), FLT_MAX)
        return blocks * factor.astype(BF16).astype(F)[:, :, None]


@mutant("", says="truncated.*block % 16 == 15", multiple=(64, 64))
class ScaleCutInTheLastBlockOf16(Somewhere):
    class Wrong(NVFP4):
        def scale_byte(self, t):
            byte = e4m3(t)
            return np.where((value(byte) > t) & (byte < 0x7F), byte - 1, byte).astype(np.uint8)

    def inside(self, row, column):
        return column // 16 % 16 == 15


@mutant("", says="one too large.*rows or fewer")
class NextPowerInSmallTensors(Somewhere):
    right = MXFP4

    class Wrong(MXFP4):
        def scale_byte(self, t):
            return np.minimum(super().scale_byte(t) + 1, 254).astype(np.uint8)

    def inside(self, row, column):
        return self.rows < 32


# Elements


@mutant("", says="float16 before their codec.*in float16 only", dtypes=ALL)
class SquareElementsInHalf(Somewhere):
    right = Square

    class Wrong(Square):
        def encode(self, y):
            return super().encode(y.astype(np.float16).astype(F))

    inside = in_type("float16")


@mutant("", says="nibbles.*exchanged, in float16 only", dtypes=ALL, multiple=(64, 64))
class MXColumnNibblesInFloat16(Somewhere):
    right = type("MXColumn", (MXFP4,), {"direction": "column"})

    class Wrong(MXFP4):
        direction = "column"

        def encode(self, y):
            code = super().encode(y)
            return code.reshape(*code.shape[:2], 16, 2)[..., ::-1].reshape(code.shape)

    def inside(self, row, column):
        return (self.dtype.name == "float16") & (column < self.columns // 2 * 2)


@mutant("", says="lose their sign, where column % 8 == 7", multiple=(1, 16))
class MXSignLostInTheLastLane(Somewhere):
    right = MXFP8

    class Wrong(MXFP8):
        def encode(self, y):
            return super().encode(y) & 0x7F

    def inside(self, row, column):
        return column % 8 == 7


@mutant("", says="truncated, in the last row")
class MXCutInTheLastRow(Somewhere):
    right = MXFP8
    Wrong = type("Wrong", (MXFP8,), {"encode": _BASE["e4m3_cut"]})

    def inside(self, row, column):
        return row == self.rows - 1


@mutant("", says="truncated, in rows from 32 on", multiple=(16, 16))
class E5M2CutFromRow32(Somewhere):
    right = MXFP8E5M2

    class Wrong(MXFP8E5M2):
        def encode(self, y):
            clipped = np.clip(y, -57344, 57344).astype(F)
            near = np.abs(clipped).astype(E5M2).view(np.uint8).astype(int)
            near -= value(near.astype(np.uint8), E5M2) > np.abs(clipped)
            return np.where(np.isnan(y), 0x7F, near + 128 * np.signbit(clipped)).astype(np.uint8)

    def inside(self, row, column):
        return row >= 32


@mutant("", says="ties go away.*columns and more")
class TiesAwayInWideTensors(Somewhere):
    largest = 1 << 22

    class Wrong(NVFP4):
        encode = away

    def inside(self, row, column):
        return self.columns > 512


@mutant("", says="^wrong on.*Inf")
class InfinityBecomesNan(MXFP8):
    """__nv_cvt_float_to_fp8 with __NV_NOSAT."""

    def encode(self, y):
        return np.where(np.isinf(y), 0x7F, super().encode(y)).astype(np.uint8)


@mutant("", says="-0")
class MXSignByComparison(MXFP4):
    """x < 0 ? 8 : 0."""

    def encode(self, y):
        code = super().encode(y)
        return np.where((y == 0) & ~np.isnan(y), 0, code).astype(np.uint8)


@mutant("", says="0\\.25 becomes 0\\.5", multiple=(64, 64), dtypes=BFLOAT16)
class FirstTieUp(NVFP4):
    """y >= 0.25f."""

    def encode(self, y):
        return np.where(np.abs(y) == 0.25, 1 + 8 * np.signbit(y), super().encode(y)).astype(np.uint8)


@mutant("", says="subnormal inputs are flushed", dtypes=ALL)
class MXInputsFlushed(MXFP4):
    """-ftz=true."""

    def read(self, x):
        return np.where(np.abs(x) < F(2.0**-126), np.copysign(F(0), x), x)


@mutant("", says="clamped to 4", multiple=(64, 64))
class RowsSaturateAtFour(Rows):
    def encode(self, y):
        return super().encode(np.where(np.isnan(y), y, np.clip(y, -4, 4)))


@mutant("", says="transform.*(missing|not applied|skipped|without|no ).*block % 2 == 1|block % 2 == 1", dtypes=BFLOAT16)
class TransformSkippedInOddGroups(RHT):
    def transform(self, x):
        y = super().transform(x).reshape(len(x), x.shape[1] // 16, 16).copy()
        y[:, 1::2] = x.reshape(y.shape)[:, 1::2]
        return y.reshape(x.shape)


@mutant("", says="ties.*away.*in rows from 64 on", dtypes=BFLOAT16, multiple=(16, 16))
class RHTAwayFarDown(Somewhere):
    right = RHT
    Wrong = type("Wrong", (RHT,), {"encode": away})

    def inside(self, row, column):
        return row >= 64


# Searches


@mutant("", says="always keeps the first candidate.*in bfloat16 only", dtypes=ALL, multiple=(16, 16))
class NeverFourInBfloat16(Somewhere):
    right = FourOverSix

    class Wrong(FourOverSix):
        def better(self, first, second):
            return np.zeros_like(second, np.bool_)

    inside = in_type("bfloat16")


@mutant("", says="scaled units")
class ErrorsInUnitsOfTheScale(FourOverSix):
    """The errors are those of scaled elements: what they are divided by is forgotten."""

    def error(self, q, s, amax, s_enc, x):
        scale = s[:, :, None] * amax / F(2688)
        return self.total(np.abs(q - np.divide(x, scale, where=scale != 0, out=np.zeros_like(q))))


# Random bits


@mutant("", says="uses the previous one's random bits", multiple=(16, 16))
class BitsOfTheColumnBefore(Stochastic):
    def drawn(self, bits):
        flat = bits.reshape(len(bits), bits.shape[1] * bits.shape[2])
        return np.concatenate([flat[:, :1], flat[:, :-1]], axis=1).reshape(bits.shape)


@mutant("", says="bits of negative elements are inverted")
class BitsAddedToSignedValues(Stochastic):
    """floor(y + r), as if rounding to minus infinity were truncation."""

    def encode(self, y):
        drawn, self.turn = super().encode(y), True
        other = super().encode(-np.abs(y))
        self.turn = False
        return np.where(np.signbit(y), other, drawn).astype(np.uint8)

    turn = False

    def drawn(self, bits):
        return 255 - bits if self.turn else bits
