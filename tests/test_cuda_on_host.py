"""The general CUDA kernels, compiled for the host: other formats without a GPU."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import math

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from codes import every_code_under_every_scale
from covering import crossed
from fp4ref import arrays, packing
from fp4ref.arguments import FLAGS
from fp4ref.formats import CUDA_UE5M3, Codec, Format
from fp4ref.layout import LAYOUTS, Layout
from fp4ref.model import counter_map
from fp4ref.operands import AlphaRule, Epilogue, Operand
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.spec import Granularity
from fp4ref_cuda import demands, gemm, moving, plan
from fp4ref_cuda.words import float_bits
from fp4ref_numerics.layouts import lower_layout
from fp4ref_numerics.products import of_operand
from host_compiler import library, needs_compiler
from operands_at_random import PRODUCTS, operand

# Formats of users: with subnormals alone past 1, with every code finite, and with fewer finite codes.
OWN = {
    name: base.replace(name=name, element=Codec(format=form, nan=nan))
    for name, base, form, nan in (
        ("vendor.nvfp4-e1m2", fp4ref.NVFP4, Format("vendor.e1m2", 1, 2, bias=0, codes=8), (7, 7)),
        ("vendor.mxfp4-e3m0", fp4ref.MXFP4, Format("vendor.e3m0", 3, 0, bias=3, codes=8), (7, 7)),
        ("vendor.mxfp8-e3m4", fp4ref.MXFP8_E4M3, Format("vendor.e3m4", 3, 4, bias=3, codes=128), (0x7F, 0x7F)),
        ("vendor.mxfp8-e4m3", fp4ref.MXFP8_E4M3, Format("vendor.e4m3", 4, 3, bias=0, codes=97), (0x7F, 0x7F)),
    )
}
UE5M3_SCALES = fp4ref.MXFP8_E4M3.replace(name="vendor.mxfp8-ue5m3", scale=CUDA_UE5M3)
STARTS = {
    "quantize": """
extern "C" void start(unsigned blocks, const void* x, long long rows, long long columns, long long layout,
    long long across, void* row_data, void* row_scales, void* column_data, void* column_scales)
{
    on_host(blocks, THREADS, [=] {
        quantize((const In::word*)x, rows, columns, layout, across, nullptr, 0, (byte*)row_data, (byte*)row_scales,
            nullptr, nullptr, (byte*)column_data, (byte*)column_scales, nullptr, nullptr, nullptr);
    });
}
""",
    "dequantize": """
extern "C" void start(unsigned blocks, const void* data, const void* scales, long long lines, long long length,
    long long layout, void* out)
{
    on_host(blocks, THREADS, [=] {
        dequantize((const byte*)data, (const byte*)scales, nullptr, lines, length, layout, (Out::word*)out);
    });
}
""",
    "layout": """
extern "C" void start(unsigned blocks, const void* from, void* to, long long units, long long rows, long long columns)
{
    on_host(blocks, THREADS, [=] { layout((const byte*)from, (byte*)to, nullptr, 1, units, rows, columns); });
}
""",
    "finish_product": """
extern "C" void start(unsigned blocks, const void* product, long long columns, long long strips, long long first,
    long long second, long long third, long long fourth, const void* bias, void* out)
{
    on_host(blocks, THREADS, [=] {
        finish_product((const float*)product, columns, strips, first, second, third, fourth, (const In::word*)bias,
            (Out::word*)out);
    });
}
""",
    "gemm": """
extern "C" void start(unsigned blocks, const void* data_a, const void* scales_a, const void* amax_a, const void* data_b,
    const void* scales_b, const void* amax_b, long long rows, long long columns, long long depth, long long alpha,
    long long factor, long long division, const void* bias, const void* added, void* out)
{
    on_host(blocks, THREADS, [=] {
        gemm((const byte*)data_a, (const byte*)scales_a, (const float*)amax_a, (const byte*)data_b,
            (const byte*)scales_b, (const float*)amax_b, rows, columns, depth, alpha, factor, division,
            (const In::word*)bias, (const Out::word*)added, (Out::word*)out);
    });
}
""",
    "gemm_finish": """
extern "C" void start(unsigned blocks, const void* sums, const void* amax_a, const void* amax_b, long long columns,
    long long count, long long alpha, long long factor, long long division, const void* bias, const void* added,
    void* out)
{
    on_host(blocks, THREADS, [=] {
        gemm_finish((const float*)sums, (const float*)amax_a, (const float*)amax_b, columns, count, alpha, factor,
            division, (const In::word*)bias, (const Out::word*)added, (Out::word*)out);
    });
}
""",
    "product_factor": """
extern "C" void start(unsigned blocks, long long first, long long second, long long third, long long fourth, void* out)
{
    on_host(blocks, 1, [=] { product_factor(first, second, third, fourth, (float*)out); });
}
""",
    "tensor_codes": """
extern "C" void start(unsigned blocks, const void* x, long long count, const void* scale, void* out)
{
    on_host(blocks, THREADS, [=] { tensor_codes((const word*)x, count, (const float*)scale, (byte*)out); });
}
""",
    "tensor_values": """
