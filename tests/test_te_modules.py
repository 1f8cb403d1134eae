from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref.errors import DomainError, Fp4Error  # noqa: E402
from fp4ref.te.checkpoint import checkpoint  # noqa: E402
from fp4ref.te.dtypes import DType  # noqa: E402
from fp4ref.te.module.activation import GATED, PLAIN  # noqa: E402
from fp4ref.te.module.base import TransformerEngineBaseModule, get_dummy_wgrad, quantize_weight  # noqa: E402
from fp4ref.te.module.grouped_linear import GroupedLinear  # noqa: E402
from fp4ref.te.module.layernorm_linear import LayerNormLinear  # noqa: E402
from fp4ref.te.module.layernorm_mlp import LayerNormMLP  # noqa: E402
from fp4ref.te.module.linear import Linear  # noqa: E402
from fp4ref.te.module.norm_modules import LayerNorm, RMSNorm  # noqa: E402
from fp4ref.te.module.normalization import layernorm_bwd, layernorm_fwd, rmsnorm_bwd, rmsnorm_fwd  # noqa: E402
from fp4ref.te.mxfp8_quantizer import MXFP8Quantizer  # noqa: E402
from fp4ref.te.quantization import autocast, quantized_model_init  # noqa: E402
from fp4ref.te.recipe import Float8CurrentScaling, MXFP8BlockScaling, NVFP4BlockScaling  # noqa: E402
from fp4ref.te.storage import restore_from_saved  # noqa: E402

BF16 = torch.bfloat16
PLAIN_NVFP4 = {"disable_rht": True, "disable_stochastic_rounding": True, "disable_2d_quantization": True}
RECIPES = {
    "nvfp4": lambda **k: NVFP4BlockScaling(disable_stochastic_rounding=True, **k),
    "nvfp4-1d": lambda **k: NVFP4BlockScaling(**PLAIN_NVFP4, **k),
    "mxfp8": MXFP8BlockScaling,
    "fp8": Float8CurrentScaling,
}
KINDS = {
    "Linear": lambda **k: Linear(128, 256, **k),
    "LayerNormLinear": lambda **k: LayerNormLinear(128, 256, **k),
    "LayerNormMLP": lambda **k: LayerNormMLP(128, 256, **k),
    "GroupedLinear": lambda **k: GroupedLinear(3, 128, 256, **k),
}
SPLITS = [64, 0, 64]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def call(module: Any, x: Any, **options: Any) -> Any:
    return module(x, SPLITS, **options) if isinstance(module, GroupedLinear) else module(x, **options)


def step(module: Any, x: Any, recipe: Any = None, **options: Any) -> dict[str, Any]:
    """Output, input gradient and parameter gradients of one step against a fixed gradient."""
    x = x.detach().clone().requires_grad_()
    module.zero_grad(set_to_none=True)
    with autocast(enabled=recipe is not None, recipe=recipe):
        y = call(module, x, **options)
    generator = torch.Generator().manual_seed(1)
    y.backward(torch.randn(y.shape, generator=generator).to(y.dtype))
    grads = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {"y": y.detach(), "dx": x.grad, **grads}


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


def relative(a: Any, b: Any) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


def quantized(x: Any, spec: Any, direction: str = "row") -> Any:
    """Values of a matrix (of its transpose for columns) after the model, in float64; codes are not rounded again."""
    q = fp4ref.quantize(x.detach(), spec, direction, backend="numpy")
    return fp4ref.dequantize(q, "float32", direction, backend="numpy").double()


