from __future__ import annotations

import math
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.errors import Fp4Error  # noqa: E402
from fp4ref.te import ops  # noqa: E402
from fp4ref.te.module.activation import GATED, PLAIN  # noqa: E402

RECIPES = {
    "none": None,
    "nvfp4": te.recipe.NVFP4BlockScaling(disable_stochastic_rounding=True),
    "mxfp8": te.recipe.MXFP8BlockScaling(),
    "current": te.recipe.Float8CurrentScaling(),
    "delayed": te.recipe.DelayedScaling(),
    "dequantized": te.recipe.NVFP4BlockScaling(backward_override="dequantized"),
}
BF16: dict[str, Any] = {"dtype": torch.bfloat16}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def results(module: Any, x: torch.Tensor, recipe: Any, *extra: Any) -> list[torch.Tensor]:
    """Two training steps' output and gradients, so that a history of maxima counts."""
    collected = []
    for step in range(2):
        module.zero_grad()
        leaf = (x * (step + 1)).requires_grad_()
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            y = module(leaf, *extra)
        y.backward(random(*y.shape, seed=9))
        collected += [y.detach(), leaf.grad, *(parameter.grad for parameter in module.parameters())]
    return collected


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def copied(target: Any, source: Any) -> Any:
    """The target with the source's parameters, in their order."""
    with torch.no_grad():
        for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
            mine.copy_(theirs)
    return target


@pytest.mark.rule("TEM-32", "TEM-33")
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "dequantized"])  # which LayerNormMLP refuses
def test_a_chain_is_a_layernorm_mlp(name):
    recipe = RECIPES[name]
    module = te.LayerNormMLP(64, 128, activation="swiglu", params_dtype=torch.bfloat16)
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(random(*parameter.shape, seed=number) / 4)
    chain = ops.Sequential(
        ops.LayerNorm(64, **BF16), ops.Linear(64, 256, **BF16), ops.SwiGLU(), ops.Linear(128, 64, **BF16)
    )
    copied(chain, module)
    assert same(results(chain, random(64, 64), recipe), results(module, random(64, 64), recipe))


@pytest.mark.rule("TEM-32")
@pytest.mark.parametrize("zero_centered", [False, True])
def test_a_norm_and_a_product_are_a_layernorm_linear(zero_centered):
    options: dict[str, Any] = {"normalization": "RMSNorm", "bias": False, "zero_centered_gamma": zero_centered}
    module = te.LayerNormLinear(64, 32, **options, params_dtype=torch.bfloat16)
    chain = ops.Sequential(
        ops.RMSNorm((64,), zero_centered_gamma=zero_centered, **BF16), ops.BasicLinear(64, 32, **BF16)
    )
    assert torch.equal(chain[0].weight, module.layer_norm_weight)
    copied(chain, module)
    x = random(2, 32, 64)
    assert same(results(chain, x, RECIPES["mxfp8"]), results(module, x, RECIPES["mxfp8"]))


@pytest.mark.rule("TEM-32")
@pytest.mark.parametrize("name", [*PLAIN, *GATED])
def test_activations_are_those_of_the_modules(name):
    from fp4ref.te.module.activation import activate

    operation = next(kind for key, kind in vars(ops).items() if key.lower() == name)()
    x, y = random(4, 32).requires_grad_(), random(4, 32).requires_grad_()
    ours, theirs = operation(x), activate(name, y)
    ours.sum().backward()
    theirs.sum().backward()
    assert torch.equal(ours, theirs)
    assert torch.equal(x.grad, y.grad)


