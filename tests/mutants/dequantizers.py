"""Dequantizers that take a scale byte of 0 for zero, another row's amax for their own, or move what they read."""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "conversions.py"))
Dequantizer, MX, HOW = (_BASE[name] for name in ("Dequantizer", "MX", "HOW"))
F = np.float32
MUTANTS, CORRECT = [], []  # of quantizers: none here
OPERATIONS = {}


def mutant(*names, says):
    def register(cls):
        OPERATIONS[cls.__name__] = cls, names, says
        return cls

    return register


def declared(cls):
    """The way a kernel is called."""
    linear = {"scale_layout": "linear"}
    mx = {"inputs": ("data", "scales", "rows", "columns"), **linear}
    of = {"mxfp4": mx, "mxfp8-e4m3": mx, "nvfp4-row-scaled": linear}
    return HOW["dequantize"] | of.get(cls.spec, {})


class RowScaled(Dequantizer):
    """q * (s * amax[row] * fp32(1 / 2688)), scales in rows."""

    spec = "nvfp4-row-scaled"

    def __call__(self, data, scales, amax, rows, columns):
        with np.errstate(all="ignore"):
            s = self.scale(self.scales(scales))
            q = self.element(self.nibbles(data).reshape(rows, 2 * data.shape[1])[:, :columns])
            inner = s * self.amaxes(amax)[:, None] * (F(1) / F(2688))
            return (q * np.repeat(inner, 16, axis=1)[:, :columns]).astype(F)

    def scales(self, scales):
        return scales

    def amaxes(self, amax):
        return amax


class MX8(MX):
    """MXFP8 E4M3, scales in rows."""

    spec = "mxfp8-e4m3"

    def __call__(self, data, scales, rows, columns):
        s = self.scale(scales)
        return (data.view(ml_dtypes.float8_e4m3fn).astype(F) * np.repeat(s, 32, axis=1)[:, :columns]).astype(F)


RIGHT = {cls.__name__: cls for cls in (RowScaled, MX8)}


def neighbours(by, amax):
    return amax[np.clip(np.arange(len(amax)) + by, 0, len(amax) - 1)]


@mutant("byte-0-zero", says="scale byte 0 is decoded as 0")
class ByteZeroIsZero(MX):
    def scale(self, byte):
        return np.where(byte == 0, F(0), super().scale(byte))


@mutant("byte-0-zero", says="scale byte 0 is decoded as 0")
class ByteZeroIsZero8(MX8):
    """The exponent is shifted into a float32, whose subnormals are flushed."""

    def scale(self, byte):
        return np.where(byte == 255, F(np.nan), (byte.astype(np.uint32) << 23).view(F))


@mutant("byte-0-", says="scale byte 0 is decoded as 1")
class ByteZeroIsOne(MX):
    def scale(self, byte):
        return np.where(byte == 0, F(1), super().scale(byte))


@mutant("byte-0-", says="scale byte 0 is decoded as 2.-126")
class ByteZeroIsNormal(MX8):
    def scale(self, byte):
        return super().scale(np.maximum(byte, 1))


@mutant("amax-next", says="each row uses the amax of the next row")
class AmaxOfTheNext(RowScaled):
    def amaxes(self, amax):
        return neighbours(1, amax)


@mutant("amax-previous", says="each row uses the amax of the row before")
class AmaxOfThePrevious(RowScaled):
    def amaxes(self, amax):
        return neighbours(-1, amax)


@mutant("amax-first", says="every row uses the amax of the first row")
class AmaxOfTheFirst(RowScaled):
    def amaxes(self, amax):
        return amax * F(0) + amax[:1]


@mutant("amax-largest", says="every row uses the largest amax")
class AmaxOfTheTensor(RowScaled):
    def amaxes(self, amax):
        return np.full_like(amax, amax.max())


@mutant("amax-tiles-16", says="every row uses the amax of the first row of its 16")
class AmaxOfTheTile(RowScaled):
    def amaxes(self, amax):
        return amax[np.arange(len(amax)) // 16 * 16]


@mutant("amax-pairs", says="amax of rows 2i and 2i . 1 are exchanged")
class AmaxesExchanged(RowScaled):
    def amaxes(self, amax):
        place = np.arange(len(amax)) ^ 1
        return amax[np.where(place < len(amax), place, np.arange(len(amax)))]


@mutant("scales-pairs", says="scales of rows 2i and 2i . 1 are exchanged")
class ScaleRowsExchanged(RowScaled):
    def scales(self, scales):
        place = np.arange(len(scales)) ^ 1
        return scales[np.where(place < len(scales), place, np.arange(len(scales)))]


@mutant("elements-", says="elements 2 to 3 of each 4 are stored before 0 to 1")
class NibblesOfPairs(Dequantizer):
    """Elements 0 and 1 of four are exchanged with 2 and 3."""

    def nibbles(self, data):
        pairs = super().nibbles(data)
        whole = data.shape[1] // 2 * 2
        turned = pairs[:, :whole].reshape(len(pairs), whole // 2, 2, 2)[:, :, ::-1].reshape(len(pairs), whole, 2)
        return np.concatenate([turned, pairs[:, whole:]], axis=1)
