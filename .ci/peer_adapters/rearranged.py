"""Blocks in matrices of few shapes, for the adapters of XLA's peers: XLA compiles for every shape."""

import numpy as np

ROWS = 64  # XLA's code for more rows treats NaN otherwise
MOST = 1 << 14  # blocks of a matrix


def in_few_shapes(quantize, x, block):
    """Call quantize, which returns codes and scales as bytes, with the blocks of x in a matrix of 64 rows.

    The matrix is padded with zeros to a power of two of columns. Result: codes and scales in the order of x.
    """
    count = x.size // block
    if count > MOST:
        return None
    across = max(1 << (-(-count // ROWS) - 1).bit_length(), 8)
    blocks = np.zeros((ROWS * across, block), x.dtype)
    blocks[:count] = x.reshape(-1, block)
    made = quantize(blocks.reshape(ROWS, across * block))
    return tuple(part.reshape(len(blocks), -1)[:count].reshape(len(x), -1) for part in made)
