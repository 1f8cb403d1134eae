"""Delayed scaling: histories of maxima, and scales that come from them, against NumPy by hand."""

from __future__ import annotations

import io
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.te import pickled_state  # noqa: E402
from fp4ref.te.delayed_scaling import Histories, update_scales  # noqa: E402
from fp4ref.te.delayed_scaling import fused_amax_and_scale_update_after_reduction as fused  # noqa: E402
from fp4ref.te.errors import SettingError  # noqa: E402
from fp4ref.te.quantization import DelayedScalingRequest, FP8GlobalStateManager, QuantizerRole  # noqa: E402
from fp4ref.te.recipe import CustomRecipe, DelayedScaling, Format, MXFP8BlockScaling, Range  # noqa: E402
from fp4ref.te.recipe_state import DelayedScalingRecipeState  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    FP8GlobalStateManager.reset()
    yield
    FP8GlobalStateManager.reset()


def state_of(history, scale=1.0, **fields):
    recipe = DelayedScaling(amax_history_len=len(history), **fields)
    state = DelayedScalingRecipeState(recipe, mode="forward", num_quantizers=1)
    state.amax_history.copy_(torch.tensor(history)[:, None])
    state.scale.fill_(scale)
    return state


def linear(features=32, dtype=torch.bfloat16):
    torch.manual_seed(1)
    return te.Linear(features, features, params_dtype=dtype, device="cpu")


@pytest.mark.rule("TEL-46", "TEL-65")
@pytest.mark.parametrize(
    ("history", "current", "after", "largest", "newest"),
    [
        ([4, 5, 2, 3], 7, [0, 2, 3, 7], 7, 7),
        ([4, 5, 2, 3], 0, [0, 2, 3, 4], 5, 4),  # nobody reduced: row 0 is the step's maximum; row 1 counts once more
        ([4, 5, 2, 9], 1, [0, 2, 9, 1], 9, 1),
        ([0, 5, 2, 3], 0, [0, 5, 2, 3], 0, 0),
        ([3], 3, [0], 3, 3),
        ([1, float("nan"), float("nan"), 2], 1, [0, float("nan"), 2, 1], 2, 1),
    ],
)
def test_histories_move(history, current, after, largest, newest):
    for algorithm, amax in (("max", largest), ("most_recent", newest)):
        state = state_of(history, scale=11.0, amax_compute_algo=algorithm)
        update_scales(state, torch.tensor([float(current)]))
        assert np.array_equal(state.amax_history[:, 0].numpy(), np.float32(after), equal_nan=True)
        expected = np.float32(448) / np.float32(amax) if amax else np.float32(11)
        assert state.scale.item() == expected


@pytest.mark.rule("TEL-45", "TEL-67")
@pytest.mark.parametrize("amax", [7.0, 3.3, 1e-3, 1e-38, 1e-45, 3.4e38, float("inf")])
@pytest.mark.parametrize("margin", [0, 1, 3])
def test_the_scale_is_one_division(amax, margin):
    state = state_of([0.0, 0.0], scale=5.0, margin=margin, fp8_format=Format.E4M3)
    update_scales(state, torch.tensor([amax]))
    with np.errstate(over="ignore"):
        wanted = np.float32(448 * 2.0**-margin) / np.float32(amax)
    wanted = np.float32(5) if np.isinf(amax) else min(wanted, np.finfo(np.float32).max)
    assert state.scale.numpy().view(np.uint32) == np.float32(wanted).view(np.uint32)


@pytest.mark.rule("TEL-69", "TEL-86")
def test_functions_of_the_recipe():
    state = state_of(
        [4.0, 5, 2],
        amax_compute_algo=lambda history: history.mean(0),
        scaling_factor_compute_algo=lambda a, s, m, r: a + s,
    )
    update_scales(state, torch.tensor([7.0]))
    assert state.amax_history[:, 0].tolist() == [0, 2, 7]
    assert state.scale.item() == np.float32(14 / 3) + 1
    state = state_of([4.0, 5, 2], amax_compute_algo=lambda history: history.mean(0), margin=1)
    update_scales(state, torch.tensor([5.0]))
    assert state.scale.item() == 448 / 4 / 2


