from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fp4ref.errors import DomainError  # noqa: E402
from fp4ref.te import debug  # noqa: E402
from fp4ref.te.capability import emulate_device  # noqa: E402
from fp4ref.te.module.grouped_linear import GroupedLinear  # noqa: E402
from fp4ref.te.module.layernorm_linear import LayerNormLinear  # noqa: E402
from fp4ref.te.module.layernorm_mlp import LayerNormMLP  # noqa: E402
from fp4ref.te.module.linear import Linear  # noqa: E402
from fp4ref.te.quantization import FP8GlobalStateManager, autocast, quantized_model_init  # noqa: E402
from fp4ref.te.recipe import Float8CurrentScaling, MXFP8BlockScaling, NVFP4BlockScaling  # noqa: E402

BF16 = torch.bfloat16
STABLE = {"disable_stochastic_rounding": True}
MICROBATCHES = 3
KINDS = {
    "Linear": lambda **k: Linear(128, 256, params_dtype=BF16, **k),
    "LayerNormLinear": lambda **k: LayerNormLinear(128, 256, params_dtype=BF16, **k),
    "LayerNormMLP": lambda **k: LayerNormMLP(128, 256, params_dtype=BF16, **k),
    "GroupedLinear": lambda **k: GroupedLinear(2, 128, 256, params_dtype=BF16, **k),
}
WEIGHTS = {"Linear": 1, "LayerNormLinear": 1, "LayerNormMLP": 2, "GroupedLinear": 2}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.manual_seed(0)
    debug.reset_operation_counts()


def step(module: Any, x: Any, recipe: Any, is_first_microbatch: bool | None) -> list[Any]:
    x = x.detach().clone().requires_grad_()
    module.zero_grad(set_to_none=True)
    arguments = (x, [64, 64]) if isinstance(module, GroupedLinear) else (x,)
    with autocast(recipe=recipe):
        y = module(*arguments, is_first_microbatch=is_first_microbatch)
    y.float().pow(2).mean().backward()
    return [y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]


def batch(module: Any, recipe: Any, cached: bool) -> list[Any]:
    """Several microbatches; the weight's counts of them are those of `counts`."""
    results = []
    for index in range(MICROBATCHES):
        x = torch.randn(128, 128, generator=torch.Generator().manual_seed(index)).to(BF16)
        results += step(module, x, recipe, index == 0 if cached else None)
    return results


def counts(role: str = "weight") -> tuple[int, int]:
    """Standalone and in-quantize swizzles."""
    found = debug.operation_counts()
    return found["swizzle_standalone"].get(role, 0), found["swizzle_in_quantize"].get(role, 0)


@pytest.mark.sampled(4)
@pytest.mark.rule("TEM-20", "TEL-7")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "recipe, cached, uncached",
    [
        (NVFP4BlockScaling(**STABLE), (0, 2), (0, 2 * MICROBATCHES)),
        (MXFP8BlockScaling(), (0, 2), (0, 2 * MICROBATCHES)),
        (NVFP4BlockScaling(disable_2d_quantization=True, **STABLE), (2 * MICROBATCHES, 0), (2 * MICROBATCHES, 0)),
        (
            NVFP4BlockScaling(disable_rht=True, nvfp4_4over6="weights", **STABLE),
            (2 * MICROBATCHES, 0),
            (2 * MICROBATCHES, 0),
        ),
        (Float8CurrentScaling(), (0, 0), (0, 0)),
    ],
    ids=["nvfp4-2d", "mxfp8", "nvfp4-1d", "nvfp4-4over6", "fp8"],
)
def test_swizzles_of_a_weight(kind: str, recipe: Any, cached: tuple[int, int], uncached: tuple[int, int]) -> None:
    module = KINDS[kind]()
    batch(module, recipe, cached=True)
    assert counts() == tuple(WEIGHTS[kind] * times for times in cached)
    debug.reset_operation_counts()
    batch(module, recipe, cached=False)
    assert counts() == tuple(WEIGHTS[kind] * times for times in uncached)


def test_an_unaligned_weight_stays_compact() -> None:
    recipe = NVFP4BlockScaling(**STABLE)
    module = Linear(128, 192, params_dtype=BF16)
    batch(module, recipe, cached=True)
    assert not module._fp8_workspaces["weight"]._with_gemm_swizzled_scales
    assert counts() == (2 * MICROBATCHES, 0)


