from __future__ import annotations

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
