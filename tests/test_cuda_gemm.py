"""Products by the CUDA backend against the golden model, byte for byte; the fast mode by its bound. Needs a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import fp4ref
from fp4ref.layout import STANDARD_LAYOUTS
from operands_at_random import PRODUCTS, operand
from tests.test_cuda import REASON

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON or "runs")]
SHAPES = [(33, 5, 321), (2, 40, 64), (3, 3, 31), (1, 1, 16), (70, 130, 96), (1, 2, 0), (0, 3, 32), (64, 64, 1024)]
LAYOUTS = [form.name for form in STANDARD_LAYOUTS]


def cuda(x):
    import torch

    return torch.from_numpy(np.ascontiguousarray(x)).cuda() if x.dtype != "bfloat16" else _bfloat16(x)


def _bfloat16(x):
    import torch

    return torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).cuda().view(torch.bfloat16)


def on_device(q):
    """The same operand in the memory of a device."""
    return fp4ref.Quantized(
        q.spec, q.shape, q.dtype, q.scale_layout, row=q.row.mapped(lambda part: None if part is None else cuda(part))
    )


def host(tensor):
    import torch

    tensor = tensor.cpu()
    return tensor.view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def bits(x):
    return x.view(np.int16) if x.dtype.itemsize == 2 else x


@pytest.mark.rule("GEM-1", "GEM-2", "GEM-3", "GEM-4", "GEM-5", "GEM-6", "GEM-7", "GEM-8", "LAY-6")
@pytest.mark.parametrize("mode", ["exact", "blockwise"])
@pytest.mark.parametrize(("of_a", "of_b", "out", "of_bias"), PRODUCTS)
def test_products(of_a, of_b, out, of_bias, mode):
    rng = np.random.default_rng([len(of_a), len(of_b), len(mode)])
    for number, (rows, columns, depth) in enumerate(SHAPES):
        forms = LAYOUTS[number % len(LAYOUTS)], LAYOUTS[(number + 1) % len(LAYOUTS)]
        for hard in (False, True):
            a = operand(rng, of_a, rows, depth, forms[0], hard=hard)
            b = operand(rng, of_b, columns, depth, forms[1], hard=hard)
            dtypes = {name: fp4ref.arrays.output_dtype("gemm", name) for name in (out, of_bias)}
            bias = rng.standard_normal(columns).astype(dtypes[of_bias]) if number % 2 else None
            added = rng.standard_normal((rows, columns)).astype(dtypes[out]) if hard else None
            rule = "division" if number % 3 else "reciprocal"
            wanted = fp4ref.gemm(a, b, mode, ("row", "row"), 0.37, bias, added, out, "numpy", rule)
            there = [None if part is None else cuda(part) for part in (bias, added)]
            got = fp4ref.gemm(on_device(a), on_device(b), mode, ("row", "row"), 0.37, *there, out, "cuda", rule)
            assert host(got).tobytes() == bits(wanted).tobytes(), (rows, columns, depth, forms, hard)


@pytest.mark.rule("GEM-2")
@pytest.mark.parametrize("depth", [16384 * 16, 16384 * 16 + 16, 1217408])
def test_sums_past_64_bits(depth):
    """The largest values everywhere, and one that only a wide sum keeps."""
    codes, scales = np.full((1, depth // 2), 0x77, np.uint8), np.full((1, depth // 16), 0x7E, np.uint8)
    codes[0, 3], scales[0, 1] = 0x11, 0x01
    amax = np.float32([2688])
    q = fp4ref.Quantized(
        fp4ref.NVFP4, (1, depth), "float32", "linear", row=fp4ref.quantized.DirectionData(codes, scales, amax)
    )
    for mode in ("exact", "blockwise"):
        wanted = fp4ref.gemm(q, q, mode, backend="numpy")
        assert host(fp4ref.gemm(on_device(q), on_device(q), mode, backend="cuda")).tobytes() == wanted.tobytes()


@pytest.mark.rule("GEM-11")
@pytest.mark.parametrize("size", [(64, 48, 256), (512, 512, 512), (520, 264, 1040), (513, 300, 300)])
@pytest.mark.parametrize("names", ["nvfp4 nvfp4", "mxfp8-e4m3 mxfp4", "nvfp4-row-scaled nvfp4"])
def test_fast_products_keep_the_bound(names, size):
    from fp4ref_cuda.operations import last_plan

    rng = np.random.default_rng(size)
    rows, columns, depth = size
    of_a, of_b = names.split()
    a, b = operand(rng, of_a, rows, depth, "tiled_128x4"), operand(rng, of_b, columns, depth, "linear")
    got = host(fp4ref.gemm(on_device(a), on_device(b), "fast", backend="cuda")).astype(np.float64)
    library = rows * columns * depth > 1 << 24 and not (rows % 8 or columns % 8 or depth % 8)
    assert (last_plan().kernels == ("gemm",)) != library
    exact = fp4ref.gemm(a, b, backend="cpu").astype(np.float64)
    positive = [
        fp4ref.Quantized(q.spec, q.shape, q.dtype, q.scale_layout, row=q.row._replace(data=q.row.data & mask))
        for q, mask in ((a, _magnitudes(a)), (b, _magnitudes(b)))
    ]
    total = fp4ref.gemm(*positive, backend="cpu").astype(np.float64)
    eps = 2.0**-23
    bound = depth * eps / (1 - depth * eps) * total * (1 + 8 * eps) + 4 * eps * np.abs(exact) + depth * 2.0**-126
    assert (np.abs(got - exact) <= bound).all()


def _magnitudes(q):
    return 0x77 if q.spec.element.format.bits == 4 else 0x7F


@pytest.mark.rule("CNF-5")
def test_a_repeated_product_reads_new_bytes_and_numbers():
    import torch

    rng = np.random.default_rng(5)
    held = [on_device(operand(rng, "nvfp4", 40, 96, "tiled_128x4")) for _ in range(2)]
    side = torch.cuda.Stream()
    for turn in range(12):
        fresh = [operand(rng, "nvfp4", 40, 96, "tiled_128x4") for _ in range(2)]
        for q, new in zip(held, fresh, strict=True):
            for part, value in zip(q.row, new.row, strict=True):
                part.copy_(cuda(value))
        alpha = [1.0, 0.5, -2.0][turn % 3]
        bias = rng.standard_normal(40).astype(np.float32) if turn % 2 else None
        wanted = fp4ref.gemm(*fresh, alpha=alpha, bias=bias, backend="numpy")
        given = None if bias is None else cuda(bias)
        torch.cuda.synchronize()
        with torch.cuda.stream(side if turn % 4 == 3 else torch.cuda.current_stream()):
            got = fp4ref.gemm(*held, alpha=alpha, bias=given, backend="cuda")
            torch.cuda.current_stream().synchronize()
        assert host(got).tobytes() == wanted.tobytes()


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize("mode", ["exact", "blockwise", "fast"])
def test_a_captured_product(mode):
    import torch

    rng = np.random.default_rng(6)
    q = on_device(operand(rng, "nvfp4", 512, 512, "tiled_128x4"))
    wanted = host(fp4ref.gemm(q, q, mode, backend="cuda")).copy()
    for _ in range(3):
        fp4ref.gemm(q, q, mode, backend="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fp4ref.gemm(q, q, mode, backend="cuda")
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert host(out).tobytes() == wanted.tobytes()


@pytest.mark.rule("GEM-12", "CNF-5")
def test_groups_tall_products_and_refusals():
    rng = np.random.default_rng(7)
    members = [operand(rng, "mxfp4", rows, 64, "linear") for rows in (3, 0, 17)]
    right = operand(rng, "mxfp4", 8, 64, "linear")
    wanted = fp4ref.gemm_grouped(members, [right] * 3, backend="numpy")
    got = fp4ref.gemm_grouped([on_device(q) for q in members], [on_device(right)] * 3, backend="cuda")
    assert [host(each).tobytes() for each in got] == [each.tobytes() for each in wanted]
    tall, few = operand(rng, "nvfp4", 70_001, 16, "tiled_128x4"), operand(rng, "nvfp4", 33, 16, "linear")
    wanted = fp4ref.gemm(tall, few, backend="cpu")
    assert host(fp4ref.gemm(on_device(tall), on_device(few), backend="cuda")).tobytes() == wanted.tobytes()
    wanted = fp4ref.gemm(few, tall, backend="cpu")
    assert host(fp4ref.gemm(on_device(few), on_device(tall), backend="cuda")).tobytes() == wanted.tobytes()
    with pytest.raises(fp4ref.errors.BackendError, match="CNF-5"):
        fp4ref.gemm(few, few, backend="cuda")  # in the memory of the host