@pytest.mark.rule("TEM-1", "TEL-1", "TEL-2", "TEL-11", "TEL-20")
@pytest.mark.parametrize(
    "recipe, dtype, input_spec, weight_spec, grad_spec",
    [
        (NVFP4BlockScaling(disable_stochastic_rounding=True), BF16, "nvfp4-rht", "nvfp4-2d", "nvfp4-rht"),
        (NVFP4BlockScaling(**PLAIN_NVFP4), BF16, "nvfp4", "nvfp4", "nvfp4"),
        (NVFP4BlockScaling(**PLAIN_NVFP4), torch.float32, "nvfp4", "nvfp4", "nvfp4"),
        (NVFP4BlockScaling(**PLAIN_NVFP4, row_scaled_activation=True), BF16, "nvfp4-row-scaled", "nvfp4", "nvfp4"),
        (
            NVFP4BlockScaling(**PLAIN_NVFP4, nvfp4_4over6="all", nvfp4_4over6_e4m3_use_256="none"),
            BF16,
            "nvfp4-4over6",
            "nvfp4-4over6",
            "nvfp4",
        ),
        (MXFP8BlockScaling(), BF16, "mxfp8-e4m3", "mxfp8-e4m3", "mxfp8-e4m3"),
        (MXFP8BlockScaling(enable_2d_quantization=True), BF16, "mxfp8-e4m3", "mxfp8-2d", "mxfp8-e4m3"),
    ],
    ids=["nvfp4", "nvfp4-1d", "nvfp4-1d-fp32", "row-scaled", "4over6", "mxfp8", "mxfp8-2d"],
)
def test_operands_by_role(recipe: Any, dtype: Any, input_spec: str, weight_spec: str, grad_spec: str) -> None:
    module = Linear(128, 256, bias=False, params_dtype=dtype)
    x = torch.randn(64, 128).to(dtype)
    got = step(module, x, recipe)
    grad = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
    weight = module.weight
    y = quantized(x, input_spec) @ quantized(weight, weight_spec).T
    dx = quantized(grad, grad_spec) @ quantized(weight, weight_spec, "column").T
    dw = quantized(grad, grad_spec, "column") @ quantized(x, input_spec, "column").T
    bound = 2**-8 if dtype is BF16 else 2**-20  # one rounding to bfloat16, or float32 sums in another order
    for name, expected in {"y": y, "dx": dx, "weight": dw}.items():
        assert relative(got[name], expected) < bound, name


@pytest.mark.parametrize("kind", KINDS)
def test_without_autocast_nothing_is_quantized(kind: str) -> None:
    module = KINDS[kind](params_dtype=torch.float32)
    x = torch.randn(128, 128)
    got = step(module, x)
    if kind == "Linear":
        expected = torch.nn.functional.linear(x, module.weight, module.bias)
    elif kind == "GroupedLinear":
        halves = [(x[:64], module.weight0, module.bias0), (x[64:], module.weight2, module.bias2)]
        expected = torch.cat([torch.nn.functional.linear(*half) for half in halves])
    else:
        normed = torch.nn.functional.layer_norm(x, (128,), module.layer_norm_weight, module.layer_norm_bias)
        if kind == "LayerNormLinear":
            expected = torch.nn.functional.linear(normed, module.weight, module.bias)
        else:
            hidden = torch.nn.functional.linear(normed, module.fc1_weight, module.fc1_bias)
            hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
            expected = torch.nn.functional.linear(hidden, module.fc2_weight, module.fc2_bias)
    assert relative(got["y"], expected) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_quantized_step_is_near(kind: str, recipe: str) -> None:
    module = KINDS[kind](params_dtype=BF16)
    x = torch.randn(128, 128).to(BF16)
    exact, got = step(module, x), step(module, x, RECIPES[recipe]())
    for name in exact:
        if exact[name].any():
            assert relative(got[name], exact[name]) < (0.35 if "nvfp4" in recipe else 0.11), name
    if kind == "GroupedLinear":
        assert not got["weight1"].any()
        assert not got["bias1"].any()


@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "LayerNormMLP"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_leading_dimensions(kind: str, recipe: str) -> None:
    module = KINDS[kind](params_dtype=BF16)
    x = torch.randn(4, 32, 128).to(BF16)
    with autocast(recipe=RECIPES[recipe]()):
        y = module(x)
        assert torch.equal(y, module(x.view(128, 128)).view(4, 32, -1))


@pytest.mark.rule("TEM-14")
@pytest.mark.parametrize("kind", ["Linear", "GroupedLinear"])
def test_the_bias_of_a_float32_result_is_rounded_to_bfloat16(kind: str) -> None:
    module = KINDS[kind](params_dtype=torch.float32)
    for name, parameter in module.named_parameters():
        if name.startswith("bias"):
            torch.nn.init.constant_(parameter, 1 + 2**-8)
    x = torch.zeros(128, 128)
    assert (step(module, x)["y"] == 1 + 2**-8).all()
    assert (step(module, x, RECIPES["mxfp8"]())["y"] == 1).all()


@pytest.mark.rule("TEM-5")
def test_members_of_a_group_do_not_see_each_other() -> None:
    module = GroupedLinear(2, 128, 256, params_dtype=BF16)
    x = torch.randn(256, 128).to(BF16).requires_grad_()
    recipe = NVFP4BlockScaling(disable_stochastic_rounding=True)
    with autocast(recipe=recipe):
        y = module(x, [64, 192])
    y.backward(torch.ones_like(y))
    for group, rows in enumerate((slice(0, 64), slice(64, 256))):
        alone = Linear(128, 256, params_dtype=BF16)
        alone.weight.data, alone.bias.data = (
            getattr(module, f"weight{group}").data,
            getattr(module, f"bias{group}").data,
        )
        own = x.detach()[rows].clone().requires_grad_()
        with autocast(recipe=recipe):
            z = alone(own)
        z.backward(torch.ones_like(z))
        assert torch.equal(z, y[rows])
        assert torch.equal(own.grad, x.grad[rows])
        assert torch.equal(alone.weight.grad, getattr(module, f"weight{group}").grad)


