"""Block-scaled FP8: bytes against the golden model, scales of float32 against NumPy, products and modules."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from compiled import TYPES, together  # noqa: E402
from fp4ref import te  # noqa: E402
from fp4ref.registry import Call  # noqa: E402
from fp4ref.te.dtypes import DType  # noqa: E402
from fp4ref.te.recipe import Float8BlockScaling, Format, MMParams  # noqa: E402

E4M3, E5M2 = DType.kFloat8E4M3, DType.kFloat8E5M2
PROFILES = {(E4M3, 1): "te.fp8_block", (E5M2, 1): "te.fp8_block_e5m2", (E4M3, 2): "te.fp8_block_2d"}


def sample(rows, columns, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    x *= torch.exp2(torch.randint(-40, 40, (rows, 1), generator=generator).float())
    x[: rows // 8] = 0
    return x.to(dtype)


def special(rows, columns):
    x = sample(rows, columns)
    generator = torch.Generator().manual_seed(5)
    odd = torch.tensor([float("nan"), -float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 3e38, -(2.0**-126)])
    places = torch.rand(x.shape, generator=generator) < 0.01
    return torch.where(places, odd[torch.randint(0, len(odd), x.shape, generator=generator)], x)


@pytest.fixture(autouse=True, scope="module")
def compiled_for_this_file():
    together(Call("quantize", fp4ref.profiles[name], source) for name in PROFILES.values() for source in TYPES)


@pytest.mark.rule("TEL-3", "TEL-49", "PRO-3", "TEL-74")
@pytest.mark.parametrize(("settings", "name"), PROFILES.items(), ids=PROFILES.values())
@pytest.mark.parametrize("shape", [(128, 128), (130, 300), (7, 5)])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "special"])
def test_powers_of_two_have_the_bytes_of_the_golden_model(settings, name, shape, kind):
    x = special(*shape) if kind == "special" else sample(*shape, getattr(torch, kind))
    dtype, dim = settings
    tensor = te.Float8BlockQuantizer(dtype, block_scaling_dim=dim)(x)
    golden = fp4ref.quantize(x, name, "both", "linear", backend="numpy")
    rows, columns = shape
    down, across = -(-rows // 128), -(-columns // 128)
    for part, direction, (m, b), data in (
        (golden.row, "row", (rows, across), tensor._rowwise_data),
        (golden.column, "column", (columns, down), tensor._columnwise_data),
    ):
        assert torch.equal(data, torch.as_tensor(np.asarray(part.data)))
        wanted = np.ldexp(np.float32(1), np.asarray(part.scales).astype(int) - 127)[:m, :b]
        scales = getattr(tensor, f"_{direction}wise_scale_inv").numpy()
        stored = scales[:, :m].T if dim == 1 else np.repeat(scales[:, :b], 128, 0)[:m]
        assert np.array_equal(stored, wanted)
        assert tuple(scales.shape) == te.Float8BlockQuantizer(dtype, block_scaling_dim=dim).get_scale_shape(
            shape, columnwise=direction == "column"
        )


@pytest.mark.rule("TEL-49")
def test_shapes_of_the_rule():
    tensor = te.Float8BlockQuantizer(block_scaling_dim=1)(torch.ones(130, 300))
    assert (tensor._rowwise_scale_inv.shape, tensor._columnwise_scale_inv.shape) == ((3, 132), (2, 300))
    tensor = te.Float8BlockQuantizer()(torch.ones(130, 300))
    assert (tensor._rowwise_scale_inv.shape, tensor._columnwise_scale_inv.shape) == ((2, 4), (3, 4))
    assert tensor._columnwise_data.shape == (300, 130)
    assert not tensor._rowwise_scale_inv[:, 3:].any()


@pytest.mark.rule("TEL-50", "TEL-72", "TEL-73")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_float32_scales_against_numpy(dtype):
    x = sample(16, 300, getattr(torch, dtype))
    x[3, 5] = 1e-45 if dtype == "float32" else x[3, 5]
    x[4], x[5, 7] = 1e-40, float("inf")
    with te.emulate_device(9, 0):
        tensor = te.Float8BlockQuantizer(force_pow_2_scales=False, block_scaling_dim=1, columnwise=False)(x)
    values, largest = (
        x.float().numpy(),
        {"bfloat16": float.fromhex("0x1.FEp127"), "float16": 65504.0}.get(dtype, np.finfo("f4").max),
    )
    for row in range(16):
        for block in range(3):
            part = values[row, 128 * block : 128 * block + 128]
            amax = np.abs(part).max()
            with np.errstate(all="ignore"):
                scale = np.float32(448) / amax
                scale = np.float32(largest) if np.isinf(scale) else scale
                scale = np.float32(1) if amax == 0 or np.isinf(amax) else scale
                codes = np.clip(part * scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
            assert tensor._rowwise_scale_inv[block, row].item() == np.float32(1) / np.float32(scale)
            assert np.array_equal(tensor._rowwise_data[row, 128 * block : 128 * block + 128].numpy(), codes)


@pytest.mark.rule("TEL-72")
def test_float32_scales_need_an_older_device():
    with pytest.raises(ValueError, match="9.0"):
        te.Float8BlockQuantizer(force_pow_2_scales=False)(torch.ones(2, 2))
    with pytest.raises(ValueError, match="block_scaling_dim 3"):
        te.Float8BlockQuantizer(block_scaling_dim=3)(torch.ones(2, 2))
    with te.emulate_device(8, 9), pytest.raises(ValueError, match="9.0"), te.autocast(recipe=Float8BlockScaling()):
        pass


@pytest.mark.rule("TEL-48", "TEL-2")
def test_the_recipe_chooses_blocks_by_role():
    module = te.Linear(128, 128, device="cpu")
    with te.autocast(recipe=Float8BlockScaling(fp8_format=Format.HYBRID)):
        module(torch.ones(128, 128))
    found = {
        name: (module.quantizer(name).block_scaling_dim, module.quantizer(name).dtype)
        for name in ("input", "weight", "grad_output")
    }
    assert found == {"input": (1, E4M3), "weight": (2, E4M3), "grad_output": (1, E5M2)}
    for fields in (
        {"x_block_scaling_dim": 2},
        {"x_block_scaling_dim": 3},
        {"fp8_gemm_dgrad": MMParams(use_split_accumulator=False)},
        {"fp8_format": Format.E5M2},
    ):
        with pytest.raises(ValueError, match="Float8BlockScaling"):
            Float8BlockScaling(**fields)


@pytest.mark.rule("TEL-31", "TEM-1", "TEL-75")
@pytest.mark.parametrize("device", [(10, 0), (9, 0)])
def test_a_layer_multiplies_the_values_of_its_operands(device):
    torch.manual_seed(0)
    x = torch.randn(256, 384, requires_grad=True)
    module = te.Linear(384, 128, device="cpu", bias=False)
    gradient = torch.randn(256, 128)
    with te.emulate_device(*device):
        recipe = Float8BlockScaling(use_f32_scales=device == (9, 0))
        with te.autocast(recipe=recipe):
            y = module(x)
        y.backward(gradient)
        make = te.Float8BlockQuantizer
        rows, columns = ({"force_pow_2_scales": device != (9, 0), "rowwise": r, "columnwise": not r} for r in (1, 0))
        weight = make(force_pow_2_scales=device != (9, 0))(module.weight.detach()).dequantize().double()
        xs = [make(block_scaling_dim=1, **way)(x.detach()).dequantize().double() for way in (rows, columns)]
        gs = [make(block_scaling_dim=1, **way)(gradient).dequantize().double() for way in (rows, columns)]
    for got, wanted in (
        (y, xs[0] @ weight.T),
        (x.grad, gs[0] @ weight),
        (module.weight.grad, gs[1].T @ xs[1]),
    ):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-3)


@pytest.mark.rule("TEL-51")
def test_each_block_is_scaled_once():
    with te.emulate_device(9, 0):
        make = te.Float8BlockQuantizer(force_pow_2_scales=False, block_scaling_dim=1, columnwise=False)
        a, b = make(sample(16, 256)), make(sample(32, 256, seed=1))
        got = te.general_gemm(a, b)[0].numpy()
    total = np.zeros((32, 16), np.float32)
    for k in range(2):
        codes = [t._rowwise_data.numpy()[:, 128 * k : 128 * k + 128].view(ml_dtypes.float8_e4m3fn) for t in (b, a)]
        sums = codes[0].astype(np.float64) @ codes[1].astype(np.float64).T
        scales = b._rowwise_scale_inv[k, :32].numpy()[:, None] * a._rowwise_scale_inv[k, :16].numpy()[None, :]
        total += sums.astype(np.float32) * scales
    np.testing.assert_allclose(got, total, rtol=1e-4, atol=1e-6 * np.abs(total).max())


@pytest.mark.rule("TEL-8", "TEL-25", "TEL-40", "TEL-26", "TEL-5")
def test_a_tensor_behaves_as_others_do(tmp_path):
    x = sample(256, 384, torch.bfloat16)
    tiles = te.Float8BlockQuantizer(columnwise=False)(x)
    both = te.Float8BlockQuantizer()(x)
    tiles.update_usage(columnwise_usage=True)
    assert torch.equal(tiles._columnwise_data, both._columnwise_data)
    assert torch.equal(tiles._columnwise_scale_inv, both._columnwise_scale_inv)
    rows = te.Float8BlockQuantizer(columnwise=False, block_scaling_dim=1)(x)
    with pytest.raises(ValueError, match="column"):
        rows.update_usage(columnwise_usage=True)
    columns = te.Float8BlockQuantizer(rowwise=False, block_scaling_dim=1)(x)
    assert columns.dequantize().shape == columns.shape == (256, 384)
    view = both.view(2, 128, 384)
    assert isinstance(view, te.Float8BlockwiseQTensor)
    assert torch.equal(view.dequantize(), both.dequantize().view(2, 128, 384))
    address = both._rowwise_scale_inv.data_ptr()
    both.copy_(2 * x)
    assert both._rowwise_scale_inv.data_ptr() == address
    assert torch.equal(both.dequantize(), 2 * tiles.dequantize())
    torch.save(both, tmp_path / "tensor.pt")
    assert torch.equal(torch.load(tmp_path / "tensor.pt").dequantize(), both.dequantize())
    assert torch.equal(te.Float8BlockQuantizer()(torch.ones(0, 128)).dequantize(), torch.ones(0, 128))


def test_groups_may_be_empty():
    torch.manual_seed(0)
    module = te.GroupedLinear(3, 128, 256, device="cpu", params_dtype=torch.bfloat16)
    x = torch.randn(256, 128, dtype=torch.bfloat16, requires_grad=True)
    with te.autocast(recipe=Float8BlockScaling()):
        y = module(x, [128, 0, 128])
    y.sum().backward()
    assert not module.weight1.grad.any()
    assert module.weight2.grad.any()


def test_a_model_of_packed_weights_trains():
    torch.manual_seed(0)
    recipe = Float8BlockScaling()
    with te.quantized_model_init(recipe=recipe):
        module = te.LayerNormMLP(128, 256, device="cpu", params_dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x, losses = torch.randn(128, 128, dtype=torch.bfloat16), []
    for _ in range(4):
        with te.autocast(recipe=recipe):
            y = module(x)
        loss = (y.float() - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert isinstance(module.fc1_weight, te.Float8BlockwiseQTensor)
    assert losses == sorted(losses, reverse=True)


@pytest.mark.rule("TEL-48")
def test_whole_groups_have_no_kernel_on_blackwell(monkeypatch):
    monkeypatch.setenv("NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM", "1")
    module, x = te.GroupedLinear(2, 128, 128, params_dtype=torch.bfloat16), torch.ones(8, 128, dtype=torch.bfloat16)
    with te.autocast(recipe=Float8BlockScaling()):
        with pytest.raises(RuntimeError, match="Hopper-only"):
            module(x, [4, 4])
        with te.emulate_device(9, 0):
            assert module(x, [4, 4]).shape == (8, 128)
    assert module(x, [4, 4]).shape == (8, 128)