@pytest.mark.rule("TEM-32")
def test_scaled_and_interleaved_activations():
    x, scales = random(8, 64).requires_grad_(), random(8, seed=1).requires_grad_()
    y = ops.ScaledSwiGLU(glu_interleave_size=8)(x, scales)
    halves = x.double().detach().reshape(8, 4, 2, 8)
    gate, linear = halves[:, :, 0].reshape(8, 32), halves[:, :, 1].reshape(8, 32)
    exact = torch.nn.functional.silu(gate) * linear * scales.double().detach().unsqueeze(-1)
    assert torch.equal(y, exact.float().bfloat16())
    y.sum().backward()
    of_scales = (torch.nn.functional.silu(gate) * linear).sum(-1)
    assert torch.equal(scales.grad, of_scales.float().bfloat16())
    clamped = ops.ScaledClampedQGeGLU(limit=1.0)(torch.full((1, 2), 5.0), torch.ones(1))
    assert clamped.item() == pytest.approx(2 / (1 + math.exp(-1.702)))
    capped = ops.SiTUGLU(beta1=2.0, beta2=3.0)(torch.tensor([[1.0, 4.0]]))
    expected = 2 * math.tanh(1 / 2) / (1 + math.exp(-1)) * 3 * math.tanh(4 / 3)
    assert capped.item() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(Fp4Error, match="beta1"):
        ops.ScaledSiTUGLU(beta1=0)


@pytest.mark.rule("TEM-32")
def test_a_kept_input_is_per_tensor_fp8():
    x = torch.tensor([[448.0, 1.06, 0.0, -3.3]]).requires_grad_()
    ops.SReLU(cache_quantized_input=True)(x).sum().backward()
    assert x.grad.tolist() == [[896.0, 2.0, 0.0, 0.0]]  # 2 x for x > 0, of 448 and 1.0, the E4M3 values next to x


def one_product(weight: float, kind: Any) -> Any:
    """A product of 16 inputs, all but the first times zero."""
    linear = ops.BasicLinear(16, 1, dtype=kind)
    with torch.no_grad():
        linear.weight.zero_()
        linear.weight[0, 0] = weight
    return linear


@pytest.mark.rule("TEM-33")
def test_when_a_bias_is_rounded():
    x = torch.zeros(1, 16)
    x[0, 0], x[0, 1] = 1, 2.0**-8
    for kind, between, expected in (
        (torch.bfloat16, [], 1 + 2**-7),
        (torch.bfloat16, [ops.Identity()], 1.0),
        (torch.float32, [], 1 + 2**-7),
        (torch.float32, [ops.Identity()], 1 + 2**-7),
    ):
        linear, bias = one_product(1, kind), ops.Bias(1, dtype=kind)
        with torch.no_grad():
            linear.weight[0, 1] = 1
            bias.bias.fill_(2.0**-9)
        y = ops.Sequential(linear, *between, bias)(x.to(kind))
        assert y.dtype is kind
        assert y.bfloat16().item() == expected, (kind, between)


@pytest.mark.rule("TEM-34")
@pytest.mark.parametrize(("between", "expected"), [([], 3 * 2**-7), ([ops.Identity()], 2**-5)])
def test_where_a_scale_multiplies_the_gradient(between, expected):
    linear = ops.BasicLinear(16, 2, **BF16)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0], [-1.0]]).expand(2, 16))
    x = torch.ones(1, 16, **BF16).requires_grad_()
    y = ops.Sequential(linear, *between, ops.ConstantScale(3))(x)
    assert y.tolist() == [[48.0, -48.0]]
    y.backward(torch.tensor([[1 + 2**-7, 1.0]], **BF16))
    assert x.grad[0, 0].item() == expected
    first = 3 + 3 * 2**-7 if between else 3 * (1 + 2**-7)
    assert linear.weight.grad[0, 0].item() == torch.tensor(first).bfloat16().item()


