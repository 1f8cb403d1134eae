"""Wrong quantizers: addresses of rows, types of bits, what is left in a register, the other direction's scales."""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
BF16, F, NVFP4, Stochastic, tiled = (_BASE[name] for name in ("BF16", "F", "NVFP4", "Stochastic", "tiled"))
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("input-pitch-up-16|input-pitch-up-8|input-pitch-up-4|input-pitch-up-2")
class RowsAtMultiplesOf16(NVFP4):
    """An allocation is taken to have padded rows."""

    def read(self, x):
        rows, columns = x.shape
        index = np.arange(rows)[:, None] * (-(-columns // 16) * 16) + np.arange(columns)
        flat = np.append(x.reshape(-1), F(0))
        return flat[np.minimum(index, x.size)]


@mutant("input-aligned-16")
class VectorLoads(NVFP4):
    """The low four bits of a row's address are dropped by a load of a vector."""

    def read(self, x):
        flat, columns = x.reshape(-1), x.shape[1]
        starts = [row * columns // 4 * 4 for row in range(len(x))]
        return np.stack([flat[start : start + columns] for start in starts]) if x.size else x


@mutant("amax-inferred-below-1")
class AmaxFromOne(NVFP4):
    """A maximum starts at 1.0f."""

    def amax(self, x):
        return np.maximum(F(1), super().amax(x))


@mutant("amax-inferred-columns-last-group-16")
class AmaxWithoutLastBlock(NVFP4):
    """A loop over blocks ends one too early, unless there is one alone."""

    def amax(self, x):
        whole = (x.shape[1] - 1) // 16 * 16
        return super().amax(x[:, :whole] if whole > 0 else x)


@mutant("codes-pair-sign-extended")
class SignedByte(NVFP4):
    """int8_t byte = low; byte |= high << 4: a negative low code was extended before."""

    def pack(self, codes):
        spare = codes.shape[1] % 2
        low, high = codes[:, ::2].astype(np.int8), np.pad(codes[:, 1::2], ((0, 0), (0, spare)))
        joined = np.where(low >= 8, low - 16, low).astype(np.int8).view(np.uint8) | high << 4
        if spare:
            joined[:, -1] &= 15
        return joined


@mutant("bits-nibbles-pair")
class OneBytePerPair(Stochastic):
    """A byte is drawn for each byte of the result, four bits for each element."""

    def drawn(self, bits):
        both = bits[..., ::2]
        return np.stack([both << 4, both & 0xF0], axis=-1).reshape(bits.shape)


@mutant("data-stream")
class OneStreamOfNibbles(NVFP4):
    """Elements are counted over the whole tensor, and a row of odd length has no spare nibble."""

    def pack(self, codes):
        rows, columns = codes.shape
        width = -(-columns // 2)
        flat = np.pad(codes.reshape(-1), (0, rows * (2 * width - columns)))
        return (flat[::2] | flat[1::2] << 4).reshape(rows, width)


@mutant("block-tail-stale")
class LeftInRegisters(NVFP4):
    """Lanes past the end of a row keep the values of the block before."""

    def blocks(self, x):
        self.inside = x.shape[1] % 16
        return super().blocks(x)

    def block_amax(self, blocks):
        found = super().block_amax(blocks)
        if self.inside and blocks.shape[1] > 1:
            left = np.fmax.reduce(np.abs(blocks[:, -2, self.inside :]), axis=1)
            found[:, -1] = np.fmax(found[:, -1], left)
        return found


class Column(NVFP4):
    """The column direction; x^T comes in."""

    direction = "column"

    def other(self, x):
        """Return the scale bytes of the row direction."""
        scales = []
        straight = NVFP4()
        straight.place = lambda found: scales.append(found) or found
        straight(np.ascontiguousarray(x.T), self.dtype)
        return scales[0]

    def read(self, x):
        self.rows_of = self.other(x) if x.size else np.zeros((1, 1), np.uint8)
        return x


@mutant("direction-scales-index")
class ScalesOfTheRowDirection(Column):
    """scales[row][block] of the other direction's array."""

    def scale_byte(self, t):
        rows, blocks = np.indices(t.shape)
        own = self.rows_of
        return own[np.minimum(rows, len(own) - 1), np.minimum(blocks, own.shape[1] - 1)]


@mutant("direction-stored-index-zero")
class StoresScalesOfTheRowDirection(Column):
    """The row direction's array is stored, as far as it reaches."""

    def stored(self, byte):
        found, own = np.zeros_like(byte), self.rows_of
        rows, blocks = min(len(byte), len(own)), min(byte.shape[1], own.shape[1])
        found[:rows, :blocks] = own[:rows, :blocks]
        return found


@mutant("direction-scales-element")
class ScaleOfTheFirstElement(Column):
    """Elements take the scale of the row block that holds the first of them."""

    def scale_byte(self, t):
        rows, blocks = np.indices(t.shape)
        own = self.rows_of
        return own[np.minimum(blocks * 16, len(own) - 1), np.minimum(rows // 16, own.shape[1] - 1)]
