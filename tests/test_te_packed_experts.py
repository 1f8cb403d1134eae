"""Experts in one parameter, as transformers packs them; scales kept for a recomputation."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.te.quantization import FP8GlobalStateManager  # noqa: E402
from fp4ref.torch_modules import QuantizedLinear, quantize_linears  # noqa: E402

PLAIN = {"disable_rht": True, "disable_stochastic_rounding": True}


class SmallExperts(torch.nn.Module):
    def __init__(self, by_linear=True):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.up = torch.nn.Parameter(torch.randn(3, 64, 32, generator=generator))
        self.down = torch.nn.Parameter(torch.randn(3, 32, 64, generator=generator))
        self.by_linear = by_linear

    def forward(self, x):
        total = torch.zeros_like(x)
        for expert in range(3):
            if self.by_linear:
                hidden = torch.nn.functional.linear(x, self.up[expert], torch.ones(64))
            else:
                hidden = x @ self.up[expert].T
            total += torch.nn.functional.linear(hidden.relu(), self.down[expert])
        return total


class Model(torch.nn.Module):
    def __init__(self, by_linear=True):
        super().__init__()
        self.experts = SmallExperts(by_linear)

    def forward(self, x):
        return self.experts(x)


def by_layers(model, x, recipe):
    """The same products, by converted layers of their own."""

    def product(x, weight):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight = torch.nn.Parameter(weight.detach())
        return te.convert(layer, recipe)(x)

    total = torch.zeros_like(x)
    for expert in range(3):
        hidden = product(x, model.experts.up[expert]) + 1
        total += product(hidden.relu(), model.experts.down[expert])
    return total


class Conv1D(torch.nn.Module):
    """As in transformers, whose models of GPT-2 have it for all their linear layers."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = torch.nn.Parameter(torch.randn(nx, nf, generator=torch.Generator().manual_seed(nf)))
        self.bias = torch.nn.Parameter(torch.arange(float(nf)))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, self.nx), self.weight).view(*x.shape[:-1], self.nf)


def transposed(layer):
    linear = torch.nn.Linear(layer.nx, layer.nf)
    linear.weight, linear.bias = (torch.nn.Parameter(p.detach().clone()) for p in (layer.weight.t(), layer.bias))
    return linear


@pytest.mark.rule("TEM-41")
@pytest.mark.example("TEM-41")
@pytest.mark.parametrize("recipe", [te.recipe.NVFP4BlockScaling(**PLAIN), te.recipe.MXFP8BlockScaling()])
@pytest.mark.parametrize("alone", [False, True])
def test_transposed_layers_compute_as_linear_ones(recipe, alone):
    layer, x = Conv1D(96, 32), torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    linear = te.convert(transposed(layer), recipe)
    model = te.convert(layer if alone else torch.nn.Sequential(layer).eval(), recipe)
    module = model if alone else model[0]
    assert module.weight is layer.weight
    assert module.bias is layer.bias
    assert list(model.state_dict()) == (["weight", "bias"] if alone else ["0.weight", "0.bias"])
    y, want = copy.deepcopy(model)(x), linear(x)
    assert torch.equal(y, want)
    model(x).square().sum().backward()
    want.square().sum().backward()
    assert torch.equal(layer.weight.grad, linear.weight.grad.t())
    assert torch.equal(layer.bias.grad, linear.bias.grad)
    with pytest.raises(ValueError, match=r"of \[32, 40\]"):
        te.convert(Conv1D(40, 32), recipe)


def test_fake_quantization_of_transposed_layers():
    layer, x = Conv1D(96, 32), torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Sequential(layer)
    assert quantize_linears(model, "nvfp4", "mxfp8-e4m3") == ["0"]
    assert torch.equal(model(x), QuantizedLinear(transposed(layer), "nvfp4", "mxfp8-e4m3")(x))


@pytest.mark.rule("TEM-37", "TEM-48")
@pytest.mark.example("TEM-37")
def test_slices_of_packed_experts_are_quantized():
    recipe, x = te.recipe.MXFP8BlockScaling(), torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    model = te.convert(Model(), recipe)
    y = model(x)
    assert torch.equal(y, by_layers(model, x, recipe))
    assert not torch.equal(y, Model()(x))
    y.sum().backward()
    assert model.experts.up.grad.abs().sum() > 0
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.experts.up.zero_()
    assert torch.equal(model(x), y)
    assert not torch.equal(twin(x), y)
    with pytest.raises(NotImplementedError, match="experts, which multiplies its experts by"):
        te.convert(Model(by_linear=False), recipe)(x)


@pytest.mark.rule("TEM-37", "TEM-22")
def test_experts_are_selected_and_have_whole_blocks():
    recipe, x = te.recipe.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True), torch.ones(16, 32)
    with pytest.raises(ValueError, match="without a torch.nn.Linear"):
        te.convert(Model(), recipe, select="other.*")
    model = Model()
    model.experts.up = torch.nn.Parameter(torch.ones(3, 40, 32))
    with pytest.raises(ValueError, match=r"experts.up of \[40, 32\]"):
        te.convert(model, recipe)
    assert Model()(x).shape == (16, 32)


@pytest.mark.rule("TEL-71")
def test_scales_are_kept_for_a_recomputation():
    module, manager = te.Linear(32, 32, device="cpu"), FP8GlobalStateManager
    with te.autocast(recipe=te.recipe.DelayedScaling(amax_history_len=2)):
        module(torch.ones(32, 32))
    state = module.fp8_meta["scaling_fwd"]
    manager.copy_forward_fp8_meta_tensors_for_recompute(module.fp8_meta)
    before = state.scale.clone(), state.amax_history.clone()
    state.scale.fill_(3), state.amax_history.fill_(5)
    manager.get_old_fp8_meta_tensors_for_recompute(module.fp8_meta)
    assert torch.equal(state.scale, before[0])
    assert torch.equal(state.amax_history, before[1])
    manager.restore_fp8_meta_tensors(module.fp8_meta)
    assert (state.scale == 3).all()
    assert (state.amax_history == 5).all()
    with pytest.raises(ValueError, match="nothing kept"):
        manager.get_old_fp8_meta_tensors_for_recompute(module.fp8_meta)
    manager.copy_forward_fp8_meta_tensors_for_recompute({})
    manager.get_old_fp8_meta_tensors_for_recompute({})
    manager.restore_fp8_meta_tensors({})


@pytest.mark.rule("TEL-39")
@pytest.mark.parametrize("name", ["register_forward_fusion", "register_backward_fusion", "FusedOperation"])
def test_fusions_of_users_are_refused_by_name(name):
    with pytest.raises(NotImplementedError, match=name):
        getattr(te.ops, name)(lambda ops, **_: ops)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        te.ops.nothing  # noqa: B018
