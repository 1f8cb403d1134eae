"""The CUDA backend against the golden model, byte for byte; needs a GPU, and says so where there is none."""

from __future__ import annotations

from functools import reduce
from itertools import product

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from codes import every_code_under_every_scale
from fp4ref import packing
from fp4ref.arguments import buffer_shapes
from fp4ref.arrays import dtype_name
from fp4ref.errors import BackendError, DomainError, DTypeError, LayoutError, ShapeError
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.layout import STANDARD_LAYOUTS, Layout, layout
from fp4ref.model import backend as golden
from fp4ref.quantized import DirectionData, Directions, matrix_shape
from fp4ref.registry import Call
from fp4ref.spec import Granularity
from same_bytes import on_the_host, same


def unavailable() -> str:
    """Why the kernels cannot run here; empty if they can."""
    try:
        import torch

        import fp4ref_cuda
    except ImportError as error:
        return str(error)
    try:
        fp4ref_cuda.BACKEND.load()
    except (ImportError, BackendError) as error:
        return str(error)
    return "" if torch.cuda.is_available() else "torch sees no CUDA device"


LAYOUTS = tuple(form.name for form in STANDARD_LAYOUTS)
REASON = unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON or "runs")]

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
SHAPES = [(128, 64), (128, 128), (1, 16), (16, 1), (3, 5), (48, 40), (130, 70), (256, 192), (144, 200), (65, 129)]
HADAMARD_SHAPES = [(16, 1), (64, 128), (128, 64), (48, 40), (256, 192), (144, 200), (512, 384), (192, 256)]
KINDS = "normal heavy ties zeros special bits tiny signed_zero mixed_zero edge".split()


def native() -> list[str]:
    if REASON:
        return ["nvfp4"]
    reasons = fp4ref.registry.backends()["cuda"].unserved
    return [name for name, spec in fp4ref.profiles.items() if not (reasons(Call("quantize", spec)) or spec.stochastic)]


