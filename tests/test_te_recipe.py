from __future__ import annotations

import importlib.util
import sys

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.te import MXFP8Quantizer, get_align_size_for_quantization, quantizer_factories, recipe  # noqa: E402
from fp4ref.te.dtypes import DType  # noqa: E402
from fp4ref.te.errors import NotEmulatedError  # noqa: E402
from fp4ref.te.quantization import RecipeState  # noqa: E402
from fp4ref.te.roles import QuantizerRole  # noqa: E402

QParams = recipe.QParams


@pytest.mark.rule("TEL-1")
@pytest.mark.parametrize("rht", [False, True])
@pytest.mark.parametrize("sr", [False, True])
@pytest.mark.parametrize("tiles", [False, True])
def test_nvfp4_operands(rht, sr, tiles):
    made = recipe.NVFP4BlockScaling(
        disable_rht=not rht, disable_stochastic_rounding=not sr, disable_2d_quantization=not tiles
    )
    assert made.fp4_quant_fwd_inp == QParams(random_hadamard_transform=rht)
    assert made.fp4_quant_fwd_weight == QParams(fp4_2d_quantization=tiles)
    assert made.fp4_quant_bwd_grad == QParams(random_hadamard_transform=rht, stochastic_rounding=sr)


@pytest.mark.rule("TEL-17")
@pytest.mark.parametrize("scope", recipe.SCOPES)
@pytest.mark.parametrize("use_256", recipe.SCOPES)
def test_scopes_of_4over6(scope, use_256):
    made = recipe.NVFP4BlockScaling(disable_rht=True, nvfp4_4over6=scope, nvfp4_4over6_e4m3_use_256=use_256)
    for operand, words in (("weight", {"weights", "all"}), ("input", {"activations", "all"})):
        assert made.uses_4over6(operand) == (scope in words)
        assert made.e4m3_max(operand) == (256 if scope in words and use_256 in words else 448)


@pytest.mark.rule("TEL-1", "TEL-2", "TEL-17")
@pytest.mark.parametrize(
    "kind, settings, said",
    [
        (recipe.NVFP4BlockScaling, {"nvfp4_4over6": "some"}, "'some'"),
        (recipe.NVFP4BlockScaling, {"nvfp4_4over6_err_mode": "max"}, "'MAX'"),
        (recipe.NVFP4BlockScaling, {"fp4_format": recipe.Format.E4M3}, "fp4_format E4M3"),
        (recipe.NVFP4BlockScaling, {"fp8_format": recipe.Format.HYBRID}, "fp8_format HYBRID"),
        (recipe.NVFP4BlockScaling, {"backward_override": "fast"}, "'fast'"),
        (recipe.MXFP8BlockScaling, {"fp8_format": recipe.Format.E5M2}, "E5M2"),
        (recipe.Float8CurrentScaling, {"backward_override": 1}, "backward_override 1"),
    ],
)
def test_refused_settings(kind, settings, said):
    with pytest.raises(AssertionError, match=said):
        kind(**settings)


@pytest.mark.rule("TEL-1", "TEL-39")
@pytest.mark.parametrize("name", ["fp8_dpa", "fp8_mha"])
@pytest.mark.parametrize(
    "kind", [recipe.NVFP4BlockScaling, recipe.MXFP8BlockScaling, recipe.DelayedScaling, recipe.CustomRecipe]
)
def test_quantized_attention_is_refused_by_name(kind, name):
    with pytest.raises(NotEmulatedError, match=f"{name}=True"):
        kind(**{name: True}, **({"qfactory": print} if kind is recipe.CustomRecipe else {}))


@pytest.mark.rule("TEL-2")
def test_kinds_and_formats():
    kinds = (recipe.NVFP4BlockScaling, recipe.MXFP8BlockScaling, recipe.Float8CurrentScaling)
    for kind in kinds:
        made = kind()
        assert [made.nvfp4(), made.mxfp8(), made.float8_current_scaling()] == [kind is other for other in kinds]
        assert not any([made.custom(), made.delayed(), made.float8_block_scaling()])
        assert repr(made).startswith(f"recipe_type={kind.__name__}, ")
    assert recipe.Format.HYBRID.value == (448, 57344)
    assert recipe.MXFP8BlockScaling().fp8_format is recipe.Format.E4M3
    assert recipe.Float8CurrentScaling().fp8_format is recipe.Format.HYBRID
    assert recipe.CustomRecipe(qfactory=lambda role: None).custom()


