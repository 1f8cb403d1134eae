"""Wrong quantizers: which elements share a scale, and the maxima of blocks."""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
F, MXFP4, MXFP8, NVFP4, Square = (_BASE[name] for name in ("F", "MXFP4", "MXFP8", "NVFP4", "Square"))
value = _BASE["value"]
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("block-signed|block-absolute")
class SignedBlocks(NVFP4):
    def block_amax(self, blocks):
        return np.fmax.reduce(blocks, axis=2, initial=F(0))


@mutant("block-2-across")
class Blocks32(NVFP4):
    def block_amax(self, blocks):
        a = super().block_amax(blocks)
        wide = np.pad(a, ((0, 0), (0, a.shape[1] % 2))).reshape(len(a), -(-a.shape[1] // 2), 2).max(axis=2)
        return np.repeat(wide, 2, axis=1)[:, : a.shape[1]]


@mutant("block-16-rows")
class TwoDimensional(NVFP4):
    def block_amax(self, blocks):
        a = super().block_amax(blocks)
        high = np.pad(a, ((0, -len(a) % 16), (0, 0))).reshape(-(-len(a) // 16), 16, a.shape[1]).max(axis=1)
        return np.repeat(high, 16, axis=0)[: len(a)]


@mutant("block-last-element")
class BlocksOf15(NVFP4):
    def block_amax(self, blocks):
        return super().block_amax(blocks[:, :, :-1])


@mutant("block-previous")
class NeighboursMaximum(NVFP4):
    def block_amax(self, blocks):
        a = super().block_amax(blocks)
        return np.concatenate([a[:, :1], a[:, :-1]], axis=1)


@mutant("block-floor-1e-04|scale-byte-least")
class Eps(MXFP8):
    def block_amax(self, blocks):
        return np.fmax(super().block_amax(blocks), F(1e-4))


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


@mutant("block-floor-1e-04")
class MXAmaxClamped(MXFP4):
    def block_amax(self, blocks):
        return np.maximum(super().block_amax(blocks), F(1e-4))


@mutant("block-one-row")
class SquareOfRows(Square):
    def block_amax(self, blocks):
        return NVFP4.block_amax(self, blocks)


@mutant("block-rows-first-half")
class SquareOfEightRows(Square):
    def block_amax(self, blocks):
        rows = np.fmax.reduce(np.abs(blocks), axis=2, initial=F(0))
        high = np.pad(rows, ((0, -len(rows) % 16), (0, 0))).reshape(-(-len(rows) // 16), 16, rows.shape[1])
        return np.repeat(high[:, :8].max(axis=1), 16, axis=0)[: len(rows)]


@mutant("block-inferred-2")
class FourteenOfSixteen(NVFP4):
    def block_amax(self, blocks):
        return np.fmax.reduce(np.abs(blocks[:, :, :14]), axis=2, initial=F(0))


@mutant("block-own-2-first")
class LastShuffleMissing(NVFP4):
    """Two threads share a block and do not exchange their maxima; the first one stores the scale."""

    def __call__(self, x, dtype):
        amax = self.amax(x)
        s_enc = self.global_scale(amax)
        blocks = self.blocks(x)
        halves = [blocks[:, :, :8], blocks[:, :, 8:]]
        bytes_ = [self.scale_byte(self.block_scale(self.block_amax(half), s_enc)) for half in halves]
        codes = [
            self.encode(self.element(half, value(byte), s_enc, None)) for half, byte in zip(halves, bytes_, strict=True)
        ]
        flat = np.concatenate(codes, axis=2).reshape(len(x), blocks.shape[1] * 16)[:, : x.shape[1]]
        return self.pack(flat), self.place(bytes_[0]), np.array([amax], F)


@mutant("block-tail-next-row")
class TailReadsNextRow(NVFP4):
    """No mask in the last block of a row: its amax sees the head of the next row."""

    def block_amax(self, blocks):
        short = -self.columns % 16
        memory = np.concatenate([self.x.ravel(), np.zeros(short, F)])
        tails = [memory[(row + 1) * self.columns :][:short] for row in range(len(self.x))]
        if short and tails:
            blocks = blocks.copy()
            blocks[:, -1, 16 - short :] = tails
        return super().block_amax(blocks)

    def read(self, x):
        self.x, self.columns = x, x.shape[1]
        return x


@mutant("block-inferred-2")
class TwoLanesMasked(NVFP4):
    def block_amax(self, blocks):
        seen = blocks.copy()
        seen[:, :, [3, 11]] = 0
        return super().block_amax(seen)


@mutant("block-plus-inferred-0.0003")
class OddEps(MXFP8):
    def block_amax(self, blocks):
        return super().block_amax(blocks) + F(3e-4)


@mutant("block-rank-2")
class SecondLargest(NVFP4):
    def block_amax(self, blocks):
        return np.sort(np.abs(blocks), axis=2)[:, :, -2]


@mutant("block-")
class SquaresStartAtEight(Square):
    """The groups of 16 rows begin at row 8."""

    def block_amax(self, blocks):
        rows = np.fmax.reduce(np.abs(blocks), axis=2, initial=F(0))
        moved = np.pad(rows, ((8, -(len(rows) + 8) % 16), (0, 0)))
        high = moved.reshape(len(moved) // 16, 16, rows.shape[1])
        return np.repeat(high.max(axis=1), 16, axis=0)[8 : len(rows) + 8]