@pytest.mark.rule("TEL-47", "TEL-44")
def test_steps_quantize_with_the_scales_of_earlier_steps():
    module, recipe = linear(), DelayedScaling(amax_history_len=8)
    x = torch.ones(16, 32, dtype=torch.bfloat16, requires_grad=True)
    seen = []
    for amax in (7.0, 14.0, 3.5):
        with te.autocast(recipe=recipe), te.autocast(recipe=recipe):
            y = module(amax * x)
            seen.append(module.quantizer("input").scale.item())
        y.sum().backward()
    assert seen == [1, 64, 32]
    assert module.fp8_meta["scaling_fwd"].amax_history[-3:, 0].tolist() == [7, 14, 3.5]
    assert module.fp8_meta["scaling_bwd"].amax_history[-3:, 0].tolist() == [1, 1, 1]
    assert module.fp8_meta["scaling_bwd"].scale[0].item() == 57344
    with torch.no_grad(), te.autocast(recipe=recipe):
        module(100 * x)
    assert module.quantizer("input").scale.item() == 32  # inference computes no scales


@pytest.mark.rule("TEL-90")
def test_only_the_first_module_ends_the_backward_pass():
    modules, recipe = torch.nn.Sequential(linear(), linear()), DelayedScaling(amax_history_len=4)
    x = torch.randn(16, 32, dtype=torch.bfloat16, requires_grad=True)
    with te.autocast(recipe=recipe):
        y = modules(x)
    nodes = [y.grad_fn, y.grad_fn.next_functions[0][0]]
    while not hasattr(nodes[1], "reduce_and_update_bwd_fp8_tensors"):
        nodes[1] = nodes[1].next_functions[0][0]
    assert [node.reduce_and_update_bwd_fp8_tensors for node in nodes] == [False, True]
    y.sum().backward()
    for module in modules:
        history = module.fp8_meta["scaling_bwd"].amax_history
        assert history[0, 0] == 0
        assert history[-1, 0] > 0


@pytest.mark.rule("TEL-3", "TEL-44")
def test_modules_on_several_devices_are_updated_apart():
    histories, recipe = Histories(), te.recipe.DelayedScaling()
    states = [
        SimpleNamespace(
            recipe=recipe,
            group=None,
            scale=torch.ones(1, device=device),
            amax_history=torch.full((4, 1), 2.0, device=device),
            largest=448.0,
        )
        for device in ("cpu", "meta")
    ]
    for state in states:
        histories.add(state, forward=True)
    histories.update(forward=True)
    assert states[0].scale.item() == 224


def test_a_module_multiplies_the_codes_of_its_scales():
    module, recipe = linear(), DelayedScaling()
    x = torch.randn(16, 32, dtype=torch.bfloat16)
    with te.autocast(recipe=recipe):
        module(x)
        y = module(x)  # the scales are still 1
    codes = [t.float().clamp(-448, 448).to(torch.float8_e4m3fn).float() for t in (x, module.weight.detach())]
    assert torch.equal(y, (codes[0] @ codes[1].T + module.bias.detach().float()).bfloat16())
    assert module.quantizer("input").amax.item() == 0  # moved into the history
    assert module.fp8_meta["scaling_fwd"].amax_history[-1, 0].item() == x.abs().max().item()


@pytest.mark.rule("TEL-71")
def test_a_recomputed_forward_pass_uses_the_same_scales():
    results = []
    for recompute in (False, True):
        FP8GlobalStateManager.reset()
        module, recipe = linear(), DelayedScaling(amax_history_len=4)
        outcome = []
        for step in range(3):
            x = (
                (torch.randn(16, 32, generator=torch.Generator().manual_seed(step)) * 4**step)
                .bfloat16()
                .requires_grad_()
            )
            with te.autocast(recipe=recipe):
                y = te.checkpoint(module, x) if recompute else module(x)
            y.float().square().sum().backward()
            outcome += [y.detach(), x.grad, module.weight.grad.clone()]
            outcome += [part.clone() for name in ("scaling_fwd", "scaling_bwd") for part in vars_of(module, name)]
        results.append(outcome)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def vars_of(module, name):
    state = module.fp8_meta[name]
    return state.scale, state.amax_history


