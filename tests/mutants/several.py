"""Wrong quantizers: mistakes in several stages at once."""

import runpy
from pathlib import Path

import numpy as np

_BASE, _AMAXES, _ELEMENTS, _SCALES, _STORES = (
    runpy.run_path(str(Path(__file__).with_name(f"{name}.py")))
    for name in ("kernels", "amaxes", "elements", "scales", "stores")
)
AmaxWithoutLastRow = _AMAXES["AmaxWithoutLastRow"]
EncodeQuotient = _AMAXES["EncodeQuotient"]
SignedAmax = _AMAXES["SignedAmax"]
ChainOfGreater = _ELEMENTS["ChainOfGreater"]
NegativeCut = _ELEMENTS["NegativeCut"]
TiesAway = _ELEMENTS["TiesAway"]
TiesDown = _ELEMENTS["TiesDown"]
DividedBySix = _SCALES["DividedBySix"]
EvenScales = _SCALES["EvenScales"]
FloorFour = _SCALES["FloorFour"]
OtherOrder = _SCALES["OtherOrder"]
QuarterInstead = _SCALES["QuarterInstead"]
ScaleTruncated = _SCALES["ScaleTruncated"]
ScaleUp = _SCALES["ScaleUp"]
ThroughFloat16 = _SCALES["ThroughFloat16"]
HighFirst = _STORES["HighFirst"]
HighNibbleFirst = _STORES["HighNibbleFirst"]
InterleavedLanes = _STORES["InterleavedLanes"]
LinearScales = _STORES["LinearScales"]
TilesDown = _STORES["TilesDown"]
XorLeftIn = _STORES["XorLeftIn"]
BF16, E4M3, F, FLT_MAX, FourOverSix = (_BASE[name] for name in ("BF16", "E4M3", "F", "FLT_MAX", "FourOverSix"))
GRID, MXFP4, MXFP8, NVFP4, RHT = (_BASE[name] for name in ("GRID", "MXFP4", "MXFP8", "NVFP4", "RHT"))
RowScaled, Stochastic, e2m1, e4m3, swapped = (
    _BASE[name] for name in ("RowScaled", "Stochastic", "e2m1", "e4m3", "swapped")
)
tiled, value = (_BASE[name] for name in ("tiled", "value"))
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("element-overflow-nan", "mx-floor|mx-ocp-floor")
class OverflowsToNaN(FloorFour):
    spec, top, emax = "mxfp8-e4m3", 448, 8

    def scale_byte(self, t):
        return np.clip((t.view(np.uint32) >> 23).astype(int) - 8, 0, 254).astype(np.uint8)

    def encode(self, y):
        code = y.astype(E4M3).view(np.uint8)
        return np.where(np.isnan(y), 0x7F, np.where(code & 0x7F == 0x7F, 0x7F | code & 0x80, code)).astype(np.uint8)

    pack = MXFP8.pack


@mutant("scale-division", "element-away")
class DivisionAndAway(DividedBySix):
    encode = TiesAway.encode


@mutant("amax-signed|amax-absolute", "encode-g-over-s")
class SignedAndQuotient(SignedAmax):
    element = EncodeQuotient.element


@mutant("nibbles", "layout-linear|layout-linear_padded")
class NibblesAndLinear(HighFirst):
    place = LinearScales.place


@mutant("scale-double-fp16", "layout-digits|layout-cutlass.sf_mn_major")
class DoubleAndDown(ThroughFloat16):
    place = TilesDown.place


@mutant("scale-product-first", "nibbles")
class OrderAndNibbles(OtherOrder):
    pack = HighFirst.pack


@mutant("amax-last-row", "scale-codec-truncate", "element-down")
class ThreeAtOnce(AmaxWithoutLastRow):
    scale_byte = ScaleTruncated.scale_byte
    encode = TiesDown.encode


