"""Steps that are repeated as one: what their kinds have to hold, and the storage that comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import warnings
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from covering import few  # noqa: E402
from fp4ref import registry, te  # noqa: E402
from fp4ref.te import debug, together  # noqa: E402
from fp4ref.te.module import grouped_function, grouped_linear, linear_function  # noqa: E402

E4M3 = te.DType.kFloat8E4M3
STABLE = {"disable_stochastic_rounding": True}
RECIPES = {
    "none": None,
    "nvfp4": te.recipe.NVFP4BlockScaling(**STABLE),
    "nvfp4, stochastic": te.recipe.NVFP4BlockScaling(),
    "nvfp4, plain": te.recipe.NVFP4BlockScaling(**STABLE, disable_rht=True, disable_2d_quantization=True),
    "nvfp4, dequantized": te.recipe.NVFP4BlockScaling(**STABLE, backward_override="dequantized"),
    "nvfp4, high precision": te.recipe.NVFP4BlockScaling(**STABLE, backward_override="high_precision"),
    "mxfp8": te.recipe.MXFP8BlockScaling(),
    "mxfp8, e5m2 backward": te.recipe.MXFP8BlockScaling(fp8_format=te.recipe.Format.HYBRID),
    "fp8": te.recipe.Float8CurrentScaling(),
    "delayed": te.recipe.DelayedScaling(),
    "blocks": te.recipe.Float8BlockScaling(),
}
MODULES = {
    "Linear": lambda **k: te.Linear(64, 96, params_dtype=torch.bfloat16, **k),
    "without bias": lambda **k: te.Linear(64, 96, bias=False, params_dtype=torch.bfloat16, **k),
    "original input": lambda **k: te.Linear(64, 96, save_original_input=True, params_dtype=torch.bfloat16, **k),
    "LayerNormMLP": lambda **k: te.LayerNormMLP(64, 128, params_dtype=torch.bfloat16, **k),
    "GroupedLinear": lambda **k: te.GroupedLinear(2, 64, 96, params_dtype=torch.bfloat16, **k),
}


def frozen(act):
    """Return the function with quantizers of its own, as they are set now."""
    if not isinstance(act, partial):
        return act
    call, *others = act.args
    own = {
        name: value.copy() if isinstance(value, te.Quantizer) else [each.copy() for each in value]
        for name, value in vars(call).items()
        if "quantizer" in name and value is not None
    }
    return partial(act.func, dataclasses.replace(call, **own), *others)


@contextlib.contextmanager
def lent(tensors, others):
    """Have tensors the values of others, as a program reads those that it is given; both are changed alike."""
    before = [each.detach().clone() for each in tensors]
    for mine, given in zip(tensors, others, strict=True):
        mine.detach().copy_(given.detach())
    yield
    for mine, given in zip(tensors, others, strict=True):
        assert torch.equal(mine, given)
    for mine, given, value in zip(tensors, others, before, strict=True):
        if mine is not given:
            mine.detach().copy_(value)


class Repeating:
    """Call the function that the first call of a kind came with, as a program of it would, and compare."""

    def __init__(self):
        self.kept, self.repeated = {}, 0

    def __call__(self, kind, inputs, act):
        read = None if kind is None else together._opened(inputs)
        if read is None:
            return act(*inputs)
        tensors, forms = read
        shapes = tuple(None if each is None else (each.dtype, each.shape, each.stride()) for each in tensors)
        key = kind, *forms, shapes
        numbers = [each for each in tensors if each is not None and each.numel() == 1]  # scales and amaxes, too
        first, its = self.kept.get(key, (None, None))
        if first is None:
            self.kept[key] = frozen(act), numbers
            return act(*inputs)
        with debug.noted() as counts:
            now = act(*inputs)
        self.repeated += 1
        with debug.noted() as again, lent(its, numbers):
            then = first(*inputs)
        assert counts == again
        (mine, form), (other, expected) = together._opened(then), together._opened(now)
        assert form == expected
        for a, b in zip(mine, other, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
                assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        return now


@pytest.fixture
def repeating(monkeypatch):
    made = Repeating()
    for each in (linear_function, grouped_function, grouped_linear):
        monkeypatch.setattr(each, "together", made)
    return made


def step(module, x, recipe, *, grad=True, weights=True, first=None):
    for parameter in module.parameters():
        parameter.requires_grad_(weights)
    x = x.detach().clone().requires_grad_(grad)
    arguments = (x, [x.shape[0] - 64, 64]) if isinstance(module, te.GroupedLinear) else (x,)
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        y = module(*arguments, is_first_microbatch=first)
    if y.requires_grad:
        y.float().square().mean().backward()


@pytest.mark.sampled(3)
@pytest.mark.rule("TEM-1", "TEM-2", "TEM-15", "TEM-16", "TEL-6", "TEL-7")
@pytest.mark.parametrize("module", few(sorted(MODULES, key=lambda name: " " in name), 3))
def test_a_kind_holds_all_that_a_pass_decides_by(module, repeating):
    """Run every recipe with and without gradients in one module, so that settings follow each other."""
    torch.manual_seed(0)
    modules = [MODULES[module](), MODULES[module](name="another")]
    for name, (grad, weights) in itertools.product(RECIPES, ((True, True), (True, False), (False, True))):
        overrides = RECIPES[name] is not None and RECIPES[name].backward_override
        if (module == "original input" and name == "delayed") or (module == "LayerNormMLP" and overrides):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a recipe's change
            for each, rows in itertools.product(modules, (128, 192, 128)):
                step(each, torch.randn(rows, 64).bfloat16(), RECIPES[name], grad=grad, weights=weights)
    assert repeating.repeated > 100


@pytest.mark.rule("TEM-11")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("mode", ["column", "row"])
def test_a_process_alone_has_all_rows_whatever_its_layer_says(mode, recipe, repeating):
    """The option is the only difference of two layers: no group is there, and no key has to hold it."""
    torch.manual_seed(0)
    layers = [te.Linear(64, 96, params_dtype=torch.bfloat16, parallel_mode=mode) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    layers[1].sequence_parallel = True
    for _ in range(3):
        x = torch.randn(128, 64).bfloat16()
        for each in layers:
            each.zero_grad(set_to_none=True)
            torch.manual_seed(1)
            step(each, x, RECIPES[recipe])
        for one, other in zip(*(each.parameters() for each in layers), strict=True):
            assert torch.equal(one.grad.view(torch.uint8), other.grad.view(torch.uint8))


@pytest.mark.rule("TEM-15")
@pytest.mark.parametrize("module", ["Linear", "GroupedLinear"])
def test_an_input_that_is_quantized_again_is_so_by_its_own_recipe(module, repeating):
    """Two recipes that differ in the type of the input alone, which the backward pass reads from its original."""

    def recipe(kind):
        return te.recipe.CustomRecipe(
            qfactory=lambda role: te.MXFP8Quantizer(kind if role and role.tensor_type == "input" else E4M3)
        )

    torch.manual_seed(0)
    layer = MODULES[module](save_original_input=True)
    recipes = [recipe(E4M3), recipe(te.DType.kFloat8E5M2)]
    for each in recipes * 3:
        step(layer, torch.randn(128, 64).bfloat16(), each)
    assert repeating.repeated > 5


@pytest.mark.rule("TEM-34", "TEL-32")
def test_factors_of_either_sign_of_zero_are_two_kinds(repeating):
    torch.manual_seed(0)
    scale = te.ops.ConstantScale(0.0)
    operations = te.ops.Sequential(te.ops.Linear(64, 96, bias=False, dtype=torch.bfloat16), scale)
    x = torch.randn(64, 64).bfloat16().requires_grad_()
    for factor in (0.0, -0.0, 0.0, -0.0):
        scale.scale = factor
        with te.autocast(recipe=RECIPES["mxfp8"]):
            operations(x).backward(torch.ones(64, 96).bfloat16())
    assert repeating.repeated > 2


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize(
    ("speed", "devices", "runs", "repeats"),
    [
        (19, ("cuda",), True, True),
        (21, ("cpu",), True, True),
        (21, ("cuda",), False, True),
        (21, ("cuda",), True, False),
    ],
)
def test_nothing_is_repeated_where_a_faster_backend_serves_some_of_the_steps(
    monkeypatch, speed, devices, runs, repeats
):
    """Another backend's kernels are none that ours could note, whatever operations it has."""
    ours = SimpleNamespace(together=lambda *_: None)
    declared = [
        registry.Backend(name="ours", load=lambda: ours, operations=("together",), devices=("cuda",), speed=20),
        registry.Backend(name="other", load=lambda: ours, operations=("multiply",), devices=devices, speed=speed),
    ]
    loaded = {"ours": ours, "other": ours if runs else "no driver"}
    monkeypatch.setattr(registry, "backends", lambda kept={each.name: each for each in declared}: kept)
    monkeypatch.setattr(registry, "_loaded", loaded.get)
    found = together.server("cuda", registry.registered())
    assert (found is not None) == repeats
    if repeats:
        assert found[1] is ours.together