@pytest.mark.rule("TEL-19")
def test_environment_sets_defaults(monkeypatch):
    for name, value in {
        "NVTE_NVFP4_DISABLE_RHT": "1",
        "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING": "1",
        "NVTE_NVFP4_DISABLE_2D_QUANTIZATION": "1",
        "NVTE_NVFP4_ROW_SCALED_ACTIVATION": "1",
        "NVTE_NVFP4_4OVER6": "all",
        "NVTE_NVFP4_4OVER6_E4M3_USE_256": "none",
        "NVTE_NVFP4_4OVER6_ERR_MODE": "mse",
        "NVTE_BACKWARD_OVERRIDE": "dequantized",
    }.items():
        monkeypatch.setenv(name, value)
    source = importlib.util.spec_from_file_location("recipe_of_this_test", recipe.__file__)
    again = importlib.util.module_from_spec(source)
    monkeypatch.setitem(sys.modules, "recipe_of_this_test", again)  # where dataclasses look up their module
    source.loader.exec_module(again)
    made = again.NVFP4BlockScaling()
    assert {name: value for name, value in vars(made).items() if isinstance(value, str | bool)} == {
        "disable_rht": True,
        "disable_stochastic_rounding": True,
        "disable_2d_quantization": True,
        "row_scaled_activation": True,
        "nvfp4_4over6": "all",
        "nvfp4_4over6_e4m3_use_256": "none",
        "nvfp4_4over6_err_mode": "MSE",
        "backward_override": "dequantized",
        "fp8_dpa": False,
        "fp8_mha": False,
    }
    assert again.MXFP8BlockScaling().backward_override == "dequantized"


@pytest.mark.rule("TEL-1", "TEL-16", "TEL-17")
def test_roles_choose_in_either_direction():
    made = recipe.NVFP4BlockScaling(disable_rht=True, nvfp4_4over6="weights", row_scaled_activation=True)
    names = ("input", "weight", "grad_output", "grad_input")
    roles = [QuantizerRole("linear", name) for name in names]
    backward = RecipeState.create(made, mode="backward", num_quantizers=4, roles=roles).make_quantizers()
    assert [q.nvfp4_use_4over6 for q in backward] == [False, True, False, False]
    assert [q.stochastic_rounding for q in backward] == [False, False, True, True]
    assert [q.row_scaled_nvfp4 for q in backward] == [False] * 4
    roles = [*roles[:2], QuantizerRole("linear", "output"), None]
    forward = RecipeState.create(made, mode="forward", num_quantizers=4, roles=roles).make_quantizers()
    assert [q.row_scaled_nvfp4 for q in forward] == [True, False, True, True]
    assert [q.nvfp4_use_4over6 for q in forward] == [False, True, False, False]


@pytest.mark.rule("TEL-18")
def test_4over6_and_a_hadamard_transform_exclude_each_other():
    roles = [QuantizerRole("linear", name) for name in ("input", "weight")]

    def quantizers(**settings):
        made = recipe.NVFP4BlockScaling(**settings)
        return RecipeState.create(made, mode="forward", num_quantizers=2, roles=roles).make_quantizers()

    for scope in ("activations", "all"):
        with pytest.raises(RuntimeError, match=rf"'{scope}' with the Hadamard transform of input.*\[TEL-18\]"):
            quantizers(nvfp4_4over6=scope)
        assert quantizers(nvfp4_4over6=scope, disable_rht=True)[0].nvfp4_use_4over6
    assert [q.nvfp4_use_4over6 for q in quantizers(nvfp4_4over6="weights")] == [False, True]


@pytest.mark.rule("TEL-58")
def test_a_factory_hears_of_the_consumers_of_results():
    heard = []
    made = recipe.CustomRecipe(qfactory=lambda role: heard.append(role) or MXFP8Quantizer())
    mlp = te.LayerNormMLP(32, 64, device="cpu", name="mlp")
    with te.autocast(recipe=made):
        mlp(torch.zeros(32, 32))
    fc1, fc2 = ([f"mlp.{layer} {kind}" for kind in ("input", "weight", "grad_output")] for layer in ("fc1", "fc2"))
    expected = [*fc1[:2], fc2[0], *fc2[:2], "None", fc1[2], "None", fc2[2], fc1[2]]
    assert [f"{role.name} {role.tensor_type}" if role else "None" for role in heard] == expected
    consumer = QuantizerRole("dpa", "qkv", "attention")
    mlp.output_quantizer_role = mlp.grad_input_quantizer_role = consumer
    heard.clear()
    with te.autocast(recipe=made):
        mlp(torch.zeros(32, 32))
    assert [index for index, role in enumerate(heard) if role == consumer] == [5, 7]
    assert (mlp.output_quantizer_role, mlp.fp8_meta_tensors_initialized) == (consumer, True)
    mlp.output_quantizer_role = QuantizerRole("dpa", "qkv", "attention")
    assert mlp.fp8_meta_tensors_initialized
    mlp.grad_input_quantizer_role = None
    assert (mlp.grad_input_quantizer_role, mlp.fp8_meta_tensors_initialized) == (None, False)
    strict = recipe.CustomRecipe(qfactory=lambda role: None)
    with pytest.raises(ValueError, match="no quantizer for"), te.autocast(recipe=strict):
        mlp(torch.zeros(32, 32))