@pytest.mark.rule("TEL-52")
def test_a_checkpoint_continues_the_run():
    recipe = DelayedScaling(amax_history_len=4)
    module, x = linear(), torch.randn(16, 32, dtype=torch.bfloat16)
    for _ in range(2):
        with te.autocast(recipe=recipe):
            y = module(x)
        y.sum().backward()
    other = linear()
    other.load_state_dict(module.state_dict())
    for name in ("scaling_fwd", "scaling_bwd"):
        assert all(torch.equal(a, b) for a, b in zip(vars_of(module, name), vars_of(other, name), strict=True))
    with te.autocast(recipe=recipe):
        assert torch.equal(other(x), module(x))
    assert torch.equal(linear_with(module.get_extra_state()).get_extra_state(), module.get_extra_state())
    with pytest.raises(ValueError, match="shape"):
        te.LayerNormMLP(32, 64, device="cpu").set_extra_state(module.get_extra_state())
    stateless = te.Linear(32, 32, device="cpu")
    stateless.set_extra_state(torch.frombuffer(bytearray(b'{"recipe": "MXFP8BlockScaling"}'), dtype=torch.uint8))
    assert not stateless.fp8_meta


def linear_with(record):
    module = linear()
    module.set_extra_state(record)
    return module


def as_bytes(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def pickled(record):
    return as_bytes(pickle.dumps(record))


@pytest.mark.rule("TEL-52")
def test_a_pickle_is_read_if_it_is_allowed(monkeypatch):
    scales = {"scale_fwd": torch.arange(3) + 2.0, "scale_bwd": torch.full((2,), 7.0)}
    scales |= {"amax_history_fwd": torch.ones(4, 3), "amax_history_bwd": torch.zeros(4, 2)}
    recipe = DelayedScaling(fp8_format=Format.E4M3, amax_history_len=4)
    whole = {**scales, "recipe": recipe, "extra_fp8_variables": {}}
    harmful = {**whole, "extra_fp8_variables": Harmful()}
    for record in ({}, {"recipe": MXFP8BlockScaling()}, {"recipe": CustomRecipe(qfactory=linear)}):
        assert not linear_with(pickled(record)).fp8_meta
    for record in (whole, scales, harmful, {"recipe": recipe}, {"recipe": Harmful()}):
        with pytest.raises(ValueError, match=r"NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE=1 \[TEL-52\]"):
            linear().set_extra_state(pickled(record))
    monkeypatch.setenv("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", "1")
    for record in (whole, scales):  # the first version of the library named no recipe
        state = linear_with(pickled(record)).fp8_meta["scaling_fwd"]
        assert state.scale.tolist() == [2, 3, 4]
        assert state.amax_history.shape == (4, 3)
        assert state.recipe.fp8_format is (Format.E4M3 if "recipe" in record else Format.HYBRID)
    for record, said in ((harmful, "sys.exit"), ({"recipe": recipe}, "no scales"), ([scales], "pickled list")):
        with pytest.raises(ValueError, match=rf"{said}.*\[TEL-52\]"):
            linear().set_extra_state(pickled(record))
    with pytest.raises(ValueError, match="a pickle"):
        linear().set_extra_state(torch.tensor([1, 2, 3], dtype=torch.uint8))


@pytest.mark.rule("TEL-52")
@pytest.mark.parametrize(
    ("named", "attribute"),
    [
        (b"transformer_engine.common.recipe\nDelayedScaling", "delayed"),
        (b"transformer_engine.common.recipe\nRange", "max_fwd"),
        (b"transformer_engine.common.recipe\nFormat", "largest"),
        (b"torch._utils\n_rebuild_tensor_v2", "__defaults__"),
        (b"torch.storage\n_load_from_bytes", "__defaults__"),
    ],
)
def test_a_pickle_changes_nothing_that_it_names(monkeypatch, named, attribute):
    monkeypatch.setenv("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", "1")
    things = DelayedScaling, Range, Format, torch._utils._rebuild_tensor_v2, pickled_state._storage_of
    before = [getattr(thing, attribute, None) for thing in things]
    value = pickle.dumps({attribute: (5,)}, protocol=0)[:-1]  # what BUILD sets: (None, attributes)
    with pytest.raises(ValueError, match=r"\[TEL-52\]"):
        linear().set_extra_state(as_bytes(b"\x80\x02c" + named + b"\nN" + value + b"\x86b."))
    assert [getattr(thing, attribute, None) for thing in things] == before


@pytest.mark.rule("TEL-52")
def test_a_pickle_changes_no_member_of_an_enumeration(monkeypatch):
    monkeypatch.setenv("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", "1")
    member = pickle.dumps(Format.HYBRID, protocol=2)[:-1]
    with pytest.raises(ValueError, match=r"\[TEL-52\]"):
        linear().set_extra_state(as_bytes(member + pickle.dumps({"_name_": "E4M3"}, protocol=0)[:-1] + b"b."))
    assert Format.HYBRID.name == "HYBRID"


@pytest.mark.rule("TEL-52")
def test_a_damaged_record_is_refused(monkeypatch):
    monkeypatch.setenv("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", "1")
    scales = {"scale_fwd": torch.ones(3), "amax_history_fwd": torch.zeros(4, 3)}
    file = io.BytesIO()
    torch.save({"recipe": "DelayedScaling", **scales}, file)
    records = [
        as_bytes(file.getvalue()),
        as_bytes(file.getvalue()[:-40]),
        pickled(scales | {"recipe": "DelayedScaling"}),
        file,
        pickled(scales | {"scale_fwd": 3.0}),
        pickled(scales | {"amax_history_fwd": torch.tensor(1.0)}),
        as_bytes(b"\x80\x02X\x09\x00\x00\x00scale_fwdr\xff\xff\xff\xff."),
    ]
    for record in records:
        with pytest.raises(SettingError, match="TEL-52"):
            linear().set_extra_state(record)


@pytest.mark.rule("TEL-52")
@pytest.mark.parametrize("recipe", ["DelayedScaling", "CustomRecipe"])
@pytest.mark.parametrize("wrong", [("scale_bwd", (3,)), ("amax_history_bwd", (4, 3)), ("amax_history_bwd", (5, 2))])
def test_a_refused_record_changes_nothing(recipe, wrong):
    record = {"recipe": recipe, "fp8_format": "HYBRID", "scale_fwd": torch.full((3,), 7.0), "scale_bwd": torch.ones(2)}
    record |= {"amax_history_fwd": torch.ones(4, 3), "amax_history_bwd": torch.zeros(4, 2)}
    file, module = io.BytesIO(), linear()
    torch.save(record | {wrong[0]: torch.ones(wrong[1])}, file)
    with te.autocast(recipe=DelayedScaling(amax_history_len=4)):
        module(torch.randn(16, 32, dtype=torch.bfloat16))
    before, states, quantizers = module.get_extra_state(), dict(module.fp8_meta), module.quantizer("input")
    with pytest.raises(SettingError, match="TEL-52"):
        module.set_extra_state(as_bytes(file.getvalue()))
    assert torch.equal(module.get_extra_state(), before)
    assert module.fp8_meta == states
    assert module.quantizer("input") is quantizers
    empty = linear()
    with pytest.raises(SettingError, match="TEL-52"):
        empty.set_extra_state(as_bytes(file.getvalue()))
    assert not empty.fp8_meta


class Harmful:
    def __reduce__(self):
        return sys.exit, ("the pickle was executed",)


@pytest.mark.rule("TEL-52", "TEL-44")
def test_scales_that_a_factory_asked_for_survive_a_checkpoint_and_another_consumer():
    def factory(role):
        forward = role is None or role.tensor_type != "grad_output"
        return DelayedScalingRequest(amax_history_len=4) if forward else te.MXFP8Quantizer()

    module, x, recipe = linear(), torch.randn(16, 32, dtype=torch.bfloat16), CustomRecipe(qfactory=factory)
    with te.autocast(recipe=recipe):
        module(x)
    record, scales = module.get_extra_state(), module.fp8_meta["scaling_fwd"].scale.tolist()
    assert scales[0] != 1
    module.output_quantizer_role = QuantizerRole("linear", "input", "next")
    for changed in (module, linear_with(record)):
        assert torch.equal(changed.get_extra_state(), record)
        assert not changed.fp8_meta_tensors_initialized
        with te.autocast(recipe=recipe):
            changed(x)
        assert changed.fp8_meta["scaling_fwd"].scale.tolist() == scales
        assert changed.fp8_meta["scaling_fwd"].amax_history.shape == (4, 3)


@pytest.mark.rule("TEL-44")
def test_a_packed_weight_adds_its_maxima_to_the_new_history():
    with te.quantized_model_init(recipe=DelayedScaling(amax_history_len=4)):
        module = te.Linear(32, 32, device="cpu", params_dtype=torch.bfloat16)
    with (
        pytest.warns(UserWarning, match="Quantizer is being updated"),
        te.autocast(recipe=DelayedScaling(amax_history_len=2)),
    ):
        module(torch.ones(16, 32, dtype=torch.bfloat16))
    history = module.fp8_meta["scaling_fwd"].amax_history
    with torch.no_grad():
        module.weight.copy_(torch.full((32, 32), 5.0, dtype=torch.bfloat16))
    assert history[0, 1] == 5


@pytest.mark.rule("TEL-89")
def test_another_length_keeps_the_maxima():
    module, x = linear(), torch.randn(16, 32, dtype=torch.bfloat16)
    for length in (2, 4, 3):
        with te.autocast(recipe=DelayedScaling(amax_history_len=length)):
            module(x)
        assert module.fp8_meta["scaling_fwd"].amax_history.shape[0] == length
        assert module.quantizer("input").amax.data_ptr() == module.fp8_meta["scaling_fwd"].amax_history.data_ptr()


@pytest.mark.rule("TEL-47")
def test_calibration_notes_maxima_without_quantizing():
    module, x = linear(), torch.randn(16, 32, dtype=torch.bfloat16)
    with te.autocast(enabled=False, calibrating=True, recipe=DelayedScaling()):
        y = module(x)
    assert torch.equal(y, torch.nn.functional.linear(x, module.weight, module.bias))
    history = module.fp8_meta["scaling_fwd"].amax_history[0]
    assert history[:2].tolist() == [x.abs().max().item(), module.weight.abs().max().item()]
    assert module.get_extra_state().numel()


@pytest.mark.rule("TEL-44")
def test_what_megatron_passes_changes_nothing():
    recipe = DelayedScaling(override_linear_precision=(False, False, False), params_dtype=torch.bfloat16, device="cpu")
    assert (str(recipe), recipe) == (str(DelayedScaling()), DelayedScaling())
    with pytest.raises(TypeError, match="amax_history_length"):
        DelayedScaling(amax_history_length=4)


@pytest.mark.rule("TEL-46", "TEL-44")
def test_settings_that_are_refused():
    for fields in ({"fp8_format": Format.E5M2}, {"backward_override": "dequantized"}, {"amax_history_len": 0}):
        with pytest.raises(ValueError, match="DelayedScaling"):
            DelayedScaling(**fields)
    with pytest.raises(ValueError, match="amax_compute_algo"):
        DelayedScaling(amax_compute_algo="mean")
    module = te.Linear(32, 32, device="cpu", save_original_input=True)
    with pytest.raises(ValueError, match="save_original_input"), te.autocast(recipe=DelayedScaling()):
        module(torch.ones(16, 32))


@pytest.mark.rule("TEL-44")
def test_a_factory_may_ask_for_delayed_scaling():
    module, x = linear(), torch.randn(16, 32, dtype=torch.bfloat16)
    recipe = CustomRecipe(qfactory=lambda role: DelayedScalingRequest(amax_history_len=4))
    with te.autocast(recipe=recipe):
        module(x)
    reference = linear()
    with te.autocast(recipe=DelayedScaling(amax_history_len=4)):
        reference(x)
    assert module.quantizer("input").scale.item() == reference.quantizer("input").scale.item() != 1
    uneven = CustomRecipe(
        qfactory=lambda role: DelayedScalingRequest(margin=int(role is not None and role.tensor_type == "weight"))
    )
    with pytest.raises(ValueError, match="margin=1"), te.autocast(recipe=uneven):
        linear()(x)


@pytest.mark.rule("TEL-45", "TEL-65")
def test_scales_are_updated_by_the_extension_as_by_a_state():
    from fp4ref.te.delayed_scaling import FP8TensorMeta, fused_amax_and_scale_update_after_reduction

    state = state_of([4.0, 5, 2], margin=1)
    meta = FP8TensorMeta(scale=state.scale.clone(), amax_history=state.amax_history.clone())
    update_scales(state, torch.tensor([3.0]))
    given = torch.tensor([3.0]), [meta.amax_history], [meta.scale], "max", te.DType.kFloat8E4M3, 1
    fused_amax_and_scale_update_after_reduction(*given)
    assert meta.scale.item() == state.scale.item() == np.float32(448 / 2) / np.float32(5)
    assert torch.equal(meta.amax_history, state.amax_history)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.rule("TEL-45", "TEL-46", "TEL-65", "TEL-67", "TEL-93")
@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
def test_updates_on_a_device_are_those_of_a_cpu(algorithm):
    rng = np.random.default_rng(len(algorithm))
    odd = np.float32([0, -0.0, 1e-45, 448, 3e38, np.inf, np.nan])
    for length, operands in ((1, 1), (2, 3), (300, 2), (1024, 3)) * 3:
        recipe = DelayedScaling(amax_history_len=length, amax_compute_algo=algorithm, margin=int(rng.integers(-2, 3)))
        values = rng.random((length, operands)).astype(np.float32)
        states = [
            SimpleNamespace(
                recipe=recipe,
                group=None,
                scale=torch.ones(operands, device=device),
                amax_history=torch.from_numpy(values.copy()).to(device),
                largest=448.0,
            )
            for device in ("cpu", "cuda")
        ]
        for step in range(8):
            current = rng.choice(odd, operands) if step % 2 else rng.random(operands).astype(np.float32)
            for state in states:
                before = state.scale._version, state.amax_history._version
                maxima = torch.from_numpy(current.copy()).to(state.scale.device)
                if step % 4 == 3:  # as without a reduction
                    state.amax_history[0].copy_(maxima)
                    maxima = state.amax_history[0]
                update_scales(state, maxima)
                assert state.scale._version > before[0]
                assert state.amax_history._version > before[1]
            assert states[0].scale.numpy().tobytes() == states[1].scale.cpu().numpy().tobytes()
            assert states[0].amax_history.numpy().tobytes() == states[1].amax_history.cpu().numpy().tobytes()


@pytest.mark.rule("TEL-65")
def test_what_a_backend_does_not_read_is_moved_by_steps(monkeypatch):
    """Another type, a column of a matrix, memory that is shared, and a backend that would fail."""
    monkeypatch.setattr("fp4ref.te.delayed_scaling.server", lambda *rest: (None, lambda *given, **named: 1 / 0))
    shared = torch.zeros(5)
    for history, scale, current in (
        (torch.zeros(2, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64), torch.tensor([7.0]).double()),
        (torch.zeros(2, 2)[:, :1], torch.ones(1), torch.tensor([7.0])),
        (torch.zeros(2, 2), torch.ones(4)[::2], torch.full((2,), 7.0)),
        (shared[:4].view(4, 1), shared[4:], shared[2:3].fill_(7)),
    ):
        fused(current, [history], [scale], "most_recent", te.DType.kFloat8E4M3, 0)
        assert set(scale.tolist()) == {64}
        assert set(history[-1].tolist()) == {7}
    with pytest.raises(ZeroDivisionError):
        fused(torch.tensor([7.0]), [torch.zeros(2, 1)], [torch.ones(1)], "max", te.DType.kFloat8E4M3, 0)