extern "C" void start(unsigned blocks, const void* codes, long long count, const void* scale, void* out)
{
    on_host(blocks, THREADS, [=] { tensor_values((const byte*)codes, count, (const float*)scale, (Out::word*)out); });
}
""",
    "random_bits": """
extern "C" void start(unsigned blocks, unsigned parts, const Part* of, unsigned long long seed, const void* seed_at)
{
    on_host(blocks, THREADS, [=] { random_bits(of[0], of[1], seed, (const fp4ref::u64*)seed_at); }, parts);
}
""",
    "tensor_scale": """
extern "C" void start(unsigned blocks, const void* amax, long long least, long long largest, void* scale, void* inverse)
{
    on_host(blocks, 1, [=] { tensor_scale((const float*)amax, least, largest, (float*)scale, (float*)inverse); });
}
""",
    "turn": """
extern "C" void start(unsigned blocks, const void* from, void* to, long long rows, long long columns, const void* noop)
{
    on_host(blocks, THREADS, [=] { turn((const byte*)from, (byte*)to, rows, columns, (const unsigned*)noop); });
}
""",
    "flag": """
extern "C" void start(unsigned blocks, const void* of, long long bytes, long long expected, void* word)
{
    on_host(blocks, 32, [=] { flag((const byte*)of, bytes, expected, (unsigned*)word); });
}
""",
    "tensor_raise": """
extern "C" void start(unsigned blocks, const void* found, const void* scale, void* amax, const void* noop, void* inv)
{
    on_host(blocks, 1, [=] {
        tensor_raise((const float*)found, (const float*)scale, (float*)amax, (const unsigned*)noop, (float*)inv);
    });
}
""",
    "histories": """
extern "C" void start(unsigned blocks, void* history, const void* current, void* scale, long long length,
    long long operands, long long numerator)
{
    on_host(blocks, THREADS, [=] {
        histories((float*)history, (const float*)current, (float*)scale, length, operands, numerator);
    });
}
""",
    "decode": """
extern "C" void start(unsigned blocks, const void* data, const void* scales, const void* amax, long long lines,
    long long length, long long units, void* out)
{
    on_host(blocks, THREADS, [=] {
        decode((const byte*)data, (const byte*)scales, (const float*)amax, lines, length, units, (Out::word*)out);
    });
}
""",
    "decode_run": """
