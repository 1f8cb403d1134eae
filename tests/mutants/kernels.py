"""Right quantizers, written from the standard and not from the golden model, whose methods the mutants override.

Every mutant overrides one method or two, as a kernel's author would get it wrong. `names` are the mistakes that the
diagnosis is to name first, any one of each group.
"""

import ml_dtypes
import numpy as np

F = np.float32


BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


FLT_MAX = np.finfo(F).max


HALVES = np.array([0, 1, 2, 3, 4, 6, 8, 12])  # the values of E2M1, doubled


def e2m1(y, tie=None):
    """Nearest, ties to the even code; saturates; NaN is 7."""
    magnitude = np.abs(y)
    code = np.zeros(y.shape, np.uint8)
    for c, middle in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        up = magnitude >= middle if (c % 2 if tie is None else tie(c, y)) is True else magnitude > middle
        if tie is None:
            up = magnitude >= middle if c % 2 else magnitude > middle
        elif not isinstance(tie(c, y), bool):
            up = np.where(tie(c, y), magnitude >= middle, magnitude > middle)
        code += up
    code = np.where(np.isnan(y), 7, code + 8 * np.signbit(y))
    return code.astype(np.uint8)


def e4m3(t, top=448):
    """Nearest even, saturating; NaN is 0x7F."""
    code = np.minimum(t, F(top)).astype(E4M3).view(np.uint8)
    return np.where(np.isnan(t), 0x7F, code).astype(np.uint8)


def value(code, form=E4M3):
    return code.view(form).astype(F)


