"""Wrong maxima: of a tensor, a row or a block, and global scales without a limit.

Each kernel errs in which elements a maximum sees, in how it is rounded, or in what is made of it.
"""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
NVFP4, MXFP8, MXFP4, RHT, RowScaled = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "RowScaled"))
FourOverSix, Square, e4m3 = (_BASE[name] for name in ("FourOverSix", "Square", "e4m3"))
F, FLT_MAX = np.float32, np.finfo(np.float32).max
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


def largest(x, axis=None):
    return np.fmax.reduce(np.abs(x), axis=axis, initial=F(0))


# The global scale has no limit


def unlimited(amax):
    with np.errstate(all="ignore"):
        return F(1) if amax == 0 else F(2688) / F(amax)


@mutant("global-or-one", says="S_enc has no upper limit")
class Unlimited(NVFP4):
    """A tiny amax gives an infinite S_enc."""

    def global_scale(self, amax):
        return unlimited(amax)


@mutant("global-or-one", says="S_enc has no upper limit")
class UnlimitedRows(RowScaled):
    def global_scale(self, amax):
        return unlimited(amax)


@mutant("global-or-one", says="S_enc has no upper limit")
class UnlimitedFourOverSix(FourOverSix):
    def global_scale(self, amax):
        return unlimited(amax)


@mutant("global-or-one-scale", says="neither S_enc nor the block scale has an upper limit")
class UnlimitedScaleToo(NVFP4):
    """Neither S_enc nor the block scale is limited; the codec saturates."""

    def global_scale(self, amax):
        return unlimited(amax)

    def block_scale(self, amax, s_enc):
        return amax * (s_enc * (F(1) / F(6)))


# The maximum of the tensor is rounded


class RoundedAmax(NVFP4):
    def amax(self, x):
        return self.rounded(largest(x))


class RoundedUse(NVFP4):
    """The true maximum is returned, the rounded one is used."""

    def used_amax(self, amax, x):
        return self.rounded(amax)


def mantissa(amax, bits, rounding):
    """With so many bits after the leading one."""
    fraction, exponent = np.frexp(np.float64(amax))
    return F(np.ldexp(rounding(fraction * 2 ** (bits + 1)) / 2 ** (bits + 1), exponent))


@mutant("amax-bf16", says="amax is rounded to bfloat16")
class AmaxToBfloat16(RoundedAmax):
    def rounded(self, amax):
        return amax.astype(BF16).astype(F)


@mutant("amax-", says="amax is rounded up to a power of two")
class AmaxUpToPower(RoundedAmax):
    def rounded(self, amax):
        return mantissa(amax, 0, np.ceil)


@mutant("amax-", says="amax is rounded down to a power of two")
class AmaxDownToPower(RoundedAmax):
    def rounded(self, amax):
        return mantissa(amax, 0, np.floor)


@mutant("amax-", says="amax is rounded up to 3 bits of mantissa")
class AmaxUpToE4M3(RoundedAmax):
    def rounded(self, amax):
        return mantissa(amax, 3, np.ceil)


@mutant("amax-", says="amax is rounded to nearest to 5 bits of mantissa")
class AmaxToFiveBits(RoundedAmax):
    def rounded(self, amax):
        return mantissa(amax, 5, np.rint)


@mutant("amax-", says="amax is rounded up to bfloat16|amax is rounded up to 7 bits of mantissa")
class AmaxUpToBfloat16(RoundedAmax):
    def rounded(self, amax):
        return mantissa(amax, 7, np.ceil)


@mutant("amax-used", says="amax that the global scale is made of is rounded up to a power of two")
class UsedUpToPower(RoundedUse):
    def rounded(self, amax):
        return mantissa(amax, 0, np.ceil)


@mutant("amax-used", says="amax that the global scale is made of is rounded up to 3 bits of mantissa")
class UsedUpToE4M3(RoundedUse):
    def rounded(self, amax):
        return mantissa(amax, 3, np.ceil)


@mutant("amax-", says="amax is rounded up to a power of two")
class RowAmaxUpToPower(RowScaled):
    def amax(self, x):
        return mantissa(largest(x), 0, np.ceil)


@mutant("amax-", says="amax is 1.125 times what it should be")
class AmaxWithHeadroom(NVFP4):
    def amax(self, x):
        return largest(x) * F(1.125)


# The elements that a maximum of the tensor or of a row sees


@mutant("amax-even-columns", says="amax is taken over even columns only")
class RowsSeeEvenColumns(RowScaled):
    def amax(self, x):
        return largest(x[:, ::2])


@mutant("amax-", says="amax misses columns 16 to 31 of every 32")
class RowsSeeHalfOf32(RowScaled):
    def amax(self, x):
        return largest(x[:, np.arange(x.shape[1]) % 32 < 16])


@mutant("amax-", says="amax misses column 5 of every 8")
class RowsMissOneLane(RowScaled):
    def amax(self, x):
        return largest(x[:, np.arange(x.shape[1]) % 8 != 5])


