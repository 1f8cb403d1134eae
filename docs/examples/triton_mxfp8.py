"""An MXFP8 quantizer in Triton as a subject; Triton's interpreter runs it without a GPU.

TRITON_INTERPRET=1 fp4ref verify --kernel triton_mxfp8.py:quantize --spec mxfp8-e4m3
"""

import os

import torch
import triton
import triton.language as tl

import fp4ref

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
TILE = 64  # blocks


@triton.jit
def bits(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def e8m0_up(t):
    """E8M0 of a product t >= 0, rounded up [E8M0-2, E8M0-3]."""
    exponent = bits(t) >> 23
    mantissa = bits(t) & 0x7FFFFF
    above = tl.where(exponent == 0, mantissa > 0x400000, mantissa != 0)
    return tl.minimum(exponent + above.to(tl.int32), 254)


@triton.jit
def e4m3(y):
    """E4M3 codes of y: nearest, ties to even, saturating, NaN to 0x7F [E4M3-2, E4M3-3, E4M3-4]."""
    sign = (bits(y) >> 24) & 0x80
    magnitude = tl.abs(y)
    normal = bits(magnitude) + 0x7FFFF + ((bits(magnitude) >> 20) & 1)  # half a step, ties to even
    code = (normal >> 20) - (120 << 3)
    steps = bits(magnitude + 24576.0) - 0x46C00000  # the sum with 1.5 * 2^14 rounds to steps of 2^-9
    code = tl.where(magnitude < 0.015625, steps, code)
    code = tl.where(magnitude >= 448, 0x7E, code) | sign
    return tl.where(y != y, 0x7F, code).to(tl.uint8)


@triton.jit
def mxfp8(x_pointer, data_pointer, scales_pointer, blocks, tile: tl.constexpr):
    """Quantize a tile of blocks of 32 elements each, in one program."""
    block = tl.program_id(0) * tile + tl.arange(0, tile)
    place = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    x = tl.load(x_pointer + place, mask=(block < blocks)[:, None], other=0).to(tl.float32)
    amax = tl.max(tl.where(x != x, 0.0, tl.abs(x)), axis=1)  # NaN is left out [BLK-2]
    byte = e8m0_up(amax * (1.0 / 448.0))  # [MXS-1]
    decode = tl.where(byte == 0, 1 << 22, byte << 23).to(tl.float32, bitcast=True)  # [E8M0-4]
    y = tl.div_rn(x, tl.broadcast_to(decode[:, None], (tile, 32)))  # [BLK-10]
    tl.store(data_pointer + place, e4m3(y), mask=(block < blocks)[:, None])
    tl.store(scales_pointer + block, byte.to(tl.uint8), mask=block < blocks)


@fp4ref.kernel(outputs=("data", "scales"), arrays="torch", device=DEVICE, multiple=(1, 32), leading=False, empty=False)
def quantize(x):
    """[M, K] to codes [M, K] and one scale byte for each 32 elements of a row."""
    m, k = x.shape
    data = torch.empty((m, k), dtype=torch.uint8, device=x.device)
    scales = torch.empty((m, k // 32), dtype=torch.uint8, device=x.device)
    mxfp8[(triton.cdiv(scales.numel(), TILE),)](x, data, scales, scales.numel(), TILE)
    return data, scales
