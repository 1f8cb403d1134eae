"""Wrong maxima of tensors and of rows.

No kernel knows the library of mistakes. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_PARTS = runpy.run_path(str(Path(__file__).with_name("parts.py")))
BFLOAT16, F, Rows, exchanged = (_PARTS[name] for name in ("BFLOAT16", "F", "Rows", "exchanged"))
MUTANTS, mutant = _PARTS["mutants"]()
_KERNELS = runpy.run_path(str(Path(__file__).with_name("kernels.py")))
FourOverSix = _KERNELS["FourOverSix"]
_PLACES = runpy.run_path(str(Path(__file__).with_name("places.py")))
MXFP4, NVFP4, RHT, Somewhere, Square = (_PLACES[name] for name in ("MXFP4", "NVFP4", "RHT", "Somewhere", "Square"))
CORRECT = ()


@mutant("amax-first-2^12", says="that of the first 2.12 elements of the tensor only", release=True)
class AmaxOfTheFirstElements(NVFP4):
    def amax(self, x):
        return super().amax(x.reshape(-1)[: 1 << 12])


@mutant("", says="rows of scale bytes i and i \\^ 64 are exchanged", release=True)
class ScaleRowsExchangedBy64(NVFP4):
    def stored(self, byte):
        return exchanged(byte, 64)


@mutant("", says="amax of row % 128", release=True)
class RowMaximaOfTheFirstTile(Rows):
    """A shared array of 128 maxima, of the first tile."""

    def used_amax(self, amax, x):
        return amax[np.arange(len(amax)) % 128]


@mutant("", says="rows past the last multiple of 128", dtypes=BFLOAT16, release=True)
class LastTileOfRowsNotWritten(MXFP4):
    """grid = rows / 128."""

    def pack(self, codes):
        codes = codes.copy()
        codes[len(codes) // 128 * 128 :] = 0
        return super().pack(codes)

    def stored(self, byte):
        byte = byte.copy()
        byte[len(byte) // 128 * 128 :] = 0
        return byte


@mutant("", says="rows from 32,768 on", release=True)
class RowsPastAShort(NVFP4):
    """short row: rows from 32768 on are not written."""

    largest = 1 << 22

    def pack(self, codes):
        codes = codes.copy()
        codes[32768:] = 0
        return super().pack(codes)


@mutant("amax-vectors-", says="misses the elements past the last multiple of . of the whole tensor", release=True)
class AmaxInVectorsOfFourOfTheTensor(NVFP4):
    def amax(self, x):
        return super().amax(x.reshape(-1)[: x.size // 4 * 4])


@mutant("amax-last-stack", says=r"that of x\[-1\] only", release=True)
class AmaxOfTheLastExpert(NVFP4):
    def amax(self, x):
        return super().amax(x[len(x) - len(x) // self.shape[0] :] if len(self.shape) > 2 else x)


@mutant("amax-not-reset", says="the largest of its own and those of all rows before", release=True)
class RowMaximumNeverReset(Rows):
    def row_amax(self, x):
        return np.maximum.accumulate(super().row_amax(x))


@mutant(
    "amax-reported-bf16",
    says="the amax that is returned is rounded to bfloat16, that of the scales is not",
    release=True,
)
class ReturnedAmaxIsNarrow(NVFP4):
    def __call__(self, x, dtype):
        data, scales, amax = super().__call__(x, dtype)
        return data, scales, amax.astype(ml_dtypes.bfloat16).astype(F)


@mutant("", says="amax is max x.*instead of max", multiple=(16, 16), dtypes=BFLOAT16, release=True)
class SignedTensorMaximum(NVFP4):
    def amax(self, x):
        return np.fmax.reduce(x, axis=None, initial=F(0))


@mutant("", says="amax is max x.*instead of max", release=True)
class RowsSignedMaximum(Rows):
    def row_amax(self, x):
        return np.fmax.reduce(x, axis=1, initial=F(0))


@mutant("", says="amax is clamped below at 1e-05", release=True)
class RowMaximaAtLeast(Rows):
    def row_amax(self, x):
        return np.fmax(super().row_amax(x), F(1e-5))


@mutant("", says="amax / 6 is returned", multiple=(16, 16), release=True)
class ReturnedAmaxOverSix(NVFP4):
    def told(self, amax):
        return amax / F(6)


@mutant("block-|used-", says="previous block, where block % 4 == 3")
class ScaleOfTheBlockBefore(Somewhere):
    class Wrong(NVFP4):
        def scale_byte(self, t):
            byte = super().scale_byte(t)
            return np.concatenate([byte[:, :1], byte[:, :-1]], axis=1)

    def inside(self, row, column):
        return column // 16 % 4 == 3


@mutant("amax-bf16-cut", says="amax is truncated to bfloat16")
class RowAmaxCutToBfloat16(Rows):
    def row_amax(self, x):
        return (super().row_amax(x).view(np.uint32) & np.uint32(0xFFFF0000)).view(F)


@mutant("amax-", says="amax.*up to a power of two", multiple=(16, 16))
class SquareAmaxUpToPower(Square):
    def amax(self, x):
        mantissa, exponent = np.frexp(super().amax(x))
        return F(np.ldexp(F(1), exponent - (mantissa == 0.5))) if mantissa else F(0)


@mutant("amax-", says="amax.*float16", dtypes=BFLOAT16)
class RHTAmaxInHalf(RHT):
    def amax(self, x):
        return F(np.float16(super().amax(x)))


@mutant("amax-", says="amax misses columns past the last multiple of 128, where there are at least 128")
class AmaxInVectorsOf128(NVFP4):
    """No tail: columns past the last multiple of 128 are not seen, where there are as many."""

    def amax(self, x):
        return super().amax(x[:, : x.shape[1] // 128 * 128] if x.shape[1] >= 128 else x)


@mutant("amax-", says="amax.*(rows past the last multiple of 4|last rows)")
class AmaxOfFourRowsAtOnce(FourOverSix):
    def amax(self, x):
        return super().amax(x[: len(x) // 4 * 4] if len(x) >= 4 else x)


@mutant("amax-", says="amax misses column 0 of every 2; where no column is left")
class RowsSeeOddColumns(Rows):
    def row_amax(self, x):
        return super().row_amax(x[:, 1::2] if x.shape[1] > 1 else x)


@mutant("amax-", says="amax.*(misses|without).*(column 0|first column)")
class RowsMissTheFirstColumn(Rows):
    def row_amax(self, x):
        return super().row_amax(x[:, 1:] if x.shape[1] > 1 else x)


@mutant("amax-", says="amax of the row before")
class RowsUseTheAmaxBefore(Rows):
    def used_amax(self, amax, x):
        return np.roll(amax, 1)


@mutant("amax-", says="2 neighbouring rows share their amax", multiple=(16, 16))
class RowPairsShareAnAmax(Rows):
    def row_amax(self, x):
        own = super().row_amax(x)
        padded = np.pad(own, (0, len(own) % 2)).reshape(-(-len(own) // 2), 2)
        return np.repeat(padded.max(axis=1), 2)[: len(own)]


@mutant("block-", says="(row|1 x 16|each row)")
class SquaresByRows(Square):
    """Blocks of a row where squares are declared."""

    block_amax = NVFP4.block_amax


@mutant("block-", says="miss rows 15 of the block")
class SquaresWithoutTheirLastRow(Square):
    def block_amax(self, blocks):
        rows = np.arange(len(blocks))[:, None, None]
        return super().block_amax(np.where((rows % 16 == 15), F(0), blocks))


@mutant("block-", says="2 neighbouring blocks of a column share their scale", multiple=(16, 16))
class SquaresOf32Rows(Square):
    def block_amax(self, blocks):
        own = super().block_amax(blocks)[::16]
        padded = np.pad(own, ((0, len(own) % 2), (0, 0)))
        both = padded.reshape(len(padded) // 2, 2, own.shape[1]).max(axis=1)
        return np.repeat(both, 32, axis=0)[: len(blocks)]


@mutant("block-", says="block.*(before|raw|untransformed|without).*", dtypes=BFLOAT16)
class RHTScalesBeforeTheTransform(RHT):
    def read(self, x):
        self.raw = x
        return super().read(x)

    def block_amax(self, blocks):
        return super().block_amax(self.blocks(self.raw))


@mutant("amax-", says="amax is that of the first half of the columns only", release=True)
class MaximumOfTheFirstHalf(NVFP4):
    def amax(self, x):
        return super().amax(x[:, : (x.shape[1] + 1) // 2])


@mutant(
    "amax-shared-4-rows",
    says="4 neighbouring rows share their amax, in rows past the last multiple of 64",
    release=True,
)
class LastRowsShareTheirMaximum(Rows):
    def row_amax(self, x):
        maxima = super().row_amax(x)
        for row in range(len(maxima) // 64 * 64, len(maxima), 4):
            maxima[row : row + 4] = maxima[row : row + 4].max()
        return maxima
