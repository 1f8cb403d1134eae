"""Parts that wrong quantizers share: right kernels that they change, and the list that they are entered in."""

import runpy
from pathlib import Path

import numpy as np

_KERNELS = runpy.run_path(str(Path(__file__).with_name("kernels.py")))
E5M2, tiled = (_KERNELS[name] for name in ("E5M2", "tiled"))
_PLACES = runpy.run_path(str(Path(__file__).with_name("places.py")))
MXFP8, NVFP4, cut = (_PLACES[name] for name in ("MXFP8", "NVFP4", "cut"))


BFLOAT16 = ("bfloat16",)


class Column(NVFP4):
    direction = "column"


class Counted(NVFP4):
    """Scale bytes are stored as `rows` makes them of the right ones, and so are the packed bytes of data."""

    largest = 1 << 22

    def pack(self, codes):
        return self.rows(super().pack(codes))

    def place(self, scales):
        return tiled(self.rows(scales))


F = np.float32

FLT_MAX = np.finfo(np.float32).max


class MXFP8Column(MXFP8):
    direction = "column"


class MXFP8E5M2(MXFP8):
    spec, top, form, emax = "mxfp8-e5m2", 57344, E5M2, 15

    def encode(self, y):
        code = np.clip(y, -self.top, self.top).astype(self.form).view(np.uint8)
        return np.where(np.isnan(y), 0x7F, code).astype(np.uint8)


class Rows(NVFP4):
    """Every row has an amax and a global scale of its own."""

    spec = "nvfp4-row-scaled"

    def __call__(self, x, dtype):
        self.dtype, size = dtype, self.size
        amax = self.row_amax(x)
        s_enc = self.row_scale(self.used_amax(amax, x))
        blocks = self.blocks(x)
        byte = self.scale_byte(np.fmin(self.block_amax(blocks) * (s_enc * (F(1) / F(6)))[:, None], FLT_MAX))
        s_enc = s_enc[:, None]
        codes = self.encode(self.element(blocks, self.scale_value(byte, None), s_enc, None))
        codes = codes.reshape(len(x), blocks.shape[1] * size)[:, : x.shape[1]]
        return self.pack(codes), self.place(self.stored(byte)), amax

    def row_amax(self, x):
        return np.fmax.reduce(np.abs(x), axis=1, initial=F(0))

    def row_scale(self, amax):
        s_enc = np.fmin(F(2688) / amax, FLT_MAX).astype(F)
        return np.where((amax == 0) | (s_enc == 0), F(1), s_enc).astype(F)


SHORT = 1 << 16


def chunks(data, width, count, place):
    """Rows of bytes of which chunk c of each `count` comes from place(c, row)."""
    out, size = data.copy(), width * count
    for row in range(len(data)):
        for start in range(0, data.shape[1] // size * size, size):
            for c in range(count):
                source = start + place(c, row) * width
                out[row, start + c * width : start + (c + 1) * width] = data[row, source : source + width]
    return out


def exchanged(array, bit):
    """Rows r and r ^ bit exchanged, where both exist."""
    rows = np.arange(len(array))
    other = rows ^ bit
    return array[np.where(other < len(array), other, rows)]


def in_type(name):
    def inside(self, row, column):
        return self.dtype.name == name

    return inside


def truncated(self, y):
    return cut(y)


def mutants():
    """Return an empty list, and the decorator that enters a kernel in it.

    Its arguments: the mistakes, the words of the headline, input types and multiples. release: it is left to a release.
    """
    kernels, enter = _KERNELS["mutants"]()

    def mutant(*names, says, dtypes=("float32",), multiple=(1, 1), release=False):
        def register(cls):
            cls.dtypes, cls.multiple, cls.release = dtypes, multiple, release
            return enter(*names, says=says)(cls)

        return register

    return kernels, mutant


MUTANTS, CORRECT = (), (Rows, Column, MXFP8E5M2, MXFP8Column)
