"""Examples of the chapter on recipes and caching, computed: per-tensor, block-scaled and delayed FP8."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.standard import formulas  # noqa: E402
from fp4ref.te.delayed_scaling import update_scales  # noqa: E402
from fp4ref.te.dtypes import DType  # noqa: E402
from fp4ref.te.per_tensor import scales_of  # noqa: E402
from fp4ref.te.quantization import FP8GlobalStateManager  # noqa: E402
from fp4ref.te.recipe_state import DelayedScalingRecipeState  # noqa: E402
from standard_rules import rows_of  # noqa: E402

F = np.float32
E4M3 = DType.kFloat8E4M3


@pytest.fixture(autouse=True)
def fresh():
    FP8GlobalStateManager.reset()
    yield
    FP8GlobalStateManager.reset()


def number(cell):
    """A number of a table: a decimal of eight digits stands for the float32 that rounds to it."""
    return F(formulas.value(cell.strip("` ")))


def scale_of(amax, power_of_two=False):
    scale, inverse = scales_of(torch.tensor([float(amax)]), E4M3, torch.float32, 0.0, power_of_two)
    return F(scale.item()), F(inverse.item())


@pytest.mark.rule("TEL-21")
@pytest.mark.example("TEL-21")
def test_the_scale_of_a_tensor():
    for amax, scale in rows_of("TEL-21"):
        assert scale_of(number(amax))[0] == number(scale) == F(448) / number(amax)
        assert te.Float8CurrentScalingQuantizer()(torch.full((16, 16), float(amax)))._scale_inv == F(1) / number(scale)


@pytest.mark.rule("TEL-91")
@pytest.mark.example("TEL-91")
@pytest.mark.parametrize("blocks", [False, True])
def test_what_is_stored_of_a_scale(blocks):
    for cell, stored in rows_of("TEL-91"):
        scale = number(cell.partition(",")[0])
        amax = F(448) / scale if "amax" not in cell else number(cell.rpartition(" ")[2])
        word = re.search(r"`(0x\w+)`", stored)
        wanted = number(word[1] if word else stored)
        assert F(1) / scale == wanted
        x = torch.full((16, 128), float(amax))
        with te.emulate_device(9, 0):
            quantizer = te.Float8BlockQuantizer(force_pow_2_scales=False, block_scaling_dim=1)
            found = quantizer(x)._rowwise_scale_inv if blocks else te.Float8CurrentScalingQuantizer()(x)._scale_inv
        assert {F(value) for value in found.unique().tolist()} == {wanted}


@pytest.mark.rule("TEL-50", "TEL-72")
@pytest.mark.example("TEL-50", "TEL-72")
def test_the_scale_of_a_block():
    (row,) = rows_of("TEL-72")
    assert row in rows_of("TEL-50")
    for amax, *scales in rows_of("TEL-50"):
        x = torch.zeros(1, 256)  # the second block has another amax
        x[0, 5], x[0, 200] = float(amax), 1000
        for power, scale in zip((True, False), scales, strict=True):
            with te.emulate_device(9, 0):
                quantizer = te.Float8BlockQuantizer(force_pow_2_scales=power, block_scaling_dim=1, columnwise=False)
                found = quantizer(x)._rowwise_scale_inv[0, 0]
            assert F(found) == F(1) / number(scale)
            assert scale_of(number(amax), power)[0] == number(scale)


@pytest.mark.rule("TEL-92")
@pytest.mark.example("TEL-92")
@pytest.mark.parametrize("power", [False, True])
def test_devices_of_float32_scales(power):
    for device, outcome in rows_of("TEL-92"):
        major, minor = map(int, device.split("."))
        with te.emulate_device(major, minor):
            quantizer = te.Float8BlockQuantizer(force_pow_2_scales=power)
            if outcome == "taken" or power:
                assert quantizer(torch.ones(128, 128))._rowwise_scale_inv[0, 0] == (1 / 256 if power else F(1) / F(448))
                continue
            assert outcome == "refused"
            with pytest.raises(ValueError, match="capability 10.0"):
                quantizer(torch.ones(128, 128))


def updated(amax, margin=0):
    """The scale after an update."""
    recipe = te.recipe.DelayedScaling(amax_history_len=2, margin=margin, fp8_format=te.recipe.Format.E4M3)
    state = DelayedScalingRecipeState(recipe, mode="forward", num_quantizers=1)
    update_scales(state, torch.tensor([float(amax)]))
    return F(state.scale.item())


@pytest.mark.rule("TEL-45", "TEL-93")
@pytest.mark.example("TEL-45", "TEL-93")
def test_scales_of_delayed_scaling():
    for amax, margin, scale in rows_of("TEL-45"):
        assert updated(number(amax), int(margin)) == number(scale)
    for amax, scale in rows_of("TEL-93"):
        assert updated(number(amax)) == number(scale)


@pytest.mark.rule("TEL-94")
@pytest.mark.example("TEL-94")
def test_extra_state_holds_both_directions():
    operands = {"forward, input": ("scaling_fwd", 0), "backward, grad_output": ("scaling_bwd", 0)}
    module, other = (te.Linear(32, 32, params_dtype=torch.bfloat16, device="cpu") for _ in range(2))
    x = torch.randn(16, 32, dtype=torch.bfloat16)
    with te.autocast(recipe=te.recipe.DelayedScaling(amax_history_len=4)):
        y = module(x)
    y.sum().backward()
    found = {}
    for name, before, after in rows_of("TEL-94"):
        key, operand = operands[name]
        scale, history = before.split("; ")
        module.fp8_meta[key].scale[operand] = float(scale)
        module.fp8_meta[key].amax_history[:, operand] = torch.tensor([float(word) for word in history.split(", ")])
        found[key, operand] = after
    other.set_extra_state(module.get_extra_state())
    for (key, operand), after in found.items():
        scale, history = after.split("; ")
        state = other.fp8_meta[key]
        assert state.scale[operand] == float(scale)
        assert state.amax_history[:, operand].tolist() == [float(word) for word in history.split(", ")]
    assert {key for key, _ in found} == {"scaling_fwd", "scaling_bwd"}


@pytest.mark.rule("TEL-8", "TEL-95")
@pytest.mark.example("TEL-8", "TEL-95")
def test_directions_that_are_dequantized():
    ((rows, by_rows),) = rows_of("TEL-8")
    ((columns, refused, _, by_columns),) = rows_of("TEL-95")
    x = torch.zeros(32, 32)
    x[0, 1:], x[0, 0] = 448, 0.001
    wanted = {True: number(by_rows.partition(",")[0]), False: number(by_columns.partition(",")[0])}
    assert (rows, columns, refused) == ("rows, or both", "columns", "refused")
    for given in ({"columnwise": False}, {}, {"rowwise": False}):
        tensor = te.MXFP8Quantizer(**given)(x)
        assert tensor.dequantize()[0, 0] == wanted[given.get("rowwise", True)]
    with pytest.raises(NotImplementedError, match="columnwise"):
        te.NVFP4Quantizer(rowwise=False)(x.to(torch.bfloat16)).dequantize()