@pytest.mark.rule("TEM-20")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", [NVFP4BlockScaling(**STABLE), MXFP8BlockScaling(), Float8CurrentScaling()])
def test_packed_parameters_are_never_swizzled(kind: str, recipe: Any) -> None:
    with quantized_model_init(recipe=recipe):
        module = KINDS[kind]()
    batch(module, recipe, cached=True)
    per_tensor = isinstance(recipe, Float8CurrentScaling)
    assert counts() == (0 if per_tensor else 2 * MICROBATCHES * WEIGHTS[kind], 0)
    assert not module._fp8_workspaces
    for name in module.weight_operands():
        assert not getattr(getattr(module, name), "_with_gemm_swizzled_scales", False)


@pytest.mark.rule("TEM-17")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", [NVFP4BlockScaling(**STABLE), MXFP8BlockScaling(), Float8CurrentScaling()])
def test_cached_and_uncached_steps_are_equal(kind: str, recipe: Any) -> None:
    first, second = KINDS[kind](), KINDS[kind]()
    second.load_state_dict(first.state_dict())
    for a, b in zip(batch(first, recipe, cached=True), batch(second, recipe, cached=False), strict=True):
        assert torch.equal(a, b)
    assert len(first._fp8_workspaces) == WEIGHTS[kind]
    assert not second._fp8_workspaces


def test_stochastic_steps_are_equal_from_equal_generators() -> None:
    first, second = KINDS["Linear"](), KINDS["Linear"]()
    second.load_state_dict(first.state_dict())
    torch.manual_seed(5)
    cached = batch(first, NVFP4BlockScaling(), cached=True)
    torch.manual_seed(5)
    uncached = batch(second, NVFP4BlockScaling(), cached=False)
    assert all(torch.equal(a, b) for a, b in zip(cached, uncached, strict=True))


