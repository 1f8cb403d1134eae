"""Dequantizers, conversions of layouts and Hadamard transforms that are wrong on purpose, some in two ways at once."""

import ml_dtypes
import numpy as np

F, BF16 = np.float32, ml_dtypes.bfloat16
MUTANTS, CORRECT = [], []  # of quantizers: none here
OPERATIONS = {}
E2M1 = F([0, 0.5, 1, 1.5, 2, 3, 4, 6])
SIGNS = F([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1])
HOW = {
    "dequantize": {
        "operation": "dequantize",
        "inputs": ("data", "scales", "amax", "rows", "columns"),
        "outputs": ("values",),
        "scale_layout": "tiled_128x4",
        "empty": False,
    },
    "to_layout": {
        "operation": "to_layout",
        "inputs": ("scales", "rows", "columns"),
        "outputs": ("scales",),
        "scale_layout": "tiled_128x4",
        "empty": False,
    },
    "hadamard": {"operation": "hadamard", "inputs": ("x",), "outputs": ("values",), "empty": False},
}


def declared(cls):
    """The way a kernel is called."""
    how = HOW[cls.operation]
    mx = {"inputs": ("data", "scales", "rows", "columns"), "scale_layout": "linear"}
    return how | mx if cls.operation == "dequantize" and cls.spec == "mxfp4" else how


