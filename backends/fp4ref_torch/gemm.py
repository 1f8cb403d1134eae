"""GEMM in plain torch: exact operands through torch's matrix product, on CPU and CUDA tensors.

An E2M1 code times an E4M3 scale has at most 6 significant bits: exact in bfloat16. On CUDA the operands are
bfloat16 and the sums float32, on a CPU both are float32. Certificates: gemm-pairs-nvfp4, operand-values.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from fp4ref.formats import E2M1, E4M3, Format
from fp4ref.operands import AlphaRule, Epilogue, Operand, alpha_factor
from fp4ref_torch import codecs, exact, layouts, wide_sums

LARGEST = 12 * 229376  # code * scale of E2M1 and E4M3, in steps of 2^-10
# Certificates: gemm-limit/formula.
SMALL_K = (2**63 - 1) // LARGEST**2  # elements of K whose sums 64 bits hold: 1217394
CHUNK = 1024  # elements of K whose sums, counted in steps of the products, stay below 2^53: CHUNK * LARGEST**2


def fast(a: Operand, b: Operand) -> Tensor:
    """Return sums by one matrix product with float32 accumulation. Rules: GEM-11."""
    if a.data.data.device.type == "cpu":
        return torch.mm(values(a, torch.float32), values(b, torch.float32).T)
    left, right = values(a, torch.bfloat16), values(b, torch.bfloat16).T
    if not left.shape[1]:
        return torch.zeros((left.shape[0], right.shape[1]), dtype=torch.float32, device=left.device)
    return torch.mm(left, right, out_dtype=torch.float32)


def exact_sums(a: Operand, b: Operand) -> Tensor:
    """Return the true sums, rounded once.

    E2M1 elements with E4M3 scales are integers up to 12 * 229376 in steps of 2^-10, held as float64. The sums over
    CHUNK elements are below 2^53, so float64 holds every partial sum in every order; int64 adds up the chunks while
    K <= SMALL_K. All others take a wide accumulator.

    Rules: GEM-2, GEM-3. Certificates: gemm-longest, gemm-pairs-*, gemm-ties, gemm-spreads-*, gemm-long-mx,
    special-operands.
    """
    if not (_is_small(a, b) and a.shape[1] <= SMALL_K):
        return wide_sums.sums(values(a, torch.float64), values(b, torch.float64))
    left, right = _scaled_to_integers(a), _scaled_to_integers(b)
    total = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.int64, device=left.device)
    for start in range(0, a.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        total += torch.mm(left[:, part].nan_to_num(0.0), right[:, part].nan_to_num(0.0).T).to(torch.int64)
    return _with_nan(total.to(torch.float32) * 2.0**-20, left, right)


def blockwise(a: Operand, b: Operand) -> Tensor:
    """Blocks added in the order of k in float32, each rounded once. Rules: GEM-4, GEM-3.

    Certificates: gemm-pairs-*, gemm-order-*.
    """
    return (_blocks_of_e2m1 if _is_small(a, b) else _blocks)(a, b)


def _blocks(a: Operand, b: Operand) -> Tensor:
    left, right = values(a, torch.float64), values(b, torch.float64)
    total = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.float32, device=left.device)
    for start in range(0, a.shape[1], a.spec.block.columns):
        part = slice(start, start + a.spec.block.columns)
        total = exact.add(total, wide_sums.sums(left[:, part], right[:, part]))
    return total


def _blocks_of_e2m1(a: Operand, b: Operand) -> Tensor:
    """With E4M3 scales a block's part, dot * (scale * scale), has at most 19 significant bits: it is exact.

    Certificates: gemm-contributions, gemm-pairs-nvfp4, gemm-order-nvfp4.
    """
    width, columns = a.spec.block.columns, a.shape[1]
    left, right = (codecs.decode(_codes(operand), E2M1) for operand in (a, b))
    of_a, of_b = (codecs.decode(_scales(operand), E4M3) for operand in (a, b))
    total = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.float32, device=left.device)
    for block in range(-(-columns // width)):
        part = slice(block * width, (block + 1) * width)
        dots = torch.mm(left[:, part], right[:, part].T)
        total += of_a[:, block, None] * of_b[None, :, block] * dots
    return total


def finish(sums: Tensor, a: Operand, b: Operand, epilogue: Epilogue) -> Tensor:
    """Return the sums after alpha, amaxes of rows, additions and one cast.

    Rules: GEM-5, GEM-6, GEM-7, GEM-8, GEM-26, GEM-27. Certificates: product-*.
    """
    by_row = a.row_scaled or b.row_scaled
    y = exact.mul(sums, _alpha(a, b, epilogue).to(sums.device))
    if by_row:
        down, across = a.data.amax.reshape(-1, 1), b.data.amax.reshape(1, -1)
        both = a.row_scaled and b.row_scaled
        y = exact.mul(exact.mul(y, down), across) if both else exact.mul(y, exact.mul(down, across))
    for added in (epilogue.bias,) if by_row else (epilogue.accumulate, epilogue.bias):
        y = y if added is None else exact.add(y, exact.widened(added))
    result = _cast(y, epilogue)
    if by_row and epilogue.accumulate is not None:
        result = _cast(exact.add(exact.widened(result), exact.widened(epilogue.accumulate)), epilogue)
    return result


def values(operand: Operand, dtype: torch.dtype) -> Tensor:
    """code * scale [rows, K], rounded to a type in which it is exact (GEM-11). Rules: GEM-1, GEM-11.

    Certificates: operand-values.
    """
    spec, (rows, columns) = operand.spec, operand.shape
    width = spec.block.columns
    scales = codecs.decode(_scales(operand), spec.scale.format).to(dtype)
    decoded = _decoded(operand, dtype)
    decoded = torch.nn.functional.pad(decoded, (0, scales.shape[1] * width - decoded.shape[1]))
    products = decoded.reshape(rows, scales.shape[1], width) * scales.unsqueeze(2)
    return products.reshape(rows, scales.shape[1] * width)[:, :columns]


def _decoded(operand: Operand, dtype: torch.dtype) -> Tensor:
    """Element values: one look-up per byte gives both elements of a packed one; 6-bit codes share bytes otherwise."""
    form, data = operand.spec.element.format, operand.data.data
    if form.bits == 6:
        return codecs.decode(_codes(operand), form).to(dtype)
    table = _table(form, dtype, data.device)
    pairs = torch.nn.functional.embedding(data.to(torch.int32), table)
    return pairs.reshape(data.shape[0], data.shape[1] * table.shape[1])[:, : operand.shape[1]]


@cache
def _table(form: Format, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Values of a byte [256, elements in it]."""
    byte = torch.arange(256, dtype=torch.int32)
    codes = byte[:, None] if form.bits == 8 else torch.stack([byte & 0xF, byte >> 4], dim=1)
    return codecs.decode(codes, form).to(dtype).to(device)


