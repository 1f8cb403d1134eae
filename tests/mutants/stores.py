"""Wrong quantizers: where codes and scale bytes are stored, and what is not written."""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
F, MXFP4, MXFP8, NVFP4, swapped = (_BASE[name] for name in ("F", "MXFP4", "MXFP8", "NVFP4", "swapped"))
tiled = _BASE["tiled"]
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


LAST = [F(1)]


@mutant("all-nan|amax-nan")
class KeepsNaN(NVFP4):
    def amax(self, x):
        return np.abs(x).max(initial=0)


@mutant("nibbles")
class HighFirst(NVFP4):
    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        return data << 4 | data >> 4


@mutant("layout-linear|layout-linear_padded")
class LinearScales(NVFP4):
    def place(self, scales):
        out = np.zeros(tiled(scales).size, np.uint8)
        out[: scales.size] = scales.ravel()
        return out


@mutant("layout-128x4-twice")
class TiledTwice(NVFP4):
    def place(self, scales):
        return tiled(tiled(scales))


@mutant("layout-digits|layout-cutlass.sf_mn_major")
class TilesDown(NVFP4):
    def place(self, scales):
        return tiled(scales, order=(3, 0, 2, 1, 4))


@mutant("layout-128x4-inner")
class AxesExchanged(NVFP4):
    def place(self, scales):
        return tiled(scales, order=(0, 3, 1, 2, 4))


@mutant("layout-digits")
class UnnamedOrder(NVFP4):
    def place(self, scales):
        return tiled(scales, order=(3, 0, 4, 1, 2))