@pytest.mark.rule("TEM-45")
@pytest.mark.parametrize("rows", [[64, 0], [0, 64], [0, 0]])
@pytest.mark.parametrize("recipe", [None, *RECIPES])
def test_the_weight_of_an_empty_group_has_a_gradient_of_zero(recipe: str | None, rows: list[int]) -> None:
    module = GroupedLinear(2, 64, 32, params_dtype=BF16)
    x = torch.ones(sum(rows), 64, dtype=BF16, requires_grad=True)
    with autocast(enabled=recipe is not None, recipe=RECIPES[recipe]() if recipe else None):
        y = module(x, rows)
    y.backward(torch.ones_like(y))
    for i, count in enumerate(rows):
        weight, bias = getattr(module, f"weight{i}").grad, getattr(module, f"bias{i}").grad
        assert torch.equal(weight.float(), torch.full((32, 64), float(count)))
        assert torch.equal(bias.float(), torch.full((32,), float(count)))


@pytest.mark.rule("TEM-2", "TEM-15", "TEM-43")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_backward_in_high_precision(kind: str, recipe: str) -> None:
    if kind == "LayerNormMLP":
        pytest.skip("its two layers see different activations")
    module = KINDS[kind](params_dtype=BF16)
    x = torch.randn(128, 128).to(BF16)
    exact = step(module, x)
    got = step(module, x, RECIPES[recipe](backward_override="high_precision"))
    assert not torch.equal(exact.pop("y"), got.pop("y"))
    assert_same(exact, got)


@pytest.mark.rule("TEM-16")
@pytest.mark.parametrize("kind", ["Linear", "GroupedLinear"])
def test_dequantized_operands_win_over_the_original_input(kind: str) -> None:
    plain, original = (KINDS[kind](params_dtype=BF16, save_original_input=choice) for choice in (False, True))
    original.load_state_dict(plain.state_dict())
    x, recipe = torch.randn(128, 128).to(BF16), RECIPES["nvfp4"](backward_override="dequantized")
    assert_same(step(plain, x, recipe), step(original, x, recipe))


def test_parameters_of_a_group_are_in_the_order_of_optimizer_states() -> None:
    module = KINDS["GroupedLinear"]()
    order = [f"{kind}{group}" for group in range(3) for kind in ("weight", "bias")]
    assert [name for name, _ in module.named_parameters()] == order


def test_results_of_a_group_in_the_callers_buffers() -> None:
    module = KINDS["GroupedLinear"](params_dtype=BF16)
    x, recipe = torch.randn(128, 128).to(BF16), RECIPES["nvfp4"]()
    expected = step(module, x, recipe)
    out, dgrad_out = torch.full((128, 256), 7.0, dtype=BF16), torch.full((128, 128), 7.0, dtype=BF16)
    assert_same(expected, step(module, x, recipe, out=out, dgrad_out=dgrad_out))
    assert torch.equal(out.detach(), expected["y"])
    assert torch.equal(dgrad_out, expected["dx"])
    for name, wrong, said in (
        ("out", torch.empty(129, 256, dtype=BF16), r"\[128, 256\]"),
        ("dgrad_out", torch.empty(128, 128), "bfloat16"),
        ("out", torch.empty(256, 128, dtype=BF16).t(), "contiguous"),
        ("out", torch.empty(128, 256, dtype=BF16, requires_grad=True), "gradient"),
    ):
        with pytest.raises(ValueError, match=said):
            module(x, SPLITS, **{name: wrong})


@pytest.mark.rule("TEM-2", "TEM-16", "TEM-43")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("cached", [None, True])
def test_backward_of_dequantized_operands(kind: str, recipe: str, cached: bool | None) -> None:
    module = KINDS[kind](params_dtype=BF16)
    x = torch.randn(128, 128).to(BF16)
    made = RECIPES[recipe](backward_override="dequantized")
    if kind == "LayerNormMLP":
        with pytest.raises(AssertionError, match="backward_override=dequantized, need LayerNormLinear and Linear"):
            step(module, x, made, is_first_microbatch=cached)
        return
    got = step(module, x, made, is_first_microbatch=cached)
    assert torch.equal(got["y"], step(module, x, RECIPES[recipe]())["y"])
    if kind != "Linear" or recipe == "fp8":
        return
    specs = {"nvfp4": ("nvfp4", "nvfp4-2d"), "nvfp4-1d": ("nvfp4", "nvfp4"), "mxfp8": ("mxfp8-e4m3", "mxfp8-e4m3")}
    values, weights = (
        fp4ref.dequantize(fp4ref.quantize(t.detach(), spec), "bfloat16")
        for t, spec in zip((x, module.weight), specs[recipe], strict=True)
    )
    grad = torch.randn(128, 256, generator=torch.Generator().manual_seed(1)).to(BF16)
    assert relative(got["dx"], grad.double() @ weights.double()) < 2**-8
    assert relative(got["weight"], grad.double().T @ values.double()) < 2**-8


