from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref import te  # noqa: E402
from fp4ref.quantized import DIRECTIONS  # noqa: E402
from fp4ref.te import debug, rng, together  # noqa: E402
from fp4ref.te.quantization import FP8GlobalStateManager  # noqa: E402

several = pytest.importorskip("fp4ref_cuda.several")

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


def pairs(recipes: Any) -> list[tuple[str, str]]:
    """Return the names of modules and recipes; LayerNormMLP refuses an override."""
    refused = {name for name, recipe in recipes.items() if recipe is not None and recipe.backward_override}
    return [(kind, name) for kind in KINDS for name in recipes if kind != "LayerNormMLP" or name not in refused]


def step(
    module: Any, x: Any, recipe: Any, is_first_microbatch: bool | None, splits: tuple[int, ...] = (128, 0, 128)
) -> list[Any]:
    x = x.detach().clone().requires_grad_()
    module.zero_grad(set_to_none=True)
    arguments = (x, splits) if isinstance(module, te.GroupedLinear) else (x,)
    with te.autocast(recipe=recipe):
        y = module(*arguments, is_first_microbatch=is_first_microbatch)
    y.float().square().mean().backward()
    return [y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.rule("TEM-1")
@pytest.mark.parametrize("kind, recipe", pairs(RECIPES))
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
@pytest.mark.parametrize("kind, recipe", pairs(RECIPES))
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
    "blocks": te.recipe.Float8BlockScaling(),
    "blocks, dequantized": te.recipe.Float8BlockScaling(backward_override="dequantized"),
}


@pytest.mark.rule("TEM-1", "TEL-6", "TEL-7")
@pytest.mark.parametrize("splits", [(128, 0, 128), (128, 64, 64)], ids=["an empty group", "no empty group"])
@pytest.mark.parametrize("kind, recipe", pairs(STEPS))
def test_repeated_steps_are_those_that_decide_everything_anew(
    kind: str, recipe: str, splits: tuple[int, ...], monkeypatch: Any
) -> None:
    inputs = [torch.randn(256, 256, device="cuda").bfloat16() * scale for scale in (1, 1e-3, 30, 1, 2)]
    seen = []
    monkeypatch.setattr(several, "_several", {})
    monkeypatch.setattr(several, "_met", {})
    for repeats in (True, False):
        if not repeats:
            monkeypatch.setattr(together, "server", lambda *_: None)
        torch.manual_seed(7)
        debug.reset_operation_counts()
        module = KINDS[kind]()
        steps = [step(module, x, STEPS[recipe], None, splits) for x in inputs]
        seen.append((steps, debug.operation_counts()))
    (mine, counts), (anew, expected) = seen
    multiplies = torch.cuda.get_device_capability() == (9, 0) and not (kind == "GroupedLinear" and 0 in splits)
    assert several._several or not multiplies
    assert counts == expected
    for here, there in zip(mine, anew, strict=True):
        for a, b in zip(here, there, strict=True):
            assert torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.rule("TEL-44", "TEL-47")
@pytest.mark.parametrize("kind", ["Linear", "GroupedLinear"])
def test_modules_of_a_kind_keep_their_own_scales(kind: str, monkeypatch: Any) -> None:
    """Two modules of delayed scaling, one after the other: each has the scales of what it was given."""
    inputs = [torch.randn(256, 256, device="cuda").bfloat16() * scale for scale in (1, 3, 0.01, 40, 2, 7)]
    seen = []
    for repeats in (True, False):
        monkeypatch.setattr(several, "_several", {})
        monkeypatch.setattr(several, "_met", {})
        if not repeats:
            monkeypatch.setattr(together, "server", lambda *_: None)
        torch.manual_seed(7)
        FP8GlobalStateManager.reset()
        modules, recipe = [KINDS[kind](), KINDS[kind]()], te.recipe.DelayedScaling(amax_history_len=3)
        steps = [
            step(module, x * factor, recipe, None, (128, 64, 64))
            for x in inputs
            for module, factor in zip(modules, (1, 1000), strict=True)
        ]
        assert bool(several._several) == (repeats and torch.cuda.get_device_capability() == (9, 0))
        metas = [module.fp8_meta[way] for module in modules for way in ("scaling_fwd", "scaling_bwd")]
        seen.append(
            [*(x for each in steps for x in each), *(x for each in metas for x in (each.scale, each.amax_history))]
        )
    for mine, anew in zip(*seen, strict=True):
        assert torch.equal(mine.view(torch.uint8), anew.view(torch.uint8))


SPLITS = (64, 32, 160)


@pytest.mark.rule("TEM-1")
@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("kind", ["Linear", "GroupedLinear"])
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "fp8", "blocks"])
def test_a_graph_can_hold_any_call_of_a_kind(kind: str, recipe: str, before: int, monkeypatch: Any) -> None:
    """Capture the first call, the one that is recorded, or one that is repeated; and go on after it."""
    torch.manual_seed(0)
    module, x = KINDS[kind](), torch.randn(256, 256, device="cuda").bfloat16()
    run = lambda: step(module, x, STEPS[recipe], None, SPLITS)  # noqa: E731
    with monkeypatch.context() as plain:
        plain.setattr(together, "server", lambda *_: None)
        expected = run()  # which loads the kernels, too
    monkeypatch.setattr(several, "_several", {})
    monkeypatch.setattr(several, "_met", {})
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(before):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = run()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(run(), expected, strict=True))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(held, expected, strict=True))