extern "C" void start(unsigned blocks, const void* data, const void* scales, long long count, void* out)
{
    on_host(blocks, THREADS, [=] { decode_run((const byte*)data, (const byte*)scales, count, (Out::word*)out); });
}
""",
}
pytestmark = [
    pytest.mark.heavy,
    needs_compiler,
]


def built(kernel: str, prelude: str) -> ctypes.CDLL:
    """A kernel as a library of the host."""
    return library(kernel, prelude, STARTS[kernel])


def pointers(*arrays: np.ndarray) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def inputs(shape: tuple[int, int], dtype: type) -> np.ndarray:
    """Numbers on and beside ties under scales of many sizes, with special ones among them."""
    rng = np.random.default_rng(shape)
    x = rng.integers(-64, 65, shape) / 16 * np.exp2(rng.integers(-130, 120, (shape[0], 1)))
    hard = np.float32([np.nan, -np.nan, np.inf, -np.inf, -0.0, 1e-45])
    return np.where(rng.random(shape) < 0.01, rng.choice(hard, shape), x).astype(np.float32).astype(dtype)


@pytest.mark.rule("PACK-4", "PACK-5", "BLK-8", "LAY-5", "DEQ-2")
@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        (fp4ref.MXFP6_E2M3, ml_dtypes.bfloat16),
        (fp4ref.MXFP6_E3M2, np.float32),
        (fp4ref.MXINT8, ml_dtypes.bfloat16),
        (UE5M3_SCALES, ml_dtypes.bfloat16),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_formats_of_the_general_kernels(spec, dtype):
    source = np.dtype(dtype).name
    both = plan.prelude(spec, source, HAS_ROW=True, HAS_COLUMN=True)
    quantizer = built("quantize", both)
    alone = built("quantize", plan.prelude(spec, source, HAS_ROW=True, HAS_COLUMN=False))
    decoder = built("dequantize", plan.prelude(spec, source, out=source, INVERSE=False))
    for rows, columns, scale_layout in (
        (70, 140, "linear"),
        (130, 70, "tiled_128x4"),
        (3, 5, "linear"),
        (128, 64, "tiled_8x4"),
        (33, 96, "linear"),
        (48, 80, "linear"),
        (37, 272, "tiled_128x4"),
    ):
        x = inputs((rows, columns), dtype)
        q = fp4ref.quantize(x, spec, "both", scale_layout, backend="numpy")
        expected = (q.row.data, q.row.scales, q.column.data, q.column.scales)
        got = [np.full(part.size + 64, 0xA5, np.uint8) for part in expected]
        down, across = plan.tiles(spec, rows, columns, ("row", "column"), scale_layout, source)
        sizes = [ctypes.c_longlong(n) for n in (rows, columns, plan.layout_number(scale_layout), across)]
        quantizer.start(down * across, *pointers(x), *sizes, *pointers(*got))
        for mine, theirs in zip(got, expected, strict=True):
            assert mine[: theirs.size].tobytes() == theirs.tobytes(), (rows, columns, scale_layout)
            assert (mine[theirs.size :] == 0xA5).all()
        down, across = plan.tiles(spec, rows, columns, ("row",), scale_layout, source)
        sizes[-1] = ctypes.c_longlong(across)
        got = [np.full(part.size + 64, 0xA5, np.uint8) for part in expected]
        alone.start(down * across, *pointers(x), *sizes, *pointers(*got))
        for mine, theirs in zip(got[:2], expected[:2], strict=True):
            assert mine[: theirs.size].tobytes() == theirs.tobytes(), (rows, columns, scale_layout)
            assert (mine[theirs.size :] == 0xA5).all()
        out = np.empty((rows, columns), dtype)
        each = 16 // out.itemsize
        blocks = -(-rows * -(-columns // each) // 256)
        sizes = [ctypes.c_longlong(n) for n in (rows, columns, plan.layout_number(scale_layout))]
        decoder.start(blocks, *pointers(q.row.data, q.row.scales), *sizes, *pointers(out))
        values = fp4ref.dequantize(q, source, backend="numpy")
        assert out.tobytes() == values.tobytes(), (rows, columns, scale_layout)


@pytest.mark.rule("LAY-5", "LAY-6", "LAY-19", "LAY-21")
@pytest.mark.parametrize(
    "text",
    [
        "m(8,4,*) k(4,*): k0^m1 m0 k1 m1 m2; pad k 0x7f",
        "m(8,*) k(3,8,*): k0 k1^m0 m0^1 k2 m1; base 3; pad m 0x11",
        "m(8,*) k(4,*): k0 m0^k0 k1 m1",
        "m(2,*) k(*): m0 k0 m1; base 3; table 4,2,0,1,3",
        "m(4,*) k(4,2,*): k0 m0 k1 m1 k2; table 3,1,2,0",
    ],
)
def test_layouts_whose_offsets_are_no_sums(text, registered):
    form = registered(Layout("odd", text))
    spec, rows, columns = fp4ref.MXFP8_E4M3, 70, 420
    size, own = (rows, -(-columns // 32)), ctypes.c_longlong(-1)
    q = fp4ref.quantize(inputs((rows, columns), np.float32), spec, scale_layout="odd", backend="numpy")
    linear = fp4ref.to_layout(q, "linear", backend="numpy")
    decided = form.compared(*size).reshape(-1)

    def check(scales: np.ndarray) -> None:
        assert np.where(decided, scales[: decided.size], 0).tobytes() == q.row.scales.tobytes()
        assert (scales[decided.size :] == 0xA5).all()

    text = plan.prelude(spec, "float32", "odd", HAS_ROW=True, HAS_COLUMN=False)
    down, across = plan.tiles(spec, rows, columns, ("row",), "odd", "float32")
    data, scales = np.zeros(q.row.data.size, np.uint8), np.full(decided.size + 64, 0xA5, np.uint8)
    sizes = [ctypes.c_longlong(n) for n in (rows, columns, -1, across)]
    x = inputs((rows, columns), np.float32)
    built("quantize", text).start(down * across, *pointers(x), *sizes, *pointers(data, scales, data, scales))
    assert data.tobytes() == q.row.data.tobytes()
    check(scales)
    decoder = built("dequantize", plan.prelude(spec, "float32", "odd", "float32", INVERSE=False))
    out, sizes = np.zeros((rows, columns), np.float32), [ctypes.c_longlong(n) for n in (rows, columns)]
    blocks = -(-rows * -(-columns // 4) // 256)
    decoder.start(blocks, *pointers(q.row.data, q.row.scales), *sizes, own, *pointers(out))
    assert out.tobytes() == fp4ref.dequantize(q, backend="numpy").tobytes()
    for source, target in ((form, LAYOUTS["linear"]), (LAYOUTS["linear"], form)):
        text = f"{plan.prelude(spec, scale_layout=target.name, QUARTERS=False)}\n{lower_layout(source, 'Source')}"
        high, wide = target.padded(*size)
        units = high * -(-wide // 4)
        given = q.row.scales if source is form else linear.row.scales
        got = np.full(math.prod(target.padded_shape(*size)) + 64, 0xA5, np.uint8)
        counts = [ctypes.c_longlong(n) for n in (units, *size)]
        built("layout", text).start(-(-units // 256), *pointers(given, got), *counts)
        if target is form:
            check(got)
        else:
            assert got[: linear.row.scales.size].tobytes() == linear.row.scales.tobytes()


@pytest.mark.rule("LAY-20")
@pytest.mark.parametrize(
    "text",
    [
        "m(16,*) k(2,*): k0 k1 m1; repeat m0; pad m 32 0x7f; pad k 0x22",
        "m(8,*) k(4,*): m0 k1 m1; repeat k0",
        "m(4,2,*) k(4,*): k0 m1 k1 m2; repeat m0; base 3; table 1,0,2",
        "m(*) k(*): k0; repeat m0",
    ],
)
def test_layouts_that_repeat_a_digit_are_read(text, registered):
    form = registered(Layout("shared", text))
    spec, rows, columns = fp4ref.MXFP8_E4M3, 70, 420
    size, own = (rows, -(-columns // 32)), ctypes.c_longlong(-1)
    stored = np.random.default_rng(5).integers(100, 150, form.padded_shape(*size), np.uint8)
    data = fp4ref.quantize(inputs((rows, columns), np.float32), spec, backend="numpy").row.data
    linear = form.to_linear(stored, *size)
    decoder = built("dequantize", plan.prelude(spec, "float32", "shared", "float32", INVERSE=False))
    out, sizes = np.zeros((rows, columns), np.float32), [ctypes.c_longlong(n) for n in (rows, columns)]
    decoder.start(-(-rows * -(-columns // 4) // 256), *pointers(data, stored), *sizes, own, *pointers(out))
    q = Quantized(spec, (rows, columns), "float32", "linear", DirectionData(data, linear, None))
    assert out.tobytes() == fp4ref.dequantize(q, backend="numpy").tobytes()
    text = f"{plan.prelude(spec, scale_layout='linear', QUARTERS=False)}\n{lower_layout(form, 'Source')}"
    units = rows * -(-size[1] // 4)
    got = np.full(linear.size + 64, 0xA5, np.uint8)
    counts = [ctypes.c_longlong(n) for n in (units, *size)]
    built("layout", text).start(-(-units // 256), *pointers(stored, got), *counts)
    assert got[: linear.size].tobytes() == linear.tobytes()
    assert (got[linear.size :] == 0xA5).all()


@pytest.mark.rule("DEQ-1", "DEQ-2", "DEQ-3", "LAY-6")
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2", *OWN])
def test_whole_lines_are_decoded_by_their_bits(name):
    spec = OWN.get(name) or fp4ref.profiles[name]
    for to, scale_layout, lines in (("bfloat16", "tiled_128x4", 260), ("float16", "linear", 130)):
        decoder = built("decode", plan.prelude(spec, "bfloat16", scale_layout, to))
        q = every_code_under_every_scale(spec, lines, scale_layout)
        assert demands.decode_reason(spec, to, q.shape[1], 0, inverse=False) == ""
        out = np.zeros((lines + 1, q.shape[1]), np.uint16)
        groups = -(-lines // 128) * 32 if scale_layout == "tiled_128x4" else -(-lines // 4)
        units = groups * -(-q.shape[1] // 256)
        sizes = [ctypes.c_longlong(n) for n in (lines, q.shape[1], units)]
        amax = ctypes.c_void_p(None if q.row.amax is None else q.row.amax.ctypes.data)
        decoder.start(3, *pointers(q.row.data, q.row.scales), amax, *sizes, *pointers(out))
        values = fp4ref.dequantize(q, to, backend="numpy")
        assert out[:lines].tobytes() == values.tobytes()
        assert not out[lines:].any()


@pytest.mark.rule("DEQ-2", "DEQ-3")
@pytest.mark.parametrize("name", ["vendor.mxfp8-e3m4", "vendor.mxfp8-e4m3", "mxfp8-e4m3", "mxfp8-e5m2"])
def test_a_run_of_bytes_is_decoded_whatever_its_lines(name):
    spec = OWN.get(name) or fp4ref.profiles[name]
    for to, lines, large in (("bfloat16", 37, False), ("float16", 256, True)):
        decoder = built("decode_run", plan.prelude(spec, "bfloat16", "linear", to, LARGE=large))
        q = every_code_under_every_scale(spec, lines, "linear")
        out = np.zeros((lines + 1, q.shape[1]), np.uint16)
        count = lines * q.shape[1]
        decoder.start(
            -(-count // (8192 if large else 4096)),
            *pointers(q.row.data, q.row.scales),
            ctypes.c_longlong(count),
            *pointers(out),
        )
        assert out[:lines].tobytes() == fp4ref.dequantize(q, to, backend="numpy").tobytes()
        assert not out[lines:].any()


@pytest.mark.rule("GEM-5", "GEM-8", "TEL-12", "TEL-32")
@pytest.mark.parametrize(
    ("to", "of_bias", "factors", "vectors"),
    crossed(
        (ml_dtypes.bfloat16, np.float16),
        (ml_dtypes.bfloat16, np.float32, None),
        ((), ([0.3],), (3.1, [0.7], [1.3], 2.7e-8)),
        (True, False),
        every=2,
    ),
)
def test_a_product_is_finished_in_one_pass(to, of_bias, factors, vectors):
    rows, columns = (5, 2096) if vectors else (3, 2051)
    rng = np.random.default_rng(11)
    sums = inputs((rows, columns), np.float32)
    bias = rng.standard_normal(columns).astype(of_bias or ml_dtypes.bfloat16)
    by, out = [np.float32(each) for each in factors], np.zeros((rows, columns), to)
    read = sum(isinstance(each, list) << place for place, each in enumerate(factors))
    has = {"FACTORS": len(factors), "READ": read, "HAS_BIAS": of_bias is not None, "VECTORS": vectors}
    text = plan.prelude(fp4ref.NVFP4, np.dtype(bias.dtype).name, "linear", np.dtype(to).name, **has)
    strips = -(-columns // 2048)
    sizes = ctypes.c_longlong(columns), ctypes.c_longlong(strips)
    words = [each.ctypes.data if each.shape else int(each.view(np.uint32)) for each in by]
    words = map(ctypes.c_longlong, words + [0] * (4 - len(words)))
    before, *after = pointers(sums, bias, out)
    built("finish_product", text).start(ctypes.c_uint(rows * strips), before, *sizes, *words, *after)
    with np.errstate(all="ignore"):
        factor = np.float32(1)
        for each in by:
            factor = factor * each.reshape(())
        expected = sums * factor if by else sums
        expected = expected + bias.astype(np.float32) if of_bias is not None else expected
        expected = expected.astype(to)
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(out), ~numbers)
    assert np.array_equal(out.view(np.uint16)[numbers], expected.view(np.uint16)[numbers])


@pytest.mark.rule("GEM-5", "TEL-12")
@pytest.mark.parametrize("factors", [([0.3],), (0.3, [1e-30]), (3.1, [0.7], [1.3], 2.7e-8)], ids=len)
def test_factors_of_a_product_are_multiplied_from_the_left(factors):
    by, out = [np.float32(each) for each in factors], np.ones(2, np.float32)
    read = sum(isinstance(each, list) << place for place, each in enumerate(factors))
    text = plan.prelude(fp4ref.NVFP4, FACTORS=len(factors), READ=read)
    words = [each.ctypes.data if each.shape else int(each.view(np.uint32)) for each in by]
    words = map(ctypes.c_longlong, words + [0] * (4 - len(words)))
    built("product_factor", text).start(ctypes.c_uint(1), *words, *pointers(out))
    expected = np.float32(1)
    for each in by:
        expected = expected * each.reshape(())
    assert out.tobytes() == np.array([expected, 0], np.float32).tobytes()


OF_TENSORS = crossed(("mxfp8-e4m3", "mxfp8-e5m2"), (ml_dtypes.bfloat16, np.float16, np.float32), (True, False), every=2)


@pytest.mark.rule("TEL-21", "E4M3-1", "E4M3-3", "E5M2-1", "E5M2-3")
@pytest.mark.parametrize(("name", "dtype", "vectors"), OF_TENSORS)
def test_codes_of_a_tensor_and_what_they_mean(name, dtype, vectors):
    spec, element = fp4ref.profiles[name], ml_dtypes.float8_e4m3fn if name == "mxfp8-e4m3" else ml_dtypes.float8_e5m2
    largest, source = float(ml_dtypes.finfo(element).max), np.dtype(dtype).name
    words = np.arange(1 << 16, dtype=np.uint16)[np.random.default_rng(3).permutation(1 << 16)[:9999]]
    x = words.view(np.float16 if dtype is np.float16 else ml_dtypes.bfloat16).astype(dtype)
    kernel = built("tensor_codes", plan.prelude(spec, source, VECTORS=vectors))
    for scale in np.float32([1, 0.3, 3e5, 1e-5, np.inf]):
        with np.errstate(all="ignore"):
            y = x.astype(np.float32) * scale
            expected = np.clip(y, -largest, largest).astype(element).view(np.uint8)
        expected[np.isnan(y)] = 0x7F
        codes, count, by = np.zeros(x.size + 16, np.uint8), ctypes.c_longlong(x.size), np.float32([scale])
        kernel.start(-(-x.size // 4096), *pointers(x), count, *pointers(by, codes))
        assert codes[: x.size].tobytes() == expected.tobytes(), scale
        assert not codes[x.size :].any()
    to = "float16" if dtype is np.float16 else "bfloat16"
    kernel = built("tensor_values", plan.prelude(spec, out=to, SCALED=False, VECTORS=vectors))
    codes = np.tile(np.arange(256, dtype=np.uint8), 17)[:4099]
    values = np.zeros(codes.size + 8, to if to == "float16" else ml_dtypes.bfloat16)
    count = ctypes.c_longlong(codes.size)
    kernel.start(-(-codes.size // 4096), *pointers(codes), count, None, *pointers(values))
    with np.errstate(invalid="ignore"):
        meant = codes.view(element).astype(values.dtype)
    assert np.array_equal(values[: codes.size].astype(np.float32), meant.astype(np.float32), equal_nan=True)
    numbers = ~np.isnan(meant)
    assert np.array_equal(values[: codes.size].view(np.uint16)[numbers], meant.view(np.uint16)[numbers])
    assert not values[codes.size :].view(np.uint16).any()


@pytest.mark.rule("TEL-8", "DEQ-2", "DEQ-3")
@pytest.mark.parametrize(("name", "dtype", "vectors"), OF_TENSORS)
def test_codes_under_the_scale_of_a_tensor(name, dtype, vectors):
    spec, element = fp4ref.profiles[name], ml_dtypes.float8_e4m3fn if name == "mxfp8-e4m3" else ml_dtypes.float8_e5m2
    word = np.uint32 if dtype is np.float32 else np.uint16
    text = plan.prelude(spec, out=np.dtype(dtype).name, SCALED=True, VECTORS=vectors)
    kernel = built("tensor_values", text)
    codes = np.random.default_rng(5).permutation(np.tile(np.arange(256, dtype=np.uint8), 17)[:4099])
    codes[:1024] = np.repeat(np.arange(128, dtype=np.uint8) % 100, 8)  # vectors of finite codes alone
    drawn = np.random.default_rng(6).integers(0, 1 << 32, 200, np.uint32).view(np.float32)
    for scale in np.float32([1, 0.3, 3e5, 1e-5, 1.5e-42, 3e38, np.inf, np.nan, 0, -0.0, -7, *drawn]):
        values, by = np.zeros(codes.size + 8, dtype), np.float32([scale])
        count = ctypes.c_longlong(codes.size)
        kernel.start(-(-codes.size // 4096), *pointers(codes), count, *pointers(by, values))
        with np.errstate(all="ignore"):
            meant = (codes.view(element).astype(np.float32) * scale).astype(dtype)
        nan = np.isnan(meant)
        assert np.array_equal(nan, np.isnan(values[: codes.size]))
        assert np.array_equal(values[: codes.size].view(word)[~nan], meant.view(word)[~nan]), scale
        assert not values[codes.size :].view(word).any()


@pytest.mark.rule("SR-7", "SR-8")
def test_random_bytes_of_one_part_and_of_two():
    kernel = built("random_bits", "")
    parts = (((5, 40), (0, 0), 3), ((3, 2048), (7, 1), 200), ((67, 160), (2, 0), 10), ((1, 1), (0, 2**40), 2**41))
    for (one, other), seed in itertools.product(itertools.permutations(parts, 2), (0, 2**64 - 1)):
        for count, given in ((2, None), (1, np.uint64([seed]))):
            made = [np.full(rows * columns + 16, 0xEE, np.uint8) for (rows, columns), _, _ in (one, other)]
            words = []
            for at, (shape, (down, right), across), out in zip(range(2), (one, other), made, strict=True):
                words += [out.ctypes.data, *shape, (down * across + right) % 2**64, across, 8 + at]
            blocks = max(shape[0] * -(-shape[1] // 16) for shape, _, _ in (one, other)) // 1024 + 1
            kernel.start(
                blocks,
                count,
                *pointers(np.uint64(words)),
                ctypes.c_uint64(0 if given is not None else seed),
                *([None] if given is None else pointers(given)),
            )
            for at, (shape, origin, across), out in zip(range(2), (one, other), made, strict=True):
                size = math.prod(shape)
                expected = counter_map.random_bytes(shape, origin, across, seed, 8 + at)
                assert (out[:size].reshape(shape) == expected).all() == (at < count), (one, other, count)
                assert (out[size if at < count else 0 :] == 0xEE).all()


@pytest.mark.rule("TEL-21")
@pytest.mark.parametrize("name", ["mxfp8-e4m3", "mxfp8-e5m2"])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_the_scale_of_a_tensor(name, power_of_two):
    largest = np.float32(448 if name == "mxfp8-e4m3" else 57344)
    kernel = built("tensor_scale", plan.prelude(fp4ref.profiles[name], POWER_OF_TWO=power_of_two))
    for limit in np.float32([65504, ml_dtypes.finfo(ml_dtypes.bfloat16).max, np.finfo(np.float32).max]):
        for amax in np.float32([0, 7, 3, 1e-45, 1e-40, 1e-38, 1.3e-36, 1e-10, 448, 449, 3.4e38, np.inf, 0.1]):
            for least in np.float32([0, 0.5]):
                with np.errstate(all="ignore"):
                    a = max(amax, least)
                    scale = np.float32(1) if a == 0 or np.isinf(a) else largest / a
                    scale = limit if np.isinf(scale) else scale
                if power_of_two:
                    scale = (scale.view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)
                out = np.zeros(2, np.float32)
                words = [ctypes.c_longlong(int(value.view(np.uint32))) for value in (least, limit)]
                kernel.start(1, *pointers(np.float32([amax])), *words, *pointers(out[:1], out[1:]))
                assert out.tobytes() == np.float32([scale, np.float32(1) / scale]).tobytes(), (amax, least, limit)


@pytest.mark.rule("LAY-12")
@pytest.mark.parametrize("turns", [False, True])
def test_bytes_are_turned_and_copied_unless_a_flag_keeps_what_is_there(turns):
    kernel = built("turn", f"constexpr bool TURNED = {str(turns).lower()};\n")
    rng = np.random.default_rng(3)
    shapes = (1, 1), (128, 128), (130, 128), (4, 260), (257, 129), (31, 3), (1, 40000), (132, 256)
    for (rows, columns), shift in itertools.product(shapes, (0, 1, 4)):  # bytes from a multiple of 16
        memory = aligned_bytes(rows * columns + shift)
        memory[:] = rng.integers(0, 256, memory.shape, np.uint8)
        x = memory[shift:].reshape(rows, columns)
        for word in (None, 0, 1, 0x80000000):
            out = aligned_bytes(x.size + shift + 16)
            out[:] = 0xA5
            flag = np.uint32([word or 0])
            noop = [ctypes.c_void_p()] if word is None else pointers(flag)
            blocks = moving.blocks(rows, columns, turns=turns)
            sizes = ctypes.c_longlong(rows), ctypes.c_longlong(columns)
            kernel.start(blocks, *pointers(x, out[shift:]), *sizes, *noop)
            expected = np.full_like(out, 0xA5)
            if not word:
                expected[shift : shift + x.size] = (x.T if turns else x).reshape(-1)
            assert out.tobytes() == expected.tobytes(), (rows, columns, shift, word)


@pytest.mark.rule("LAY-12", "TEL-24")
def test_flags_of_every_type_become_words():
    kernel = built("flag", "")
    for dtype in (np.uint8, np.int32, np.float32):
        for value in (0, 1, 2, -1, -0.0, np.nan):
            if (np.isnan(value) and dtype is not np.float32) or (value < 0 and dtype is np.uint8):
                continue
            flag, word = np.array([value]).astype(dtype), np.zeros(1, np.uint32)
            for only_one in (False, True):
                expected = FLAGS[flag.dtype.name] if only_one else 0
                kernel.start(1, *pointers(flag), *map(ctypes.c_longlong, (flag.itemsize, expected)), *pointers(word))
                assert bool(word[0]) == (flag[0] == 1 if only_one else any(flag.tobytes())), (dtype, value, only_one)


@pytest.mark.rule("TEL-24", "TEL-44")
def test_a_given_scale_is_turned_over_and_the_amax_raised():
    kernel = built("tensor_raise", "")
    numbers = np.float32([0, -0.0, 1e-45, 1.5, 3e38, np.inf, np.nan])
    for found, scale, amax, word in itertools.product(numbers[:-1], numbers, numbers, (None, 0, 1)):
        largest, inverse = np.array([amax]), np.zeros(1, np.float32)
        given, factor, flag = np.array([found]), np.array([scale]), np.uint32([word or 0])
        noop = [ctypes.c_void_p()] if word is None else pointers(flag)
        kernel.start(1, *pointers(given, factor, largest), *noop, *pointers(inverse))
        with np.errstate(all="ignore"):
            wanted = np.float32(1) / scale
        assert inverse.tobytes() == wanted.tobytes() or np.isnan([inverse[0], wanted]).all(), scale
        raised = amax if word or np.isnan(amax) or amax.view(np.int32) >= found.view(np.int32) else found
        assert largest.tobytes() == raised.tobytes(), (found, amax, word)


def moved_on(history, current, scale, numerator, *, latest):
    """A history of one operand and its scale after a step, row by row."""
    newest = current if current != 0 else history[0]
    if newest == 0:
        return history, scale
    after = [np.float32(0), *history[2:], newest] if len(history) > 1 else [np.float32(0)]
    seen = [newest] if latest else [value for value in (*history[1:], newest) if not np.isnan(value)]
    amax = max(seen, default=np.float32(0))
    if not 0 < amax < np.inf:
        return after, scale
    with np.errstate(over="ignore"):
        return after, min(np.float32(numerator) / amax, np.finfo(np.float32).max)


@pytest.mark.rule("TEL-45", "TEL-46", "TEL-65", "TEL-67", "TEL-93")
@pytest.mark.parametrize("latest", [False, True])
def test_histories_are_moved_on(latest):
    kernel = built("histories", f"constexpr bool LATEST = {str(latest).lower()};\n")
    rng = np.random.default_rng(latest)
    odd = np.float32([0, -0.0, 1e-45, 1e-39, 448, 3e38, np.inf, np.nan])
    for length, operands, in_row_0 in itertools.product((1, 2, 3, 255, 256, 257, 513, 1024), (1, 3), (False, True)):
        for odds in (0, 0.02, 0.5):
            shape = length, operands
            history = np.where(rng.random(shape) < odds, rng.choice(odd, shape), rng.random(shape)).astype(np.float32)
            current = history[0] if in_row_0 else rng.choice(odd, operands)
            scale, numerator = rng.random(operands).astype(np.float32), float(rng.choice([448, 57344 / 8, 1e38]))
            wanted = [
                moved_on(list(history[:, i]), current[i], scale[i], numerator, latest=latest) for i in range(operands)
            ]
            words = length, operands, float_bits(numerator)
            kernel.start(operands, *pointers(history, current, scale), *map(ctypes.c_longlong, words))
            for i, (after, new) in enumerate(wanted):
                assert history[:, i].tobytes() == np.float32(after).tobytes(), (length, operands, in_row_0, i)
                assert scale[i].tobytes() == np.float32(new).tobytes(), (length, operands, in_row_0, i)


def aligned_bytes(count):
    """Memory from a multiple of 16 bytes on."""
    memory = np.empty(count + 16, np.uint8)
    return memory[-memory.ctypes.data % 16 :][:count]


@pytest.mark.rule("GEM-1", "GEM-2", "GEM-3", "GEM-4", "GEM-5", "GEM-6", "GEM-7", "GEM-8", "LAY-6")
@pytest.mark.parametrize(("operands", "exact"), crossed(PRODUCTS, (True, False), every=2))  # exact or by blocks
def test_products(operands, exact):
    of_a, of_b, out, source = operands
    rng = np.random.default_rng([len(of_a), len(of_b), exact])
    specs = [fp4ref.profiles[name] for name in (of_a, of_b)]
    forms = "tiled_128x4", "linear"
    types = f"using In = fp4ref::{source}; using Out = fp4ref::{out};"
    text = gemm._text(*zip(specs, map(LAYOUTS.__getitem__, forms), strict=True), types, 64, exact)
    library = built("gemm", text)
    finisher = built("gemm_finish", gemm._specifications(*specs) + types)
    for rows, columns, depth, hard in ((33, 5, 321, True), (2, 40, 64, False), (3, 3, 31, True), (1, 2, 0, False)):
        a = operand(rng, of_a, rows, depth, forms[0], hard=hard)
        b = operand(rng, of_b, columns, depth, forms[1], hard=hard)
        dtype = arrays.output_dtype("gemm", out)
        bias = rng.standard_normal(columns).astype(arrays.output_dtype("gemm", source)) if depth != 31 else None
        added = rng.standard_normal((rows, columns)).astype(dtype) if hard else None
        rule = "division" if depth == 64 else "reciprocal"
        mode = "exact" if exact else "blockwise"
        named = {"alpha": 0.37, "bias": bias, "accumulate": added, "dtype": out, "alpha_rule": rule, "backend": "numpy"}
        wanted = fp4ref.gemm(a, b, mode, **named)
        numbers = gemm._numbers(
            Operand(a.row, a.shape, a.spec, LAYOUTS[forms[0]]),
            Operand(b.row, b.shape, b.spec, LAYOUTS[forms[1]]),
            Epilogue(np.float32(0.37), bias, added, dtype, AlphaRule(rule)),
        )
        got = np.full(wanted.size + 8, 7.0).astype(dtype)
        addresses = [None if part is None else part.ctypes.data for part in (*a.row, *b.row)]
        rest = [*numbers, *(None if part is None else part.ctypes.data for part in (bias, added)), got.ctypes.data]
        grid = -(-rows // gemm.TILE) * -(-columns // gemm.TILE)
        library.start(grid, *map(ctypes.c_void_p, (*addresses, rows, columns, depth, *rest)))
        assert got[: wanted.size].tobytes() == wanted.tobytes(), (rows, columns, depth)
        assert (got[wanted.size :] == 7.0).all()
        if rule == "reciprocal" and depth:  # sums alone, without a factor, then the last steps
            plain = [of_operand(q.spec, Granularity.NONE) for q in (a, b)]
            bare = [
                dataclasses.replace(q, spec=s, row=q.row._replace(amax=None))
                for q, s in zip((a, b), plain, strict=True)
            ]
            sums = fp4ref.gemm(*bare, mode, backend="numpy")
            got = np.full(wanted.size + 8, 7.0).astype(dtype)
            rest[-1] = got.ctypes.data
            amaxes = addresses[2], addresses[5]
            finisher.start(
                -(-wanted.size // 256),
                *map(ctypes.c_void_p, (sums.ctypes.data, *amaxes, columns, wanted.size, *rest)),
            )
            assert got[: wanted.size].tobytes() == wanted.tobytes(), (rows, columns, depth)
            assert (got[wanted.size :] == 7.0).all()


@pytest.mark.rule("GEM-2", "GEM-4", "GEM-8")
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "blockwise"])
@pytest.mark.parametrize("infinity", [False, True])
def test_products_of_codes_of_4_bits_that_are_no_numbers(infinity, exact):
    form = dataclasses.replace(fp4ref.NVFP4.element.format, name="vendor.e2m1", codes=7, infinity=infinity)
    spec = fp4ref.NVFP4.replace(name="vendor.nvfp4", element=Codec(format=form, nan=(7, 7)))
    stored, rng = LAYOUTS["linear"], np.random.default_rng(exact)
    types = "using In = fp4ref::float32; using Out = fp4ref::float32;"
    library = built("gemm", gemm._text((spec, stored), (spec, stored), types, 64, exact))
    for rows, columns, depth in ((5, 3, 64), (33, 17, 321)):
        codes = [
            np.where(rng.random((n, depth)) < 0.3 / depth, 7, rng.integers(0, 7, (n, depth))) for n in (rows, columns)
        ]
        a, b = (
            Quantized(
                spec,
                each.shape,
                "float32",
                "linear",
                DirectionData(
                    packing.pack(each.astype(np.uint8), form),
                    rng.integers(0x20, 0x58, (len(each), -(-depth // 16)), np.uint8),
                    np.ones(1, np.float32),
                ),
            )
            for each in codes
        )
        wanted = fp4ref.gemm(a, b, "exact" if exact else "blockwise", backend="numpy")
        assert 0 < np.isfinite(wanted).sum() < wanted.size
        sides = [Operand(q.row, q.shape, q.spec, stored) for q in (a, b)]
        rule = Epilogue(np.float32(1), None, None, np.dtype(np.float32), AlphaRule.RECIPROCAL)
        got = np.full(wanted.size, 7.0, np.float32)
        addresses = [part.ctypes.data for part in (*a.row, *b.row)]
        last = *gemm._numbers(*sides, rule), None, None, got.ctypes.data
        grid = -(-rows // gemm.TILE) * -(-columns // gemm.TILE)
        library.start(grid, *map(ctypes.c_void_p, (*addresses, rows, columns, depth, *last)))
        assert got.tobytes() == wanted.tobytes()