def values(shape, dtype, kind, seed=0):
    """Aimed inputs: what each kind stresses is in its name."""
    rng = np.random.default_rng([seed, KINDS.index(kind), *shape])
    x = rng.standard_normal(shape)
    if kind == "heavy":
        x = x * np.exp(3 * rng.standard_normal(shape))
    elif kind == "ties":
        x = rng.integers(-24, 25, shape) / 4
    elif kind == "zeros":
        x = x * (rng.integers(0, 3, (*shape[:-1], 1)) > 0) * (rng.integers(0, 3, (1, shape[-1])) > 0)
    elif kind == "special":
        x = np.where(rng.integers(0, 40, shape) == 0, rng.choice([np.nan, -np.nan, np.inf, -np.inf, -0.0], shape), x)
    elif kind == "bits":
        words = rng.integers(0, 1 << 16, shape, np.uint16)
        return (
            words.view(DTYPES[dtype])
            if dtype != "float32"
            else rng.integers(0, 1 << 32, shape, np.uint32).view(np.float32)
        )
    elif kind == "tiny":
        x = x * (1e-38 if dtype != "float16" else 1e-6)
    elif kind == "signed_zero":
        x = np.copysign(0.0, x)
    elif kind == "mixed_zero":
        x = rng.choice([0.0, -0.0, 1.0, -1.0], shape, p=[0.35, 0.35, 0.15, 0.15])
    elif kind == "edge":  # sums that are often ties of bfloat16, and terms that far below them, by strips of 64 columns
        below = np.repeat(rng.integers(8, 21, -(-shape[-1] // 64)), 64)[: shape[-1]]
        small = rng.choice([-1, 1], shape) * (1 + rng.integers(0, 64, shape) / 64 + 1 / 128) * np.exp2(2.0 - below)
        x = np.where(rng.integers(0, 12, shape) == 0, small, rng.integers(-255, 256, shape) / 32)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(x.astype(DTYPES[dtype]))


def cuda(array):
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16).cuda()
    return torch.from_numpy(array.copy()).cuda()


def scales_of(spec, shape, direction):
    """Return rows and columns of the scales without padding."""
    return buffer_shapes(spec, shape, direction, "linear").scales


def described(x, spec, direction, scale_layout, **more):
    """The record of a call that quantizes x."""
    shape = matrix_shape(tuple(int(size) for size in x.shape))
    return Call("quantize", spec, dtype_name(x), direction, layout=layout(scale_layout), shape=shape, **more)


def decoding(matrix, spec, scale_layout, dtype, source, inverse=False):
    """The record of a call that dequantizes the rows of a matrix."""
    to = np.dtype(dtype).name
    stored = layout(scale_layout)
    return Call("dequantize", spec, source.name, "row", to, layout=stored, shape=matrix, inverse_hadamard=inverse)


def quantize(x, spec, direction, scale_layout, amax=None, bits=None, out=None):
    from fp4ref_cuda import operations

    return operations.quantize(described(x, spec, direction, scale_layout), x, amax, bits, out)


def quantize_both(x, spec, scale_layout, *operands, **more):
    from fp4ref_cuda import operations

    return operations.quantize_both(described(x, spec, "both", scale_layout), x, *operands, **more)


def quantize_grouped(x, splits, spec, directions, scale_layout, *operands, **more):
    from fp4ref_cuda import operations

    direction = "both" if len(directions) == 2 else directions[0]
    call = described(x, spec, direction, scale_layout, splits=splits)
    return operations.quantize_grouped(call, x, *operands, **more)


def dequantize(data, matrix, spec, scale_layout, dtype, source, inverse=False, out=None):
    from fp4ref_cuda import operations

    return operations.dequantize(decoding(matrix, spec, scale_layout, dtype, source, inverse), data, out)


def expected_of(x, spec, direction, scale_layout, amax=None, bits=None):
    return golden.quantize(described(x, spec, direction, scale_layout), x, amax, bits, None)


def random_bits(spec, shape, direction, seed=1):
    if not spec.stochastic:
        return None
    rows, columns = matrix_shape(shape)
    size = (rows, columns) if direction == "row" else (columns, rows)
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def check_both(x, spec, scale_layout, what):
    from fp4ref_cuda import operations

    bits = Directions(*(random_bits(spec, x.shape, d) for d in ("row", "column")))
    given = Directions(*(None if b is None else cuda(b) for b in bits))
    got = quantize_both(cuda(x), spec, scale_layout, random_bits=given)
    for name in ("row", "column"):
        expected = expected_of(x, spec, name, scale_layout, None, getattr(bits, name))
        shown = f"{what} {name} {operations.last_plan()}"
        same(getattr(got, name), expected, scale_layout, shown, scales_of(spec, x.shape, name))
    return got


@pytest.mark.rule("SR-7", "SR-8")
@pytest.mark.parametrize("shape", [(128, 256), (3, 5), (1, 40), (40, 1), (0, 16), (33, 70), (257, 1040)])
@pytest.mark.parametrize("direction", ["row", "column"])
def test_random_bytes_are_the_golden_ones(shape, direction):
    import torch

    for seed, stream in ((0, 0), (2**64 - 1, 2**63 - 1)):
        whole = (2**20, 2**20)
        for given in ({}, {"origin": (2**20 - 48, 2**20 - 80), "whole": whole} if max(shape) < 48 else {}):
            expected = fp4ref.random_bits(shape, direction, seed, stream, backend="numpy", **given)
            got = fp4ref.random_bits(shape, direction, seed, stream, device="cuda", **given)
            assert np.array_equal(got.cpu().numpy(), expected)
            out = torch.full(expected.shape, 7, dtype=torch.uint8, device="cuda")
            assert fp4ref.random_bits(shape, direction, seed, stream, device="cuda", out=out, **given) is out
            assert np.array_equal(out.cpu().numpy(), expected)


def shapes_of(spec, dtype):
    return HADAMARD_SHAPES if spec.hadamard else SHAPES


@pytest.mark.parametrize("name", native())
@pytest.mark.rule("CNF-1", "BLK-1", "BLK-7", "BLK-8")
def test_both_directions_of_every_native_spec(name):
    spec = fp4ref.profiles[name]
    for (i, shape), kind in product(enumerate(shapes_of(spec, "bfloat16")), KINDS):
        check_both(values(shape, "bfloat16", kind), spec, ["tiled_128x4", "linear"][i % 2], (name, shape, kind))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "name",
    [
        "nvfp4",
        "nvfp4-2d",
        "nvfp4-row-scaled",
        "nvfp4-4over6",
        "mxfp8-e4m3",
        "mxfp4-2d",
        "compressed_tensors.nvfp4",
        "mxfp8-e5m2",
        "mxfp6-e2m3",
        "mxfp6-e3m2",
    ],
)
def test_other_input_types(name, dtype):
    spec = fp4ref.profiles[name]
    for shape, kind in product(SHAPES, KINDS):
        check_both(values(shape, dtype, kind), spec, "tiled_128x4", (name, dtype, shape, kind))


@pytest.mark.parametrize("scale_layout", LAYOUTS)
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-2d", "nvfp4-rht", "mxfp8-e4m3", "mxfp6-e2m3"])
@pytest.mark.rule("LAY-1", "LAY-2", "LAY-3", "LAY-4", "LAY-5")
def test_single_directions_in_every_layout(name, scale_layout):
    spec = fp4ref.profiles[name]
    for shape, direction in product(shapes_of(spec, "bfloat16"), ("row", "column")):
        x = values(shape, "bfloat16", "normal")
        got = quantize(cuda(x), spec, direction, scale_layout, None, None, None)
        what = (name, shape, direction, scale_layout)
        expected = expected_of(x, spec, direction, scale_layout)
        same(got, expected, scale_layout, what, scales_of(spec, shape, direction))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "name", ["nvfp4", "nvfp4-row-scaled", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2", "mxfp6-e2m3", "mxfp6-e3m2", "nvfp4-fast"]
)
@pytest.mark.rule("E2M1-3", "E4M3-2", "E5M2-2", "E2M3-2", "E3M2-2")
def test_every_input_of_16_bits(name, dtype):
    spec = fp4ref.profiles[name]
    every = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[dtype])
    for order in (np.arange(1 << 16), np.random.default_rng(3).permutation(1 << 16)):
        check_both(np.ascontiguousarray(every[order].reshape(512, 128)), spec, "tiled_128x4", (name, dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rule("BLK-3", "BLK-4", "BLK-5", "BLK-6", "E2M1-3")
def test_rows_by_thresholds(kind):
    from fp4ref_cuda import operations

    spec = fp4ref.NVFP4
    shapes = [(128, 128), (256, 1024), (300, 264), (1, 8), (129, 72), (1000, 512), (97, 1544)]
    amaxes = [None, 0.0, 1e-44, 1e-38, 3e-30, 1.0, 448.0, 5.9, 1e30, 3.3e38, np.inf]
    for shape, amax, scale_layout in product(shapes, amaxes, ("tiled_128x4", "linear", "tiled_8x4")):
        x = values(shape, "bfloat16", kind)
        given = None if amax is None else np.full(1, amax, np.float32)
        got = quantize(cuda(x), spec, "row", scale_layout, given, None, None)
        assert operations.last_plan().path == "rows by thresholds"
        same(got, expected_of(x, spec, "row", scale_layout, given), scale_layout, (shape, kind, amax, scale_layout))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rule("MXS-1", "MXS-5", "E8M0-2", "E2M1-3", "LAY-5")
def test_rows_under_powers_of_two_by_thresholds(kind):
    from fp4ref_cuda import operations

    spec = fp4ref.MXFP4
    shapes = [(128, 128), (256, 1024), (300, 264), (1, 8), (129, 72), (1000, 512), (97, 1544), (33, 40)]
    for shape, scale_layout in product(shapes, ("tiled_128x4", "linear", "tiled_8x4", "linear_padded")):
        x = values(shape, "bfloat16", kind)
        got = quantize(cuda(x), spec, "row", scale_layout, None, None, None)
        assert operations.last_plan().path == "rows by thresholds"
        expected = expected_of(x, spec, "row", scale_layout)
        same(got, expected, scale_layout, (shape, kind, scale_layout), scales_of(spec, shape, "row"))


@pytest.mark.rule("MXS-1", "E8M0-2", "E2M1-3")
def test_every_bfloat16_beside_every_maximum_of_a_block_of_32():
    """A magnitude, and 31 neighbouring patterns, which may be larger; in either lane of a block."""
    from fp4ref_cuda import operations

    x = np.arange(2114 * 31, dtype=np.uint16).reshape(-1, 31)
    for top in range(0, 0x7F80, 0x300):
        block = np.concatenate([x, np.full((len(x), 1), top, np.uint16)], axis=1)
        block = np.concatenate([block, block[:, ::-1]], axis=1).view(ml_dtypes.bfloat16)
        got = quantize(cuda(block), fp4ref.MXFP4, "row", "linear", None, None, None)
        assert operations.last_plan().path == "rows by thresholds"
        same(got, expected_of(block, fp4ref.MXFP4, "row", "linear"), "linear", top)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["stochastic", "nvfp4-row-scaled", "nvfp4-4over6", "nvfp4-fast", "float16"])
@pytest.mark.rule("SR-2", "GLB-5", "FOS-6", "BLK-5")
def test_rows_by_blocks(name, kind):
    from fp4ref_cuda import operations

    stochastic = fp4ref.NVFP4.replace(name="stochastic", element=STOCHASTIC_E2M1)
    spec = {"stochastic": stochastic, "float16": fp4ref.NVFP4}.get(name) or fp4ref.profiles[name]
    dtype = "float16" if name == "float16" else "bfloat16"
    shapes = [(128, 128), (256, 1024), (300, 272), (1, 16), (129, 80), (1000, 512), (97, 1552)]
    shapes += [] if spec.stochastic else [(300, 264), (1, 8), (129, 72)]
    for index, (shape, amax) in enumerate(product(shapes, (None, 0.0, 1e-44, 3e-30, 5.9, 1e30, np.inf))):
        scale_layout = ("tiled_128x4", "linear", "tiled_8x4")[index % 3]
        x, bits = values(shape, dtype, kind), random_bits(spec, shape, "row")
        count = shape[0] if name.endswith("row-scaled") else 1
        given = None if amax is None else np.full(count, amax, np.float32)
        drawn = None if bits is None else cuda(bits)
        got = quantize(cuda(x), spec, "row", scale_layout, given, drawn, None)
        assert operations.last_plan().path == "rows by blocks"
        expected = expected_of(x, spec, "row", scale_layout, given, bits)
        same(got, expected, scale_layout, (name, kind, shape, amax, scale_layout))


@pytest.mark.parametrize("to", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2"])
@pytest.mark.rule("DEQ-1", "DEQ-2", "DEQ-3", "LAY-6")
def test_whole_lines_are_decoded(name, to):
    from fp4ref_cuda import operations

    for lines, scale_layout in ((260, "tiled_128x4"), (131, "linear"), (3, "tiled_8x4")):
        q = every_code_under_every_scale(fp4ref.profiles[name], lines, scale_layout)
        there = fp4ref.Quantized(q.spec, q.shape, q.dtype, q.scale_layout, q.row.mapped(cuda))
        for _ in range(2):
            got = fp4ref.dequantize(there, to, backend="cuda")
            assert operations.last_plan().path == "lines"
            expected = fp4ref.dequantize(q, to, backend="numpy").tobytes()
            assert got.view(bit_types()[2]).cpu().numpy().tobytes() == expected, (lines, scale_layout)


@pytest.mark.rule("DEQ-1", "LAY-6")
def test_tiled_scales_at_any_address_are_read():
    from fp4ref_cuda import operations

    q = every_code_under_every_scale(fp4ref.NVFP4, 130, "tiled_128x4")
    data, scales, amax = q.row.mapped(cuda)
    for shift in (0, 1, 4):
        moved = cuda(np.zeros(scales.numel() + shift, np.uint8))[shift:].reshape(scales.shape)
        moved.copy_(scales)
        there = fp4ref.Quantized(q.spec, q.shape, q.dtype, q.scale_layout, DirectionData(data, moved, amax))
        got = fp4ref.dequantize(there, "float16", backend="cuda")
        assert operations.last_plan().path == ("units" if shift else "lines")
        expected = fp4ref.dequantize(q, "float16", backend="numpy").tobytes()
        assert got.cpu().view(bit_types()[2]).numpy().tobytes() == expected


@pytest.mark.parametrize("to", ["bfloat16", "float16"])
@pytest.mark.parametrize("of_bias", ["bfloat16", "float32", None])
@pytest.mark.parametrize(
    "factors", [(), ([0.3],), (0.3,), (3.1, [0.7], [1.3], 2.7e-8)], ids=["none", "read", "given", "mixed"]
)
@pytest.mark.rule("GEM-8", "TEL-12", "TEL-32")
def test_a_product_is_finished_in_one_pass(to, of_bias, factors):
    import torch

    from fp4ref_cuda import operations

    rng, kind = np.random.default_rng(17), getattr(torch, to)
    for rows, columns in ((1, 1), (3, 8), (70, 264), (5, 4097), (0, 16), (130, 2048)):
        sums = np.ldexp(rng.standard_normal((rows, columns)).astype(np.float32), rng.integers(-30, 30, (rows, 1)))
        bias = None if of_bias is None else torch.from_numpy(rng.standard_normal(columns)).to(getattr(torch, of_bias))
        call = Call("finish_product", source=of_bias or "bfloat16", to=to, device="cuda", shape=(rows, columns))
        by = reduce(np.multiply, (np.float32(each).reshape(()) for each in factors), np.float32(1))
        expected = torch.from_numpy(sums * by)
        expected = (expected if bias is None else expected + bias.to(torch.float32)).to(kind)
        numbers = tuple(each if isinstance(each, float) else torch.tensor(each).cuda() for each in factors)
        for _ in range(2):  # the second one repeats the launch
            got = operations.finish_product(call, cuda(sums), numbers, None if bias is None else bias.cuda())
            assert torch.equal(got.cpu().view(torch.int16), expected.view(torch.int16)), (rows, columns)
    with pytest.raises(ShapeError, match="factor"):
        operations.finish_product(call, cuda(sums), (torch.ones(2).cuda(),), None)
    with pytest.raises(ShapeError, match="5 factors, need at most 4"):
        operations.finish_product(call, cuda(sums), (1.0,) * 5, None)


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(
    "factors", [(), (0.3,), ([0.3],), (3.1, [0.7], [1.3], 2.7e-8)], ids=["none", "given", "read", "mixed"]
)
@pytest.mark.parametrize("turned", list(product((False, True), repeat=2)), ids=str)
@pytest.mark.rule("TEL-12", "TEL-31", "TEL-32")
def test_a_product_of_stored_operands(turned, factors, bias):
    """Sums of small integers are exact in every order, so the result is known to the bit."""
    import torch

    from fp4ref.stored import Stored
    from fp4ref_cuda import operations

    generator = torch.Generator().manual_seed(5)
    by = reduce(np.multiply, (np.float32(each).reshape(()) for each in factors), np.float32(1))
    for rows, columns, depth in ((16, 8, 16), (128, 256, 512), (40, 24, 1000), (1024, 1024, 64), (8, 4096, 8192)):
        a, b = (torch.randint(-8, 9, (size, depth), generator=generator) for size in (rows, columns))
        added = torch.randn(columns, generator=generator).to(torch.bfloat16) if bias else None
        expected = (a.double() @ b.double().t()).to(torch.float32) * float(by)
        expected = (expected if added is None else expected + added.to(torch.float32)).to(torch.bfloat16)
        stored = [
            Stored(((x.t() if turn else x).to(torch.bfloat16).contiguous().cuda(),), None, turn)
            for x, turn in zip((a, b), turned, strict=True)
        ]
        numbers = tuple(each if isinstance(each, float) else torch.tensor(each).cuda() for each in factors)
        call = Call("multiply", source="bfloat16", to="bfloat16", device="cuda", shape=(rows, columns))
        for _ in range(2):  # the second one repeats the launches
            got = operations.multiply(call, *stored, numbers, None if added is None else added.cuda())
            assert got is not None
            assert torch.equal(got.cpu().view(torch.int16), expected.view(torch.int16)), (rows, columns, depth)


@pytest.mark.rule("TEL-30", "TEL-31")
def test_products_that_are_refused_or_left_to_torch():
    import torch

    from fp4ref.stored import Stored
    from fp4ref_cuda import operations

    def multiply(rows, columns, left, right, *rest):
        call = Call("multiply", source="bfloat16", to="bfloat16", device="cuda", shape=(rows, columns))
        return operations.multiply(call, *(Stored((x,)) for x in (left, right)), *rest)

    x = torch.zeros(64, 64, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(ShapeError, match="right"):
        multiply(64, 64, x, x[:32], (), None)
    with pytest.raises(ShapeError, match="5 factors, need at most 4"):
        multiply(64, 64, x, x, (1.0,) * 5, None)
    with pytest.raises(DTypeError, match="bias of float32"):
        multiply(64, 64, x, x, (), torch.zeros(64, device="cuda"))
    store = torch.zeros(65 * 64, dtype=torch.bfloat16, device="cuda")
    assert multiply(64, 64, x, store[1 : 1 + 64 * 64].view(64, 64), (), None) is None  # not at 16 bytes
    assert multiply(64, 0, x, x[:0], (), None) is None
    nan = torch.full((64, 64), torch.nan, dtype=torch.bfloat16, device="cuda")
    del nan  # memory that the next result may reuse
    assert multiply(64, 64, x, x, (torch.ones(1, device="cuda"),), None).eq(0).all()  # what was there is not added


def random_sizes(count):
    """Sizes that the library multiplies, most of them small."""
    rng = np.random.default_rng(23)
    return [tuple(8 * int(each) for each in np.exp(rng.uniform(0, np.log(320), 3))) for _ in range(count)]


@pytest.mark.parametrize(
    "sizes", [(3, 5, 7), (33, 65, 129), (1, 1, 1), (17, 8, 1001), (1, 4096, 24), (256, 1, 4095), *random_sizes(40)]
)
@pytest.mark.rule("TEL-11", "TEL-31", "TEL-32")
def test_products_of_sizes_that_fill_nothing(sizes):
    """Rows of any number of 16 bytes; where they begin elsewhere, torch multiplies."""
    import torch

    from fp4ref.stored import Stored
    from fp4ref_cuda import operations

    (rows, columns, depth), generator = sizes, torch.Generator().manual_seed(7)
    a, b = (torch.randint(-8, 9, (size, depth), generator=generator) for size in (rows, columns))
    bias = torch.randn(columns, generator=generator).bfloat16()
    expected = ((a.double() @ b.double().t()).float() * 0.5 + bias.float()).bfloat16()
    call = Call("multiply", source="bfloat16", to="bfloat16", device="cuda", shape=(rows, columns))
    for turned in product((False, True), repeat=2):
        stored = [
            Stored(((x.t() if turn else x).bfloat16().contiguous().cuda(),), None, turn)
            for x, turn in zip((a, b), turned, strict=True)
        ]
        got = operations.multiply(call, *stored, (0.5,), bias.cuda())
        if any(size % 8 for size in sizes):
            assert got is None, turned
        else:
            assert torch.equal(got.cpu().view(torch.int16), expected.view(torch.int16)), turned


@pytest.mark.rule("TEL-12", "TEL-31", "TEL-32")
def test_products_of_streams_threads_and_a_graph():
    """Products that share a description keep their own bias, factor and memory."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from fp4ref.stored import Stored
    from fp4ref_cuda import operations

    size = 256
    x = torch.randint(-3, 4, (size, size), generator=torch.Generator().manual_seed(3)).bfloat16()
    sums, there = x.float() @ x.float().t(), x.cuda()
    call = Call("multiply", source="bfloat16", to="bfloat16", device="cuda", shape=(size, size))

    def multiply(bias, factor):
        return operations.multiply(call, Stored((there,)), Stored((there,)), (factor,), bias)

    def expected(number):
        return (sums * 0.25 + number).bfloat16()

    def many(number):
        bias, factor = torch.full((size,), float(number), device="cuda").bfloat16(), torch.tensor([0.25]).cuda()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            made = [multiply(bias, factor) for _ in range(50)]
            torch.cuda.current_stream().synchronize()
        return all(torch.equal(each.cpu(), expected(number)) for each in made)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(8)))
    bias, factor = torch.zeros(size, device="cuda").bfloat16(), torch.tensor([0.25]).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = multiply(bias, factor)
        other = multiply(torch.ones_like(bias), factor)
    for number in (2, 5):
        bias.fill_(number)
        graph.replay()
        assert torch.equal(out.cpu(), expected(number))
        assert torch.equal(other.cpu(), expected(1))


@pytest.mark.rule("TEL-12", "TEL-32")
@pytest.mark.parametrize("read", [False, True], ids=["given", "read"])
@pytest.mark.parametrize("number", [0.0, -0.0, float("nan"), float("inf"), 2.0**-140, 1e-30])
def test_unusual_factors_of_sums_that_are_not_finite_or_zero(number, read):
    """A factor of 0 does not save the library from reading infinities and NaN: IEEE says what the product is."""
    import torch

    from fp4ref.stored import Stored
    from fp4ref_cuda import operations

    sums = torch.zeros(64)
    sums[:4] = torch.tensor([torch.inf, torch.nan, -1, 2.0**20])
    a, b = torch.zeros(64, 64), torch.eye(64)
    a[:, 0] = sums
    stored = [Stored((x.bfloat16().cuda(),)) for x in (a, b)]
    call = Call("multiply", source="bfloat16", to="bfloat16", device="cuda", shape=(64, 64))
    got = operations.multiply(call, *stored, (torch.tensor([number]).cuda() if read else number,), None)
    expected = (sums * number).bfloat16().float().numpy()
    assert np.array_equal(got[:, 0].cpu().float().numpy(), expected, equal_nan=True)


THRESHOLDS, HADAMARD = "rows and columns by thresholds", "rows and hadamard columns, fused"
FUSED = {"nvfp4": THRESHOLDS, "nvfp4-2d": THRESHOLDS, "mxfp4": THRESHOLDS, "nvfp4-rht": HADAMARD}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(FUSED))
@pytest.mark.rule("HAD-2", "HAD-3", "HAD-4", "BLK-8")
def test_rows_and_columns_fused(name, kind):
    from fp4ref_cuda import operations

    spec = fp4ref.profiles[name]
    shapes = [(64, 128), (128, 128), (192, 256), (512, 384), (1088, 640), (128, 64), (192, 320), (4160, 1280), (64, 64)]
    amaxes = [None, (0.0, 1.0), (1e-44, 1e-38), (1e-30, 3e-30), (5.9, 448.0), (1e30, 1e37), (3.3e38, np.inf)]
    for shape, amax in product(shapes, amaxes if spec.global_scale is Granularity.TENSOR else [None]):
        x = values(shape, "bfloat16", kind)
        given = Directions() if amax is None else Directions(*(np.full(1, a, np.float32) for a in amax))
        got = quantize_both(cuda(x), spec, "tiled_128x4", given)
        assert operations.last_plan().path == FUSED[name]
        for d in ("row", "column"):
            expected = expected_of(x, spec, d, "tiled_128x4", getattr(given, d))
            same(getattr(got, d), expected, "tiled_128x4", (shape, kind, amax, d))
    quantize_both(cuda(values((48, 128), "bfloat16", kind)), spec, "tiled_128x4")
    assert operations.last_plan().path == ("rows and hadamard columns, apart" if spec.hadamard else "tiles")
    assert "64" in operations.last_plan().reason


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rule("BLK-7", "BLK-8", "LAY-5")
def test_rows_of_squares(kind):
    from fp4ref_cuda import operations

    spec = fp4ref.NVFP4_2D
    for shape, amax in product([(64, 64), (192, 128), (320, 192), (1088, 640)], [None, 0.0, 1e-30, 5.9, 1e37, np.inf]):
        x = values(shape, "bfloat16", kind)
        given = None if amax is None else np.full(1, amax, np.float32)
        for scale_layout in LAYOUTS:
            got = quantize(cuda(x), spec, "row", scale_layout, given, None, None)
            assert operations.last_plan().path == "rows of squares by thresholds"
            expected = expected_of(x, spec, "row", scale_layout, given)
            same(got, expected, scale_layout, (shape, kind, amax, scale_layout), scales_of(spec, shape, "row"))
    quantize(cuda(values((64, 72), "bfloat16", kind)), spec, "row", "tiled_128x4", None, None, None)
    assert "72, not multiples of 64" in operations.last_plan().reason


@pytest.mark.parametrize("name", [*FUSED, "stochastic"])
@pytest.mark.parametrize("scale_layout", [name for name in LAYOUTS if name != "tiled_128x4"])
@pytest.mark.rule("LAY-1", "LAY-2", "LAY-4", "LAY-5", "BLK-8")
def test_rows_and_columns_fused_write_scales_in_other_layouts(name, scale_layout):
    import torch

    from fp4ref_cuda import operations

    stochastic, few = name == "stochastic", name == "mxfp4"  # few elements without maxima: the general kernel is faster
    spec = fp4ref.NVFP4_RHT.replace(name=name, element=STOCHASTIC_E2M1) if stochastic else fp4ref.profiles[name]
    for shape, kind in product(
        [(64, 64), (64, 128), (128, 64), (192, 256), (320, 192), (1088, 640), (4160, 1344)], ("heavy", "zeros", "bits")
    ):
        x = values(shape, "bfloat16", kind)
        bits = Directions(*(random_bits(spec, shape, d, 3) if stochastic else None for d in ("row", "column")))
        there = Directions(*(None if b is None else cuda(b) for b in bits))
        expected = [expected_of(x, spec, d, scale_layout, None, getattr(bits, d)) for d in ("row", "column")]
        pairs = [guarded(buffer_shapes(spec, shape, d, scale_layout)) for d in ("row", "column")]
        for out in (Directions(), Directions(*(pair[0] for pair in pairs))):
            path = HADAMARD if stochastic else FUSED[name]
            got = quantize_both(cuda(x), spec, scale_layout, Directions(), there, out, path=path if few else None)
            assert operations.last_plan().path == path
            for d, wanted in zip(("row", "column"), expected, strict=True):
                same(getattr(got, d), wanted, scale_layout, (shape, kind, d), scales_of(spec, shape, d))
        assert all(untouched() for _, untouched in pairs)
        held = [part.view(torch.uint8).fill_(0xA5) for part in (*got.row, *got.column) if part is not None]
        flag = torch.ones(1, device="cuda")
        quantize_both(cuda(x), spec, scale_layout, Directions(), there, got, flag, path if few else None)
        assert operations.last_plan().path == path
        assert all(bool((part == 0xA5).all()) for part in held)


@pytest.mark.parametrize(
    "name", ["nvfp4", "nvfp4-rht", "nvfp4-2d", "mxfp4", "mxfp8-e4m3", "nvfp4-4over6", "mxfp6-e2m3"]
)
@pytest.mark.rule("LAY-5", "LAY-11", "CNF-1")
def test_out_buffers_at_any_address(name):
    import torch

    spec, shape = fp4ref.profiles[name], (192, 256)
    x = values(shape, "bfloat16", "heavy")
    for scale_layout, (data_shift, scale_shift) in product(LAYOUTS, ((0, 1), (1, 0), (0, 4), (8, 2), (3, 3))):
        wholes, out = [], []
        for d in ("row", "column"):
            data, scales, amax = buffer_shapes(spec, shape, d, scale_layout)
            parts = []
            for size, shift in ((data, data_shift), (scales, scale_shift)):
                count = int(np.prod(size))
                whole = torch.full((count + 64,), 0xA5, dtype=torch.uint8, device="cuda")
                parts.append(whole[16 + shift : 16 + shift + count].view(size))
                wholes.append((whole, 16 + shift, count))
            number = None if amax is None else torch.zeros(amax, dtype=torch.float32, device="cuda")
            out.append(DirectionData(*parts, number))
        expected = [expected_of(x, spec, d, scale_layout) for d in ("row", "column")]
        for _ in range(2):
            quantize_both(cuda(x), spec, scale_layout, out=Directions(*out))
            for d, mine, wanted in zip(("row", "column"), out, expected, strict=True):
                what = (name, scale_layout, data_shift, scale_shift, d)
                same(mine, wanted, scale_layout, what, scales_of(spec, shape, d))
        for d, mine, wanted in zip(("row", "column"), out, expected, strict=True):
            for part in mine[:2]:
                part.fill_(0)
            quantize(cuda(x), spec, d, scale_layout, None, None, mine)
            same(mine, wanted, scale_layout, (name, scale_layout, scale_shift, d, "alone"), scales_of(spec, shape, d))
        for whole, start, count in wholes:
            assert bool((whole[:start] == 0xA5).all())
            assert bool((whole[start + count :] == 0xA5).all())


DRAWN = {"nvfp4": "rows and columns by random bytes", "nvfp4-rht": HADAMARD}
DRAWN["nvfp4-2d"] = DRAWN["nvfp4"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(DRAWN))
@pytest.mark.rule("SR-2", "SR-3", "HAD-2", "HAD-3", "BLK-8")
def test_rows_and_columns_fused_by_random_bytes(name, kind):
    from fp4ref_cuda import operations

    spec = fp4ref.profiles[name].replace(name="stochastic", element=STOCHASTIC_E2M1)
    amaxes = [None, (0.0, 1.0), (1e-30, 3e-30), (5.9, 448.0), (1e30, 1e37)]
    for shape, amax in product([(64, 128), (192, 256), (1088, 640), (128, 64), (4160, 320)], amaxes):
        x = values(shape, "bfloat16", kind)
        given = Directions() if amax is None else Directions(*(np.full(1, a, np.float32) for a in amax))
        bits = Directions(*(random_bits(spec, shape, d, seed) for seed, d in enumerate(("row", "column"))))
        got = quantize_both(cuda(x), spec, "tiled_128x4", given, Directions(*map(cuda, bits)))
        assert operations.last_plan().path == DRAWN[name]
        for d in ("row", "column"):
            expected = expected_of(x, spec, d, "tiled_128x4", getattr(given, d), getattr(bits, d))
            same(getattr(got, d), expected, "tiled_128x4", (shape, kind, amax, d))


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-2d", "mxfp4", "nvfp4-rht", "mxfp8-e4m3"])
@pytest.mark.rule("LAY-5", "LAY-6", "LAY-13", "BLK-8")
def test_scales_moved_out_of_tiles(name, registered):
    from fp4ref_cuda import operations, plan

    filled = registered(Layout("filled", "m(32,*) k(4,*): k0 m0 k1 m1; pad m 0x7f"))
    spec = fp4ref.profiles[name]
    path = {"nvfp4-rht": plan.FUSED_HADAMARD, "mxfp8-e4m3": plan.BYTES}.get(name, plan.FUSED) + plan.MOVED
    for shape in ((64, 128), (192, 320), (1088, 640)):
        for scale_layout in ("linear", "linear_padded", "tiled_8x4", "rocm.gfx950_32x8", filled.name):
            x = values(shape, "bfloat16", "heavy")
            forced = quantize_both(cuda(x), spec, scale_layout, path=path)
            assert operations.last_plan().kernels[-2:] == ("layout", "layout")
            chosen = [quantize_both(cuda(x), spec, scale_layout) for _ in range(2)]  # the second one repeats launches
            own = scale_layout not in LAYOUTS
            assert (operations.last_plan().path == path) == bool(spec.hadamard and own)
            if scale_layout == "linear" and name in {"nvfp4", "nvfp4-rht", "nvfp4-2d"}:
                assert operations.last_plan().kernels[-1] == "fused"
            for got, d in product((forced, *chosen), ("row", "column")):
                expected = expected_of(x, spec, d, scale_layout)
                same(getattr(got, d), expected, scale_layout, (shape, scale_layout, d), scales_of(spec, shape, d))


@pytest.mark.parametrize(
    "form",
    ["m(16,*) k(2,*): k0 k1 m1; repeat m0; pad m 32 0x7f; pad k 0x22", "m(128,*) k(*): k0 m1; repeat m0; base 3"],
)
@pytest.mark.rule("LAY-5", "LAY-6", "LAY-12", "LAY-16", "LAY-20", "LAY-46", "LAY-48")
def test_scales_that_share_a_place(form, registered):
    import torch

    shared = registered(Layout("shared", form))
    for rows, columns in ((128, 64), (384, 416), (256, 4112)):
        x = np.repeat(np.asarray(values((rows // 128, columns), "bfloat16", "heavy")), 128, 0)
        spec = fp4ref.NVFP4
        golden = fp4ref.quantize(x, spec, scale_layout=shared.name, backend="numpy")
        for _ in range(3):
            q = fp4ref.quantize(cuda(x), spec, scale_layout=shared.name, backend="cuda")
            assert q == golden
            assert (
                on_the_host(fp4ref.dequantize(q, backend="cuda")).tobytes()
                == fp4ref.dequantize(golden, backend="numpy").tobytes()
            )
            linear = fp4ref.to_layout(q, "linear", backend="cuda")
            assert linear == fp4ref.to_layout(golden, "linear", backend="numpy")
            assert fp4ref.to_layout(linear, shared.name, backend="cuda") == golden
        for part in q.row:
            part.zero_()
        kept = fp4ref.quantize(cuda(x), spec, scale_layout=shared.name, backend="cuda", out=q, noop=cuda(np.uint8([1])))
        assert all(mine is its for mine, its in zip(kept.row, q.row, strict=True))
        assert not any(part.any() for part in q.row)
        fp4ref.quantize(cuda(x), spec, scale_layout=shared.name, backend="cuda", out=q, noop=cuda(np.uint8([0])))
        assert q == golden
        group = fp4ref.quantize_grouped(cuda(x), [rows - 128, 128], spec, scale_layout=shared.name, backend="cuda")
        assert list(group) == list(
            fp4ref.quantize_grouped(x, [rows - 128, 128], spec, scale_layout=shared.name, backend="numpy")
        )
        before = on_the_host(q.row.scales).tobytes()
        with pytest.raises(LayoutError, match=r"scales that differ along digit m0, which is repeated.*\[LAY-46\]"):
            fp4ref.quantize(
                cuda(values((rows, columns), "bfloat16", "heavy")),
                spec,
                scale_layout=shared.name,
                backend="cuda",
                out=q,
            )
        assert on_the_host(q.row.scales).tobytes() == before
        with pytest.raises(LayoutError, match=r"\[LAY-46\]"):
            fp4ref.to_layout(
                fp4ref.quantize(cuda(values((rows, columns), "bfloat16", "heavy")), spec, backend="cuda"), shared.name
            )
        graph = torch.cuda.CUDAGraph()
        with (
            pytest.raises(
                BackendError, match=r"layout shared, whose scales are compared on the host, in a capture.*\[LAY-20\]"
            ),
            torch.cuda.graph(graph),
        ):
            fp4ref.to_layout(linear, shared.name, backend="cuda")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rule("HAD-2", "HAD-3", "HAD-4", "BLK-8")
def test_rows_and_hadamard_columns_apart(kind):
    from fp4ref_cuda import operations

    spec = fp4ref.NVFP4_RHT
    shapes = [(16, 8), (48, 40), (144, 200), (80, 128), (528, 264)]
    for shape, amax, scale_layout in product(shapes, (None, (3.0, 1e-30)), ("linear", "tiled_8x4")):
        x = values(shape, "bfloat16", kind)
        given = Directions() if amax is None else Directions(*(np.full(1, a, np.float32) for a in amax))
        both = quantize_both(cuda(x), spec, scale_layout, given)
        assert operations.last_plan().path == "rows and hadamard columns, apart"
        alone = quantize(cuda(x), spec, "column", scale_layout, given.column, None, None)
        assert operations.last_plan().path == "rows and hadamard columns, apart"
        general = quantize_both(cuda(x), spec, scale_layout, given, path="tiles")
        for d in ("row", "column"):
            expected = expected_of(x, spec, d, scale_layout, getattr(given, d))
            for got in (both, general):
                same(getattr(got, d), expected, scale_layout, (shape, kind, amax, scale_layout, d))
        same(alone, expected, scale_layout, (shape, kind, amax, scale_layout, "column alone"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["mxfp8-e4m3", "mxfp8-e5m2", "te.mxfp8_cast_only", "torchao.mxfp8_e4m3_floor", "torchao.mxfp8_e5m2_even"]
)
@pytest.mark.rule("MXS-1", "MXS-2", "MXS-4", "BLK-8", "E4M3-3", "E5M2-4")
def test_rows_and_columns_of_bytes(name, kind):
    from fp4ref_cuda import operations

    spec = fp4ref.profiles[name]
    for shape in [(128, 128), (16, 16), (144, 208), (272, 400), (1040, 656)]:
        check_both(values(shape, "bfloat16", kind), spec, "tiled_128x4", (name, shape, kind))
        assert operations.last_plan().path == "rows and columns of bytes"
    every = np.random.default_rng(7).permutation(1 << 16).astype(np.uint16).view(DTYPES["bfloat16"])
    check_both(every.reshape(256, 256), spec, "tiled_128x4", (name, "every bfloat16"))


@pytest.mark.rule("DEQ-1", "DEQ-3", "NUM-2")
def test_dequantize_every_code_under_every_scale():
    data = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    scales = np.tile(np.arange(256, dtype=np.uint8)[:, None], (1, 32))
    for amax, out, scale_layout in product((0.0, 1e-44, 1e-30, 1.0, 3.3e38, np.inf, np.nan), DTYPES, LAYOUTS):
        parts = DirectionData(data, layout(scale_layout).from_linear(scales), np.full(1, amax, np.float32))
        kind, source = np.dtype(DTYPES[out]), np.dtype(ml_dtypes.bfloat16)
        mine = dequantize(DirectionData(*map(cuda, parts)), (256, 512), fp4ref.NVFP4, scale_layout, kind, source, False)
        call = decoding((256, 512), fp4ref.NVFP4, scale_layout, kind, source, False)
        theirs = golden.dequantize(call, parts, None)
        mine = mine.view(bit_types()[kind.itemsize]).cpu().numpy()
        wrong = np.argwhere(mine != theirs.view(mine.dtype))
        assert not len(wrong), (amax, out, scale_layout, len(wrong), wrong[0])


@pytest.mark.rule("DEQ-2", "DEQ-3", "E8M0-4")
@pytest.mark.parametrize("name", ["mxfp8-e4m3", "mxfp8-e5m2"])
def test_dequantize_a_run_of_bytes(name):
    from fp4ref_cuda import operations

    spec, rng = fp4ref.profiles[name], np.random.default_rng(5)
    for shape, out in product([(1, 32), (3, 96), (130, 512), (7, 4128), (33, 40), (2, 72)], DTYPES):
        rows, columns = shape
        codes = rng.integers(0, 256, shape, np.uint8)
        scales = rng.integers(0, 256, (rows, -(-columns // 32)), np.uint8)
        scales[:, -1] = 255  # NaN
        kind, source = np.dtype(DTYPES[out]), np.dtype(np.float32)
        parts = DirectionData(codes, scales, None)
        mine = dequantize(DirectionData(cuda(codes), cuda(scales), None), shape, spec, "linear", kind, source)
        kernel = "dequantize" if out == "float32" else "decode" if columns % 32 else "decode_run"
        assert operations.last_plan().kernels == (kernel,)
        theirs = golden.dequantize(decoding(shape, spec, "linear", kind, source), parts, None)
        mine = mine.view(bit_types()[kind.itemsize]).cpu().numpy()
        nan = np.isnan(theirs.astype(np.float32))
        assert np.array_equal(np.isnan(mine.view(kind).astype(np.float32)), nan)
        assert np.array_equal(mine[~nan], theirs.view(mine.dtype)[~nan]), (shape, out)


@pytest.mark.rule("DEQ-2", "DEQ-3")
@pytest.mark.parametrize("name", ["mxfp8-e4m3", "mxfp8-e5m2"])
def test_a_run_that_no_cache_holds_is_decoded_like_its_parts(name):
    import torch

    from fp4ref_cuda import reading

    q = every_code_under_every_scale(fp4ref.profiles[name], 256, "linear")
    expected = fp4ref.dequantize(q, "bfloat16", backend="numpy")
    times = -(-reading.LARGE // expected.nbytes)
    row = DirectionData(cuda(q.row.data).repeat(times, 1)[:-1], cuda(q.row.scales).repeat(times, 1)[:-1], None)
    shape = 256 * times - 1, q.shape[1]
    for part in (row, DirectionData(row.data[: shape[0] // 2], row.scales[: shape[0] // 2], None)):
        there = fp4ref.Quantized(q.spec, (len(part.data), shape[1]), q.dtype, q.scale_layout, row=part)
        got = fp4ref.dequantize(there, "bfloat16").view(torch.int16).reshape(-1)
        wanted = torch.from_numpy(expected.view(np.int16)).cuda().repeat(times, 1)[: len(part.data)].reshape(-1)
        assert torch.equal(got, wanted)


@pytest.mark.rule("LAY-1")
def test_a_run_of_bytes_is_one_under_any_name_of_its_layout(registered):
    from fp4ref_cuda import operations

    form = registered(Layout("vendor.rows", "m(*) k(*): k0 m0"))
    q = fp4ref.quantize(values((64, 128), "float32", "normal"), "mxfp8-e4m3", scale_layout=form.name)
    there = fp4ref.Quantized(
        q.spec, q.shape, q.dtype, q.scale_layout, row=q.row.mapped(lambda x: x if x is None else cuda(x))
    )
    got = fp4ref.dequantize(there, "float16", backend="cuda")
    assert operations.last_plan().kernels == ("decode_run",)
    assert on_the_host(got).tobytes() == fp4ref.dequantize(q, "float16", backend="numpy").tobytes()


@pytest.mark.rule("PACK-4", "PACK-5", "DEQ-2")
@pytest.mark.parametrize("name", ["mxfp6-e2m3", "mxfp6-e3m2"])
def test_dequantize_every_code_of_six_bits_under_every_scale(name):
    spec = fp4ref.profiles[name]
    for columns, out in product((64, 61, 33), DTYPES):  # the last byte of 61 and 33 codes has spare bits, set here
        codes = np.tile(np.arange(64, dtype=np.uint8)[:columns], (256, 1))
        data = packing.pack(codes, spec.element.format)
        data[:, -1] |= (0xFF << (6 * columns % 8 or 8)) & 0xFF
        scales = np.tile(np.arange(256, dtype=np.uint8)[:, None], (1, 2))
        parts = DirectionData(data, scales, None)
        kind, source = np.dtype(DTYPES[out]), np.dtype(np.float32)
        given = DirectionData(cuda(data), cuda(scales), None)
        mine = dequantize(given, (256, columns), spec, "linear", kind, source)
        theirs = golden.dequantize(decoding((256, columns), spec, "linear", kind, source), parts, None)
        mine = mine.view(bit_types()[kind.itemsize]).cpu().numpy()
        wrong = np.argwhere(mine != theirs.view(mine.dtype))
        assert not len(wrong), (columns, out, len(wrong), wrong[0])


def bit_types():
    import torch

    return {2: torch.uint16, 4: torch.uint32}


@pytest.mark.parametrize("rounding", ["even", "stochastic", "away", "truncate"])
@pytest.mark.rule("SR-1", "SR-2", "E2M1-6")
def test_roundings(rounding):
    for base in ("nvfp4", "nvfp4-2d") if rounding == "stochastic" else ("nvfp4", "mxfp4", "nvfp4-2d"):
        spec = fp4ref.profiles[base]
        element = fp4ref.Codec(**{**vars_of(spec.element), "rounding": rounding})
        for shape in ((130, 70), (128, 128), (3, 5)):
            changed = spec.replace(element=element)
            check_both(values(shape, "bfloat16", "heavy"), changed, "linear", (base, rounding, shape))


def vars_of(record):
    import dataclasses

    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-rht", "nvfp4-row-scaled"])
@pytest.mark.rule("GLB-4")
def test_given_amax(name):
    spec = fp4ref.profiles[name]
    x = values((256, 128), "bfloat16", "heavy")
    for direction, amax in product(("row", "column"), (0.0, 1e-30, 0.5, 3.0, 1e30, 3e38, np.inf, 1e-44)):
        count = {"row": 256, "column": 128}[direction] if name.endswith("row-scaled") else 1
        given = np.full(count, amax, np.float32)
        for value in (given, cuda(given)):
            got = quantize(cuda(x), spec, direction, "tiled_128x4", value, None, None)
            expected = expected_of(x, spec, direction, "tiled_128x4", given)
            same(got, expected, "tiled_128x4", (name, direction, amax))


@pytest.mark.rule("NUM-4")
def test_misaligned_strided_and_three_dimensional_inputs():
    import torch

    spec = fp4ref.NVFP4
    flat = values((1, 1 + 96 * 128), "bfloat16", "normal")
    x = np.ascontiguousarray(flat[0, 1:].reshape(96, 128))
    base = cuda(flat)[0, 1:].view(96, 128)
    assert base.data_ptr() % 16
    wide = torch.empty(96, 300, dtype=torch.bfloat16, device="cuda")
    wide[:, 7:135] = cuda(x)
    cases = {
        "misaligned": base,
        "strided": wide[:, 7:135],
        "transposed": cuda(np.ascontiguousarray(x.T)).T,
        "deep": cuda(x.reshape(2, 48, 128)),
    }
    for what, tensor in cases.items():
        for direction in ("row", "column"):
            got = quantize(tensor, spec, direction, "tiled_128x4", None, None, None)
            same(got, expected_of(x, spec, direction, "tiled_128x4"), "tiled_128x4", (what, direction))


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-row-scaled", "mxfp8-e4m3", "mxfp6-e3m2", "nvfp4-rht"])
@pytest.mark.rule("BLK-9")
def test_empty_tensors(name):
    spec = fp4ref.profiles[name]
    for shape in ((0, 16), (0, 0), (32, 0), (0, 2, 16)):
        for scale_layout in LAYOUTS:
            check_both(values(shape, "bfloat16", "normal"), spec, scale_layout, (name, shape))


def guarded(shapes, filler=0xA5):
    """Buffers inside larger ones; the second result tells whether anything was written around them."""
    import torch

    made, checks = [], []
    for shape, kind in zip(shapes, (torch.uint8, torch.uint8, torch.float32), strict=True):
        if shape is None:
            made.append(None)
            continue
        size = int(np.prod(shape)) * (4 if kind is torch.float32 else 1)
        whole = torch.full((size + 512,), filler, dtype=torch.uint8, device="cuda")
        made.append(whole[256 : 256 + size].view(kind).view(tuple(shape)))
        checks.append((whole, size))

    def untouched():
        return all(
            bool((whole[:256] == filler).all()) and bool((whole[256 + size :] == filler).all())
            for whole, size in checks
        )

    return DirectionData(*made), untouched


@pytest.mark.parametrize(
    "name", ["nvfp4", "nvfp4-2d", "nvfp4-rht", "nvfp4-row-scaled", "mxfp8-e4m3", "mxfp4", "mxfp6-e2m3"]
)
@pytest.mark.rule("LAY-5", "CNF-1")
def test_out_buffers_are_filled_and_nothing_around_them(name):
    spec = fp4ref.profiles[name]
    for shape, scale_layout in product(shapes_of(spec, "bfloat16"), LAYOUTS):
        x = values(shape, "bfloat16", "normal")
        pairs = {d: guarded(buffer_shapes(spec, shape, d, scale_layout)) for d in ("row", "column")}
        out = Directions(*(pair[0] for pair in pairs.values()))
        got = quantize_both(cuda(x), spec, scale_layout, out=out)
        for d in ("row", "column"):
            assert getattr(got, d).data is getattr(out, d).data
            what = (name, shape, d, scale_layout)
            expected = expected_of(x, spec, d, scale_layout)
            same(getattr(got, d), expected, scale_layout, what, scales_of(spec, shape, d))
            assert pairs[d][1](), what


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-rht", "mxfp8-e4m3", "nvfp4-row-scaled"])
def test_noop_leaves_every_buffer(name):
    import torch

    spec, shape = fp4ref.profiles[name], (256, 256)
    x = cuda(values(shape, "bfloat16", "normal"))
    for flag in (torch.ones(1, device="cuda"), torch.ones(1, dtype=torch.int32, device="cuda")):
        out = Directions(*(guarded(buffer_shapes(spec, shape, d, "tiled_128x4"))[0] for d in ("row", "column")))
        quantize_both(x, spec, "tiled_128x4", out=out, noop=flag)
        for part in (*out.row, *out.column):
            assert part is None or bool((part.view(torch.uint8) == 0xA5).all())
        quantize_both(x, spec, "tiled_128x4", out=out, noop=torch.zeros_like(flag))
        for d in ("row", "column"):
            expected = expected_of(values(shape, "bfloat16", "normal"), spec, d, "tiled_128x4")
            same(getattr(out, d), expected, "tiled_128x4", (name, d))


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-rht", "mxfp8-e4m3"])
def test_graph_capture_and_other_streams(name):
    import torch

    spec, shape = fp4ref.profiles[name], (256, 384)
    x = cuda(values(shape, "bfloat16", "normal"))
    out = Directions(*(guarded(buffer_shapes(spec, shape, d, "tiled_128x4"))[0] for d in ("row", "column")))
    run = lambda: quantize_both(x, spec, "tiled_128x4", out=out)  # noqa: E731
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for seed in (1, 2):
        fresh = values(shape, "bfloat16", "heavy", seed)
        x.copy_(cuda(fresh))
        graph.replay()
        torch.cuda.synchronize()
        for d in ("row", "column"):
            same(getattr(out, d), expected_of(fresh, spec, d, "tiled_128x4"), "tiled_128x4", (name, d, seed))
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    fresh = values(shape, "bfloat16", "normal", 5)
    with torch.cuda.stream(other):
        torch.cuda._sleep(20_000_000)
        y = cuda(fresh)
        got = quantize_both(y, spec, "tiled_128x4")
    other.synchronize()
    for d in ("row", "column"):
        same(getattr(got, d), expected_of(fresh, spec, d, "tiled_128x4"), "tiled_128x4", (name, d))


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-rht", "nvfp4-row-scaled", "mxfp8-e4m3", "mxfp6-e3m2"])
@pytest.mark.rule("LAY-8")
def test_groups(name):
    spec = fp4ref.profiles[name]
    for splits, columns in (
        ([128, 0, 256, 128], 192),
        ([16, 48, 0, 0, 160], 72),
        ([0, 128, 0], 128),
        ([], 64),
        ([0], 64),
    ):
        x = values((sum(splits), columns), "bfloat16", "heavy")
        got = quantize_grouped(cuda(x), tuple(splits), spec, ("row", "column"), "tiled_128x4")
        for _ in range(2):
            start = 0
            for member, rows in zip(got, splits, strict=True):
                part = np.ascontiguousarray(x[start : start + rows])
                start += rows
                for d in ("row", "column"):
                    same(
                        member.direction(d)[0],
                        expected_of(part, spec, d, "tiled_128x4"),
                        "tiled_128x4",
                        (name, splits, d),
                    )
            for direction in got.memory:
                for part in direction:
                    if part is not None:
                        part.fill_(7)
            got = quantize_grouped(cuda(x), tuple(splits), spec, ("row", "column"), "tiled_128x4", out=got.memory)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(FUSED))
@pytest.mark.rule("LAY-8", "HAD-4", "GLB-4")
def test_groups_whose_members_are_whole_boxes_are_fused(name, kind):
    from fp4ref_cuda import operations

    spec = fp4ref.profiles[name]
    sizes = (([0, 128, 384, 0, 0, 256], 256), ([128] * 40, 192), ([1280, 0], 640))
    for (splits, columns), scale_layout in product(sizes, LAYOUTS):
        x = values((sum(splits), columns), "bfloat16", kind)
        for given in (False, True)[: 2 if spec.global_scale is Granularity.TENSOR else 1]:
            amaxes = [np.arange(1, len(splits) + 1, dtype=np.float32) * s for s in (0.75, 2.0)]
            amax = Directions(*map(cuda, amaxes)) if given else Directions()
            got = quantize_grouped(cuda(x), tuple(splits), spec, ("row", "column"), scale_layout, amax)
            assert operations.last_plan().path == f"grouped: {FUSED[name]}"
            start = 0
            for index, (member, rows) in enumerate(zip(got, splits, strict=True)):
                part = np.ascontiguousarray(x[start : start + rows])
                start += rows
                for d, own in zip(("row", "column"), amaxes, strict=True):
                    expected = expected_of(part, spec, d, scale_layout, own[index : index + 1] if given else None)
                    what = (name, kind, splits, index, d, scale_layout)
                    same(member.direction(d)[0], expected, scale_layout, what, scales_of(spec, part.shape, d))
    quantize_grouped(cuda(values((160, 128), "bfloat16", kind)), (128, 32), spec, ("row", "column"), "tiled_128x4")
    assert operations.last_plan().path == "grouped: tiles"
    assert "32 rows of member 1" in operations.last_plan().reason


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-rht", "nvfp4-row-scaled", "mxfp8-e4m3", "mxfp6-e2m3"])
@pytest.mark.rule("LAY-8", "LAY-11", "LAY-12")
def test_public_functions_on_the_device(name):
    """Groups, flags and outputs of the caller through fp4ref's own functions, which choose this backend."""
    import torch

    from fp4ref_cuda import operations

    splits = [128, 0, 256]
    x, other = (values((384, 256), "bfloat16", "heavy", seed) for seed in (0, 1))
    group = fp4ref.quantize_grouped(cuda(x), splits, name, "both", "tiled_128x4")
    assert operations.last_plan().path.startswith("grouped")

    def check(source):
        for member, part in zip(group, (source[:128], source[:0], source[128:]), strict=True):
            for d in ("row", "column"):
                expected = expected_of(np.ascontiguousarray(part), fp4ref.profiles[name], d, "tiled_128x4")
                same(member.direction(d)[0], expected, "tiled_128x4", (name, d))

    check(x)
    for kind in (torch.uint8, torch.int32, torch.float32):
        flag = torch.ones(1, dtype=kind, device="cuda")
        fp4ref.quantize_grouped(cuda(other), splits, name, "both", "tiled_128x4", out=group, noop=flag)
        check(x)
        q = fp4ref.quantize(cuda(x), name, "both", "tiled_128x4")
        held = [on_the_host(part).copy() for part in (*q.row, *q.column) if part is not None]
        fp4ref.quantize(cuda(other), name, "both", "tiled_128x4", out=q, noop=flag)
        again = [on_the_host(part) for part in (*q.row, *q.column) if part is not None]
        assert all(np.array_equal(a, b) for a, b in zip(held, again, strict=True))
    flag.zero_()
    fp4ref.quantize_grouped(cuda(other), splits, name, "both", "tiled_128x4", out=group, noop=flag)
    check(other)
    with pytest.raises(BackendError, match="no flag"):
        fp4ref.quantize(cuda(x), name, "both", "tiled_128x4", out=q, noop=flag, backend="torch")
    result = fp4ref.dequantize(q, "bfloat16")
    out = torch.full_like(result, 7)
    assert fp4ref.dequantize(q, "bfloat16", out=out) is out
    assert torch.equal(out, result)
    with pytest.raises(DomainError, match="member 1"):
        fp4ref.quantize_grouped(cuda(x), [128, 256], ["nvfp4", "mxfp4"])


def dequantize_everything(spec, shape, x, scale_layout, out_dtypes, poison=True):
    source = x.dtype
    for direction in ("row", "column"):
        rows, columns = matrix_shape(shape) if direction == "row" else matrix_shape(shape)[::-1]
        expected = expected_of(x, spec, direction, scale_layout, None, random_bits(spec, shape, direction))
        given = DirectionData(*(None if p is None else cuda(p) for p in expected))
        if poison and given.scales.numel():
            valid = layout(scale_layout).valid(rows, -(-columns // spec.block.columns))
            given.scales[cuda(~valid)] = 0xFF
        for out, inverse in product(out_dtypes, (False, True)):
            if inverse and (spec.hadamard is None or direction == "row"):
                continue
            kind = np.dtype(DTYPES[out])
            mine = dequantize(given, (rows, columns), spec, scale_layout, kind, source, inverse)
            theirs = golden.dequantize(
                decoding((rows, columns), spec, scale_layout, kind, source, inverse), expected, None
            )
            mine = mine.view(bit_types()[kind.itemsize]).cpu().numpy()
            theirs_bits = theirs.view(mine.dtype)
            nan = np.isnan(theirs.astype(np.float32))
            assert np.array_equal(np.isnan(mine.view(kind).astype(np.float32)), nan)
            assert np.array_equal(mine[~nan], theirs_bits[~nan]), (
                spec.name,
                shape,
                direction,
                scale_layout,
                out,
                inverse,
            )


@pytest.mark.parametrize("name", native())
@pytest.mark.rule("DEQ-1", "DEQ-2", "DEQ-3", "DEQ-4", "DEQ-5", "LAY-6")
def test_dequantize_with_poisoned_padding(name):
    spec = fp4ref.profiles[name]
    shapes = HADAMARD_SHAPES[1:6] if spec.hadamard else [(128, 128), (3, 5), (130, 70), (16, 256)]
    for i, (shape, kind) in enumerate(product(shapes, ("normal", "special", "bits"))):
        x = values(shape, "bfloat16", kind)
        dequantize_everything(spec, shape, x, list(LAYOUTS)[i % 4], [list(DTYPES)[i % 3]])


@pytest.mark.rule("LAY-1", "LAY-2", "LAY-3", "LAY-4", "LAY-5", "LAY-6")
def test_layout_conversion_of_many_tensors():
    from fp4ref_cuda import operations

    sizes = [(128, 4), (1, 1), (130, 5), (0, 3), (300, 17), (64, 64)]
    for source, target in product(LAYOUTS, LAYOUTS):
        linear = [np.random.default_rng(i).integers(0, 256, size, np.uint8) for i, size in enumerate(sizes)]
        given = [cuda(layout(source).from_linear(s)) for s in linear]
        for buffer, size in zip(given, sizes, strict=True):
            if buffer.numel():
                buffer[cuda(~layout(source).valid(*size))] = 0xEE
        for chosen in (slice(None), slice(4, 5)):
            made = operations.convert_layout(given[chosen], sizes[chosen], source, target)
            for got, want in zip(made, linear[chosen], strict=True):
                assert np.array_equal(on_the_host(got), layout(target).from_linear(want)), (source, target)


def test_bad_buffers_are_refused_before_anything_is_written():
    import torch

    x = cuda(values((128, 128), "bfloat16", "normal"))
    shapes = buffer_shapes(fp4ref.NVFP4, (128, 128), "row", "linear")
    out, _ = guarded(shapes)
    call = lambda out: quantize(x, fp4ref.NVFP4, "row", "linear", None, None, out)  # noqa: E731
    with pytest.raises(ShapeError, match=r"out\.row\.data"):
        call(out._replace(data=out.data[:-1]))
    with pytest.raises(BackendError, match="overlaps"):
        call(out._replace(data=x.view(torch.uint8).reshape(-1)[: 128 * 64].view(128, 64)))
    with pytest.raises(BackendError, match="CUDA device"):
        call(out._replace(scales=torch.zeros(tuple(shapes.scales), dtype=torch.uint8)))
    with pytest.raises(BackendError, match="gaps"):
        call(out._replace(data=torch.zeros(128, 128, dtype=torch.uint8, device="cuda")[:, ::2]))
    with pytest.raises(BackendError, match="CUDA device"):
        quantize(x.cpu(), fp4ref.NVFP4, "row", "linear", None, None, None)
    assert bool((out.data == 0xA5).all())


def test_cupy_and_dlpack():
    cupy = pytest.importorskip("cupy")

    x = values((128, 128), "float32", "normal")
    got = quantize(cupy.asarray(x), fp4ref.NVFP4, "row", "tiled_128x4", None, None, None)
    assert isinstance(got.data, cupy.ndarray)
    same(DirectionData(*map(cupy_host, got)), expected_of(x, fp4ref.NVFP4, "row", "tiled_128x4"), "tiled_128x4", "cupy")


def cupy_host(array):
    import torch

    return torch.from_numpy(array.get())


@pytest.mark.slow
def test_more_than_2_to_the_31_elements():
    import torch

    from fp4ref_cuda import operations

    rows, columns = (1 << 15) + 128, 1 << 16
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("less than 20 GiB of device memory free")
    x = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
    tail = values((128, columns), "bfloat16", "normal")
    x[-128:] = cuda(tail)
    for spec in (fp4ref.NVFP4, fp4ref.MXFP8_E4M3):
        got = quantize(x, spec, "row", "linear", None, None, None)
        expected = expected_of(tail, spec, "row", "linear")
        same(DirectionData(got.data[-128:], got.scales[-128:], got.amax), expected, "linear", spec.name)
        assert not bool(got.data[:-128].any())
        del got
    for spec in (fp4ref.NVFP4_RHT, fp4ref.NVFP4, fp4ref.MXFP8_E4M3):
        given = None if spec is fp4ref.MXFP8_E4M3 else np.full(1, 5, np.float32)
        both = quantize_both(x, spec, "tiled_128x4", Directions(given, given))
        assert operations.last_plan().path != "tiles"
        for d in ("row", "column"):
            mine = getattr(both, d)
            expected = expected_of(tail, spec, d, "tiled_128x4", given)
            width = expected.data.shape[1]
            codes = mine.data[-128:] if d == "row" else mine.data[:, -width:]
            assert np.array_equal(on_the_host(codes), expected.data), (spec.name, d)
            assert not bool((mine.data[:-128] if d == "row" else mine.data[:, :-width]).any())
        expected = expected_of(tail, spec, "row", "tiled_128x4", given)
        assert np.array_equal(on_the_host(both.row.scales[-128:]), expected.scales)
        del both, mine, codes


@pytest.mark.parametrize("kind", ["mxfp8-e4m3", "mxfp8-e5m2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.rule("TEL-21", "E4M3-1", "E4M3-3", "E5M2-1", "E5M2-3")
def test_codes_of_a_tensor_and_what_they_mean(kind, dtype):
    import torch

    from fp4ref_cuda import operations

    spec, element = fp4ref.profiles[kind], ml_dtypes.float8_e4m3fn if "e4m3" in kind else ml_dtypes.float8_e5m2
    largest, words = float(ml_dtypes.finfo(element).max), np.arange(1 << 16, dtype=np.uint16)
    source = getattr(torch, dtype)
    every = (
        torch.from_numpy(words.view(np.int16)).view(torch.float16 if dtype == "float16" else torch.bfloat16).to(source)
    )
    for scale, count in product((1.0, 0.3, 3e5, 1e-5, np.inf), (1 << 16, 1, 15, 4099)):
        x = every[:count].reshape(1, count)
        call = Call("tensor_codes", spec, dtype, device="cuda", shape=(1, count))
        with np.errstate(all="ignore"):
            y = x.to(torch.float32).numpy() * np.float32(scale)
            expected = np.clip(y, -largest, largest).astype(element).view(np.uint8)
        expected[np.isnan(y)] = 0x7F
        for start in (0, 1):  # the second one cannot be read in vectors
            room = torch.empty(count + 1, dtype=source, device="cuda")[start : start + count].view(1, count)
            room.copy_(x)
            got = operations.tensor_codes(call, room, torch.tensor([scale], device="cuda"))
            assert got.cpu().numpy().tobytes() == expected.tobytes(), (scale, count, start)
    codes = torch.arange(256, dtype=torch.uint8).repeat(17)[: 256 * 16 + 9].view(1, -1)
    call = Call("tensor_decode", spec, to="bfloat16", device="cuda", shape=tuple(codes.shape))
    for bad, error in (
        ((codes.cuda().int(), torch.ones(1, device="cuda")), DTypeError),
        ((codes.cuda(), torch.ones(1, device="cuda").double()), DTypeError),
        ((codes.cuda(), torch.ones(2, device="cuda")), ShapeError),
        ((codes.cuda()[:, 1:], torch.ones(1, device="cuda")), ShapeError),
    ):
        with pytest.raises(error, match=r"tensor_decode.*\[TEL-8\]"):
            operations.tensor_decode(call, *bad)
    on_host = operations.tensor_decode(call, codes.cuda(), torch.tensor([0.25]))  # one number is an argument
    there = operations.tensor_decode(call, codes.cuda(), torch.tensor([0.25], device="cuda"))
    assert torch.equal(on_host.nan_to_num(7.0), there.nan_to_num(7.0))
    for to in ("bfloat16", "float16"):
        call = Call("tensor_values", spec, to=to, device="cuda", shape=tuple(codes.shape))
        values = operations.tensor_values(call, codes.cuda()).cpu().to(torch.float32).numpy()
        meant = codes.numpy().view(element).astype(np.float32)
        assert np.array_equal(values, meant, equal_nan=True)
        numbers = ~np.isnan(meant)
        assert np.array_equal(np.signbit(values)[numbers], np.signbit(meant)[numbers])


@pytest.mark.parametrize("kind", ["kFloat8E4M3", "kFloat8E5M2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.rule("TEL-21")
def test_the_scale_of_a_tensor(kind, dtype, power_of_two):
    import torch

    from fp4ref.te import per_tensor
    from fp4ref.te.dtypes import DType

    fp8, source = DType[kind], getattr(torch, dtype)
    amaxes = [0.0, 7.0, 3.0, 1e-45, 1e-40, 1e-38, 1.3e-36, 1e-10, 448.0, 449.0, 3.4e38, np.inf, 0.1]
    for amax, least in product(amaxes, (0.0, 0.5)):
        given = torch.tensor([amax])
        expected = per_tensor.current_scale(given, fp8, source, least, power_of_two)  # on the CPU, by torch
        got = per_tensor.current_scale(given.cuda(), fp8, source, least, power_of_two)
        for mine, theirs in zip(got, expected, strict=True):
            assert mine.cpu().numpy().tobytes() == theirs.numpy().tobytes(), (amax, least)
