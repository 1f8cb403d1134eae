"""FP8 with one float32 scale: the quantizers of recipes against the specifications that say their bytes."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref import te  # noqa: E402
from fp4ref.te.delayed_scaling import update_scales  # noqa: E402
from fp4ref.te.dtypes import DType  # noqa: E402
from fp4ref.te.recipe import DelayedScaling, Format  # noqa: E402
from fp4ref.te.recipe_state import DelayedScalingRecipeState  # noqa: E402

KINDS = {"": DType.kFloat8E4M3, "_e5m2": DType.kFloat8E5M2}
LARGEST = {"": 448.0, "_e5m2": 57344.0}
BACKENDS = ("numpy", "torch")
INPUTS = ("float32", "bfloat16", "float16", "special", "infinite", "tiny", "zero")


def sample(kind, shape=(40, 300)):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-12, 12, (shape[0], 1), generator=generator))
    if kind in {"special", "infinite"}:
        odd = torch.tensor(
            [float("nan"), -float("nan"), -0.0, 1e-45, -(2.0**-126)] + [float("inf")] * (kind != "special")
        )
        places = torch.rand(x.shape, generator=generator) < 0.01
        return torch.where(places, odd[torch.randint(0, len(odd), x.shape, generator=generator)], x)
    if kind == "tiny":  # the scale overflows
        return (torch.randn(shape, generator=generator) * 2.0**-135).bfloat16()
    return torch.zeros(shape) if kind == "zero" else x.to(getattr(torch, kind))


def bits(values):
    """Bits of float32 values; NaN, whose payload no rule decides, as one number."""
    return values.view(torch.int32).masked_fill(values.isnan(), -1)


def quantized(x, name, amax=None):
    """Codes of the row direction and values by each backend, which agree."""
    found = []
    for backend in BACKENDS:
        q = fp4ref.quantize(x, name, "row", "linear", amax=amax, backend=backend)
        assert (q.row.scales == 0x38).all()
        found.append((q.row.data, fp4ref.dequantize(q, torch.float32, backend=backend), q.row.amax))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    return found[0]


@pytest.mark.rule("PRO-3", "DEQ-5", "TEL-64", "TEL-62", "TEL-61")
@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("kind", INPUTS)
def test_current_scaling(kind, suffix):
    x = sample(kind)
    tensor = te.Float8CurrentScalingQuantizer(KINDS[suffix])(x)
    codes, values, _ = quantized(x, f"te.fp8_current{suffix}")
    assert torch.equal(tensor._data, codes)
    assert torch.equal(bits(tensor.dequantize(dtype=torch.float32)), bits(values))


@pytest.mark.rule("TEL-63")
@pytest.mark.parametrize("suffix", KINDS)
def test_powers_of_two_and_least_maxima_are_given_amaxes(suffix):
    x = sample("bfloat16")
    tensor = te.Float8CurrentScalingQuantizer(KINDS[suffix], force_pow_2_scales=True)(x)
    codes, values, _ = quantized(x, f"te.fp8_current{suffix}", LARGEST[suffix] * tensor._scale_inv)
    assert torch.equal(tensor._data, codes)
    assert torch.equal(bits(tensor.dequantize(dtype=torch.float32)), bits(values))
    tensor = te.Float8CurrentScalingQuantizer(KINDS[suffix], amax_epsilon=1e6)(x)
    assert torch.equal(tensor._data, quantized(x, f"te.fp8_current{suffix}", torch.tensor([1e6]))[0])


@pytest.mark.rule("TEL-68")
@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("amax", [7.0, 3.3, 1e-3, 1e-38, 1e-45])
def test_delayed_scaling(amax, margin, suffix):
    mode = "backward" if suffix else "forward"  # of the hybrid format, gradients are E5M2
    recipe = DelayedScaling(margin=margin, fp8_format=Format.HYBRID)
    state = DelayedScalingRecipeState(recipe, mode=mode, num_quantizers=1, device=torch.device("cpu"))
    update_scales(state, torch.tensor([amax]))
    for kind in ("float32", "bfloat16", "infinite"):
        x = sample(kind)
        tensor = te.Float8Quantizer(state.scale, torch.zeros(1), KINDS[suffix])(x)
        given = torch.tensor([np.ldexp(np.float32(amax), margin)])
        codes, values, _ = quantized(x, f"te.fp8_delayed{suffix}", given)
        assert torch.equal(tensor._data, codes)
        assert torch.equal(bits(tensor.dequantize(dtype=torch.float32)), bits(values))


@pytest.mark.rule("TEL-48", "TEL-74")
@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("height", [1, 128])
@pytest.mark.parametrize("kind", INPUTS)
def test_blocks_with_float32_scales(kind, height, suffix):
    x = sample(kind, (130, 300))
    with te.emulate_device(9, 0):
        tensor = te.Float8BlockQuantizer(
            KINDS[suffix], force_pow_2_scales=False, block_scaling_dim=1 + (height > 1), columnwise=False
        )(x)
    rows = -(-130 // height) * height
    whole = torch.nn.functional.pad(x, (0, 384 - 300, 0, rows - 130))
    blocks = whole.view(rows // height, height, 3, 128).permute(0, 2, 1, 3).reshape(-1, height * 128)
    codes, values, amax = quantized(blocks, f"te.fp8_rows{suffix}")

    def placed(parts):
        return parts.view(rows // height, 3, height, 128).permute(0, 2, 1, 3).reshape(rows, 384)[:130, :300]

    assert torch.equal(tensor._rowwise_data, placed(codes))
    assert torch.equal(bits(tensor.dequantize(dtype=torch.float32)), bits(placed(values)))
    scales = tensor._rowwise_scale_inv
    stored = scales[:, :130].t() if height == 1 else scales[:, :3]
    ordinary = (amax > 1e-30) & (amax < torch.inf)  # elsewhere the values above decide
    made = 1 / (torch.tensor(LARGEST[suffix]) / amax)
    assert torch.equal(stored.reshape(-1)[ordinary], made[ordinary])


@pytest.mark.rule("TEL-21", "DEQ-5")
def test_numbers_of_the_rules():
    x = np.float32([[3, 1.5, -0.25]])
    q = fp4ref.quantize(x, "te.fp8_current", "row", "linear")
    assert q.row.amax == 3
    stored = np.float32(1) / (np.float32(448) / np.float32(3))
    assert stored.view(np.uint32) == 0x3BDB6DB7
    assert (q.row.data == [[0x7E, 0x76, 0xE1]]).all()  # 448, 224, -36 of -37.33
    assert np.array_equal(fp4ref.dequantize(q, "float32"), np.float32([[448, 224, -36]]) * stored)