@mutant("layout-tiled_8x4")
class SmallTiles(NVFP4):
    def place(self, scales):
        out = np.zeros(tiled(scales).size, np.uint8)
        small = tiled(scales, 8, (0, 1, 2, 3, 4)).reshape(-(-len(scales) // 8), 8, -1, 4).transpose(0, 2, 1, 3)
        out[: small.size] = small.ravel()
        return out


@mutant("padding")
class DirtyPadding(NVFP4):
    def place(self, scales):
        mask = tiled(np.ones_like(scales))
        return np.where(mask, tiled(scales), 0x7F).astype(np.uint8)


@mutant("spare-nibble")
class DirtySpare(NVFP4):
    def pack(self, codes):
        data = super().pack(codes)
        if codes.shape[1] % 2:
            data[:, -1] |= 0x70
        return data


@mutant("stored-rows-128")
class FirstTilesBytes(NVFP4):
    def place(self, scales):
        return tiled(scales[np.arange(len(scales)) % 128])


@mutant("nibbles")
class HighNibbleFirst(MXFP4):
    def pack(self, codes):
        codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
        return codes[:, ::2] << 4 | codes[:, 1::2]


@mutant("data-order-inferred-8|data-bytes-reversed-8|codes-reversed-8")
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


@mutant("layout-128x4-rows-4", says="128x4 tiles split rows as row % 4 and row // 4 instead of row % 32 and row // 32")
class RowsByFours(NVFP4):
    def place(self, scales):
        return tiled(scales, order=(0, 3, 2, 1, 4), inner=4)


@mutant("layout-digits|layout-cutlass.sf_mn_major")
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


@mutant("unwritten-codes-columns-16")
class TailCodesZero(NVFP4):
    def pack(self, codes):
        codes = codes.copy()
        codes[:, codes.shape[1] // 16 * 16 :] = 0
        return NVFP4.pack(self, codes)


@mutant("not-repeatable")
class Racy(NVFP4):
    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        if data.size > 64 and np.random.default_rng().random() < 0.2:
            data[0, 0] ^= 0x11
        return data


@mutant("not-repeatable")
class DelayedScaling(NVFP4):
    def used_amax(self, amax, x):
        used, LAST[0] = LAST[0], amax
        return used


@mutant("data-wrap-16")
class OffsetWraps16(NVFP4):
    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        flat, out = data.reshape(-1), np.zeros(data.size, np.uint8)
        for start in range(0, flat.size, 65536):
            piece = flat[start : start + 65536]
            out[: piece.size] = piece
        return out.reshape(data.shape)


@mutant("unwritten-codes-last")
class LastByteMissing(NVFP4):
    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        if data.size:
            data.reshape(-1)[-1] = 0
        return data


@mutant("layout")
class ColumnsFirst(NVFP4):
    def place(self, scales):
        return tiled(scales, order=(0, 3, 4, 2, 1))


@mutant("data-rows-pairs")
class RowsOfPairsExchanged(NVFP4):
    def pack(self, codes):
        codes = codes.copy()
        even = len(codes) // 2 * 2
        codes[:even] = codes[:even].reshape(even // 2, 2, codes.shape[1])[:, ::-1].reshape(even, codes.shape[1])
        return NVFP4.pack(self, codes)


@mutant("layout-unpadded")
class TilesOfAWidthRoundedDown(NVFP4):
    """A row of tiles starts where columns // 4 tiles of the one before would end."""

    def place(self, scales):
        columns = scales.shape[1]
        right = tiled(scales)
        above, across = right.shape[0] // 128, right.shape[1] // 4
        tiles = right.reshape(above, across, 512)
        out = np.zeros(right.size, np.uint8)
        for i in range(above):
            for j in range(across):
                start = (i * max(columns // 4, 1) + j) * 512
                out[start : start + 512] = tiles[i, j]
        return out.reshape(right.shape)


@mutant("data-halves-16")
class NibblesEightApart(NVFP4):
    """The two nibbles of a byte come from the two halves of a block."""

    def pack(self, codes):
        width = codes.shape[1]
        codes = np.pad(codes, ((0, 0), (0, -width % 16)))
        groups = codes.reshape(len(codes), codes.shape[1] // 16, 16)
        packed = (groups[:, :, :8] | groups[:, :, 8:] << 4).reshape(len(codes), codes.shape[1] // 2)
        return packed[:, : (width + 1) // 2]


@mutant("padding")
class PaddingRepeatsTheLastRow(NVFP4):
    """Row indices are clamped, not masked, where scales are stored."""

    def place(self, scales):
        rows = -(-len(scales) // 128) * 128
        return tiled(scales[np.minimum(np.arange(rows), len(scales) - 1)] if len(scales) else scales)


@mutant("layout-transposed")
class ScalesStoredTransposed(NVFP4):
    layout = "linear"

    def place(self, scales):
        return np.ascontiguousarray(scales.T).reshape(scales.shape)


@mutant("stored-late-rolled")
class ScalesOneBlockLate(NVFP4):
    """The store is one step of the pipeline behind: a block's scale lies where the next block's should."""

    def stored(self, byte):
        return np.roll(byte, 1, axis=1)


@mutant("codes-constant-0x0", says=r"not written, or zeros\), where row % 16 == 15")
class LaneWithoutStore(NVFP4):
    def pack(self, codes):
        codes = codes.copy()
        codes[15::16] = 0
        return super().pack(codes)


@mutant("data-order-inferred-8-rows")
class FragmentRows(NVFP4):
    def pack(self, codes):
        out = codes.copy()
        whole = len(codes) // 8 * 8
        groups = codes[:whole].reshape(whole // 8, 8, codes.shape[1])
        out[:whole] = groups[:, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(whole, codes.shape[1])
        return super().pack(out)


@mutant("layout-inferred-128")
class RowsOfEightReversed(MXFP8):
    def place(self, scales):
        right = tiled(scales)
        return right.reshape(-1, 8, 16)[:, ::-1].reshape(right.shape)


@mutant("layout-digits", says="digit m1 is stored XOR 3")
class QuartersReversed(NVFP4):
    """The four groups of 32 rows of a tile, the last first."""

    def place(self, scales):
        right = tiled(scales)
        return right.reshape(-1, 32, 4, 4)[:, :, ::-1].reshape(right.shape)