@pytest.mark.rule("TEM-3")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "recipe",
    [
        NVFP4BlockScaling(**STABLE),
        NVFP4BlockScaling(disable_2d_quantization=True, **STABLE),
        MXFP8BlockScaling(),
        Float8CurrentScaling(),
    ],
    ids=["nvfp4", "nvfp4-1d", "mxfp8", "fp8"],
)
def test_an_update_keeps_every_buffer(kind: str, recipe: Any) -> None:
    module = KINDS[kind]()
    x = torch.randn(128, 128).to(BF16)
    step(module, x, recipe, is_first_microbatch=True)
    held = {name: [b.data_ptr() for b in w.buffers()] for name, w in module._fp8_workspaces.items()}
    before = {name: [b.clone() for b in w.buffers()] for name, w in module._fp8_workspaces.items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    with torch.no_grad(), autocast(recipe=recipe):  # an evaluation in between needs no columns, and takes none away
        arguments = (x, [64, 64]) if kind == "GroupedLinear" else (x,)
        module(*arguments, is_first_microbatch=True)
    step(module, x, recipe, is_first_microbatch=True)
    assert {name: [b.data_ptr() for b in w.buffers()] for name, w in module._fp8_workspaces.items()} == held
    for name, workspace in module._fp8_workspaces.items():
        assert not all(torch.equal(a, b) for a, b in zip(workspace.buffers(), before[name], strict=True))


@pytest.mark.rule("TEM-3")
def test_without_a_new_batch_the_kept_weight_is_used() -> None:
    module = KINDS["Linear"]()
    recipe = NVFP4BlockScaling(**STABLE)
    x = torch.randn(128, 128).to(BF16)
    first = step(module, x, recipe, is_first_microbatch=True)[0]
    with torch.no_grad():
        module.weight.mul_(2)
    assert torch.equal(step(module, x, recipe, is_first_microbatch=False)[0], first)
    assert not torch.equal(step(module, x, recipe, is_first_microbatch=True)[0], first)


@pytest.mark.rule("TEM-18")
@pytest.mark.parametrize("kind", ["NVFP4", "MXFP8"])
def test_a_kept_weight_keeps_the_direction_that_a_call_does_not_need(kind: str) -> None:
    module = KINDS["Linear"]()
    recipe = NVFP4BlockScaling(**STABLE) if kind == "NVFP4" else MXFP8BlockScaling()
    x = torch.randn(128, 128).to(BF16)
    step(module, x, recipe, is_first_microbatch=True)
    kept = module._fp8_workspaces["weight"]
    columns = kept._columnwise_data.clone()
    with torch.no_grad(), autocast(recipe=recipe):  # this pass reads rows alone
        module(x, is_first_microbatch=False)
        assert module._fp8_workspaces["weight"] is kept
        assert kept.directions() == ["row", "column"]
        assert torch.equal(kept._columnwise_data, columns)
        module.weight.neg_()
        module(x, is_first_microbatch=True)
    assert module._fp8_workspaces["weight"] is kept
    assert kept.directions() == ["row", "column"]
    module._fp8_workspaces.clear()
    step(module, x, recipe, is_first_microbatch=True)
    assert torch.equal(kept._columnwise_data, module._fp8_workspaces["weight"]._columnwise_data)
    assert not torch.equal(kept._columnwise_data, columns)


@pytest.mark.rule("TEM-44")
def test_a_kept_weight_gets_columns_when_a_gradient_needs_them() -> None:
    module = KINDS["Linear"]()
    recipe = NVFP4BlockScaling(**STABLE)
    x = torch.randn(128, 128).to(BF16)
    with torch.no_grad(), autocast(recipe=recipe):
        module(x, is_first_microbatch=True)
    assert module._fp8_workspaces["weight"].directions() == ["row"]
    step(module, x, recipe, is_first_microbatch=False)
    assert module._fp8_workspaces["weight"].directions() == ["row", "column"]


@pytest.mark.rule("TEM-3")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [None, True, False])
def test_a_flag_can_skip_the_update_in_a_graph(kind: str, first: bool | None) -> None:
    module = KINDS[kind]()
    recipe = NVFP4BlockScaling(**STABLE)
    x = torch.randn(128, 128).to(BF16)

    def captured() -> Any:
        arguments = (x, [64, 64]) if isinstance(module, GroupedLinear) else (x,)
        with autocast(recipe=recipe, _graph=True):
            assert FP8GlobalStateManager.fp8_graph_capturing()
            return module(*arguments, is_first_microbatch=first)

    kept = step(module, x, recipe, is_first_microbatch=True)[0]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5 if parameter.ndim > 1 else 1)
    new = step(module, x, recipe, is_first_microbatch=None)[0]
    try:
        FP8GlobalStateManager.set_skip_fp8_weight_update_tensor(True)
        flag = FP8GlobalStateManager.get_skip_fp8_weight_update_tensor()
        assert torch.equal(captured(), kept)
        assert torch.equal(step(module, x, recipe, is_first_microbatch=None)[0], new)  # no graph: no flag
        FP8GlobalStateManager.set_skip_fp8_weight_update_tensor(False)
        assert FP8GlobalStateManager.get_skip_fp8_weight_update_tensor() is flag
        assert not flag.any()
        assert torch.equal(step(module, x, recipe, is_first_microbatch=False)[0], kept)
        assert torch.equal(captured(), new)
        assert torch.equal(step(module, x, recipe, is_first_microbatch=False)[0], new)
    finally:
        FP8GlobalStateManager.reset()
    assert not FP8GlobalStateManager.fp8_graph_capturing()


@pytest.mark.rule("TEM-19", "TEM-53")
def test_another_recipe_forgets_the_kept_weights() -> None:
    module = KINDS["Linear"]()
    x = torch.randn(128, 128).to(BF16)
    step(module, x, NVFP4BlockScaling(**STABLE), is_first_microbatch=True)
    kept = module._fp8_workspaces["weight"]
    step(module, x, NVFP4BlockScaling(**STABLE, disable_rht=True), is_first_microbatch=False)  # of the same kind
    assert module._fp8_workspaces["weight"] is not kept
    with pytest.warns(UserWarning, match="Recipe type changed from NVFP4BlockScaling to MXFP8BlockScaling"):
        step(module, x, MXFP8BlockScaling(), is_first_microbatch=False)
    step(module, x, MXFP8BlockScaling(), is_first_microbatch=False)
    assert type(module._fp8_workspaces["weight"]).__name__.startswith("MXFP8")