@mutant("scale-division", "all-nan|amax-nan|block-nan", "sign-negative")
class NaiveNumPy(DividedBySix):
    def amax(self, x):
        return np.abs(x).max(initial=0)

    def block_amax(self, blocks):
        return np.abs(blocks).max(axis=2, initial=0)

    def encode(self, y):
        return np.where(y == 0, 0, e2m1(y)).astype(np.uint8)


@mutant("scale-codec-up", "layout-digits|layout-cutlass.sf_mn_major")
class UpAndColumnMajor(NVFP4):
    def scale_byte(self, t):
        return ScaleUp.scale_byte(self, t)

    def place(self, scales):
        return tiled(scales, order=(3, 0, 2, 1, 4)).reshape(tiled(scales).shape)


@mutant("element-truncate", "nibbles")
class CutAndSwapped(MXFP4):
    def encode(self, y):
        with np.errstate(invalid="ignore"):
            code = np.searchsorted(GRID, np.abs(y), side="right") - 1
        return np.where(np.isnan(y), 7, np.minimum(code, 7) + 8 * np.signbit(y)).astype(np.uint8)

    def pack(self, codes):
        return HighNibbleFirst.pack(self, codes)


@mutant("scale-4", "data-halves-16|data-order-inferred-16")
class ZippedAndFour(NVFP4):
    def block_scale(self, amax, s_enc):
        return QuarterInstead.block_scale(self, amax, s_enc)

    def pack(self, codes):
        return InterleavedLanes.pack(self, codes)


@mutant("element-down", "scale-codec-truncate")
class StrictAndScaleCut(NVFP4):
    def encode(self, y):
        return ChainOfGreater.encode(self, y)

    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where(value(byte) > t, byte - 1, byte).astype(np.uint8)


@mutant("nibbles", "element-away")
class SwapAndAway(NVFP4):
    def encode(self, y):
        return e2m1(y, lambda c, y: True)

    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        return data >> 4 | data << 4


@mutant("layout-linear", "scale-codec-truncate")
class LinearAndTruncated(NVFP4):
    def scale_byte(self, t):
        code = e4m3(t)
        return np.where(value(code) > t, code - 1, code).astype(np.uint8)

    def place(self, scales):
        out = np.zeros(tiled(scales).size, np.uint8)
        out[: scales.size] = scales.ravel()
        return out


@mutant("amax-bf16", "encode-g-over-s")
class Bf16AmaxAndQuotient(NVFP4):
    def amax(self, x):
        return NVFP4.amax(self, x).astype(BF16).astype(F)

    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(s_enc / s, FLT_MAX)[:, :, None]


@mutant("block-signed|block-absolute", "global-one")
class SignedBlocksNoGlobal(NVFP4):
    def block_amax(self, blocks):
        return np.fmax.reduce(blocks, axis=2, initial=F(0))

    def global_scale(self, amax):
        return F(1)


@mutant("hadamard-bf16-sums", "encode-g-over-s")
class NarrowSumsAndQuotient(RHT):
    def sums(self, groups):
        y = groups
        for stride in (1, 2, 4, 8):
            z = np.empty_like(y)
            for i in range(16):
                z[..., i] = y[..., i ^ stride] - y[..., i] if i & stride else y[..., i] + y[..., i ^ stride]
            y = z.astype(BF16).astype(F)
        return y + F(0)

    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(s_enc / s, FLT_MAX)[:, :, None]


@mutant("mx-floor|mx-ocp-floor", "nibbles")
class FloorAndSwap(MXFP4):
    def block_scale(self, amax, s_enc):
        return amax

    def scale_byte(self, t):
        return np.clip((t.view(np.uint32) >> 23).astype(int) - 2, 0, 254).astype(np.uint8)

    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        return data >> 4 | data << 4


@mutant("element-away", "layout-128x4-inner")
class TiesAwayAndRowDigitsSwapped(NVFP4):
    """Two at once: halves are added and cut off, and the tile's two digits of a row change places."""

    def encode(self, y):
        return e2m1(y, tie=lambda c, y: True)

    def place(self, scales):
        return tiled(scales, order=(0, 3, 1, 2, 4))