class Counting(te.GroupedLinear):
    """A module of a user's, which does something else with each weight too."""

    def get_weight_workspace(self, **settings):
        self.asked = getattr(self, "asked", 0) + 1
        return super().get_weight_workspace(**settings)


def test_a_module_that_prepares_weights_in_its_own_way_does_so_in_each_call(monkeypatch):
    kept = {}

    def last(kind, inputs, act):
        """Return what an earlier call of the kind returned, as if a program had made it."""
        if kind is None:
            return act(*inputs)
        found = kept[kind] = kept.get(kind) or act(*inputs)
        return tuple(map(together.sharing_buffers, found))

    monkeypatch.setattr(grouped_linear, "together", last)
    module = Counting(2, 64, 96, params_dtype=torch.bfloat16)
    for count in range(1, 4):
        step(module, torch.randn(128, 64).bfloat16(), RECIPES["mxfp8"])
        assert module.asked == 2 * count
    assert not kept
    step(te.GroupedLinear(2, 64, 96, params_dtype=torch.bfloat16), torch.randn(128, 64).bfloat16(), RECIPES["mxfp8"])
    assert kept


@pytest.mark.rule("TEM-14")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("module", ["Linear", "GroupedLinear"])
def test_a_layer_of_which_only_the_bias_learns_has_its_gradient_alone(module, recipe, repeating):
    torch.manual_seed(0)
    layer, x = MODULES[module](), torch.randn(128, 64).bfloat16()
    arguments = (x, [64, 64]) if module == "GroupedLinear" else (x,)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_("bias" in name)
    for _ in range(2):
        layer.zero_grad(set_to_none=True)
        state = torch.get_rng_state()
        with te.autocast(enabled=RECIPES[recipe] is not None, recipe=RECIPES[recipe]):
            layer(*arguments).backward(torch.ones(128, 96).bfloat16())
        assert torch.equal(torch.get_rng_state(), state)
        for name, parameter in layer.named_parameters():
            if "bias" in name:
                assert (parameter.grad == 128 / len(arguments)).all()
            else:
                assert parameter.grad is None