@pytest.mark.rule("TEM-35")
def test_gradients_meet_at_an_rmsnorm():
    norm = ops.RMSNorm(2, eps=0.0, **BF16)
    with torch.no_grad():
        norm.weight.fill_(1 + 2**-7)
    gradient = torch.full((1, 2), 1 + 2**-7, **BF16)
    for between, expected in (([], 1 + 2**-6 + 2**-7), ([ops.Identity()], 1 + 2**-6)):
        x = torch.tensor([[1.0, -1.0]], **BF16).requires_grad_()
        y, same_x = ops.Sequential(ops.MakeExtraOutput(), *between, norm)(x)
        assert torch.equal(same_x, x)
        torch.autograd.backward([y, same_x], [gradient, torch.full((1, 2), 2**-8, **BF16)])
        assert x.grad.tolist() == [[expected, expected]]


@pytest.mark.rule("TEM-40", "TEM-54")
def test_sums_in_place_belong_to_the_product():
    """One row of the product is 1 + 2^-8, halfway between two numbers of bfloat16."""
    x, weight = torch.tensor([[1, 2.0**-8]], **BF16), torch.ones(1, 2, **BF16)
    for scale, extra, in_place, expected in (
        (None, 2.0**-9, True, 1 + 2.0**-7),
        (None, 2.0**-9, False, 1.0),
        (3.0, 2.0**-7, True, 3 + 2.0**-6),
        (3.0, 2.0**-7, False, 3.0),
    ):
        linear, scales = ops.BasicLinear(2, 1, **BF16), [ops.ConstantScale(scale)] if scale else []
        with torch.no_grad():
            linear.weight.copy_(weight)
        added = torch.full((1, 1), extra, **BF16).requires_grad_()
        leaf = x.clone().requires_grad_()
        y = ops.Sequential(linear, *scales, ops.AddExtraInput(in_place=in_place))(leaf, added)
        assert y.item() == expected
        assert (y.data_ptr() == added.data_ptr()) is in_place
        y.backward(torch.ones_like(y))
        assert added.grad.item() == 1
        assert leaf.grad.tolist() == [[scale or 1.0] * 2]


@pytest.mark.rule("TEM-46", "TEM-47")
def test_a_gradient_in_place_belongs_to_the_product():
    for bias in ([], [ops.Bias(2, **BF16)]):
        for in_place, expected in ((True, 1 + 2.0**-7), (False, 1.0)):
            linear = ops.BasicLinear(1, 2, **BF16)
            with torch.no_grad():
                linear.weight.copy_(torch.tensor([[1], [2.0**-8]]))
            x = torch.ones(1, 1, **BF16).requires_grad_()
            chain = ops.Sequential(ops.MakeExtraOutput(in_place=in_place), linear, *bias)
            y, same_x = chain(x)
            assert torch.equal(same_x, x)
            assert y.tolist() == [[1, 2.0**-8]]
            torch.autograd.backward([y, same_x], [torch.ones_like(y), torch.full((1, 1), 2.0**-9, **BF16)])
            assert x.grad.item() == expected
            assert linear.weight.grad.tolist() == [[1], [1]]
            y, _ = chain(x.detach().requires_grad_())
            y.sum().backward()
    behind = [ops.AddExtraInput(in_place=True)]
    for operations in (behind, [ops.ConstantScale(2), *behind], [ops.ConstantScale(2)]):
        chain = ops.Sequential(ops.MakeExtraOutput(in_place=True), ops.BasicLinear(2, 2, **BF16), *operations)
        with pytest.raises(NotImplementedError, match=r"\[TEM-47\]"):
            chain(torch.ones(1, 2, **BF16), *[torch.ones(1, 2, **BF16)] * (behind[0] in operations))


@pytest.mark.rule("NUM-6", "TEM-54")
@pytest.mark.parametrize("behind", [[], [ops.ConstantScale(2)], [ops.Bias(32, **BF16)]])
def test_a_sum_in_place_takes_the_place_of_nothing_that_is_read(behind):
    chain = ops.Sequential(ops.BasicLinear(32, 32, **BF16), *behind, ops.AddExtraInput(in_place=True))
    x = random(64, 32)
    taken, column = x[:32], torch.zeros(32 * 32, 1, **BF16)
    for added, error in ((taken, "NUM-6"), (taken.view(2, 16, 32), "NUM-6"), (x[:1], "TEM-54"), (column, "TEM-54")):
        with pytest.raises(ValueError, match=error):
            chain(taken, added)
    assert chain(x[:32], x[32:]).data_ptr() == x[32:].data_ptr()