class Dequantizer:
    """NVFP4: q * (s * (amax / 2688)), in float32."""

    spec, operation = "modelopt.nvfp4", "dequantize"

    def __call__(self, data, scales, amax, rows, columns):
        with np.errstate(all="ignore"):
            s = self.scale(self.taken(scales.reshape(-1), rows, -(-columns // 16)))
            g = self.global_scale(amax[0])
            q = self.element(self.nibbles(data).reshape(rows, 2 * data.shape[1])[:, :columns])
            return self.product(q, np.repeat(s, 16, axis=1)[:, :columns], g).astype(F)

    def taken(self, scales, rows, blocks):
        i, j = np.arange(rows)[:, None], np.arange(blocks)[None]
        tile = i // 128 * -(-blocks // 4) + j // 4
        return scales[tile * 512 + i % 32 * 16 + i % 128 // 32 * 4 + j % 4]

    def scale(self, byte):
        return byte.view(ml_dtypes.float8_e4m3fn).astype(F)

    def global_scale(self, amax):
        return amax / F(2688)

    def nibbles(self, data):
        return np.stack([data & 15, data >> 4], axis=2)

    def element(self, code):
        return np.where(code & 8, -E2M1[code & 7], E2M1[code & 7])

    def product(self, q, s, g):
        return q * (s * g)


class MX(Dequantizer):
    """MXFP4, scales in rows."""

    spec = "mxfp4"

    def __call__(self, data, scales, rows, columns):
        s = self.scale(scales)
        q = self.element(self.nibbles(data).reshape(rows, 2 * data.shape[1])[:, :columns])
        return (q * np.repeat(s, 32, axis=1)[:, :columns]).astype(F)

    def scale(self, byte):
        return np.where(byte == 255, np.nan, np.ldexp(F(1), byte.astype(int) - 127)).astype(F)


class Tiles:
    """Scales in rows to tiles of 128 x 4."""

    spec, operation = "nvfp4", "to_layout"
    order = (0, 3, 2, 1, 4)

    def __call__(self, scales, rows, columns):
        padded = self.padded(scales)
        high, wide = padded.shape
        digits = padded.reshape(high // 128, 4, 32, wide // 4, 4)
        return self.last(digits.transpose(self.order).reshape(high, wide))

    def padded(self, scales):
        out = np.zeros((-(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4), np.uint8)
        out[: scales.shape[0], : scales.shape[1]] = scales
        return out

    def last(self, tiled):
        return tiled


class Transform:
    """Groups of 16 under signs, then a butterfly in float32."""

    spec, operation = "nvfp4", "hadamard"
    signs, norm = SIGNS, F(0.25)

    def __call__(self, x):
        groups = x.astype(F).reshape(-1, 16)
        return self.sums(groups * self.signs * self.norm).reshape(x.shape).astype(BF16)

    def sums(self, y):
        for stride in (1, 2, 4, 8):
            pairs = y.reshape(len(y), 8 // stride, 2, stride)
            y = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(len(y), 16)
        return y + F(0)


def mutant(*names):
    def register(cls):
        OPERATIONS[cls.__name__] = cls, names
        return cls

    return register


RIGHT = {cls.__name__: cls for cls in (Dequantizer, MX, Tiles, Transform)}


# Dequantizers


@mutant("element-inferred-values")
class QuarterForHalf(Dequantizer):
    """A table that holds 0.25 in the place of 0.5."""

    def element(self, code):
        table = F([0, 0.25, 1, 1.5, 2, 3, 4, 6])
        return np.where(code & 8, -table[code & 7], table[code & 7])


@mutant("product-sg-bf16")
class ScaleInBfloat16(Dequantizer):
    """The product of the two scales is rounded to bfloat16."""

    def product(self, q, s, g):
        return q * (s * g).astype(BF16).astype(F)


@mutant("product-qs-g")
class GlobalLast(Dequantizer):
    def product(self, q, s, g):
        return (q * s) * g


@mutant("nibbles", "global-missing")
class SwappedWithoutGlobal(Dequantizer):
    def nibbles(self, data):
        return np.stack([data >> 4, data & 15], axis=2)

    def global_scale(self, amax):
        return F(1)


@mutant("layout-linear", "sign-lost")
class LinearWithoutSign(Dequantizer):
    def taken(self, scales, rows, blocks):
        return scales.reshape(-1, -(-blocks // 4) * 4)[:rows, :blocks]

    def element(self, code):
        return E2M1[code & 7]


@mutant("element-twos-complement")
class TwosComplement(MX):
    """The nibble is shifted down with its sign, and looked up from the end."""

    def element(self, code):
        table = np.concatenate([E2M1, -E2M1[::-1]])
        return table[code]


@mutant("bias-126", "nibbles")
class BiasAndNibbles(MX):
    def scale(self, byte):
        return np.where(byte == 255, np.nan, np.ldexp(F(1), np.minimum(byte.astype(int), 253) - 126)).astype(F)

    def nibbles(self, data):
        return np.stack([data >> 4, data & 15], axis=2)


@mutant("global-inferred-2304")
class OtherConstant(Dequantizer):
    """384 * 6 in the place of 448 * 6."""

    def global_scale(self, amax):
        return amax / F(2304)


@mutant("values-inferred-3")
class Tripled(MX):
    def element(self, code):
        return super().element(code) * F(3)


# Layouts


@mutant("layout-128x4-inner")
class DigitsExchanged(Tiles):
    order = (0, 3, 1, 2, 4)


@mutant("layout-", "padding")
class ColumnMajorPoisoned(Tiles):
    """Tiles go down first, and the padding holds 0x7F."""

    order = (3, 0, 2, 1, 4)

    def padded(self, scales):
        out = super().padded(scales)
        out[scales.shape[0] :] = 0x7F
        out[:, scales.shape[1] :] = 0x7F
        return out


@mutant("scale-bytes-reversed-4")
class WordsReversed(Tiles):
    def last(self, tiled):
        return tiled.reshape(-1, 4)[:, ::-1].reshape(tiled.shape)


@mutant("padding")
class LastColumnRepeated(Tiles):
    def padded(self, scales):
        rows, columns = scales.shape
        high, wide = -(-rows // 128) * 128, -(-columns // 4) * 4
        i, j = np.minimum(np.arange(high), rows - 1), np.minimum(np.arange(wide), columns - 1)
        return scales[i[:, None], j[None]]


# Transforms


@mutant("hadamard-signs-after")
class SignsAfter(Transform):
    def __call__(self, x):
        groups = x.astype(F).reshape(-1, 16)
        return (self.sums(groups * self.norm) * self.signs).reshape(x.shape).astype(BF16)


@mutant("hadamard-inferred-")
class LastStageExchanged(Transform):
    """The outputs of the last butterfly are written interleaved."""

    def sums(self, y):
        return super().sums(y).reshape(-1, 2, 8).transpose(0, 2, 1).reshape(-1, 16)


@mutant("hadamard-inferred-inputs-signs")
class NeitherSignsNorNorm(Transform):
    signs, norm = np.ones(16, F), F(1)


@mutant("hadamard-cut")
class Truncated(Transform):
    """The low half of a float32 is dropped."""

    def __call__(self, x):
        made = self.sums(x.astype(F).reshape(-1, 16) * self.signs * self.norm)
        return (made.view(np.uint32) & np.uint32(0xFFFF0000)).view(F).reshape(x.shape).astype(BF16)