@mutant("global-1440", "element-truncate")
class ConstantOfFnuzAndTruncatedElements(NVFP4):
    """Two at once: 240 * 6 instead of 448 * 6 in the global scale, and elements that are cut off."""

    def global_scale(self, amax):
        s_enc = np.fmin(F(1440) / F(amax), FLT_MAX)
        return F(1) if amax == 0 or s_enc == 0 else s_enc

    def encode(self, y):
        code = np.searchsorted([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.abs(y).astype(np.float64), side="right") - 1
        return np.where(np.isnan(y), 7, code + 8 * np.signbit(y)).astype(np.uint8)


@mutant("layout-inferred-64", "element-away")
class XorAndAway(NVFP4):
    def place(self, scales):
        return XorLeftIn.place(self, scales)

    def encode(self, y):
        return e2m1(y, tie=lambda c, y: True)


@mutant("data-order-inferred-8", "scale-codec-truncate")
class FragmentAndCut(NVFP4):
    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where(value(byte) > t, byte - 1, byte).astype(np.uint8)

    def pack(self, codes):
        width = codes.shape[1] // 8 * 8
        out = codes.copy()
        groups = codes[:, :width].reshape(len(codes), width // 8, 8)
        out[:, :width] = groups[:, :, [0, 1, 4, 5, 2, 3, 6, 7]].reshape(len(codes), width)
        return super().pack(out)


@mutant("element-inferred", "nibbles|data-order-inferred-2")
class NegativeCutAndSwapped(NVFP4):
    def encode(self, y):
        return NegativeCut.encode(self, y)

    def pack(self, codes):
        codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
        return codes[:, ::2] << 4 | codes[:, 1::2]


@mutant("mx-even", "nibbles")
class EvenAndSwapped(EvenScales):
    def pack(self, codes):
        return swapped(codes)


@mutant("global-448", "layout-linear")
class OneLevelLinear(NVFP4):
    """Two at once: the global scale maps amax to 448, and the scales are left as they are."""

    def global_scale(self, amax):
        s_enc = np.fmin(F(448) / F(amax), FLT_MAX)
        return F(1) if amax == 0 or s_enc == 0 else s_enc

    def place(self, scales):
        padded = np.zeros((-(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4), np.uint8)
        padded[: len(scales), : scales.shape[1]] = scales
        return padded


@mutant("bits-", "scale-codec-truncate")
class ReversedBitsScaleCut(Stochastic):
    def drawn(self, bits):
        return bits[:, :, ::-1]

    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where(value(byte) > t, byte - 1, byte).astype(np.uint8)


@mutant("hadamard-signs-none", "element-away")
class UnsignedAndAway(RHT):
    signs = np.ones(16, F)

    def encode(self, y):
        return e2m1(y, tie=lambda c, y: True)


@mutant("search-tie", "nibbles")
class TieTakesFourSwapped(FourOverSix):
    def better(self, first, second):
        return second <= first

    def pack(self, codes):
        return swapped(codes)


@mutant("scale-codec-up", "element-truncate")
class RowsUpAndCut(RowScaled):
    """Row-scaled: scales are rounded up, and elements are cut off."""

    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where((value(byte) < t) & (byte < 0x7E), byte + 1, byte).astype(np.uint8)

    def encode(self, y):
        code = np.searchsorted([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.abs(y).astype(np.float64), side="right") - 1
        return np.where(np.isnan(y), 7, code + 8 * np.signbit(y)).astype(np.uint8)


@mutant("amax-tail|amax-other|amax-inferred-columns-past-16", "layout-digits|layout-cutlass.sf_mn_major")
class TailAndColumnMajor(NVFP4):
    """The last columns of each row are not in the amax, and tiles go down first."""

    def amax(self, x):
        return np.fmax.reduce(np.abs(x[:, : max(x.shape[1] // 16 * 16, 16)]), axis=None, initial=F(0))

    def place(self, scales):
        return tiled(scales, order=(3, 0, 2, 1, 4))