@mutant("amax-", says="amax misses columns from 48 on")
class RowsSeeFirst48(RowScaled):
    def amax(self, x):
        return largest(x[:, :48])


@mutant("amax-", says="amax misses the last 3 columns")
class RowsMissLastThree(RowScaled):
    def amax(self, x):
        return largest(x[:, : max(x.shape[1] - 3, 0)])


@mutant("amax-", says="amax misses columns 48 to 63 of every 64")
class MissesOneWarp(NVFP4):
    def amax(self, x):
        return largest(x[:, np.arange(x.shape[1]) % 64 < 48])


@mutant("amax-", says="amax misses row 3 of every 4")
class MissesEveryFourthRow(NVFP4):
    def amax(self, x):
        return largest(x[np.arange(len(x)) % 4 != 3])


@mutant("amax-", says="amax misses rows from 100 on")
class SeesHundredRows(NVFP4):
    def amax(self, x):
        return largest(x[:100])


# The window of a block's maximum


class Window(NVFP4):
    """Block maxima over elements `by` further on; past the end of a row is nothing."""

    by = 1

    def blocks(self, x):
        self.moved = np.zeros_like(x)
        inside = max(x.shape[1] - abs(self.by), 0)
        if self.by > 0:
            self.moved[:, :inside] = x[:, self.by :]
        else:
            self.moved[:, x.shape[1] - inside :] = x[:, :inside]
        return super().blocks(x)

    def block_amax(self, blocks):
        return largest(NVFP4.blocks(self, self.moved), 2)


class FlatWindow(Window):
    """The same over the tensor as one row."""

    def blocks(self, x):
        flat = np.concatenate([x.reshape(-1), np.zeros(abs(self.by), F)])
        self.moved = np.roll(flat, -self.by)[: x.size].reshape(x.shape)
        return NVFP4.blocks(self, x)


@mutant("block-window", says="elements 1 further on")
class WindowByOne(Window): ...


@mutant("block-window", says="elements 8 further on")
class WindowByEight(Window):
    by = 8


@mutant("block-window", says="elements 1 further back")
class WindowBackByOne(Window):
    by = -1


@mutant("block-window", says="elements 4 further on, with the next row")
class FlatWindowByFour(FlatWindow):
    by = 4


@mutant("block-window", says="elements 8 further back")
class MXWindowBack(Window, MXFP4):
    by = -8

    def block_amax(self, blocks):
        return largest(NVFP4.blocks(self, self.moved), 2)


@mutant("block-window", says="elements 16 further on")
class MXWindowByHalf(Window, MXFP8):
    by = 16


# Blocks that are twice as wide


class Wide(NVFP4):
    """The maximum of two neighbouring blocks; `tail` says what becomes of the last block where their count is odd."""

    def block_amax(self, blocks):
        own = largest(blocks, 2)
        whole = own.shape[1] // 2 * 2
        pairs = np.repeat(own[:, :whole].reshape(len(own), whole // 2, 2).max(axis=2, initial=0), 2, axis=1)
        return np.concatenate([pairs, self.tail(own, pairs, whole)], axis=1)


@mutant("block-2-across", says="2 neighbouring blocks of a row share their scale")
class WideOwnTail(Wide):
    def tail(self, own, pairs, whole):
        return own[:, whole:]


@mutant("block-2-across-joins", says="last block of an odd count joins the pair")
class WideTailJoins(Wide):
    """The last block joins the pair before it."""

    def block_amax(self, blocks):
        own = largest(blocks, 2)
        count = own.shape[1]
        if count % 2 == 0 or count == 1:
            return super().block_amax(blocks)
        found = super().block_amax(blocks[:, :-1])
        three = np.maximum(found[:, -1], own[:, -1])
        return np.concatenate([found[:, :-2], np.repeat(three[:, None], 3, axis=1)], axis=1)

    def tail(self, own, pairs, whole):
        return own[:, whole:]


@mutant("block-2-across-pair", says="last block of an odd count has the scale of the pair")
class WideTailOfPair(Wide):
    """The last block has the maximum of the pair before it."""

    def tail(self, own, pairs, whole):
        return pairs[:, -1:] if whole and own.shape[1] % 2 else own[:, whole:]


@mutant("block-2-flat", says="2 neighbouring blocks share their scale.* across the ends of rows")
class WideAcrossRows(NVFP4):
    """Pairs are counted over the whole tensor."""

    def block_amax(self, blocks):
        own = largest(blocks, 2)
        flat = np.pad(own.reshape(-1), (0, own.size % 2)).reshape(-1, 2).max(axis=1, initial=0)
        return np.repeat(flat, 2)[: own.size].reshape(own.shape)


@mutant("block-2-across", says="2 neighbouring blocks of a row share their scale")
class MXWideOwnTail(Wide, MXFP4):
    def tail(self, own, pairs, whole):
        return own[:, whole:]


@mutant("block-2-across-zero", says="last block of an odd count is left out")
class MXWideTailZero(Wide, MXFP8):
    """The last block is left without a maximum."""

    def tail(self, own, pairs, whole):
        return own[:, whole:] * F(0)
