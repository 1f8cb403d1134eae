"""Examples of the chapter on modules and distribution, acted out: modules, chains, conversion and parts."""

from __future__ import annotations

import re
import warnings

import pytest

import checkpoints_corpus as corpus

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref import te  # noqa: E402
from fp4ref.standard import formulas  # noqa: E402
from fp4ref.te import debug, ops, recipe  # noqa: E402
from fp4ref.te.master_weights import quantize_master_weights  # noqa: E402
from fp4ref.te.quantization import FP8GlobalStateManager  # noqa: E402
from fp4ref.te.sharded import _require_whole_blocks  # noqa: E402
from standard_rules import integers, rows_of, text_of  # noqa: E402
from te_samples import sample  # noqa: E402

BF16 = torch.bfloat16
PLAIN = {"disable_rht": True, "disable_stochastic_rounding": True, "disable_2d_quantization": True}
STABLE = {"disable_stochastic_rounding": True}
TILES = {"with_2d_quantization": True}


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    FP8GlobalStateManager.reset()
    debug.reset_operation_counts()
    yield
    FP8GlobalStateManager.reset()


def words(cell):
    return re.findall("`(.*?)`", cell)


def number(cell):
    return float(formulas.value(cell.strip("` ").replace(" x ", " * ")))


def step(module, x, made, *rest, **options):
    """The output and gradients of a step whose gradient is ones; and the input's."""
    leaf = x.detach().clone().requires_grad_()
    with te.autocast(enabled=made is not None, recipe=made):
        y = module(leaf, *rest, **options)
    y.backward(torch.ones_like(y))
    return y.detach(), leaf.grad


def linear(rows, columns, dtype=BF16, **options):
    return te.Linear(rows, columns, params_dtype=dtype, device="cpu", **options)


@pytest.mark.rule("TEM-1")
@pytest.mark.example("TEM-1")
def test_directions_of_operands():
    """Each product is that of the operands quantized by hand, in the directions of the table."""
    shapes = {"input": (64, 128), "weight": (96, 128), "grad_output": (64, 96)}
    made = {role: te.MXFP8Quantizer()(sample(*shape, seed=n)) for n, (role, shape) in enumerate(shapes.items())}
    module = linear(128, 96, bias=False)
    module.weight.data = sample(96, 128, seed=1)
    x = sample(64, 128).requires_grad_()
    with te.autocast(recipe=recipe.MXFP8BlockScaling()):
        y = module(x)
    y.backward(sample(64, 96, seed=2))
    found = {"fprop": y.detach(), "dgrad": x.grad, "wgrad": module.weight.grad}
    letters = {"fprop": ("weight", "input", "TN"), "dgrad": ("weight", "grad_output", "NN")}
    letters["wgrad"] = ("input", "grad_output", "NT")
    readers = {}
    for role, directions, products in rows_of("TEM-1"):
        for direction, product in zip(directions.split(", "), products.split(", "), strict=True):
            readers[product, role] = direction
    for product, (a, b, layout) in letters.items():
        assert readers[product, a] == ("row" if layout[0] == "T" else "column")
        assert readers[product, b] == ("row" if layout[1] == "N" else "column")
        assert torch.equal(found[product], te.general_gemm(made[a], made[b], out_dtype=BF16, layout=layout)[0])
    assert len(readers) == 6


