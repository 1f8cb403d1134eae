"""gguf: GGML's MXFP4 in NumPy."""

import numpy as np
from gguf.quants import MXFP4

TYPES = ("float32",)


def mxfp4(x):
    """Codes in element order, low nibble first; a struct holds elements j and j + 16 in one byte."""
    structs = MXFP4.quantize_blocks(x.reshape(-1, 32))
    low, high = structs[:, 1:] & 15, structs[:, 1:] >> 4
    codes = np.concatenate([low, high], axis=1)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return packed.reshape(len(x), -1), structs[:, :1].reshape(len(x), -1)


PROFILES = {"gguf.mxfp4": mxfp4}