@pytest.mark.rule("TEL-43")
def test_a_role_without_a_known_tensor_is_that_of_its_position():
    def quantizers(kind, roles):
        made = RecipeState.create(kind, mode="forward", num_quantizers=len(roles), roles=roles)
        return made.make_quantizers()

    odd = QuantizerRole("dpa", "qkv")
    got = quantizers(recipe.NVFP4BlockScaling(), [QuantizerRole("linear", "weight"), odd, None, odd, None])
    assert [q.with_rht for q in got] == [False, False, True, True, False]
    assert [q.with_2d_quantization for q in got] == [True, True, False, False, True]
    heard = []
    quantizers(recipe.CustomRecipe(qfactory=lambda role: heard.append(role) or MXFP8Quantizer()), [odd, odd])
    assert heard == [odd, odd]


@pytest.mark.rule("TEL-20")
def test_tiles_need_a_role_that_names_a_linear_layer():
    made = recipe.MXFP8BlockScaling(enable_2d_quantization=True)
    roles = [QuantizerRole(kind, "weight") for kind in ("linear", "grouped_linear", "", "dpa")]
    for given, expected in ((roles, [True, True, False, False]), (None, [False] * 4), ([None] * 4, [False] * 4)):
        state = RecipeState.create(made, mode="forward", num_quantizers=4, roles=given)
        assert [q.with_2d_quantization for q in state.make_quantizers()] == expected


def test_custom_recipes_say_to_what_groups_are_padded():
    factory = {"qfactory": lambda role: MXFP8Quantizer()}
    assert get_align_size_for_quantization(recipe.CustomRecipe(**factory)) == 128
    assert get_align_size_for_quantization(recipe.CustomRecipe(**factory, quantization_alignment=32)) == 32
    assert recipe.CustomRecipe(**factory).fp8_format is recipe.Format.HYBRID
    with pytest.raises(ValueError, match="quantization_alignment must be positive, not 0"):
        recipe.CustomRecipe(**factory, quantization_alignment=0)


@pytest.mark.rule("TEL-55", "TEL-1", "TEL-2", "TEL-48")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvfp4_factory", recipe.NVFP4BlockScaling),
        ("mxfp8_factory", recipe.MXFP8BlockScaling),
        ("current_scaling_factory", recipe.Float8CurrentScaling),
        ("float8_block_scaling_factory", recipe.Float8BlockScaling),
        ("delayed_scaling_factory", recipe.DelayedScaling),
    ],
)
def test_factories_stand_for_the_recipes_with_their_defaults(name, kind):
    def settings(made, mode, tensors):
        roles = [QuantizerRole("linear", tensor) for tensor in tensors]
        state = RecipeState.create(made, mode=mode, num_quantizers=len(roles), roles=roles)
        return [
            {key: value for key, value in vars(q).items() if key not in {"scale", "amax", "role"}}
            for q in state.make_quantizers()
        ]

    custom = recipe.CustomRecipe(qfactory=getattr(quantizer_factories, name))
    for mode, tensors in (("forward", ("input", "weight")), ("backward", ("grad_output",))):
        assert settings(custom, mode, tensors) == settings(kind(), mode, tensors)


@pytest.mark.rule("TEL-55", "TEL-83")
def test_factories_quantize_roles_of_other_modules_as_inputs():
    other = QuantizerRole("dpa", "grad_output")
    for role in (None, other, QuantizerRole("dpa", "weight")):
        made = quantizer_factories.nvfp4_factory(role)
        assert (made.with_rht, made.with_2d_quantization, made.stochastic_rounding) == (True, False, False)
        assert quantizer_factories.float8_block_scaling_factory(role).block_scaling_dim == 1
    assert quantizer_factories.current_scaling_factory(other).dtype is DType.kFloat8E5M2
    assert quantizer_factories.current_scaling_factory(None).dtype is DType.kFloat8E4M3
    mxfp8 = quantizer_factories.mxfp8_factory(other)
    assert (mxfp8.dtype, mxfp8.with_2d_quantization) == (DType.kFloat8E4M3, False)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("kind", [te.NVFP4Quantizer, MXFP8Quantizer, te.Float8CurrentScalingQuantizer])
def test_one_quantizer_for_all_roles_computes_as_one_for_each_does(kind, original, frozen):
    results = []
    shared = kind()
    for factory in (lambda role: kind(), lambda role: shared):
        torch.manual_seed(0)
        layer = te.Linear(64, 96, params_dtype=torch.bfloat16, save_original_input=original)
        layer.weight.requires_grad_(not frozen)
        x = torch.randn(64, 64).bfloat16().requires_grad_()
        for _ in range(2):
            with te.autocast(recipe=recipe.CustomRecipe(qfactory=factory)):
                y = layer(x)
            y.backward(torch.ones_like(y))
        results.append([y.detach(), x.grad, layer.bias.grad, *([] if frozen else [layer.weight.grad])])
    assert all(map(torch.equal, *results))