@pytest.mark.rule("TEM-40")
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_quantized_product_takes_its_sum(recipe):
    """A sum with equal rows is the sum with a bias, which is rounded once, too."""
    x, row = random(32, 64), random(96, seed=3)
    linear = te.Linear(64, 96, params_dtype=torch.bfloat16)
    plain, biased = ops.BasicLinear(64, 96, **BF16), ops.Linear(64, 96, **BF16)
    with torch.no_grad():
        linear.bias.copy_(row)
        plain.weight.copy_(linear.weight)
        biased.weight.copy_(linear.weight)
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        expected = linear(x)
    for product in (plain, biased):
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            y = ops.Sequential(product, ops.AddExtraInput(in_place=True))(x, row.expand(32, 96).clone())
        assert torch.equal(y, expected)


def test_a_chain_names_its_kernels():
    def kinds(listed):
        return [(type(op).__name__, indices) for op, indices in listed]

    gelu = ops.GELU()
    chain = ops.Sequential(gelu, ops.Bias(32, **BF16), ops.Linear(32, 32, **BF16), torch.nn.Identity())
    x = random(32, 32)
    assert chain._module_groups is None
    chain(x)
    alone = [("GELU", [0]), ("Bias", [1])]
    assert len(chain._module_groups) == 2
    first = chain._module_groups[0]
    assert kinds(first._forward_ops) == [*alone, ("ForwardLinearBiasActivation", [2, 3])]
    assert kinds(first._backward_ops) == [*alone, ("BasicLinear", [2]), ("Bias", [3])]
    quantize = ops.Sequential(ops.Quantize(forward=False, backward=True), ops.Bias(32, **BF16), gelu)
    for recipe, expected in ((te.recipe.MXFP8BlockScaling(), ["Quantize", "BackwardActivationBias"]), (None, None)):
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            quantize(x)
        names = [name for name, _ in kinds(quantize._module_groups[0]._backward_ops)]
        assert names == (expected or ["Quantize", "Bias", "GELU"])
    scaled = ops.Sequential(ops.BasicLinear(32, 32, **BF16), ops.ConstantScale(2), ops.AddExtraInput(in_place=True))
    scaled(x, x.clone())
    assert kinds(scaled._module_groups[0]._forward_ops) == [("ForwardLinearScaleAdd", [0, 1, 2])]
    assert kinds(scaled._module_groups[0]._backward_ops) == [("BackwardLinearScale", [0, 1]), ("AddExtraInput", [2])]


