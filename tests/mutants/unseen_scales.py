"""Wrong scales and maxima: of the tensor, of rows, of blocks, of squares, of a candidate, everywhere or somewhere.

Every kernel was written before the diagnosis was read. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "unseen_elements.py"))
NVFP4, MXFP8, MXFP4, RHT, Square = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "Square"))
Somewhere, Rows, Column, FourOverSix = (_BASE[name] for name in ("Somewhere", "Rows", "Column", "FourOverSix"))
ALL = _BASE["ALL"]
BF16, value, F, FLT_MAX = (_BASE[name] for name in ("BF16", "value", "F", "FLT_MAX"))
_PLACES = runpy.run_path(str(Path(__file__).parent / "places.py"))
e4m3 = _PLACES["e4m3"]
CORRECT = ()
MUTANTS, enter = runpy.run_path(str(Path(__file__).parent / "kernels.py"))["mutants"]()


def mutant(*names, says, dtypes=("float32",), multiple=(1, 1)):
    """Enter a kernel with its mistakes, the words of the headline, its input types and its multiples."""

    def register(cls):
        cls.dtypes, cls.multiple = dtypes, multiple
        return enter(*names, says=says)(cls)

    return register


BFLOAT16 = ("bfloat16",)


# The maximum of the tensor, and the global scale


@mutant("global-", says="S_enc.*(limit|infinite)")
class UnlimitedSquares(Square):
    def global_scale(self, amax):
        return F(1) if amax == 0 else (F(2688) / F(amax)) or F(1)


@mutant("global-", says="S_enc.*(limit|infinite)", dtypes=BFLOAT16)
class UnlimitedRHT(RHT):
    def global_scale(self, amax):
        return F(1) if amax == 0 else (F(2688) / F(amax)) or F(1)


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


# Blocks and squares


def paired(own):
    """The larger of two neighbouring maxima for both; an odd tail keeps its own."""
    whole = own.shape[1] // 2 * 2
    pairs = own[:, :whole].reshape(len(own), whole // 2, 2).max(axis=2, initial=0)
    return np.concatenate([np.repeat(pairs, 2, axis=1), own[:, whole:]], axis=1)


@mutant("block-2-", says="2 neighbouring blocks.*share")
class RowsShareScalesByPairs(Rows):
    """32-element blocks; an odd tail stands alone."""

    def block_amax(self, blocks):
        return paired(super().block_amax(blocks))


@mutant("block-2-", says="2 neighbouring blocks.*share", dtypes=BFLOAT16)
class RHTShareScalesByPairs(RHT):
    def block_amax(self, blocks):
        return paired(super().block_amax(blocks))


def window(blocks, by):
    """The elements of every row from `by` further on, zeros past its end."""
    flat = blocks.reshape(len(blocks), blocks.shape[1] * blocks.shape[2])
    moved = np.pad(flat, ((0, 0), (max(-by, 0), max(by, 0))))
    moved = moved[:, by:] if by > 0 else moved[:, :by]
    return moved.reshape(blocks.shape)


@mutant("block-window", says="elements 2 further on")
class RowsWindowByTwo(Rows):
    def block_amax(self, blocks):
        return super().block_amax(window(blocks, 2))


@mutant("block-window", says="elements 4 further back", dtypes=BFLOAT16)
class ColumnWindowBack(Column):
    def block_amax(self, blocks):
        return super().block_amax(window(blocks, -4))


@mutant("block-window", says="elements 1 further on")
class FourOverSixWindow(FourOverSix):
    def block_amax(self, blocks):
        return super().block_amax(window(blocks, 1))


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


@mutant("block-amax-bf16", says="block maxima are rounded to bfloat16")
class BlockMaximaInBfloat16(MXFP8):
    def block_amax(self, blocks):
        return super().block_amax(blocks).astype(BF16).astype(F)


@mutant("block-", says="block.*(before|raw|untransformed|without).*", dtypes=BFLOAT16)
class RHTScalesBeforeTheTransform(RHT):
    def read(self, x):
        self.raw = x
        return super().read(x)

    def block_amax(self, blocks):
        return super().block_amax(self.blocks(self.raw))


# Candidates


@mutant("search-", says="4|second")
class AlwaysFour(FourOverSix):
    def better(self, first, second):
        return np.ones_like(second, np.bool_)


@mutant("search-", says="candidate.*in bfloat16 only", dtypes=ALL)
class ScaleOfTheOtherInBfloat16(FourOverSix):
    def better(self, first, second):
        self.second = second < first
        return self.second

    def place(self, scales):
        return super().place(scales)

    def __call__(self, x, dtype):
        data, scales, amax = super().__call__(x, dtype)
        if dtype.name != "bfloat16":
            return data, scales, amax
        s_enc = self.global_scale(self.amax(x))
        t = self.block_amax(self.blocks(x)) / F(6) * s_enc
        return data, self.place(np.where(self.second, self.scale_byte(t), self.scale_byte(t * F(1.5)))), amax


# Scale bytes


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


@mutant("scales-", says="where row % 16 (!= 0|>= 1)|row % 16 == 0")
class SquareScaleStoredOnce(Square):
    """Only the first row of a square stores its scale."""

    def stored(self, byte):
        return np.where(np.arange(len(byte))[:, None] % 16 == 0, byte, 0).astype(np.uint8)


@mutant("stored-", says="(before|late|previous|next)")
class MXScalesOneBlockEarly(MXFP4):
    def stored(self, byte):
        return np.concatenate([byte[:, 1:], byte[:, -1:]], axis=1)


@mutant("direction-stored", says="other direction")
class MX4ColumnStoresScalesOfRows(MXFP4):
    direction = "column"

    def read(self, x):
        self.other = super().scale_byte(self.block_scale(self.block_amax(self.blocks(x.T)), F(1)))
        return x

    def stored(self, byte):
        found = np.zeros(byte.size, np.uint8)
        found[: self.other.size] = self.other.reshape(-1)[: byte.size]
        return found.reshape(byte.shape)
