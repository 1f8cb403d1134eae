"""Codes of 6 bits in bytes, for adapters of peers that store each in a byte of its own."""

import numpy as np


def packed(codes):
    """Return codes [rows, columns] as a stream of bits per row, the lowest bit of the first code first."""
    bits = np.unpackbits(codes[..., None], axis=2, count=6, bitorder="little")
    return np.packbits(bits.reshape(len(codes), -1), axis=1, bitorder="little")