def saved_bytes(module: Any, recipe: Any) -> int:
    """Bytes that autograd keeps between the passes, parameters aside."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.randn(256, 128).to(BF16).requires_grad_()
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, autocast(enabled=recipe is not None, recipe=recipe):
        y = module(x)
    assert y.requires_grad
    return sum(kept.values())


@pytest.mark.rule("TEM-13")
@pytest.mark.parametrize("recipe, per_element", [("nvfp4", 9 / 16), ("mxfp8", 33 / 32), ("fp8", 1)])
def test_packed_bytes_are_kept_for_the_backward_pass(recipe: str, per_element: float) -> None:
    module = Linear(128, 128, bias=False, params_dtype=BF16)
    for parameter in module.parameters():
        parameter.requires_grad_()
    weight, activation = 128 * 128, 256 * 128
    assert saved_bytes(module, None) >= activation * 2
    scalars = 8
    assert saved_bytes(module, RECIPES[recipe]()) <= (weight + activation) * per_element + scalars
    override = saved_bytes(module, RECIPES[recipe](backward_override="dequantized"))
    assert override <= (weight + activation) * per_element + scalars


def test_the_quantized_original_may_be_kept_instead() -> None:
    x = torch.randn(128, 128).to(BF16)
    plain, original = (Linear(128, 256, params_dtype=BF16, save_original_input=choice) for choice in (False, True))
    original.load_state_dict(plain.state_dict())
    assert_same(step(plain, x, RECIPES["nvfp4"]()), step(original, x, RECIPES["nvfp4"]()))


@pytest.mark.parametrize("name", [*PLAIN, *GATED, "clamped_swiglu"])
def test_activations_are_differentiated(name: str) -> None:
    module = LayerNormMLP(32, 64, activation=name, params_dtype=torch.float32)
    assert module.fc1_weight.shape[0] == (64 if name in PLAIN else 128)
    from fp4ref.te.module.activation import activate, function_of

    x = torch.randn(8, 64, requires_grad=True)
    activate(name, x).sum().backward()
    expected = x.detach().clone().requires_grad_()
    function_of(name, {})(expected).sum().backward()
    assert torch.allclose(x.grad, expected.grad, atol=1e-6)


def test_gelu_and_swiglu_by_formula() -> None:
    from fp4ref.te.module.activation import activate

    x = torch.linspace(-3, 3, 12).view(1, 12)
    assert torch.equal(activate("gelu", x), torch.nn.functional.gelu(x, approximate="tanh"))
    a, b = x[:, :6], x[:, 6:]
    assert torch.allclose(activate("swiglu", x), a / (1 + torch.exp(-a)) * b)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_norms(kind: Any, zero_centered: bool, dtype: Any) -> None:
    module = kind(64, eps=1e-5, zero_centered_gamma=zero_centered, params_dtype=dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    x = torch.randn(3, 5, 64).to(dtype).requires_grad_()
    y = module(x)
    y.backward(torch.ones_like(y) * 0.5)
    gamma = module.weight.detach().double() + zero_centered
    wide = x.detach().double().requires_grad_()
    if kind is LayerNorm:
        expected = torch.nn.functional.layer_norm(wide, (64,), gamma, module.bias.detach().double(), 1e-5)
    else:
        expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gamma
    expected.backward(torch.ones_like(expected) * 0.5)
    bound = 2**-8 if dtype is BF16 else 1e-6
    assert relative(y, expected) < bound
    assert relative(x.grad, wide.grad) < max(bound, 1e-5)


def test_outputs_that_are_asked_for() -> None:
    x = torch.randn(64, 128)
    module = LayerNormLinear(128, 256, return_bias=True, return_layernorm_output=True)
    y, bias, normed = module(x)
    assert torch.equal(bias, module.bias)
    assert relative(y, normed @ module.weight.T) < 1e-6
    y, bias, normed = LayerNormMLP(128, 256, return_bias=True, return_layernorm_output=True)(x)
    assert y.shape == normed.shape == x.shape
    y, biases = GroupedLinear(2, 128, 256, return_bias=True)(x, [32, 32])
    assert [tuple(bias.shape) for bias in biases] == [(256,), (256,)]


def test_split_parameters_are_one_weight() -> None:
    module = Linear(128, 192, parameters_split={"query_": 64, "key_value": 128}, params_dtype=BF16)
    assert [*dict(module.named_parameters())] == ["query_weight", "key_value_weight", "query_bias", "key_value_bias"]
    whole = Linear(128, 192, params_dtype=BF16)
    whole.weight.data = torch.cat([module.query_weight, module.key_value_weight]).detach()
    x = torch.randn(64, 128).to(BF16)
    parts, expected = step(module, x, RECIPES["nvfp4"]()), step(whole, x, RECIPES["nvfp4"]())
    assert torch.equal(parts["y"], expected["y"])
    assert torch.equal(torch.cat([parts["query_weight"], parts["key_value_weight"]]), expected["weight"])


@pytest.mark.rule("TEM-4")
@pytest.mark.parametrize(
    "kind, option, value",
    [
        ("Linear", "ub_overlap_rs", True),
        ("Linear", "ub_overlap_ag", True),
        ("Linear", "symmetric_ar_type", "multimem_all_reduce"),
        ("LayerNormLinear", "ub_bulk_dgrad", True),
        ("LayerNormMLP", "activation", "softplus"),
        ("LayerNormMLP", "normalization", "BatchNorm"),
        ("GroupedLinear", "single_grouped_weight", True),
        ("Linear", "parallel_mode", "diagonal"),
    ],
)
def test_unsupported_options_are_refused_by_name(kind: str, option: str, value: Any) -> None:
    with pytest.raises(DomainError, match=option):
        KINDS[kind](**{option: value})


@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "GroupedLinear"])
def test_a_name_for_buffers_overlaps_nothing(kind: str) -> None:
    KINDS[kind](ub_name="fc1")  # as Megatron's experts pass it, with every overlap off


def test_an_error_is_raised_again_with_more_words() -> None:
    with pytest.raises(DomainError) as caught:
        KINDS["Linear"](ub_overlap_ag=True)
    again = type(caught.value)(f"{caught.value} when instantiating MLP")  # as Megatron's specifications do
    assert str(again) == f"{caught.value} when instantiating MLP"


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_options_are_refused_by_name(kind: str) -> None:
    with pytest.raises(TypeError, match="unknown_option"):
        KINDS[kind](unknown_option=1)


def test_quantized_outputs_are_refused_by_name() -> None:
    with pytest.raises(DomainError, match="fp8_output"):
        Linear(32, 32)(torch.randn(32, 32), fp8_output=True)


@pytest.mark.parametrize(
    "recipe, shape, match",
    [
        (RECIPES["nvfp4-1d"](), (8, 128), "16"),
        (RECIPES["mxfp8"](), (16, 128), "32"),
    ],
)
def test_shapes_that_do_not_divide(recipe: Any, shape: tuple[int, int], match: str) -> None:
    module = Linear(128, 128, params_dtype=BF16)
    with autocast(recipe=recipe), pytest.raises(Fp4Error, match=match):
        module(torch.randn(shape).to(BF16))


def test_hadamard_needs_bfloat16() -> None:
    module = Linear(128, 128)
    with autocast(recipe=NVFP4BlockScaling()), pytest.raises(Fp4Error, match="bfloat16"):
        module(torch.randn(64, 128))


def test_wrong_splits() -> None:
    module = GroupedLinear(2, 64, 64)
    with pytest.raises(Fp4Error, match="3 m_splits"):
        module(torch.randn(64, 64), [32, 16, 16])
    with pytest.raises(Fp4Error, match="64 rows"):
        module(torch.randn(64, 64), [32, 16])


def test_parameters_and_input_have_one_type() -> None:
    with pytest.raises(Fp4Error, match="weight"):
        Linear(64, 64, params_dtype=BF16)(torch.randn(32, 64))


def test_torch_autocast_chooses_the_type() -> None:
    module = Linear(128, 256)
    x = torch.randn(64, 128, requires_grad=True)
    with torch.autocast("cpu", BF16), autocast(recipe=NVFP4BlockScaling()):
        y = module(x)
    assert y.dtype is BF16
    y.sum().backward()
    assert module.weight.grad.dtype is torch.float32
    assert x.grad.dtype is torch.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", [None, "nvfp4"])
def test_gradients_of_weights_may_come_later(kind: str, recipe: str | None) -> None:
    plain, delayed = KINDS[kind](params_dtype=BF16), KINDS[kind](params_dtype=BF16, delay_wgrad_compute=True)
    delayed.load_state_dict(plain.state_dict())
    x = torch.randn(128, 128).to(BF16)
    made = RECIPES[recipe]() if recipe else None
    expected, got = step(plain, x, made), step(delayed, x, made)
    assert delayed.need_backward_dw()
    for name in delayed.weight_operands():
        assert got.pop(name) is None
        wanted = expected.pop(name)
        delayed.backward_dw()
        assert torch.equal(getattr(delayed, name).grad, wanted)
    assert_same(expected, got)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_tokens(kind: str, recipe: str) -> None:
    module = (
        GroupedLinear(3, 128, 256, params_dtype=BF16) if kind == "GroupedLinear" else KINDS[kind](params_dtype=BF16)
    )
    x = torch.randn(0, 128).to(BF16).requires_grad_()
    with autocast(recipe=RECIPES[recipe]()):
        y = module(x, [0, 0, 0]) if kind == "GroupedLinear" else module(x)
    y.sum().backward()
    assert y.shape[0] == 0
    assert x.grad.shape == x.shape
    assert not any(parameter.grad.any() for parameter in module.parameters())


@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "LayerNormMLP"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_recomputation_is_under_the_recipe_of_the_forward_pass(kind: str, recipe: str) -> None:
    module = KINDS[kind](params_dtype=BF16)
    x = torch.randn(128, 128).to(BF16)
    expected = step(module, x, RECIPES[recipe]())
    assert_same(expected, step(recomputing(module), x, RECIPES[recipe]()))
    with pytest.raises(DomainError, match="distribute_saved_activations"):
        checkpoint(module, x, distribute_saved_activations=True)


def recomputing(module: Any) -> Any:
    """A module that recomputes another; parameters keep their names."""

    class Recomputed(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return checkpoint(module, x)

        def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
            return module.named_parameters(*args, **kwargs)

    return Recomputed()


@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear"])
def test_the_forward_pass_computes_nothing_again(kind: str, monkeypatch: Any) -> None:
    module, calls = KINDS[kind](params_dtype=BF16), []
    monkeypatch.setattr(module, "prepare_forward", lambda x: calls.append(1) or type(module).prepare_forward(module, x))
    x = torch.randn(32, 128).to(BF16).requires_grad_()
    y = checkpoint(module, x)
    assert len(calls) == 1
    y.sum().backward(retain_graph=True)
    once, x.grad = x.grad, None
    y.sum().backward()
    assert torch.equal(once, x.grad)


@pytest.mark.heavy  # imports the compiler
def test_a_compiled_model_has_the_same_bits() -> None:
    """The compiler warns of its own reading of gradients, which is none of ours."""
    model = torch.nn.Sequential(KINDS["LayerNormLinear"](), torch.nn.ReLU(), Linear(256, 128), RMSNorm(128))
    x, recipe = torch.randn(32, 128), MXFP8BlockScaling()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = step(torch.compile(model, backend="eager"), x, recipe)
    expected = {name.replace("_orig_mod.", ""): value for name, value in compiled.items()}
    assert_same(step(model, x, recipe), expected)


def test_gradient_is_added_to_main_grad() -> None:
    x = torch.randn(64, 128).to(BF16)
    plain = Linear(128, 256, bias=False, params_dtype=BF16)
    fused = Linear(128, 256, bias=False, params_dtype=BF16, fuse_wgrad_accumulation=True)
    fused.weight.data = plain.weight.data
    expected = step(plain, x, RECIPES["mxfp8"]())["weight"]
    fused.weight.main_grad = torch.ones(256, 128)
    assert step(fused, x, RECIPES["mxfp8"]())["weight"] is None
    assert relative(fused.weight.main_grad - 1, expected) < 2**-8
    step(fused, x, RECIPES["mxfp8"](), is_first_microbatch=True)
    assert relative(fused.weight.main_grad, expected) < 2**-8
    del fused.weight.main_grad
    with pytest.raises(DomainError, match="main_grad"):
        step(fused, x, RECIPES["mxfp8"]())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_packed_parameters(kind: str, recipe: str) -> None:
    made = RECIPES[recipe]()
    with quantized_model_init(recipe=made, preserve_high_precision_init_val=True):
        packed = KINDS[kind](params_dtype=BF16)
    ordinary = KINDS[kind](params_dtype=BF16)
    for name, parameter in packed.named_parameters():
        value = getattr(parameter, "get_high_precision_init_val", lambda p=parameter: p.detach())()
        dict(ordinary.named_parameters())[name].data = value
    x = torch.randn(128, 128).to(BF16)
    assert_same(step(packed, x, made), step(ordinary, x, made))


def test_packed_parameters_of_another_recipe() -> None:
    with quantized_model_init(recipe=RECIPES["mxfp8"]()):
        module = Linear(128, 128, params_dtype=BF16)
    with (
        autocast(recipe=RECIPES["nvfp4"]()),
        pytest.raises(DomainError, match="Recipe mismatch for weight: packed by MXFP8Quantizer under NVFP4"),
    ):
        module(torch.randn(32, 128).to(BF16))


@pytest.mark.parametrize("kind", KINDS)
def test_state_goes_through_a_checkpoint(kind: str, tmp_path: Any) -> None:
    module, other = KINDS[kind](params_dtype=BF16), KINDS[kind](params_dtype=BF16)
    x = torch.randn(128, 128).to(BF16)
    before = step(module, x, RECIPES["nvfp4"]())
    assert any(name.endswith("_extra_state") for name in module.state_dict())
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert_same(before, step(other, x, RECIPES["nvfp4"]()))


def test_meta_parameters_are_made_later() -> None:
    module = LayerNormLinear(64, 64, device="meta")
    assert module.weight.is_meta
    assert module.layer_norm_weight.is_meta
    module.reset_parameters()
    assert module(torch.randn(16, 64)).shape == (16, 64)


def test_a_changed_recipe_takes_effect() -> None:
    module = Linear(128, 128, params_dtype=BF16)
    recipe = NVFP4BlockScaling(**PLAIN_NVFP4)
    x = torch.randn(64, 128).to(BF16)
    first = step(module, x, recipe)
    recipe.fp4_quant_fwd_weight = type(recipe.fp4_quant_fwd_weight)(fp4_2d_quantization=True)
    assert not torch.equal(first["y"], step(module, x, recipe)["y"])


@pytest.mark.parametrize("recipe", [None, *RECIPES])
@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
def test_a_block_may_be_computed_again_in_the_backward_pass(recipe: str | None, normalization: str) -> None:
    chosen = None if recipe is None else RECIPES[recipe]()
    plain = LayerNormMLP(128, 256, params_dtype=BF16, normalization=normalization)
    again = LayerNormMLP(128, 256, params_dtype=BF16, normalization=normalization, checkpoint=True)
    again.load_state_dict(plain.state_dict())
    x = torch.randn(64, 128).to(BF16)
    assert_same(step(plain, x, chosen), step(again, x, chosen))
    assert saved_bytes(again, chosen) < saved_bytes(plain, chosen) / 4


@pytest.mark.rule("TEM-2", "TEM-13")
@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "GroupedLinear"])
@pytest.mark.parametrize("override", [None, "high_precision", "dequantized"])
def test_the_node_of_the_graph_says_how_it_goes_back(kind: str, override: str | None) -> None:
    module = KINDS[kind](params_dtype=BF16)
    x = torch.randn(128, 128).to(BF16).requires_grad_()
    with autocast(recipe=RECIPES["mxfp8"](backward_override=override)):
        node = call(module, x).grad_fn
    assert node.backward_override == override
    assert node.fp8 is node.reduce_and_update_bwd_fp8_tensors is (override is None)
    if kind != "GroupedLinear":
        assert (node.grad_output_quantizer is None) is (override is not None)
    kept = restore_from_saved(node.tensor_objects, list(node.saved_tensors))
    whole = override == "high_precision"
    if kind == "LayerNormLinear":
        x_again, weight, _, _, gamma, normed, mean, rstd = kept
        assert torch.equal(x_again, x)
        assert torch.equal(gamma, module.layer_norm_weight)
        assert mean.numel() == rstd.numel() == 128
        kept = [normed, weight]
    assert len(kept) == ((1 if whole else 3) + 3 if kind == "GroupedLinear" else 2)
    if override == "dequantized":
        assert all(tensor._rowwise_data is not None and tensor._columnwise_data is None for tensor in kept)


def test_every_weight_of_a_shape_has_one_placeholder_for_its_gradient() -> None:
    module = Linear(64, 64, bias=False, fuse_wgrad_accumulation=True)
    module.weight.main_grad = torch.full((64, 64), 2.0)
    module.weight.grad_added_to_main_grad, module.weight.zero_out_wgrad = False, True
    get_dummy_wgrad([64, 64], torch.float32).fill_(1)
    module(torch.ones(64, 64)).sum().backward()
    assert module.weight.grad_added_to_main_grad is True
    assert torch.equal(module.weight.main_grad, torch.full((64, 64), 66.0))
    assert module.weight.grad.data_ptr() == get_dummy_wgrad([64, 64], torch.float32).data_ptr()
    assert not module.weight.grad.any()


@pytest.mark.rule("TEM-3")
def test_a_kept_weight_of_another_type_is_made_anew() -> None:
    quantizer, weight = MXFP8Quantizer(), torch.randn(64, 64)
    _, kept = quantize_weight(tensor=weight, quantizer=quantizer, workspace_dtype=BF16, cache=True)
    same, new = quantize_weight(
        tensor=weight * 2, quantizer=quantizer, workspace=kept, workspace_dtype=BF16, cache=True
    )
    assert same is kept
    assert new is None
    assert torch.equal(kept._rowwise_data, quantizer((weight * 2).to(BF16))._rowwise_data)
    other, new = quantize_weight(tensor=weight, quantizer=quantizer, workspace=kept, cache=True, update_workspace=False)
    assert other is kept
    _, new = quantize_weight(
        tensor=weight, quantizer=quantizer, workspace=kept, workspace_dtype=torch.float32, cache=True
    )
    assert new is not kept
    with pytest.raises(RuntimeError, match="no quantizer"):
        quantize_weight(tensor=weight)


class Own(TransformerEngineBaseModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(32, 32))

    def _get_weight_tensors(self) -> list[Any]:
        return [self.weight]

    def _get_weight_quantizers(self) -> list[Any]:
        return [self.quantizers["scaling_fwd"][1]]

    def forward(self, x: Any) -> Any:
        x = self.prepare_forward(x, num_gemms=1, allow_non_contiguous=True)
        try:
            return x @ self._get_weight_quantizers()[0](self._get_weight_tensors()[0])
        finally:
            self.end_forward()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_module_of_ones_own_gets_quantizers(recipe: str) -> None:
    x = torch.randn(32, 32).t()
    with autocast(recipe=RECIPES[recipe]()):
        y = Own()(x)
    assert torch.allclose(y, x @ torch.ones(32, 32), rtol=1e-5, atol=1e-5)


def test_norms_by_the_compiled_librarys_names() -> None:
    x, gamma, beta, dy = torch.randn(8, 64), torch.randn(64), torch.randn(64), torch.randn(8, 64)
    y, mean, rstd = layernorm_fwd(x, gamma, beta, 1e-5, None, None, torch.float32, 0, True)
    leaf = x.clone().requires_grad_()
    expected = torch.nn.functional.layer_norm(leaf, (64,), gamma + 1, beta, 1e-5)
    expected.backward(dy)
    assert torch.allclose(y, expected, atol=1e-6)
    assert torch.allclose(mean, x.mean(1), atol=1e-6)
    dx, dgamma, dbeta = layernorm_bwd(dy, x, mean, rstd, gamma, 0, True)
    assert torch.allclose(dx, leaf.grad, atol=1e-5)
    assert torch.allclose(dbeta, dy.sum(0), atol=1e-5)
    assert dgamma.shape == gamma.shape
    quantizer, out = MXFP8Quantizer(columnwise=False), torch.empty(32, 64)
    rows = torch.randn(32, 64)
    y, none, rstd = rmsnorm_fwd(rows, gamma, 1e-5, out, None, DType.kFloat32)
    assert none is None
    assert y is out
    assert torch.allclose(out, torch.nn.functional.rms_norm(rows, (64,), gamma, 1e-5), atol=1e-6)
    packed, _, _ = rmsnorm_fwd(rows, gamma, 1e-5, None, quantizer, DType.kFloat32)
    assert torch.equal(packed._rowwise_data, quantizer(out)._rowwise_data)
    dx, dgamma = rmsnorm_bwd(torch.ones(32, 64), rows, rstd, gamma)
    leaf = rows.clone().requires_grad_()
    torch.nn.functional.rms_norm(leaf, (64,), gamma, 1e-5).sum().backward()
    assert torch.allclose(dx, leaf.grad, atol=1e-5)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float16, BF16])
def test_norms_follow_torch_autocast(kind: Any, dtype: Any) -> None:
    module, x = kind(64), torch.randn(8, 64, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        y = module(x)
    y.sum().backward()
    assert torch.equal(y, module(x).to(dtype))
    assert x.grad.dtype is module.weight.grad.dtype is torch.float32


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_norms_leave_the_meta_device_when_they_are_reset(kind):
    module = kind(64, device="meta", sequence_parallel=True, zero_centered_gamma=True)
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    module.reset_parameters()
    other = kind(64, zero_centered_gamma=True)
    for (name, parameter), expected in zip(module.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, expected), name
        assert parameter.sequence_parallel is True