@pytest.mark.rule("TEM-36")
def test_two_products_in_a_row():
    chain = ops.Sequential(ops.BasicLinear(32, 32, **BF16), ops.BasicLinear(32, 32, **BF16))
    x = random(32, 32)
    assert chain(x).shape == (32, 32)
    with te.autocast(recipe=RECIPES["delayed"]):
        chain(x)
    for recipe in ("mxfp8", "nvfp4", "current"):
        with te.autocast(recipe=RECIPES[recipe]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(Fp4Error, match="TEM-36"):
                chain(x)
    chain.insert(1, ops.ReLU())
    with te.autocast(recipe=RECIPES["mxfp8"]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chain(x)


@pytest.mark.rule("TEM-32")
def test_quantizing_ahead_changes_nothing():
    linear = ops.BasicLinear(64, 32, **BF16)
    for recipe in (RECIPES["mxfp8"], RECIPES["nvfp4"]):
        chain = ops.Sequential(ops.Quantize(), linear, ops.Quantize(forward=False, backward=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert same(results(chain, random(64, 64), recipe), results(linear, random(64, 64), recipe))
    with te.autocast(recipe=RECIPES["mxfp8"]):
        assert isinstance(ops.Quantize()(random(32, 32)), te.MXFP8Tensor)
    assert type(ops.Quantize()(random(32, 32))) is torch.Tensor


@pytest.mark.rule("TEM-32")
@pytest.mark.parametrize("recipe", ["none", "mxfp8"])
def test_groups_are_a_grouped_linear(recipe):
    module = te.GroupedLinear(2, 64, 32, params_dtype=torch.bfloat16)
    operation = ops.GroupedLinear(2, 64, 32, **BF16)
    assert [name for name, _ in operation.named_parameters()] == ["weight0", "weight1", "bias0", "bias1"]
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(random(*parameter.shape, seed=len(name)))
            operation.get_parameter(name).copy_(parameter)
    x, splits = random(96, 64), torch.tensor([32, 64])
    ours = results(operation, x, RECIPES[recipe], splits)
    theirs = results(module, x, RECIPES[recipe], splits)
    order = [0, 1, 2, 4, 3, 5]
    assert same([ours[i] for i in range(6)], [theirs[i] for i in order])
    scaled = ops.GroupedLinear(2, 64, 32, scale_bias=True, **BF16)
    copied(scaled, operation)
    factors = random(96, seed=3)
    bias = torch.cat([scaled.bias0.expand(32, 32), scaled.bias1.expand(64, 32)])
    plain = ops.GroupedLinear(2, 64, 32, bias=False, **BF16)
    plain.weight0, plain.weight1 = scaled.weight0, scaled.weight1
    assert torch.equal(scaled(x, splits, factors), plain(x, splits) + bias * factors.unsqueeze(-1))


def test_the_container_is_a_list():
    parts = [ops.ReLU(), torch.nn.Identity(), ops.Identity(), ops.GELU()]
    chain = ops.Sequential(*parts[:2]) + parts[2:]
    assert [*chain] == parts
    assert [*chain.state_dict()] == ["0._extra_state", "2._extra_state", "3._extra_state"]
    new = ops.SiLU()
    chain.insert(1, new)
    assert [*chain] == [parts[0], new, *parts[1:]]
    assert [*chain._modules] == ["0", "1", "2", "3", "4"]
    assert chain.pop(1) is new
    assert [*chain[1:3]] == parts[1:3]
    chain[0] = new
    del chain[1:]
    chain += [parts[3]]
    assert [*chain] == [new, parts[3]]
    with pytest.raises(IndexError):
        chain[2]
    named = ops.Sequential({"first": ops.ReLU(), "second": ops.ConstantScale(2.0)})
    assert named(torch.tensor([-1.0, 3.0])).tolist() == [0.0, 6.0]
    assert [*named._modules] == ["first", "second"]


def test_state_dicts_and_parameters_of_a_linear():
    linear = ops.Linear(32, 16)
    names = ["basic_ops.0.weight", "basic_ops.0._extra_state", "basic_ops.1.bias", "basic_ops.1._extra_state"]
    assert [*linear.state_dict()] == names
    other = ops.Linear(32, 16)
    other.load_state_dict(linear.state_dict())
    assert torch.equal(other.weight, linear.weight)
    linear.weight = torch.nn.Parameter(torch.zeros(16, 32))
    linear.bias = torch.nn.Parameter(torch.ones(16))
    assert linear(torch.randn(3, 32)).tolist() == [[1.0] * 16] * 3
    assert len([*linear.parameters()]) == 2
    assert ops.Linear(32, 16, bias=False).bias is None
    with pytest.raises(Fp4Error, match="bias"):
        ops.Linear(32, 16, bias=False).bias = torch.nn.Parameter(torch.ones(16))


def test_operations_on_the_meta_device_are_made_at_the_first_call_or_take_others_parameters():
    chain = ops.Sequential(ops.LayerNorm(32, device="meta"), ops.Linear(32, 16, device="meta"))
    assert {parameter.device.type for parameter in chain.parameters()} == {"meta"}
    module = te.LayerNormLinear(32, 16)
    chain[0].weight, chain[0].bias = module.layer_norm_weight, module.layer_norm_bias
    chain[1].weight = module.weight
    y = chain(torch.randn(4, 32))
    assert chain[1].weight is module.weight
    assert chain[1].bias.tolist() == [0.0] * 16
    y.sum().backward()
    assert module.weight.grad is not None


def test_a_vector_stays_a_vector():
    linear = ops.Linear(32, 16)
    x = torch.randn(32)
    assert linear(x).shape == (16,)
    assert torch.equal(linear(x), linear(x.unsqueeze(0))[0])


def test_packed_weights():
    with te.quantized_model_init(recipe=RECIPES["mxfp8"]):
        linear = ops.Linear(64, 32, **BF16)
        later = ops.Linear(64, 32, device="meta", **BF16)
    assert isinstance(linear.weight, te.MXFP8Tensor)
    with pytest.raises(Fp4Error, match="autocast"):
        later(random(32, 64))
    with te.autocast(recipe=RECIPES["mxfp8"]):
        assert linear(random(32, 64)).shape == later(random(32, 64)).shape
    assert isinstance(later.weight, te.MXFP8Tensor)


def test_gradients_are_added_to_main_grad():
    linear = ops.BasicLinear(32, 16, accumulate_into_main_grad=True, **BF16)
    plain = ops.BasicLinear(32, 16, **BF16)
    copied(plain, linear)
    x = random(8, 32)
    plain(x).sum().backward()
    linear.weight.main_grad = torch.ones(16, 32)
    linear(x).sum().backward()
    exact = torch.ones(16, 32) + x.float().sum(0)
    assert torch.allclose(linear.weight.main_grad, exact, atol=1e-4)
    linear.weight.overwrite_main_grad = True
    linear(x).sum().backward()
    assert torch.equal(linear.weight.main_grad.bfloat16(), plain.weight.grad)


def test_extra_tensors():
    chain = ops.Sequential(ops.MakeExtraOutput(), ops.ConstantScale(2.0), ops.AddExtraInput(), ops.MakeExtraOutput())
    x, other = torch.tensor([1.0], requires_grad=True), torch.tensor([5.0], requires_grad=True)
    y, first, last = chain(x, other)
    assert (y.item(), first.item(), last.item()) == (7.0, 1.0, 7.0)
    (y + 10 * first).sum().backward()
    assert (x.grad.item(), other.grad.item()) == (12.0, 1.0)
    for wrong in ((x,), (x, other, other)):
        with pytest.raises(Fp4Error, match="extra inputs"):
            chain(*wrong)


def test_channels():
    def chain(first, second, **options):
        fork = ops.MakeExtraOutput().set_extra_output_channel(0, first, **options)
        return ops.Sequential(fork, ops.ConstantScale(2.0), ops.AddExtraInput().set_extra_input_channel(0, second))

    x = torch.tensor([1.0], requires_grad=True)
    y, forked = chain("skip", "skip")(x)
    assert (y.item(), forked.item()) == (3.0, 1.0)
    hidden = chain("skip", "skip", output_to_caller=False)(x)
    hidden.backward()
    assert (hidden.item(), x.grad.item()) == (3.0, 3.0)
    with pytest.raises(Fp4Error, match="'other' read"):
        chain("skip", "other")(x)
    with pytest.raises(Fp4Error, match="written again"):
        ops.Sequential(*[ops.MakeExtraOutput().set_extra_output_channel(0, "skip") for _ in range(2)])(x)
    with pytest.raises(IndexError):
        ops.MakeExtraOutput().set_extra_output_channel(1, "skip")
    with pytest.raises(Fp4Error, match="a name"):
        ops.AddExtraInput().set_extra_input_channel(0, "")


class Power(ops.BasicOperation):
    """y = a x^n, as a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(3.0))

    def op_forward(self, ctx, input_, *, prev_op_grad_output_quantizer, next_op_input_quantizer, n=2):
        if ctx.requires_grad:
            ctx.save_for_backward(input_)
            ctx.n = n
        return self.a.detach() * input_**n

    def op_backward(self, ctx, grad_output):
        (x,) = ctx.saved_tensors
        a = self.a.detach()
        return grad_output * a * ctx.n * x ** (ctx.n - 1), [(grad_output * x**ctx.n).sum()]


class Swapped(ops.BasicOperation):
    """Two tensors exchange places."""

    num_extra_inputs = num_extra_outputs = 1

    def fuser_forward(self, basic_op_ctxs, input_, *, basic_op_extra_inputs, **options):
        return basic_op_extra_inputs[0][0].clone(), [(input_.clone(),)]

    def fuser_backward(self, basic_op_ctxs, grad_output, *, basic_op_grad_extra_outputs):
        return basic_op_grad_extra_outputs[0][0], [()], [(grad_output,)]


@pytest.mark.rule("TEM-32")
def test_operations_of_a_user():
    power = Power()
    chain = ops.Sequential(ops.ConstantScale(2.0), power)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = chain(x)
    assert y.tolist() == [12.0, 48.0]
    y.sum().backward()
    assert x.grad.tolist() == [24.0, 48.0]
    assert power.a.grad.item() == 20.0
    assert chain(x, op_kwargs={1: {"n": 3}}).tolist() == [24.0, 192.0]
    with pytest.raises(Fp4Error, match="op_kwargs"):
        chain(x, op_kwargs={Power(): {"n": 3}})
    with torch.no_grad():
        assert not chain(x).requires_grad
    other = torch.tensor([7.0], requires_grad=True)
    first, second = ops.Sequential(Swapped())(x[:1], other)
    (first + 10 * second).backward()
    assert (first.item(), second.item(), other.grad.item()) == (7.0, 1.0, 1.0)
    with pytest.raises(NotImplementedError, match="op_forward"):
        ops.BasicOperation()(x)


def test_operations_on_shapes_and_on_chance():
    x = torch.arange(6.0)
    assert ops.Reshape((2, -1))(x).shape == (2, 3)
    dropout = ops.Dropout(0.5)
    assert set(dropout(torch.ones(1000)).tolist()) == {0.0, 2.0}
    assert torch.equal(dropout.eval()(x), x)
    rows = ops.L2Normalization(eps=0.0)(torch.tensor([[3.0, 4.0]]))
    assert rows.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]


@pytest.mark.rule("TEM-4")
@pytest.mark.parametrize(
    "make",
    [
        lambda: ops.BasicLinear(32, 32, userbuffers_options={"comm_name": "fc1"}),
        lambda: ops.GroupedLinear(2, 32, 32, single_grouped_weight=True),
        lambda: ops.BasicLinear(32, 32, tensor_parallel_mode="diagonal"),
        lambda: ops.ScaledSwiGLU(activation_recompute_in_mlp=True),
    ],
)
def test_options_without_an_emulation(make):
    with pytest.raises(Fp4Error):
        make()


def test_the_alias_has_the_operations():
    te.install_alias()
    try:
        from transformer_engine.pytorch import ops as aliased
        from transformer_engine.pytorch.ops.basic.basic_linear import BasicLinear
        from transformer_engine.pytorch.ops.fused import BackwardLinearScale, UserbuffersForwardLinear

        assert aliased.Sequential is ops.Sequential
        assert BasicLinear is ops.BasicLinear
        assert BackwardLinearScale.__name__ == "BackwardLinearScale"
        for absent in (UserbuffersForwardLinear, aliased.register_forward_fusion, aliased.FusedOperation):
            with pytest.raises(NotImplementedError, match="emulated"):
                absent()
    finally:
        te.uninstall_alias()