def kept_bytes(module, made, x):
    """Bytes that autograd keeps of no parameter."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, te.autocast(enabled=made is not None, recipe=made):
        y = module(x.requires_grad_())
    assert y.requires_grad
    return sum(kept.values())


@pytest.mark.rule("TEM-13")
@pytest.mark.example("TEM-13")
def test_bytes_that_are_kept():
    recipes = {
        "bfloat16, not quantized": None,
        "NVFP4": recipe.NVFP4BlockScaling(**STABLE),
        "MXFP8": recipe.MXFP8BlockScaling(),
        "FP8 per tensor": recipe.Float8CurrentScaling(),
    }
    assert [cell for cell, _ in rows_of("TEM-13")] == [*recipes]
    for cell, kept in rows_of("TEM-13"):
        made = recipes[cell]
        found = kept_bytes(linear(256, 256, bias=False), made, sample(256, 256))
        numbers = 8 if cell in {"NVFP4", "FP8 per tensor"} else 0  # an amax or a scale of each of both
        elements = 256 * 256 * (1 if made is None else 2)  # a weight that is not quantized is the parameter
        assert found - numbers == elements * float(kept)


@pytest.mark.rule("TEM-14")
@pytest.mark.example("TEM-14")
def test_a_bias_of_a_float32_result():
    for bias, added in rows_of("TEM-14"):
        module = linear(32, 32, torch.float32)
        torch.nn.init.constant_(module.bias, float(bias))
        x = torch.zeros(32, 32)
        assert step(module, x, None)[0].unique().tolist() == [float(bias)]
        assert step(module, x, recipe.MXFP8BlockScaling())[0].unique().tolist() == [float(added)]


@pytest.mark.rule("TEM-2", "TEM-43", "TEM-16", "TEM-15")
@pytest.mark.example("TEM-2", "TEM-43", "TEM-16")
def test_backward_overrides():
    x, weight = sample(32, 32), sample(32, 32, seed=1)
    gradient = sample(32, 32, seed=2)
    values = {
        "quantized gradient": te.MXFP8Quantizer(),
        "gradient as it is": lambda g: g,
        "quantized columns": te.MXFP8Quantizer(),
        "original weight and input (TEM-15)": lambda t: t,
        "dequantized weight and input (TEM-16)": lambda t: te.MXFP8Quantizer()(t).dequantize(),
    }
    for cell, said in rows_of("TEM-2"):
        override = None if cell == "None" else cell
        module = linear(32, 32, bias=False)
        module.weight.data = weight.clone()
        leaf = x.clone().requires_grad_()
        with te.autocast(recipe=recipe.MXFP8BlockScaling(backward_override=override)):
            y = module(leaf)
        y.backward(gradient)
        first, second = (values[each] for each in said.split(", "))
        dgrad = te.general_gemm(second(weight), first(gradient), out_dtype=BF16, layout="NN", grad=True)[0]
        wgrad = te.general_gemm(second(x), first(gradient), out_dtype=BF16, layout="NT", grad=True)[0]
        assert torch.equal(leaf.grad, dgrad)
        assert torch.equal(module.weight.grad, wgrad)
    setting = re.search(r"\| `backward_override=\"(.*?)\"` \|", text_of("TEM-43"))[1]
    for cell, outcome in rows_of("TEM-43"):
        for name in words(cell):
            module, made = getattr(te, name)(32, 64, device="cpu"), recipe.MXFP8BlockScaling(backward_override=setting)
            if outcome == "accepted":
                step(module, torch.ones(32, 32), made)
                continue
            assert outcome == "refused"
            with pytest.raises(AssertionError, match="backward_override"):
                step(module, torch.ones(32, 32), made)
    ((cell, read),) = rows_of("TEM-16")
    given, stored = map(float, re.findall(r"[\d.]+", cell))
    module = linear(16, 16, torch.float32, bias=False)
    x = torch.full((16, 16), given)
    x[:, 0] = 6  # so that 2.9 is between two codes
    step(module, x, recipe.NVFP4BlockScaling(**PLAIN, backward_override="dequantized"))
    assert module.weight.grad[:, 1:].unique().tolist() == [16 * float(read)] == [16 * stored]


@pytest.mark.rule("TEM-42")
@pytest.mark.example("TEM-42")
def test_inputs_that_are_quantized_again():
    def hybrid(**settings):
        columns = {} if settings.pop("plain", False) else {"columnwise_source": "rowwise_dequantized"}
        rows = te.NVFP4Quantizer(stochastic_rounding=True)
        return te.HybridQuantizer(rowwise_quantizer=rows, columnwise_quantizer=te.MXFP8Quantizer(), **columns)

    quantizers = {
        "MXFP8": te.MXFP8Quantizer,
        "NVFP4 with stochastic rounding": lambda: te.NVFP4Quantizer(stochastic_rounding=True),
        "hybrid, columns of the tensor": lambda: hybrid(plain=True),
        "hybrid, columns of stochastic rows": hybrid,
        "per-tensor FP8 with a kept scale, from a custom recipe": lambda: te.Float8Quantizer(
            torch.ones(1), torch.zeros(1), te.DType.kFloat8E4M3
        ),
    }
    rows = rows_of("TEM-42")
    assert [cell for cell, _ in rows[:-1]] == [*quantizers]
    again = "quantized from the kept input"
    for cell, said in rows[:-1]:
        assert said in {again, "those of fprop"}

        def factory(role, make=quantizers[cell]):
            tensor = getattr(role, "tensor_type", "")
            if tensor == "input":
                return make()
            if isinstance(make(), te.HybridQuantizer) and tensor == "weight":
                rows, columns = te.NVFP4Quantizer(), te.MXFP8Quantizer()
                return te.HybridQuantizer(rowwise_quantizer=rows, columnwise_quantizer=columns)
            return te.NVFP4Quantizer() if isinstance(make(), te.NVFP4Quantizer) else te.MXFP8Quantizer()

        module = linear(32, 32, save_original_input=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(module, sample(32, 32), recipe.CustomRecipe(qfactory=factory))
        assert any("save_original_input" in str(each.message) for each in caught) == (said != again), cell
        assert quantizers[cell]().reconstructs_from_original() == (said == again)
    assert rows[-1] == ["the same, from the recipe of delayed scaling", "refused (TEL-44)"]
    with pytest.raises(ValueError, match="TEL-44"):
        step(linear(32, 32, save_original_input=True), sample(32, 32), recipe.DelayedScaling())


# Kept weights


def kept(module):
    return module._fp8_workspaces.get("weight")


@pytest.mark.rule("TEM-3", "TEM-18", "TEM-44", "TEM-19", "TEM-53")
@pytest.mark.example("TEM-3", "TEM-18", "TEM-44", "TEM-19", "TEM-53")
def test_kept_weights():
    made, x = recipe.MXFP8BlockScaling(), sample(32, 32)
    module = linear(32, 32, bias=False)
    said = dict(rows_of("TEM-3"))
    assert said["None"] == "is quantized in this call, and nothing is kept"
    first, _ = step(module, x, made)
    assert kept(module) is None
    assert said["True"] == "is quantized into the buffers of the kept weight, whose addresses stay"
    step(module, x, made, is_first_microbatch=True)
    places = [buffer.data_ptr() for buffer in kept(module).buffers()]
    with torch.no_grad():
        module.weight.mul_(2)
    assert said["False"] == "is the kept weight, whatever the parameter holds by now"
    assert torch.equal(step(module, x, made, is_first_microbatch=False)[0], first)
    assert torch.equal(step(module, x, made, is_first_microbatch=True)[0], 2 * first)
    assert [buffer.data_ptr() for buffer in kept(module).buffers()] == places
    assert next(cell for cell in said if "graph" in cell).startswith(
        "any, while a graph is captured and there is a flag"
    )
    with torch.no_grad():
        module.weight.mul_(2)
    for flag, times in ((True, 2), (False, 4)):
        FP8GlobalStateManager.set_skip_fp8_weight_update_tensor(flag)
        with torch.no_grad(), te.autocast(recipe=made, _graph=True):
            assert torch.equal(module(x, is_first_microbatch=None), times * first)
    FP8GlobalStateManager.reset()
    ((before, needed, after),) = rows_of("TEM-18")
    assert (before, needed, after) == ("row, column", "row", "the same weight with both directions")
    weight = kept(module)
    assert weight.directions() == before.split(", ")
    with torch.no_grad(), te.autocast(recipe=made):
        module(x, is_first_microbatch=False)
    assert (kept(module), kept(module).directions()) == (weight, before.split(", "))
    ((before, needed, after),) = rows_of("TEM-44")
    module._fp8_workspaces.clear()
    with torch.no_grad(), te.autocast(recipe=made):
        module(x, is_first_microbatch=True)
    weight = kept(module)
    assert weight.directions() == before.split(", ")
    step(module, x, made, is_first_microbatch=False)
    assert kept(module).directions() == needed.split(", ")
    assert (kept(module) is not weight) == (after == "a new weight with both")
    recipes = {
        "NVFP4": recipe.NVFP4BlockScaling(**STABLE),
        "MXFP8": recipe.MXFP8BlockScaling(),
        "NVFP4 without a transform": recipe.NVFP4BlockScaling(**STABLE, disable_rht=True),
    }
    ((both, none),) = rows_of("TEM-19")
    assert none == "none"
    for cell, warned in [(both, "yes"), *rows_of("TEM-53")]:
        old, new = cell.split(", ")
        module = linear(32, 32, bias=False)
        step(module, x, recipes[old], is_first_microbatch=True)
        weight = kept(module)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(module, x, recipes[new], is_first_microbatch=False)
        assert kept(module) is not weight
        assert any("Recipe type changed" in str(each.message) for each in caught) == (warned == "yes")


@pytest.mark.rule("TEM-20")
@pytest.mark.example("TEM-20")
@pytest.mark.parametrize("microbatches", [1, 3])
def test_moves_of_scales(microbatches):
    tiles, mxfp8 = recipe.NVFP4BlockScaling(**STABLE), recipe.MXFP8BlockScaling()
    weights = {
        "MXFP8; NVFP4 in 16x16 tiles, both sizes multiples of 128": [(tiles, 256), (mxfp8, 256), (mxfp8, 96)],
        "other NVFP4": [(tiles, 192), (recipe.NVFP4BlockScaling(**STABLE, disable_2d_quantization=True), 256)],
        "FP8 per tensor": [(recipe.Float8CurrentScaling(), 256)],
        "packed parameter": [(tiles, 256), (mxfp8, 256)],
    }
    assert [cell for cell, *_ in rows_of("TEM-20")] == [*weights]
    for cell, *counted in rows_of("TEM-20"):
        for (made, rows), (said, cached) in (
            (each, pair) for each in weights[cell] for pair in zip(counted, (True, False), strict=True)
        ):
            with te.quantized_model_init(cell == "packed parameter", recipe=made):
                module = linear(128, rows)
            debug.reset_operation_counts()
            for count in range(microbatches):
                step(module, sample(128, 128), made, is_first_microbatch=count == 0 if cached else None)
            found = debug.operation_counts()
            alone, quantizing = (found[name].get("weight", 0) for name in ("swizzle_standalone", "swizzle_in_quantize"))
            times = int(formulas.value(said.split()[0].replace("2N", "2 * N"), {"N": microbatches}))
            assert (quantizing if "while quantizing" in said else alone) == times, (cell, said)
            assert alone + quantizing == times


# Options, groups and attention


@pytest.mark.rule("TEM-4", "TEM-45", "TEM-31")
@pytest.mark.example("TEM-4", "TEM-45", "TEM-31")
def test_options_groups_and_attention():
    for cell, outcome in rows_of("TEM-4"):
        name, value = words(cell)[0].split("=")
        if outcome == "accepted":
            linear(32, 32, **{name: value == "True"})
            continue
        assert outcome.startswith("refused: ")
        with pytest.raises(ValueError, match=name):
            linear(32, 32, **{name: value == "True"})
    for group, rows, weight, gradient in rows_of("TEM-45"):
        assert (group, rows) == (weight, "none")
        splits = [32, 32]
        splits[int(group)] = 0
        module = te.GroupedLinear(2, 32, 32, params_dtype=BF16)
        step(module, sample(32, 32), recipe.MXFP8BlockScaling(), splits)
        assert getattr(module, f"weight{weight}").grad.unique().tolist() == [float(gradient)]
        assert getattr(module, f"weight{1 - int(weight)}").grad.any()
    (outside, result), (inside, same) = rows_of("TEM-31")
    assert (outside, inside) == ("outside `autocast`", "inside `autocast`")
    assert (result, same) == ("y", "the same y, bit for bit")
    attention = te.DotProductAttention(2, 16)
    operands = [sample(8, 2, 2, 16, seed=n) for n in range(3)]
    y = attention(*operands)
    for made in (recipe.NVFP4BlockScaling(), recipe.MXFP8BlockScaling(), recipe.DelayedScaling()):
        with te.autocast(recipe=made):
            assert torch.equal(attention(*operands), y)


@pytest.mark.rule("TEM-30")
@pytest.mark.example("TEM-30")
def test_parameters_of_layers():
    width, heads, groups = map(
        int, re.search(r"width (\d+) with (\d+) heads, (\d+) groups", text_of("TEM-30").replace("\n", " ")).groups()
    )
    name = words(re.search(r"parameters of (`\w+`), after the norm's", text_of("TEM-30"))[1])[0]
    for fused, said in rows_of("TEM-30"):
        attention = te.MultiheadAttention(
            width, heads, num_gqa_groups=groups, input_layernorm=True, fuse_qkv_params=fused == "true", device="cpu"
        )
        found = [(each, [*value.shape]) for each, value in getattr(attention, name).named_parameters()]
        found = [pair for pair in found if not pair[0].startswith("layer_norm")]
        wanted = [(each, integers(size)) for each, size in re.findall(r"`(\w+)` (\[.*?\])", said)]
        if said.endswith("then the biases"):
            wanted += [(each.replace("weight", "bias"), size[:1]) for each, size in wanted]
        assert found == wanted


# Chains of operations


def copied(target, source):
    with torch.no_grad():
        for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
            mine.copy_(theirs)
    return target


@pytest.mark.rule("TEM-32")
@pytest.mark.example("TEM-32")
def test_chains_and_modules():
    options = {"dtype": BF16, "device": "cpu"}
    sizes = {"LayerNorm": (64,), "RMSNorm": (64,), "BasicLinear": (64, 96)}
    modules = {
        "`LayerNormMLP`": lambda: te.LayerNormMLP(64, 128, params_dtype=BF16),
        "`LayerNormLinear` without a bias": lambda: te.LayerNormLinear(
            64, 96, bias=False, normalization="RMSNorm", params_dtype=BF16
        ),
    }
    for chain, module in rows_of("TEM-32"):
        for quantized in (None, recipe.MXFP8BlockScaling(), recipe.NVFP4BlockScaling(**STABLE)):
            whole = modules[module]()
            shapes, made = iter([(64, 128), (128, 64)]), []
            for name in words(chain):
                size = next(shapes) if name == "Linear" else sizes.get(name, ())
                made.append(getattr(ops, name)(*size, **(options if size else {})))
            sequence = copied(ops.Sequential(*made), whole)
            results = [step(each, sample(32, 64, seed=3), quantized) for each in (sequence, whole)]
            assert all(map(torch.equal, *results))
            pairs = zip(sequence.parameters(), whole.parameters(), strict=True)
            assert all(torch.equal(mine.grad, theirs.grad) for mine, theirs in pairs)


def product_of(value, dtype=BF16, columns=2, **options):
    """A product of one output, and the input that makes it a float32 number of two bfloat16 terms."""
    made = ops.BasicLinear(columns, 1, dtype=dtype, **options)
    with torch.no_grad():
        made.weight.fill_(1)
    x = torch.zeros(1, columns)
    x[0, 0] = float(torch.tensor(value).bfloat16())
    x[0, 1] = value - float(x[0, 0])
    return made, x.to(dtype)


@pytest.mark.rule("TEM-33", "TEM-40", "TEM-54")
@pytest.mark.example("TEM-33", "TEM-40", "TEM-54")
def test_sums_behind_products():
    for cell, added, *results in rows_of("TEM-33"):
        value, between = number(cell.partition(",")[0]), [ops.Identity()] if "Identity" in cell else []
        for dtype, said in zip((BF16, torch.float32), results, strict=True):
            made, x = product_of(value, dtype)
            bias = ops.Bias(1, dtype=dtype)
            torch.nn.init.constant_(bias.bias, number(added))
            assert ops.Sequential(made, *between, bias)(x).bfloat16().item() == number(said)
    for cell, added, scale, *results in rows_of("TEM-40"):
        scales = [] if scale == "none" else [ops.ConstantScale(float(scale))]
        for in_place, said in zip((True, False), results, strict=True):
            made, x = product_of(number(cell))
            extra = torch.full((1, 1), number(added), dtype=BF16)
            y = ops.Sequential(made, *scales, ops.AddExtraInput(in_place=in_place))(x, extra)
            assert y.item() == number(said)
            ((_, place, other),) = rows_of("TEM-54")
            assert ({True: place, False: other}[in_place] == "p") == (y.data_ptr() == extra.data_ptr())


@pytest.mark.rule("TEM-34", "TEM-35", "TEM-46")
@pytest.mark.example("TEM-34", "TEM-35", "TEM-46")
def test_gradients_behind_products():
    for cell, gradients, weights, said in rows_of("TEM-34"):
        between = [ops.Identity()] if "Identity" in cell else []
        made = ops.BasicLinear(16, 2, dtype=BF16)
        first, second = (number(each) for each in weights.split(" and "))
        with torch.no_grad():
            made.weight.copy_(torch.tensor([[first], [second]]).expand(2, 16))
        x = torch.ones(1, 16, dtype=BF16).requires_grad_()
        y = ops.Sequential(made, *between, ops.ConstantScale(float(cell.partition(",")[0])))(x)
        y.backward(torch.tensor([[number(each) for each in gradients.split(" and ")]]).bfloat16())
        assert x.grad.unique().tolist() == [number(said)]
    for through, extra, said in rows_of("TEM-35"):
        norm = ops.RMSNorm(2, eps=0.0, dtype=BF16)
        root = 1 + 2.0**-7  # whose square is the gradient that goes through a norm of ones
        assert root * root == number(through)
        torch.nn.init.constant_(norm.weight, root)
        x = torch.tensor([[1.0, -1.0]]).bfloat16().requires_grad_()
        y, same = ops.Sequential(ops.MakeExtraOutput(), norm)(x)
        gradients = [torch.full((1, 2), value).bfloat16() for value in (root, number(extra))]
        torch.autograd.backward([y, same], gradients)
        assert x.grad.unique().tolist() == [number(said)]
    for cell, extra, *results in rows_of("TEM-46"):
        value = number(cell)
        for in_place, said in zip((True, False), results, strict=True):
            made = ops.BasicLinear(1, 2, dtype=BF16)
            whole = float(torch.tensor(value).bfloat16())
            with torch.no_grad():
                made.weight.copy_(torch.tensor([[whole], [value - whole]]))
            x = torch.ones(1, 1, dtype=BF16).requires_grad_()
            y, same = ops.Sequential(ops.MakeExtraOutput(in_place=in_place), made)(x)
            torch.autograd.backward([y, same], [torch.ones_like(y), torch.full((1, 1), number(extra)).bfloat16()])
            assert x.grad.item() == number(said)


@pytest.mark.rule("TEM-47", "TEM-36")
@pytest.mark.example("TEM-47", "TEM-36")
def test_chains_that_are_refused():
    makers = {
        "MakeExtraOutput(in_place=True)": lambda: ops.MakeExtraOutput(in_place=True),
        "BasicLinear": lambda: ops.BasicLinear(32, 32, dtype=BF16),
        "ReLU": ops.ReLU,
        "ConstantScale": lambda: ops.ConstantScale(2),
    }
    assert "under MXFP8" in text_of("TEM-36")
    for rule, quantized in (("TEM-47", None), ("TEM-36", recipe.MXFP8BlockScaling())):
        for chain, outcome in rows_of(rule):
            sequence = ops.Sequential(*(makers[name]() for name in words(chain)))
            with te.autocast(enabled=quantized is not None, recipe=quantized), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if outcome == "accepted":
                    sequence(sample(32, 32))
                    continue
                assert outcome == "refused"
                with pytest.raises(ValueError, match=rule):
                    sequence(sample(32, 32))


# Conversion and loading


class SmallExperts(torch.nn.Module):
    """Experts in one parameter, whose product is one that conversion does not know."""

    def __init__(self, product):
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(3, 64, 32))
        self.product = product

    def forward(self, x):
        return self.product(self, x)


@pytest.mark.rule("TEM-6", "TEM-21", "TEM-22", "TEM-48")
@pytest.mark.example("TEM-6", "TEM-21", "TEM-22", "TEM-48")
def test_conversion(monkeypatch):
    ((before, after),) = rows_of("TEM-6")
    plain = torch.nn.Sequential(*(eval(f"torch.nn.{each}") for each in words(before)))
    parameters = [*plain.parameters()]
    converted = te.convert(plain, recipe.NVFP4BlockScaling(**PLAIN))
    assert after == "`te.Linear` with the same weight and bias, `ReLU()`"
    assert isinstance(converted[0], te.Linear)
    assert type(converted[1]) is torch.nn.ReLU
    assert [id(each) for each in converted.parameters()] == [id(each) for each in parameters]
    ((given, multiplied, result),) = rows_of("TEM-21")
    rows, zeros = integers(multiplied)
    layer = te.convert(torch.nn.Linear(integers(given)[-1], integers(result)[-1]), recipe.NVFP4BlockScaling(**PLAIN))
    x, seen = torch.randn(integers(given)), []
    plain_call = te.NVFP4Quantizer.__call__

    def noting(self, tensor):
        seen.append(tensor)
        return plain_call(self, tensor)

    monkeypatch.setattr(te.NVFP4Quantizer, "__call__", noting)
    y = layer(x)
    assert [*y.shape] == integers(result)
    padded = next(each for each in seen if each.shape[-1] == integers(given)[-1] and each.numel() > x.numel())
    assert padded.reshape(-1, padded.shape[-1]).shape[0] == rows
    assert not padded.reshape(rows, -1)[-zeros:].any()
    assert padded.reshape(rows, -1)[-zeros - 1].any()
    (layer, kind, refused), (_, same, stays) = rows_of("TEM-22")
    assert (kind, refused, same, stays) == ("NVFP4", "refused", "NVFP4", "stays as it is")
    model = torch.nn.Sequential(eval(f"torch.nn.{words(layer)[0]}"), torch.nn.Linear(64, 64))
    with pytest.raises(ValueError, match="TEM-22"):
        te.convert(model, recipe.NVFP4BlockScaling())
    te.convert(model, recipe.NVFP4BlockScaling(), select=lambda name, _: name == "1")
    assert type(model[0]) is torch.nn.Linear
    ((cell, outcome),) = rows_of("TEM-48")
    assert (words(cell), outcome) == (["x @ self.up[1].T", "grouped_mm"], "refused")
    grouped = getattr(torch.nn.functional, words(cell)[1])
    products = (
        lambda self, x: eval(words(cell)[0], {"x": x, "self": self}),
        lambda self, x: grouped(x, self.up.transpose(1, 2), offs=torch.tensor([5, 9, 16], dtype=torch.int32)),
    )
    for product in products:
        model = te.convert(torch.nn.Sequential(SmallExperts(product)), recipe.MXFP8BlockScaling())
        with pytest.raises(NotImplementedError, match="experts"):
            model(torch.randn(16, 32))


def file_of(folder, tensors):
    """A checkpoint of some tensors as te writes packed weights: name, quantizer or none, shape."""
    data = {}
    for name, (quantizer, shape) in tensors.items():
        values = sample(*shape, dtype=torch.float32)
        if quantizer is None:
            data[f"{name}.weight"] = ("F32", values.numpy())
            continue
        packed = quantizer(values)
        data[f"{name}.weight.rowwise_data"] = ("U8", packed._rowwise_data.numpy())
        data[f"{name}.weight.rowwise_scale_inv"] = ("U8", packed._rowwise_scale_inv.numpy())
        data[f"{name}.weight.amax_rowwise"] = ("F32", packed._amax_rowwise.numpy())
    folder.mkdir(exist_ok=True)
    path = folder / "model.safetensors"
    path.write_bytes(corpus.safetensors_bytes(data, {}))
    return path


def model_of(names, rows=64, columns=64):
    made = torch.nn.Module()
    for name in names:
        made.add_module(name, linear(columns, rows, bias=False))
    return made


@pytest.mark.rule("TEM-39", "TEM-50", "TEM-49")
@pytest.mark.example("TEM-39", "TEM-50", "TEM-49")
def test_names_of_checkpoints(tmp_path):
    quantizer = te.NVFP4Quantizer(**TILES)
    for count, (names, stored, outcome) in enumerate(rows_of("TEM-39")):
        path = file_of(tmp_path / f"{count}", dict.fromkeys(words(stored), (quantizer, (64, 64))))
        made = model_of(words(names))
        before = {name: value.clone() for name, value in made.state_dict().items() if "extra" not in name}
        if outcome == "loaded":
            assert sorted(te.load_quantized(made, path).packed) == sorted(f"{name}.weight" for name in words(names))
            continue
        assert outcome == "refused"
        with pytest.raises(ValueError, match="TEM-39"):
            te.load_quantized(made, path)
        if [words(stored)] == [words(cell) for cell, _ in rows_of("TEM-50")]:
            assert rows_of("TEM-50")[0][1] == "as before, `up` too"
            assert words(re.search(r"\| checkpoint of a model with (.*?) \|", text_of("TEM-50"))[1]) == words(names)
            after = made.state_dict()
            assert all(torch.equal(after[name], value) for name, value in before.items())
    ((cell, parameter, said),) = rows_of("TEM-49")
    stored = {name: integers(size) for name, size in re.findall(r"`(\w+)` (\[.*?\])", cell)}
    name, size = re.fullmatch(r"`(\w+)` (\[.*\])", parameter).groups()
    path = file_of(tmp_path / "joined", {each: (quantizer, tuple(size)) for each, size in stored.items()})
    made = model_of([name], *integers(size))
    parts = [*stored]
    tensors = {}
    largest = torch.tensor([4.0])
    for part, shape in stored.items():
        values = sample(*shape, dtype=torch.float32).clamp(-3, 3)
        values[0, 0] = largest  # one global scale
        packed = quantizer(values)
        tensors[part] = packed
    data = {
        f"{part}.weight.{field}": (kind, getattr(packed, f"_{field}").numpy())
        for part, packed in tensors.items()
        for field, kind in (("rowwise_data", "U8"), ("rowwise_scale_inv", "U8"), ("amax_rowwise", "F32"))
    }
    path.write_bytes(corpus.safetensors_bytes(data, {}))
    loaded = te.load_quantized(made, path, names=lambda _: parts, strict=False)
    assert loaded.packed == [f"{name}.weight"]
    found = getattr(made, name).weight._rowwise_data
    for first, last, part in re.findall(r"(\d+) to (\d+) of `(\w+)`", said):
        rows = slice(int(first), int(last) + 1)
        assert torch.equal(found[rows], tensors[part]._rowwise_data)
    assert len(found) == integers(size)[0]


STORED = {
    "E2M1 in 1x16 blocks, E4M3 scales and a global scale": [corpus.modelopt, corpus.compressed],
    "E4M3 or E5M2 in 1x32 blocks, E8M0 scales": [lambda: corpus.modelopt("mxfp8")],
    "E4M3 or E5M2 with one float32 scale": [lambda: corpus.modelopt("fp8")],
    "E4M3 or E5M2 in squares of 128x128 with float32 scales": [corpus.deepseek],
    "any other": [lambda: corpus.modelopt("mxfp4"), lambda: corpus.modelopt("fp8-row")],
}


@pytest.mark.rule("TEM-38")
@pytest.mark.example("TEM-38")
def test_tensors_of_stored_weights(tmp_path):
    name = "model.layers.0.mlp.up_proj"
    assert [cell for cell, *_ in rows_of("TEM-38")] == [*STORED]
    for cell, kind, columns in rows_of("TEM-38"):
        for count, export in enumerate(STORED[cell]):
            made = torch.nn.Module()
            made.up = linear(128, 256, bias=False)
            path = export().write(tmp_path / f"{len(cell)}{count}")
            arguments = (made, path), {"names": lambda _: [name], "strict": False}
            if kind == "refused":
                with pytest.raises(NotImplementedError, match="TEM-38"):
                    te.load_quantized(*arguments[0], **arguments[1])
                continue
            te.load_quantized(*arguments[0], **arguments[1])
            weight = made.up.weight
            assert type(weight).__name__ == words(kind)[0]
            x = sample(32, 128)
            if columns == "none":
                assert weight.directions() == ["row"]
            elif columns == "the same bytes":
                assert weight.directions() == ["row", "column"]
            elif columns == "as the rows":
                assert torch.equal(weight._columnwise_data, weight._rowwise_data.t())
            else:
                assert columns == "as TEL-40, if every scale repeats over 16 rows"
                assert weight.directions() == ["row"]
            assert made.up(x).isfinite().all()
    packed = te.NVFP4Quantizer(**TILES)
    made = model_of(["up"])
    te.load_quantized(made, file_of(tmp_path / "tiles", {"up": (packed, (64, 64))}))
    derived = packed(sample(64, 64, dtype=torch.float32))
    assert torch.equal(made.up.weight._columnwise_data, derived._columnwise_data)


# Distribution


@pytest.mark.rule("TEM-8", "TEM-25")
@pytest.mark.example("TEM-8")
def test_multiples_of_cuts():
    for name, *steps in rows_of("TEM-8"):
        spec = fp4ref.profiles[name]
        for direction, cell in zip(("row", "column"), steps, strict=True):
            step_ = int(cell)
            for cut in range(1, 65):
                if cut % step_ == 0:
                    _require_whole_blocks(spec, direction, [cut, 7])
                    continue
                with pytest.raises(ValueError, match=f"process 0 ends at row {cut}"):
                    _require_whole_blocks(spec, direction, [cut, 7])


KINDS = {
    "NVFP4 in 16x16 tiles without 4over6": [te.NVFP4Quantizer(**TILES)],
    "MXFP8 in 1x32 blocks": [te.MXFP8Quantizer()],
    "block-scaled FP8 in squares, FP8 with one scale": [te.Float8BlockQuantizer(), te.Float8CurrentScalingQuantizer()],
    "in high precision": [te.IdentityQuantizer()],
    "any other": [
        te.NVFP4Quantizer(),
        te.NVFP4Quantizer(**TILES, nvfp4_use_4over6=True),
        te.MXFP8Quantizer(**TILES),
        te.Float8BlockQuantizer(block_scaling_dim=1),
    ],
}


@pytest.mark.rule("TEM-57", "TEM-10", "TEM-52")
@pytest.mark.example("TEM-57", "TEM-52")
def test_weights_of_master_values():
    x = sample(128, 128, dtype=torch.float32)
    rows = {cell: said for cell, said in rows_of("TEM-57") if cell != "hybrid"}
    assert dict(rows_of("TEM-57"))["hybrid"] == "TEM-52"
    assert [*rows] == [*KINDS]
    for cell, said in rows.items():
        for quantizer in KINDS[cell]:
            model, whole = quantizer(torch.zeros_like(x)), quantizer(x)
            if said == "refused":
                with pytest.raises(NotImplementedError, match="TEM-57"):
                    quantize_master_weights([model], [x.flatten()], [0])
                continue
            quantize_master_weights([model], [x.flatten()], [0])
            names = {"its rows": ("_rowwise_data", "_data"), "its values": ("_hp_data",)}
            names["both directions"] = ("_rowwise_data", "_columnwise_data")
            found = [name for name in names[said] if getattr(model, name, None) is not None]
            assert found
            assert all(torch.equal(getattr(model, name), getattr(whole, name)) for name in found)
            if said == "its rows" and cell.startswith("NVFP4"):
                assert model._columnwise_data is None
    makers = {"per-tensor FP8": te.Float8CurrentScalingQuantizer, "high precision": te.IdentityQuantizer}
    makers |= {"MXFP8": te.MXFP8Quantizer, "NVFP4": te.NVFP4Quantizer}
    for cell, process, outcome in rows_of("TEM-52"):
        one, two = (makers[name]() for name in cell.split(", "))
        quantizer = te.HybridQuantizer(rowwise_quantizer=one, columnwise_quantizer=two)
        model = quantizer(torch.zeros_like(x))
        has = x.flatten() if process == "has all values" else x.flatten()[: x.numel() // 2]
        if outcome == "refused":
            with pytest.raises((NotImplementedError, ValueError), match="TEM-52"):
                quantize_master_weights([model], [has], [0])
            continue
        assert outcome == "written"
        quantize_master_weights([model], [has], [0])
        for part, other in zip(model.parts().values(), quantizer(x).parts().values(), strict=True):
            assert torch.equal(part.dequantize(), other.dequantize())