@pytest.mark.rule("TEM-1")
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "fp8"])
def test_neither_the_recorded_call_nor_its_program_needs_much_more_memory(recipe: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(several, "_several", {})
    monkeypatch.setattr(several, "_met", {})
    module = te.GroupedLinear(8, 1024, 2048, **OPTIONS)
    x = torch.randn(2048, 1024, device="cuda").bfloat16()
    peaks = []
    for _ in range(4):
        module.zero_grad(set_to_none=True)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step(module, x, RECIPES[recipe], None, (256,) * 8)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert several._several or torch.cuda.get_device_capability() != (9, 0)
    assert max(peaks[1:]) < 1.25 * peaks[0]


@pytest.mark.rule("TEM-1")
@pytest.mark.parametrize("recipe", ["nvfp4", "nvfp4, stochastic", "mxfp8", "fp8", "blocks", "delayed"])
def test_steps_that_follow_each_other_at_once_are_those_that_wait(recipe: str, monkeypatch: Any) -> None:
    """Arrays of a program share memory, and its kernels start early: nothing may write what another one still reads."""
    inputs = [torch.randn(256, 256, device="cuda").bfloat16() * 2.0 ** (turn % 7) for turn in range(40)]
    seen = []
    for repeats in (True, False):
        if not repeats:
            monkeypatch.setattr(together, "server", lambda *_: None)
        torch.manual_seed(7)
        modules = [KINDS[kind]() for kind in ("GroupedLinear", "Linear")]
        steps = []
        for x in inputs:
            for module in modules:
                steps += step(module, x, STEPS[recipe], None, SPLITS)
                if not repeats:
                    torch.cuda.synchronize()
        seen.append(steps)
    for a, b in zip(*seen, strict=True):
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


@pytest.mark.rule("TEM-3", "TEM-17")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "fp8"])
def test_a_graph_updates_the_kept_weight_as_the_flag_says(kind: str, recipe: str) -> None:
    """The update itself is captured; every replay reads on the device whether to quantize the weights again."""
    torch.manual_seed(0)
    module, x, manager = KINDS[kind](), torch.randn(256, 256, device="cuda").bfloat16(), FP8GlobalStateManager

    def forward(first: bool | None) -> Any:
        arguments = (x, SPLITS) if isinstance(module, te.GroupedLinear) else (x,)
        with torch.no_grad(), te.autocast(recipe=RECIPES[recipe]):
            return module(*arguments, is_first_microbatch=first)

    def replayed(skip: bool) -> Any:
        manager.set_skip_fp8_weight_update_tensor(skip)
        graph.replay()
        torch.cuda.synchronize()
        return y.clone()

    def change() -> Any:
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.ndim > 1:
                    parameter.add_(torch.randn_like(parameter) * 0.5)
        return forward(None).clone()

    seen = forward(True).clone()
    buffers = [b.data_ptr() for each in module._fp8_workspaces.values() for b in each.buffers()]
    try:
        manager.set_skip_fp8_weight_update_tensor(False)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                forward(False)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = forward(False)
        for _ in range(2):
            new = change()
            assert not torch.equal(new, seen)
            assert torch.equal(replayed(True), seen)
            assert torch.equal(replayed(False), new)
            assert torch.equal(forward(False), new)  # the kept weight is the graph's
            seen = new
    finally:
        manager.reset()
    assert [b.data_ptr() for each in module._fp8_workspaces.values() for b in each.buffers()] == buffers


@pytest.mark.rule("TEL-6")
def test_a_graph_draws_other_bytes_at_every_replay() -> None:
    device, shape, graph = torch.device("cuda"), (64, 144), torch.cuda.CUDAGraph()
    rng.random_bytes(shape, "both", rng.next_state(device), device)  # which loads the kernel
    with torch.cuda.graph(graph):
        state = rng.next_state(device)
        drawn = rng.random_bytes(shape, "both", state, device)
    seeds = set()
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        seed = int(state.seed) & rng.SEED_MASK
        seeds.add(seed)
        for direction, bits in zip(DIRECTIONS, drawn, strict=True):
            expected = fp4ref.random_bits(shape, direction, seed, backend="numpy")
            assert bits.cpu().numpy().tobytes() == expected.tobytes()
    assert len(seeds) == 3


@pytest.mark.rule("TEL-6", "TEM-1", "TEL-76")
@pytest.mark.parametrize("before", range(4))
def test_a_graph_of_a_step_rounds_stochastically_anew(before: int) -> None:
    torch.manual_seed(0)
    module, x = KINDS["Linear"](), torch.randn(256, 256, device="cuda").bfloat16()
    run = lambda: step(module, x, te.recipe.NVFP4BlockScaling(), None)  # noqa: E731
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(before + 1):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, dx, *_ = run()
    seen = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        seen.append((y.clone(), dx.clone()))
    assert all(torch.equal(seen[0][0], each[0]) for each in seen)
    assert not any(torch.equal(seen[a][1], seen[b][1]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert all((seen[0][1].float() - each[1].float()).norm() < 0.2 * each[1].float().norm() for each in seen)
