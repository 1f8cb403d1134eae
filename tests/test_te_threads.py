"""A module in several threads: what one call asks of a quantizer is nothing that another one sees."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402

SPLITS = [64, 64]
MODULES = {
    "Linear": lambda **k: te.Linear(64, 96, params_dtype=torch.bfloat16, **k),
    "LayerNormLinear": lambda: te.LayerNormLinear(64, 96, params_dtype=torch.bfloat16),
    "LayerNormMLP": lambda: te.LayerNormMLP(64, 96, params_dtype=torch.bfloat16),
    "GroupedLinear": lambda **k: te.GroupedLinear(2, 64, 96, params_dtype=torch.bfloat16, **k),
}
BOTH, GRADIENTS, NONE = (True, True), (False, True), (False, False)  # wanted: of the input; of the weights


class Interrupted(te.MXFP8Quantizer):
    """Lets another call of the module run from its beginning to its end when the first thread is about to quantize."""

    reached, passed = threading.Event(), threading.Event()
    waiting: tuple[threading.Thread, str] | None = None

    def quantize(self, tensor, **options):
        if type(self).waiting == (threading.current_thread(), self.role):
            type(self).waiting = None
            self.reached.set()
            assert self.passed.wait(60)
        return super().quantize(tensor, **options)


def step(module, wanted):
    """Return the bytes of a result and of its gradients."""
    torch.manual_seed(0)
    x = torch.randn(128, 64, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_(wanted[0])
    arguments = (x, SPLITS) if isinstance(module, te.GroupedLinear) else (x,)
    with torch.set_grad_enabled(any(wanted)):
        y = module(*arguments)
    if not any(wanted):
        return [y]
    of = ([x] if wanted[0] else []) + (list(module.parameters()) if wanted[1] else [])
    return [y, *torch.autograd.grad(y, of, (y.detach() * 3).bfloat16())]


def equal(made, expected):
    return len(made) == len(expected) and all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(made, expected, strict=True)
    )


@pytest.mark.sampled(4)
@pytest.mark.rule("TEM-1", "TEM-2")
@pytest.mark.parametrize("role", ["input", "weight", "grad_output"])
@pytest.mark.parametrize(("first", "second"), [(BOTH, NONE), (BOTH, GRADIENTS), (GRADIENTS, BOTH), (NONE, BOTH)])
@pytest.mark.parametrize("module", MODULES)
def test_a_call_is_not_changed_by_one_that_runs_while_it_waits(module, role, first, second):
    if role == "grad_output" and first is NONE:
        pytest.skip("no backward pass")
    layer = MODULES[module]()
    with te.autocast(recipe=te.recipe.CustomRecipe(qfactory=lambda role: Interrupted())):
        expected = step(layer, first), step(layer, second)
        Interrupted.reached.clear()
        Interrupted.passed.clear()
        with ThreadPoolExecutor(2) as threads:
            waits = threads.submit(lambda: wait(layer, role, first))
            assert Interrupted.reached.wait(60)
            other = threads.submit(step, layer, second).result()
            Interrupted.passed.set()
            made = waits.result()
    assert equal(made, expected[0])
    assert equal(other, expected[1])


def wait(layer, role, wanted):
    Interrupted.waiting = threading.current_thread(), role
    return step(layer, wanted)


@pytest.mark.rule("TEM-15")
@pytest.mark.parametrize("module", ["Linear", "GroupedLinear"])
def test_an_input_is_quantized_again_in_its_own_call(module):
    """A forward pass of another thread between those of an input that is kept as it came."""
    layer = MODULES[module](save_original_input=True)
    with te.autocast(recipe=te.recipe.CustomRecipe(qfactory=lambda role: Again())):
        expected = step(layer, BOTH)
        Again.between = lambda: step(layer, NONE)
        made = step(layer, BOTH)
    assert Again.between is None
    assert equal(made, expected)


class Again(te.MXFP8Quantizer):
    """Runs another call before it quantizes the columns of an input alone."""

    between = None

    def quantize(self, tensor, **options):
        run = type(self).between
        if run and self.role == "input" and not self.rowwise_usage:
            type(self).between = None
            with ThreadPoolExecutor(1) as threads:
                threads.submit(run).result()
        return super().quantize(tensor, **options)


@pytest.mark.parametrize("module", MODULES)
def test_a_call_leaves_the_module_s_quantizers_as_they_are(module):
    layer = MODULES[module]()
    with te.autocast(recipe=te.recipe.MXFP8BlockScaling()):
        step(layer, NONE)
        before = {name: each.get_usages() for name, each in layer._operands.items()}
        for wanted in (BOTH, GRADIENTS, NONE):
            step(layer, wanted)
            assert {name: each.get_usages() for name, each in layer._operands.items()} == before


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("recipe", [te.recipe.MXFP8BlockScaling(), te.recipe.Float8CurrentScaling()], ids=["mx", "fp8"])
@pytest.mark.parametrize("module", MODULES)
def test_several_threads_get_the_bytes_of_one(module, recipe):
    layer = MODULES[module]()
    with te.autocast(recipe=recipe):
        expected = {wanted: step(layer, wanted) for wanted in (BOTH, GRADIENTS, NONE)}
        with ThreadPoolExecutor(4) as threads:
            made = [(wanted, threads.submit(step, layer, wanted)) for _ in range(25) for wanted in expected]
            assert all(equal(each.result(), expected[wanted]) for wanted, each in made)


class Counting(te.MXFP8Quantizer):
    """Counts its calls in an object that its copies share, and in an attribute, which is each copy's own."""

    def __init__(self):
        super().__init__(te.DType.kFloat8E4M3)
        self.shared, self.own = [], 0

    def quantize(self, tensor, **options):
        self.shared.append(self.role)
        self.own += 1
        return super().quantize(tensor, **options)


@pytest.mark.rule("TEL-58")
def test_what_copies_of_a_quantizer_share_is_kept_from_call_to_call():
    made = {}
    recipe = te.recipe.CustomRecipe(
        qfactory=lambda role: made.setdefault(getattr(role, "tensor_type", None), Counting())
    )
    module = te.Linear(64, 96, params_dtype=torch.bfloat16)
    for _ in range(3):
        with te.autocast(recipe=recipe):
            y = module(torch.ones(32, 64, dtype=torch.bfloat16, requires_grad=True))
        y.sum().backward()
    assert {name: len(made[name].shared) for name in ("input", "weight", "grad_output")} == {
        "input": 3,
        "weight": 3,
        "grad_output": 3,
    }
    assert all(made[name].own == 0 for name in ("input", "weight", "grad_output"))