def _codes(operand: Operand) -> Tensor:
    return codecs.unpack(operand.data.data, operand.shape[1], operand.spec.element.format)


def _scales(operand: Operand) -> Tensor:
    """Scale bytes [rows, blocks], padding left out. Rules: LAY-6."""
    rows, columns = operand.shape
    blocks = -(-columns // operand.spec.block.columns)
    return layouts.to_linear(operand.data.scales, rows, blocks, operand.scale_layout.name)


def _is_small(a: Operand, b: Operand) -> bool:
    """Return True if both have E2M1 elements with E4M3 scales."""
    return {operand.spec.element.format for operand in (a, b)} == {E2M1} and a.spec.scale.format is E4M3


def _scaled_to_integers(operand: Operand) -> Tensor:
    return values(operand, torch.float32).to(torch.float64) * 2.0**10


def _with_nan(sums: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """E2M1 is never special, and an E4M3 scale is at most NaN: it makes its whole row NaN. Rules: GEM-3."""
    down, across = (part.isnan().any(dim=1) for part in (left, right))
    return torch.where(down[:, None] | across[None, :], torch.nan, sums)


def _alpha(a: Operand, b: Operand, epilogue: Epilogue) -> Tensor:
    """float32 [1]. Rules: GEM-5, GEM-6."""
    alpha = torch.tensor([float(epilogue.alpha)], dtype=torch.float32)
    factor = alpha_factor(a.spec, b.spec)
    if factor is None:
        return alpha
    if not (a.row_scaled or b.row_scaled):
        alpha = exact.mul(exact.mul(alpha.to(a.data.amax.device), a.data.amax), b.data.amax)
    divisor = torch.full_like(alpha, float(factor))
    if epilogue.alpha_rule is AlphaRule.DIVISION:
        return exact.div(alpha, divisor)
    return exact.mul(alpha, exact.div(torch.ones_like(alpha), divisor))


def _cast(y: Tensor, epilogue: Epilogue) -> Tensor:
    """Round once; every NaN becomes the positive quiet one. Rules: GEM-24, GEM-8."""
    y = torch.where(exact.is_nan(y), torch.nan, y)
    name = epilogue.dtype.name
    return exact.to_bfloat16(y) if name == "bfloat16" else exact.to_float16(y) if name == "float16" else y
