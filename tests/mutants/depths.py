"""Products that are wrong in how far they sum, and in where a result is written."""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "products.py"))
product, FORMATS = _BASE["product"], _BASE["FORMATS"]
MUTANTS, CORRECT = [], []  # of quantizers: none here
F = np.float32


def only(keep):
    """Operands whose elements outside of a mask of (depth, width) are zero."""

    def kernel(spec, **settings):
        width = FORMATS[spec][2]

        def fix(q, s):
            return np.where(keep(np.arange(q.shape[1]), q.shape[1], width), q, F(0)), s

        return product(spec, fix=fix, **settings)

    return kernel


def transposed(spec, square=False, **settings):
    """[N, M] written where [M, N] belongs; square: only where that has the same shape."""

    def end(y, alpha, **_):
        y = y * alpha
        return y.T if y.shape[0] == y.shape[1] or square else np.ascontiguousarray(y.T).reshape(y.shape)

    def squares(y, alpha, **_):
        y = y * alpha
        return y.T if y.shape[0] == y.shape[1] else y

    return product(spec, squares if square else end, **settings)


def in_splits(size):
    """The sums of the last split of K alone."""
    return only(lambda k, depth, width: k >= (depth - 1) // size * size)


def in_parts(count):
    """K in so many parts of whole blocks; the sums of the last one alone."""

    def keep(k, depth, width):
        blocks = -(-depth // width)
        each = -(-blocks // count)
        return k // width >= (blocks - 1) // each * each

    return only(keep)


odd_block = only(lambda k, depth, width: k < max(-(-depth // width) // 2 * 2, 0) * width)
until_1024 = only(lambda k, depth, width: k < 1024)
until_512 = only(lambda k, depth, width: k < 512)
whole_1024 = only(lambda k, depth, width: (k < depth // 1024 * 1024) | (depth < 1024))

DEPTHS = {
    "transposed": (transposed("nvfp4"), "the result is written transposed"),
    "transposed, mx": (transposed("mxfp8-e4m3"), "the result is written transposed"),
    "transposed squares": (transposed("nvfp4", square=True), "the result is transposed where it is square"),
    "odd block": (odd_block("nvfp4"), "the last block is left out where their count is odd"),
    "odd block, mx": (odd_block("mxfp4"), "the last block is left out where their count is odd"),
    "depth to 1024": (until_1024("nvfp4"), "depth past 1024 is left out"),
    "depth to 1024, mx": (until_1024("mxfp8-e4m3"), "depth past 1024 is left out"),
    "depth to 512": (until_512("nvfp4"), "depth past 512 is left out"),
    "whole 1024": (whole_1024("mxfp4"), "depth past the last multiple of 1024 is left out"),
    "two splits": (in_parts(2)("nvfp4"), "K is split in 2 parts, and the last part overwrites"),
    "four splits, mx": (in_parts(4)("mxfp8-e4m3"), "K is split in 4 parts, and the last part overwrites"),
    "splits of 128": (in_splits(128)("nvfp4"), "K is split every 128, and the last part overwrites"),
    "splits of 256": (in_splits(256)("mxfp4"), "K is split every 256, and the last part overwrites"),
}