@pytest.mark.parametrize(
    "shape, recipe, expected",
    [
        ((128, 256), NVFP4BlockScaling(), True),
        ((192, 256), NVFP4BlockScaling(), False),
        ((128, 192), NVFP4BlockScaling(), False),
        ((128, 128), NVFP4BlockScaling(disable_2d_quantization=True), False),
        ((64, 64), MXFP8BlockScaling(), True),
        ((128, 128), Float8CurrentScaling(), False),
    ],
)
def test_which_weights_are_swizzled_when_quantized(shape: tuple[int, int], recipe: Any, expected: bool) -> None:
    module = Linear(*shape, params_dtype=BF16)
    with autocast(recipe=recipe):
        module(torch.randn(64, shape[0]).to(BF16))
        (quantizer,) = module._get_weight_quantizers()
    assert quantizer.optimize_for_gemm is expected


def test_hadamard_weights_are_swizzled_at_multiples_of_64_and_128() -> None:
    module = Linear(128, 192, params_dtype=BF16)
    recipe = NVFP4BlockScaling(**STABLE)
    recipe.fp4_quant_fwd_weight = recipe.fp4_quant_fwd_inp
    with autocast(recipe=recipe):
        module(torch.randn(64, 128).to(BF16))
        assert module._get_weight_quantizers()[0].optimize_for_gemm


def test_an_older_device_has_no_nvfp4() -> None:
    from fp4ref.te.quantization import is_fp8_available, is_mxfp8_available, is_nvfp4_available

    assert is_nvfp4_available(return_reason=True) == (True, "")
    with emulate_device(9):
        assert not is_nvfp4_available()
        assert "10.0" in is_mxfp8_available(return_reason=True)[1]
        assert is_fp8_available()
        with pytest.raises(DomainError, match="10.0"), autocast(recipe=NVFP4BlockScaling()):
            pass
    with emulate_device(12):
        assert is_nvfp4_available()
        assert not is_mxfp8_available()


@pytest.mark.parametrize("field", ["optimize_for_gemm", "with_rht"])
def test_members_of_a_group_agree(field: str) -> None:
    module = GroupedLinear(3, 128, 128, params_dtype=BF16)
    x = torch.randn(384, 128).to(BF16)
    with autocast(recipe=NVFP4BlockScaling(**STABLE)):
        module(x, [128] * 3)
        quantizers = [module.quantizer(f"input{index}") for index in range(3)]
        setattr(quantizers[2], field, not getattr(quantizers[2], field))
        if field == "with_rht":
            quantizers[2].with_post_rht_amax = False
        else:
            module.activation_quantizer = lambda operand, communicated: module.quantizer(operand)
        with pytest.raises(DomainError, match="index 2"):
            module(x, [128] * 3)


def test_a_quantizer_knows_its_role() -> None:
    from fp4ref.te.quantization import RecipeState

    state = RecipeState.create(NVFP4BlockScaling(), mode="forward", num_quantizers=6)
    made = state.make_quantizers()
    assert [q.with_2d_quantization for q in made] == [False, True, False] * 2
    assert [q.with_rht for q in made] == [True, False, True] * 2
    grads = RecipeState.create(NVFP4BlockScaling(), mode="backward", num_quantizers=2).make_quantizers()
    assert all(q.stochastic_rounding and q.with_rht for q in grads)
    with pytest.raises(DomainError, match="4over6"):
        RecipeState.create(NVFP4BlockScaling(nvfp4_4over6="all"), mode="forward", num_quantizers=3).make_quantizers()


@pytest.mark.rule("TEM-3")
@pytest.mark.parametrize("recipe", [NVFP4BlockScaling(**STABLE), MXFP8BlockScaling(), Float8CurrentScaling()])
def test_wide_weights_are_kept_in_the_type_of_the_computation(recipe: Any) -> None:
    kept, plain = KINDS["Linear"]().float(), KINDS["Linear"]().float()
    x = torch.randn(128, 128)
    for _ in range(2):
        with torch.no_grad():
            kept.weight.mul_(1.01)
            plain.weight.copy_(kept.weight)
        with torch.autocast("cpu", dtype=BF16):
            assert torch.equal(
                step(kept, x, recipe, is_first_microbatch=True)[0], step(plain, x, recipe, is_first_microbatch=None)[0]
            )
