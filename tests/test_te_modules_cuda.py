from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.te import debug, together  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

STABLE = {"disable_stochastic_rounding": True}
OPTIONS = {"params_dtype": torch.bfloat16, "device": "cuda"}
KINDS = {
    "Linear": lambda: te.Linear(256, 128, **OPTIONS),
    "LayerNormLinear": lambda: te.LayerNormLinear(256, 128, **OPTIONS),
    "LayerNormMLP": lambda: te.LayerNormMLP(256, 512, activation="swiglu", **OPTIONS),
    "GroupedLinear": lambda: te.GroupedLinear(3, 256, 128, **OPTIONS),
}
RECIPES = {
    "nvfp4": te.recipe.NVFP4BlockScaling(**STABLE),
    "mxfp8": te.recipe.MXFP8BlockScaling(),
    "fp8": te.recipe.Float8CurrentScaling(),
    "dequantized": te.recipe.NVFP4BlockScaling(**STABLE, backward_override="dequantized"),
}


def step(module: Any, x: Any, recipe: Any, is_first_microbatch: bool | None) -> list[Any]:
    x = x.detach().clone().requires_grad_()
    module.zero_grad(set_to_none=True)
    arguments = (x, [128, 0, 128]) if isinstance(module, te.GroupedLinear) else (x,)
    with te.autocast(recipe=recipe):
        y = module(*arguments, is_first_microbatch=is_first_microbatch)
    y.float().square().mean().backward()
    return [y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.rule("TEM-1")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_steps_are_near_the_cpus(kind: str, recipe: str) -> None:
    torch.manual_seed(0)
    module = KINDS[kind]()
    x = torch.randn(256, 256).bfloat16()
    there = step(module, x.cuda(), RECIPES[recipe], None)
    here = step(module.cpu(), x, RECIPES[recipe], None)
    for a, b in zip(there, here, strict=True):
        if b.any():  # sums in another order may round an operand of a later product to its other neighbour
            assert (a.cpu().float() - b.float()).norm() < 0.03 * b.float().norm()


@pytest.mark.rule("TEM-3")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_cached_and_uncached_steps_are_equal(kind: str, recipe: str) -> None:
    torch.manual_seed(0)
    module = KINDS[kind]()
    x = torch.randn(256, 256, device="cuda").bfloat16()
    for first in (True, False):
        cached = step(module, x, RECIPES[recipe], first)
        assert all(torch.equal(a, b) for a, b in zip(cached, step(module, x, RECIPES[recipe], None), strict=True))


STEPS = {
    **RECIPES,
    "none": None,
    "nvfp4, stochastic": te.recipe.NVFP4BlockScaling(),
    "nvfp4, plain": te.recipe.NVFP4BlockScaling(**STABLE, disable_rht=True, disable_2d_quantization=True),
    "nvfp4, high precision": te.recipe.NVFP4BlockScaling(**STABLE, backward_override="high_precision"),
    "mxfp8, dequantized": te.recipe.MXFP8BlockScaling(backward_override="dequantized"),
    "delayed": te.recipe.DelayedScaling(),
}


@pytest.mark.rule("TEM-1", "TEL-6", "TEL-7")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", STEPS)
def test_repeated_steps_are_those_that_decide_everything_anew(kind: str, recipe: str, monkeypatch: Any) -> None:
    inputs = [torch.randn(256, 256, device="cuda").bfloat16() * scale for scale in (1, 1e-3, 30, 1, 2)]
    seen = []
    for repeats in (True, False):
        if not repeats:
            monkeypatch.setattr(together, "server", lambda *_: None)
        torch.manual_seed(7)
        debug.reset_operation_counts()
        module = KINDS[kind]()
        steps = [step(module, x, STEPS[recipe], None) for x in inputs]
        seen.append((steps, debug.operation_counts()))
    (mine, counts), (anew, expected) = seen
    assert counts == expected
    for here, there in zip(mine, anew, strict=True):
        for a, b in zip(here, there, strict=True):
            assert torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.rule("TEM-3")
@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear"])
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8"])
def test_a_graph_sees_the_updated_weight(kind: str, recipe: str) -> None:
    torch.manual_seed(0)
    module, made = KINDS[kind](), RECIPES[recipe]
    x = torch.randn(256, 256, device="cuda").bfloat16()

    def forward(first: bool) -> Any:
        with te.autocast(recipe=made):
            return module(x, is_first_microbatch=first)

    forward(True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            forward(False)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = forward(False)
    with torch.no_grad():
        module.weight.add_(torch.randn_like(module.weight) * 0.5)
    forward(True)
    expected = forward(False).detach().clone()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)
