from __future__ import annotations

from itertools import product

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from te_samples import sample  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

RHT = {"with_rht": True, "with_post_rht_amax": True}
QUANTIZERS = {
    "nvfp4": te.NVFP4Quantizer,
    "tiles": lambda: te.NVFP4Quantizer(with_2d_quantization=True),
    "hadamard": lambda: te.NVFP4Quantizer(**RHT),
    "row-scaled": lambda: te.NVFP4Quantizer(row_scaled_nvfp4=True),
    "4over6": lambda: te.NVFP4Quantizer(nvfp4_use_4over6=True),
    "mxfp8": te.MXFP8Quantizer,
    "float8": te.Float8CurrentScalingQuantizer,
}


@pytest.mark.rule("TEL-3", "TEL-4")
@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("shape", [(128, 256), (96, 160)])
@pytest.mark.parametrize("name", QUANTIZERS)
def test_bytes_and_values_are_the_cpus(name, shape, swizzled):
    quantizer = QUANTIZERS[name]()
    quantizer.optimize_for_gemm = swizzled
    x = sample(*shape)
    here, there = quantizer(x), quantizer(x.cuda())
    for direction in here.directions():
        if name == "float8":
            assert torch.equal(here.codes().float(), there.codes().cpu().float())
            continue
        want, got = here.record(direction), there.record(direction)
        assert torch.equal(want.row.data, got.row.data.cpu())
        rows, blocks = (slice(None),) * 2 if swizzled else (slice(want.shape[0]), slice(want.shape[1] // 32))
        assert torch.equal(want.row.scales[rows, blocks], got.row.scales.cpu()[rows, blocks])
    assert torch.equal(here.dequantize(), there.dequantize().cpu())


@pytest.mark.rule("TEL-5")
@pytest.mark.parametrize("kind", ["kFloat8E4M3", "kFloat8E5M2"])
@pytest.mark.rule("TEL-8", "DEQ-2", "DEQ-3")
def test_codes_under_one_scale_are_decoded_as_on_the_cpu(kind):
    drawn = torch.Generator().manual_seed(3)
    room = torch.randint(0, 256, (70000,), dtype=torch.uint8, generator=drawn)
    there = room.cuda()
    scales = [0.0375, 1e-30, -3.0, 2.0**-140, float("inf"), float("nan"), 0.0]
    for shape, start, at in product([(4, 1000), (3, 5, 7), (17,), (), (2, 0), (64, 1024)], (0, 1, 16), scales):
        scale, count = torch.tensor([at]), torch.Size(shape).numel()
        for to in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            for of_scale in (scale.cuda(), scale.cuda().reshape(()), scale.reshape(()), scale.cuda().double())[
                : 2 if start else 4
            ]:
                made = te.Float8TensorStorage(
                    data=there[start : start + count].view(shape), fp8_scale_inv=of_scale, fp8_dtype=te.DType[kind]
                )
                codes = room[start : start + count].view(shape).view(made.codes().dtype)
                want = (codes.float() * of_scale.cpu().reshape(())).to(to)
                for _ in range(2):  # the second one repeats the first
                    got = made.dequantize(dtype=to)
                    assert got.shape == want.shape
                    assert got.is_cuda
                    assert torch.equal(got.cpu().isnan(), want.isnan())
                    numbers = [each.double().nan_to_num(0.0, 1e300, -1e300) for each in (got.cpu(), want)]
                    assert torch.equal(*numbers), (shape, start, at, to)
                    assert torch.equal(got.cpu().signbit()[~want.isnan()], want.signbit()[~want.isnan()])
    turned = te.Float8TensorStorage(
        data=there[:3200].view(40, 80).t(), fp8_scale_inv=scales_of(0.5), fp8_dtype=te.DType[kind]
    )
    want = room[:3200].view(40, 80).view(turned.codes().dtype).float().t() * 0.5
    assert torch.equal(turned.dequantize(dtype=torch.float32).cpu().nan_to_num(0.0), want.nan_to_num(0.0))


def scales_of(number):
    return torch.tensor([number], device="cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("squares", [1, 2])
@pytest.mark.parametrize("settings", [(True, 0.0), (True, 1e-3), (False, 0.0), (False, 0.5)], ids=str)
@pytest.mark.rule("TEL-48", "TEL-49", "TEL-50", "TEL-72", "TEL-73")
def test_blocks_of_128_are_the_cpus(settings, squares, dtype):
    power_of_two, least = settings
    shapes = [(128, 128), (256, 384), (144, 272), (130, 300), (1, 5), (128, 7), (300,), (3, 128, 256), (5, 33, 140), ()]
    usages = [(True, True), (True, False), (False, True)]
    for index, (shape, kind) in enumerate(product(shapes, ("kFloat8E4M3", "kFloat8E5M2"))):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(index)).mul(4 ** (index % 7 - 3)).to(dtype)
        flat = x.view(-1)
        flat[:: 131 + index] = 0
        if index % 3 == 0:
            flat[::57] = torch.tensor(float("nan"), dtype=dtype)
            flat[5::997] = float("inf")
        if index % 4 == 1 and shape:
            x[..., : shape[-1] // 2] = 0  # blocks of zeros
        rowwise, columnwise = usages[index % 3]
        made = te.Float8BlockQuantizer(
            te.DType[kind],
            rowwise=rowwise,
            columnwise=columnwise,
            amax_epsilon=least,
            force_pow_2_scales=power_of_two,
            block_scaling_dim=squares,
        )
        room = torch.empty(x.numel() + 1, dtype=dtype, device="cuda")
        apart = room[1:].view(shape).copy_(x)  # at no multiple of 16 bytes
        with te.emulate_device(9):
            expected = made(x)
            results = [made(x.cuda()), made(apart)]
            results.append(made.update_quantized(apart, made(torch.ones_like(apart))))
            kept = made.update_quantized(
                apart.flip(-1) if shape else apart + 1, made(apart), noop_flag=torch.ones(1).cuda()
            )
        for got in (*results, kept):
            for name in got.BUFFERS:
                mine, theirs = getattr(got, name), getattr(expected, name)
                assert (mine is None) == (theirs is None), name
                assert mine is None or mine.shape == theirs.shape, (shape, name)
                same = mine is None or mine.cpu().numpy().tobytes() == theirs.contiguous().numpy().tobytes()
                assert same, (shape, name, kind)
        for to, direction in product((torch.float32, torch.bfloat16, torch.float16), expected.directions()):
            want = expected.matrix_values(direction, torch.float32).to(to)
            found = got.matrix_values(direction, to).cpu()
            assert torch.equal(found.isnan(), want.isnan())
            assert torch.equal(found.nan_to_num(0.0, 9e4, -9e4), want.nan_to_num(0.0, 9e4, -9e4)), (shape, kind, to)
            assert torch.equal(found.signbit()[~found.isnan()], want.signbit()[~want.isnan()])
            assert torch.equal(got.dequantize(dtype=to).cpu().isnan(), expected.dequantize(dtype=to).isnan())
            numbers = [each.dequantize(dtype=to).cpu().nan_to_num(0.0) for each in (got, expected)]
            assert torch.equal(*numbers)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_updates_keep_addresses(name):
    quantizer = QUANTIZERS[name]()
    quantizer.optimize_for_gemm = True
    tensor = quantizer(sample(128, 192).cuda())
    addresses = [buffer.data_ptr() for buffer in tensor.buffers()]
    tensor.quantize_(sample(128, 192, seed=1).cuda())
    assert [buffer.data_ptr() for buffer in tensor.buffers()] == addresses
    kept = [buffer.clone() for buffer in tensor.buffers()]
    tensor.quantize_(sample(128, 192).cuda(), noop_flag=torch.ones(1, device="cuda"))
    assert all(torch.equal(a, b) for a, b in zip(kept, tensor.buffers(), strict=True))


@pytest.mark.rule("TEL-11")
@pytest.mark.parametrize("name", ["nvfp4", "mxfp8", "float8"])
@pytest.mark.parametrize(
    "layout, a, b", [("TN", (96, 128), (64, 128)), ("NN", (96, 128), (64, 96)), ("NT", (64, 128), (64, 96))]
)
def test_products_are_near_the_cpus(name, layout, a, b):
    quantizer = QUANTIZERS[name]()
    operands = [quantizer(sample(*shape, seed=seed)) for seed, shape in enumerate((a, b))]
    want = te.general_gemm(*operands, out_dtype=torch.float32, layout=layout)[0]
    got = te.general_gemm(*(operand.to("cuda") for operand in operands), out_dtype=torch.float32, layout=layout)[0]
    assert (got.cpu() - want).abs().max() <= 2.0**-14 * want.abs().max()


@pytest.mark.rule("TEL-6")
def test_device_generator_decides_stochastic_bytes():
    quantizer = te.NVFP4Quantizer(stochastic_rounding=True)
    x = sample(128, 256).cuda()
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    first, second = quantizer(x), quantizer(x)
    torch.cuda.set_rng_state(state)
    again = quantizer(x)
    assert torch.equal(first._rowwise_data, again._rowwise_data)
    assert torch.equal(first._columnwise_data, again._columnwise_data)
    assert not torch.equal(first._rowwise_data, second._rowwise_data)


@pytest.mark.rule("TEL-5")
def test_captured_graph_sees_an_updated_weight():
    quantizer = te.NVFP4Quantizer(with_2d_quantization=True)
    quantizer.optimize_for_gemm = True
    weight = quantizer(sample(256, 256).cuda())
    x = te.NVFP4Quantizer()(sample(128, 256, seed=1).cuda())
    for _ in range(2):
        te.general_gemm(weight, x, out_dtype=torch.bfloat16)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = te.general_gemm(weight, x, out_dtype=torch.bfloat16)[0]
    weight.quantize_(sample(256, 256, seed=2).cuda())
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, te.general_gemm(weight, x, out_dtype=torch.bfloat16)[0])


@pytest.mark.rule("TEL-11", "TEL-32")
def test_results_are_written_where_nothing_is_read():
    x, bias = torch.randint(-3, 4, (256, 256)).bfloat16(), torch.arange(256.0).bfloat16()
    expected = te.general_gemm(x, x, bias=bias)[0]
    there = x.cuda()
    assert torch.equal(te.general_gemm(there, there, bias=bias.cuda(), out=there)[0].cpu(), expected)
    there, out = x.cuda(), torch.zeros(256, 256, dtype=torch.bfloat16, device="cuda")
    out[3] = bias
    assert torch.equal(te.general_gemm(there, there, bias=out[3], out=out)[0].cpu(), expected)
    version, address = out._version, out.data_ptr()
    assert te.general_gemm(there, there, bias=bias.cuda(), out=out)[0].data_ptr() == address
    assert torch.equal(out.cpu(), expected)
    assert out._version > version
    here = torch.zeros(256, 256, dtype=torch.bfloat16)
    assert torch.equal(te.general_gemm(there, there, bias=bias.cuda(), out=here)[0], expected)