def tiled(scales, high=128, order=(0, 3, 2, 1, 4), inner=32):
    """[rows, blocks] in tiles of `high` x 4; order of (tile row, row // 32, row % 32, tile column, column)."""
    rows, columns = scales.shape
    padded = np.zeros((-(-rows // high) * high, -(-columns // 4) * 4), np.uint8)
    padded[:rows, :columns] = scales
    inner = min(inner, high)
    digits = padded.reshape(padded.shape[0] // high, high // inner, inner, padded.shape[1] // 4, 4)
    return digits.transpose(order).reshape(padded.shape)


class NVFP4:
    """Blocks of 16, E4M3 scales, a global scale."""

    spec, layout, size, direction = "nvfp4", "tiled_128x4", 16, "row"

    def __call__(self, x, dtype):
        self.dtype = dtype
        x = self.read(x)
        amax = self.amax(x)
        s_enc = self.global_scale(self.used_amax(amax, x))
        blocks = self.blocks(x)
        t = self.block_scale(self.block_amax(blocks), s_enc)
        byte = self.scale_byte(t)
        s = self.scale_value(byte, t)
        codes = self.encode(self.element(blocks, s, s_enc, t)).reshape(len(x), blocks.shape[1] * self.size)[
            :, : x.shape[1]
        ]
        return self.pack(codes), self.place(self.stored(byte)), np.array([self.told(amax)], F)

    def read(self, x):
        return x

    def amax(self, x):
        return np.fmax.reduce(np.abs(x), axis=None, initial=F(0))

    def used_amax(self, amax, x):
        return amax

    def told(self, amax):
        return amax

    def global_scale(self, amax):
        s_enc = np.fmin(F(2688) / F(amax), FLT_MAX)
        return F(1) if amax == 0 or s_enc == 0 else s_enc

    def blocks(self, x):
        width = -(-x.shape[1] // self.size)
        return np.pad(x, ((0, 0), (0, -x.shape[1] % self.size))).reshape(len(x), width, self.size)

    def block_amax(self, blocks):
        return np.fmax.reduce(np.abs(blocks), axis=2, initial=F(0))

    def block_scale(self, amax, s_enc):
        return np.fmin(amax * (s_enc * (F(1) / F(6))), FLT_MAX)

    def scale_byte(self, t):
        return e4m3(t)

    def scale_value(self, byte, t):
        return value(byte)

    def stored(self, byte):
        return byte

    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(F(1) / (s * (F(1) / s_enc)), FLT_MAX)[:, :, None]

    def encode(self, y):
        return e2m1(y)

    def pack(self, codes):
        codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
        return codes[:, ::2] | codes[:, 1::2] << 4

    def place(self, scales):
        return tiled(scales)


class MXFP8(NVFP4):
    """Blocks of 32, scales that are powers of two, 8-bit elements."""

    spec, size, top, form, emax = "mxfp8-e4m3", 32, 448, E4M3, 8

    def __call__(self, x, dtype):
        data, scales, _ = super().__call__(x, dtype)
        return data, scales, None

    def block_scale(self, amax, s_enc):
        return amax * (F(1) / F(self.top))

    def scale_byte(self, t):
        bits = np.asarray(t, F).view(np.uint32)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
        exponent = np.where(t <= F(2.0**-127), 0, np.where(exponent == 0, 1, exponent))
        return np.minimum(exponent, 254).astype(np.uint8)

    def scale_value(self, byte, t):
        return np.ldexp(F(1), byte.astype(int) - 127)

    def element(self, blocks, s, s_enc, t):
        return blocks / s[:, :, None]

    def encode(self, y):
        code = np.clip(y, -self.top, self.top).astype(self.form).view(np.uint8)
        return np.where(np.isnan(y), 0x7F, code).astype(np.uint8)

    def pack(self, codes):
        return codes


class MXFP4(MXFP8):
    spec, top, emax = "mxfp4", 6, 2
    encode = NVFP4.encode
    pack = NVFP4.pack


class RHT(NVFP4):
    """The column direction under a Hadamard transform: x^T comes in."""

    spec, direction = "nvfp4-rht", "column"
    signs = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], F)

    def read(self, x):
        return self.transform(x)

    def transform(self, x):
        return self.rounded(self.sums(x.reshape(len(x), x.shape[1] // 16, 16) * (self.signs * F(0.25)))).reshape(
            x.shape
        )

    def sums(self, groups):
        y = groups
        for stride in (1, 2, 4, 8):
            z = np.empty_like(y)
            for i in range(16):
                z[..., i] = y[..., i ^ stride] - y[..., i] if i & stride else y[..., i] + y[..., i ^ stride]
            y = z
        return y + F(0)

    def rounded(self, y):
        return y.astype(BF16).astype(F)


class Stochastic(NVFP4):
    spec = "nvfp4-stochastic"

    def encode(self, y):
        bits = np.pad(self.bits, ((0, 0), (0, -self.bits.shape[1] % 16))).reshape(y.shape)
        magnitude = np.abs(y)
        step = np.where(magnitude >= 4, F(2), np.where(magnitude >= 2, F(1), F(0.5)))
        moved = (magnitude.astype(np.float64) + step * self.drawn(bits) / 256).astype(F)
        code = np.searchsorted(HALVES, 2 * moved.astype(np.float64), side="right") - 1
        code = np.minimum(code, 7) + 8 * np.signbit(y)
        return np.where(np.isnan(y), 7, code).astype(np.uint8)

    def drawn(self, bits):
        return bits


class Divides(MXFP8):
    """Another way to the same bytes: no amax tells the quotient from the product."""

    def block_scale(self, amax, s_enc):
        return amax / F(448)


def mutants():
    """An empty list, and the decorator that enters a kernel in it.

    Its arguments: each is one mistake, several names of one mistake joined by |; says: what the headline holds.
    """
    kernels = []

    def mutant(*names, says=""):
        def register(cls):
            cls.names, cls.says = names, says
            kernels.append(cls)
            return cls

        return register

    return kernels, mutant


GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


class RowScaled(NVFP4):
    """Every row has a global scale of its own."""

    spec = "nvfp4-row-scaled"

    def __call__(self, x, dtype):
        parts = [super(RowScaled, self).__call__(x[i : i + 1], dtype) for i in range(len(x))]
        if not parts:
            return (*super().__call__(x, dtype)[:2], np.zeros(0, F))
        data, amaxes = np.concatenate([part[0] for part in parts]), np.concatenate([part[2] for part in parts])
        return data, tiled(np.concatenate([part[1] for part in parts])), amaxes

    def place(self, scales):
        return scales


class Square(NVFP4):
    """Blocks of 16 x 16."""

    spec = "nvfp4-2d"

    def block_amax(self, blocks):
        rows = np.fmax.reduce(np.abs(blocks), axis=2, initial=F(0))
        high = np.pad(rows, ((0, -len(rows) % 16), (0, 0))).reshape(-(-len(rows) // 16), 16, rows.shape[1])
        return np.repeat(high.max(axis=1), 16, axis=0)[: len(rows)]


class FourOverSix(NVFP4):
    """Two candidates for each block."""

    spec = "nvfp4-4over6"

    def __call__(self, x, dtype):
        amax = self.amax(x)
        s_enc = self.global_scale(amax)
        blocks = self.blocks(x)
        t = self.block_amax(blocks) / F(6) * s_enc
        found = []
        for tried in self.tried(t):
            byte = self.scale_byte(tried)
            codes = self.encode(self.element(blocks, value(byte), s_enc, tried))
            values = (GRID[codes & 7] * np.where(codes & 8, -1, 1)).astype(F)
            found.append((self.error(values, value(byte), amax, s_enc, blocks), codes, byte))
        (first, codes, byte), (second, other, other_byte) = found
        of_codes, of_scales = self.which(self.better(first, second))
        codes = np.where(of_codes[:, :, None], other, codes).reshape(len(x), blocks.shape[1] * 16)[:, : x.shape[1]]
        return self.pack(codes), self.place(np.where(of_scales, other_byte, byte)), np.array([amax], F)

    def tried(self, t):
        return t, t * F(1.5)

    def better(self, first, second):
        return second < first

    def which(self, better):
        """Whose codes are written, and whose scales are stored: true for the second candidate."""
        return better, better

    def error(self, q, s, amax, s_enc, x):
        return self.total(np.abs(q * s[:, :, None] * amax / F(2688) - x))

    def total(self, errors):
        total = errors[..., 0]
        for i in range(1, errors.shape[-1]):
            total = total + errors[..., i]
        return total


def by_boundaries(y, boundaries):
    """A chain of `if (y > b)`."""
    code = np.searchsorted(boundaries, np.abs(y), side="left")
    return np.where(np.isnan(y), 7, code + 8 * np.signbit(y)).astype(np.uint8)


class Told(NVFP4):
    """Is given the amax of the tensor."""

    inputs, outputs = ("x", "amax"), ("data", "scales")

    def amax(self, x):
        return F(self.given[0])


class Encode(NVFP4):
    inputs, outputs = ("x", "encode_scale"), ("data", "scales")

    def amax(self, x):
        return F(0)

    def global_scale(self, amax):
        return F(self.given[0])


def swapped(codes):
    codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return codes[:, ::2] << 4 | codes[:, 1::2]


MUTANTS = ()
CORRECT = (NVFP4, MXFP8, MXFP4, RHT, Stochastic, Divides, RowScaled, Square, FourOverSix, Told, Encode)
