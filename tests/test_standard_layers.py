"""Examples of the chapter on recipes and caching, computed: per-tensor, block-scaled and delayed FP8."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref import te  # noqa: E402
from fp4ref.standard import formulas  # noqa: E402
from fp4ref.standard.tables import tables  # noqa: E402
from fp4ref.te.cast import fp8_codes  # noqa: E402
from fp4ref.te.delayed_scaling import update_scales  # noqa: E402
from fp4ref.te.dtypes import DType  # noqa: E402
from fp4ref.te.global_scale import globally_scaled  # noqa: E402
from fp4ref.te.per_tensor import scales_of  # noqa: E402
from fp4ref.te.quantization import FP8GlobalStateManager  # noqa: E402
from fp4ref.te.recipe_state import DelayedScalingRecipeState  # noqa: E402
from standard_rules import rows_of, text_of  # noqa: E402

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
            with pytest.raises(ValueError, match=r"capability 10\.0 .*\[TEL-92\]"):
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


def words_of(cell):
    return [number(word) for word in cell.split(", ")]


AMAX = {"infinity": F(np.inf), "NaN": F(np.nan)}


@pytest.mark.rule("TEL-61", "TEL-63")
@pytest.mark.example("TEL-61", "TEL-63")
def test_scales_of_unusual_maxima():
    for amax, scale in rows_of("TEL-61"):
        assert scale_of(AMAX[amax] if amax in AMAX else number(amax))[0] == number(scale)
    for amax, scale, power in rows_of("TEL-63"):
        assert scale_of(number(amax))[0] == number(scale)
        assert scale_of(number(amax), power_of_two=True)[0] == number(power)


@pytest.mark.rule("TEL-64")
@pytest.mark.example("TEL-64")
def test_codes_of_a_tensor():
    largest = float(re.search(r"amax (\d+)", tables(text_of("TEL-64"))[0][0][0])[1])
    x = torch.zeros(16, 32)
    x[0, 0] = largest
    for place, (value, scaled, code) in enumerate(rows_of("TEL-64"), 1):
        x[0, place] = float(value)
        tensor = te.Float8CurrentScalingQuantizer()(x)
        assert F(value) * scale_of(largest)[0] == number(scaled)
        byte, _, means = code.partition(" (")
        assert f"{int(tensor._data[0, place]):02X}" == byte
        assert not means or tensor._data[0, place].view(torch.float8_e4m3fn) == float(means.rstrip(")"))
        golden = fp4ref.quantize(x, "te.fp8_current", "row", "linear", backend="numpy").row.data
        assert torch.equal(tensor._data, torch.as_tensor(golden))


def state_of(history, scale=1.0, **fields):
    fields = {"fp8_format": te.recipe.Format.E4M3, **fields}
    recipe = te.recipe.DelayedScaling(amax_history_len=len(history), **fields)
    state = DelayedScalingRecipeState(recipe, mode="forward", num_quantizers=1)
    state.amax_history[:, 0] = torch.tensor([float(each) for each in history])
    state.scale.fill_(scale)
    return state


@pytest.mark.rule("TEL-65", "TEL-67", "TEL-68")
@pytest.mark.example("TEL-65", "TEL-67", "TEL-68")
def test_updates_of_a_history():
    for before, maxima, after in rows_of("TEL-65"):
        state = state_of(words_of(before))
        current = max((float(word) for word in re.findall(r"\d+", maxima)), default=0.0)
        update_scales(state, torch.tensor([current]))
        assert state.amax_history[:, 0].tolist() == words_of(after)
    for amax, before, scale in rows_of("TEL-67"):
        state = state_of([0, 0], scale=float(before))
        update_scales(state, torch.tensor([float(AMAX[amax])]))
        assert state.scale.item() == float(scale)
    for cell, given in rows_of("TEL-68"):
        amax, margin = map(float, cell.split(", "))
        x = torch.linspace(-amax, amax, 512).reshape(16, 32)
        scale = updated(amax, int(margin))
        codes = fp8_codes(x * float(scale), E4M3)
        golden = fp4ref.quantize(x, "te.fp8_delayed", "row", "linear", torch.tensor([float(given)]), backend="numpy")
        assert torch.equal(codes.view(torch.uint8), torch.as_tensor(golden.row.data))


@pytest.mark.rule("TEL-46", "TEL-69", "TEL-86")
@pytest.mark.example("TEL-46", "TEL-69", "TEL-86")
def test_maxima_that_a_history_gives():
    given = [float(word) for word in re.search(r"history ([\d, ]+), where", text_of("TEL-46"))[1].split(", ")]
    newest = float(re.search(r"where (\d+) is the new maximum", text_of("TEL-46"))[1])
    for cell, amax in rows_of("TEL-46"):
        seen = []

        def third(history, seen=seen):
            seen.append(history.clone())
            return history[2].clone()

        name = cell.strip("`") if cell.startswith("`") else third
        state = state_of(given, amax_compute_algo=name)
        update_scales(state, torch.tensor([newest]))
        if callable(name):
            assert seen[0][:, 0].tolist() == [float(word) for word in re.findall(r"\d+", amax)]
            assert state.scale.item() == F(448) / F(seen[0][2, 0].item())
        else:
            assert state.scale.item() == F(448) / F(amax)
    ((cell, told, after),) = rows_of("TEL-69")
    before, seen = [float(word) for word in re.findall(r"\d+", cell)], []
    state = state_of(before, amax_compute_algo=lambda history: seen.append(history.clone()) or history[-1])
    update_scales(state, torch.tensor([0.0]))
    assert seen[0][:, 0].tolist() == words_of(told)
    assert state.amax_history[:, 0].tolist() == words_of(after)
    for cell, scale in rows_of("TEL-86"):
        amax, margin = cell.split(", ")
        state = state_of([0, 0], amax_compute_algo=lambda history: history[0].clone(), margin=int(margin))
        update_scales(state, torch.tensor([float(amax)]))
        assert state.scale.item() == number(scale)


@pytest.mark.rule("TEL-12", "TEL-33")
@pytest.mark.example("TEL-12", "TEL-33")
def test_the_global_scale_of_a_product():
    head = tables(text_of("TEL-12"))[0][0][2]
    first, second = (F(word) for word in re.findall(r"[\d.]+", head))
    factors = {}
    for pair, f, scale in rows_of("TEL-12"):
        one, other = (int(word) for word in pair.split(", "))
        factors[one, other] = number(f)
        assert F(1 / F(36 * one * other)) == number(f)
        assert (first * second) * number(f) == number(scale)
    head = tables(text_of("TEL-33"))[0][0][0]
    total, a, b = (F(word) for word in re.findall(r"[\d.]+", head)[:3])
    f = factors[448, 448]
    names = {"sum": total, "f": f}
    results = []
    for cell, result in rows_of("TEL-33"):
        formula = cell.partition(": ")[2].replace("1.1", "a").replace("1.3", "b")
        assert formulas.value(formula, {**names, "a": a, "b": b}) == number(result)
        results.append(number(result))
    x = torch.zeros(16, 16)
    x[0, 0] = 1
    one, rows = te.NVFP4Quantizer()(x), te.NVFP4Quantizer(row_scaled_nvfp4=True, columnwise=False)(x.bfloat16())
    other = te.NVFP4Quantizer(row_scaled_nvfp4=True, columnwise=False)(x.bfloat16())
    for left, right, wanted in ((one, rows, results[0]), (other, rows, results[1])):
        left._amax_rowwise.fill_(float(b))
        right._amax_rowwise.fill_(float(a))  # that of B comes first
        sums = torch.full((16, 16), float(total))
        assert F(globally_scaled(sums, left, "row", right, "row", 1.0)[0, 0].item()) == wanted


@pytest.mark.rule("TEM-56")
@pytest.mark.example("TEM-56")
@pytest.mark.parametrize("recipe", ["NVFP4BlockScaling", "MXFP8BlockScaling"])
def test_an_operand_is_quantized_once(recipe):
    module = te.Linear(64, 64, params_dtype=torch.bfloat16, device="cpu")
    x = torch.randn(64, 64, dtype=torch.bfloat16, requires_grad=True)
    te.debug.reset_operation_counts()
    with te.autocast(recipe=getattr(te.recipe, recipe)()):
        y = module(x)
    y.sum().backward()
    wanted = {role: int(calls) for role, calls, _ in rows_of("TEM-56")}
    assert te.debug.operation_counts()["quantize"] == wanted
    usages = {role: int(directions) for role, _, directions in rows_of("TEM-56")}
    quantizers = {role: module.quantizer(role) for role in usages}
    found = {role: quantizer.rowwise_usage + quantizer.columnwise_usage for role, quantizer in quantizers.items()}
    assert found == usages
