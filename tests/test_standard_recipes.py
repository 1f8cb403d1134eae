"""Examples of the chapter on recipes and caching, acted out: which quantizer a recipe gives each operand."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.te import quantizer_factories, quantizer_factory_zoo, recipe, specifications  # noqa: E402
from fp4ref.te.dtypes import DType  # noqa: E402
from fp4ref.te.float8_block_quantizer import Float8BlockQuantizer  # noqa: E402
from fp4ref.te.quantization import FP8GlobalStateManager, RecipeState  # noqa: E402
from fp4ref.te.roles import QuantizerRole  # noqa: E402
from standard_rules import integers, rows_of, text_of  # noqa: E402

FORWARD = ("input", "weight", "output")
KINDS = {
    "MXFP8": [recipe.MXFP8BlockScaling],
    "block-scaled FP8": [recipe.Float8BlockScaling],
    "per-tensor FP8": [recipe.Float8CurrentScaling, recipe.DelayedScaling],
}
OFF = {"disable_rht": True, "disable_stochastic_rounding": True, "disable_2d_quantization": True}


@pytest.fixture(autouse=True)
def fresh():
    FP8GlobalStateManager.reset()
    yield
    FP8GlobalStateManager.reset()


def words(cell):
    return re.findall("`(.*?)`", cell)


def quantizers(made, *tensors, module="linear", mode=None):
    """The quantizers of a recipe for these tensors of a module; None for no role."""
    roles = [None if name is None else QuantizerRole(module, name) for name in tensors]
    given = mode or ("backward" if tensors[0] in {"grad_output", "grad_input"} else "forward")
    return RecipeState.create(made, mode=given, num_quantizers=len(roles), roles=roles).make_quantizers()


def quantizer(made, tensor, **options):
    return quantizers(made, tensor, **options)[0]


def unless(cell, settings):
    """The cell of a table, which a setting may turn off: what stands before "unless", or behind "else"."""
    said, _, rest = cell.partition(", unless ")
    if cell.startswith("unless "):
        said, rest = "yes", cell.removeprefix("unless ")
    if rest and settings[words(rest)[0]]:
        return rest.partition("else ")[2] or "no"
    return said


@pytest.mark.rule("TEL-1")
@pytest.mark.example("TEL-1")
@pytest.mark.parametrize("settings", [*itertools.product((False, True), repeat=3)])
def test_operands_of_nvfp4(settings):
    settings = dict(zip(OFF, settings, strict=True))
    for role, *cells in rows_of("TEL-1"):
        block, transform, chance = (unless(cell, settings) for cell in cells)
        found = quantizer(recipe.NVFP4BlockScaling(**settings), role)
        assert found.with_2d_quantization == (block == "16x16")
        assert block in {"16x16", "1x16"}
        assert found.stochastic_rounding == (chance != "no")
        assert found.with_rht == (transform == "columns")
        found.stochastic_rounding = False  # the bytes are compared
        x = torch.randn(32, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
        plain = te.NVFP4Quantizer(with_2d_quantization=block == "16x16")
        assert torch.equal(found(x)._rowwise_data, plain(x)._rowwise_data)
        assert torch.equal(found(x)._columnwise_data, plain(x)._columnwise_data) == (transform == "no")


@pytest.mark.rule("TEL-16")
@pytest.mark.example("TEL-16")
def test_roles_with_row_scaling():
    seen = {}
    for cell, outcome in rows_of("TEL-16"):
        for role in cell.split(", "):
            made = recipe.NVFP4BlockScaling(row_scaled_activation=True, disable_rht=True)
            seen[role] = quantizer(made, role).row_scaled_nvfp4
            assert seen[role] == (outcome == "yes")
            assert not quantizer(recipe.NVFP4BlockScaling(disable_rht=True), role).row_scaled_nvfp4
    assert {*seen} == {*FORWARD, "grad_output", "grad_input"}


@pytest.mark.rule("TEL-17")
@pytest.mark.example("TEL-17")
def test_roles_of_4over6():
    meaning = {"none": (), "weight": ("weight",), "every other forward role": ("input", "output")}
    meaning["every forward role"] = FORWARD
    scopes = {value: meaning[roles] for value, roles in rows_of("TEL-17")}
    assert tuple(scopes) == recipe.SCOPES
    less, most = map(int, re.search(r"roles where (\d+) replaces (\d+)", text_of("TEL-17").replace("\n", " ")).groups())
    for search, larger in itertools.product(scopes, repeat=2):
        settings = {"nvfp4_4over6": search, "nvfp4_4over6_e4m3_use_256": larger}
        for role in (*FORWARD, "grad_output"):
            found = quantizer(recipe.NVFP4BlockScaling(**OFF, **settings), role)
            assert found.nvfp4_use_4over6 == (role in scopes[search])
            assert found.nvfp4_e4m3_max == (less if role in scopes[search] and role in scopes[larger] else most)


@pytest.mark.rule("TEL-18")
@pytest.mark.example("TEL-18")
def test_4over6_and_a_transform():
    for cell, disabled, outcome in rows_of("TEL-18"):
        for scope in cell.split(", "):
            made = recipe.NVFP4BlockScaling(nvfp4_4over6=scope, disable_rht=disabled == "on")
            if outcome == "refused":
                with pytest.raises(ValueError, match="TEL-18"):
                    quantizers(made, "input", "weight")
                continue
            assert outcome.startswith("accepted")
            assert any(each.nvfp4_use_4over6 for each in quantizers(made, "input", "weight"))


def imported_again(monkeypatch):
    """The module of recipes as it is when it is imported now."""
    source = importlib.util.spec_from_file_location("recipe_of_this_test", recipe.__file__)
    again = importlib.util.module_from_spec(source)
    monkeypatch.setitem(sys.modules, "recipe_of_this_test", again)  # where dataclasses look up their module
    source.loader.exec_module(again)
    return again


@pytest.mark.rule("TEL-19")
@pytest.mark.example("TEL-19")
def test_defaults_of_the_environment(monkeypatch):
    meaning = {"off": False, "None": None}
    given = {"off": ("1", True), "none": ("weights", "weights"), "all": ("none", "none"), "MAE": ("mse", "MSE")}
    rows = {words(cell)[0]: (re.search(r"\((.*?)\)", cell)[1], words(name)[0]) for cell, name in rows_of("TEL-19")}
    for _, variable in rows.values():
        monkeypatch.delenv(variable, raising=False)
    made = imported_again(monkeypatch).NVFP4BlockScaling()
    defaults = {field: said.partition(";")[0] for field, (said, _) in rows.items()}
    assert {field: getattr(made, field) for field in rows} == {
        field: meaning.get(said, said) for field, said in defaults.items()
    }
    for field, (said, variable) in rows.items():
        others = re.findall(r"\w+", said.partition("; or ")[2])
        for value, wanted in [(other, other) for other in others] or [given[said]]:
            with monkeypatch.context() as patched:
                patched.setenv(variable, value)
                module = imported_again(patched)
                patched.delenv(variable)  # what counts is what it was when the module was imported
                settings = vars(module.NVFP4BlockScaling())
            assert settings[field] == wanted
            assert {name: settings[name] for name in rows if name != field} == {
                name: meaning.get(word, word) for name, word in defaults.items() if name != field
            }


@pytest.mark.rule("TEL-2")
@pytest.mark.example("TEL-2")
def test_element_formats_of_roles():
    block = re.search(r"Blocks of MXFP8 have (\d+)", text_of("TEL-2"))[1]
    for word, cell, forward, backward in rows_of("TEL-2"):
        for kind in cell.split(", "):
            name, _, default = kind.partition(" (")
            for made in KINDS[name]:
                chosen = made(fp8_format=recipe.Format[word])
                assert made().fp8_format is recipe.Format[word] or not default
                if made is recipe.DelayedScaling:
                    states = [
                        RecipeState.create(chosen, mode=mode, num_quantizers=2) for mode in ("forward", "backward")
                    ]
                    found = [{each.dtype for each in state.make_quantizers()} for state in states]
                else:
                    found = [{each.dtype for each in quantizers(chosen, *FORWARD)}]
                    found.append({quantizer(chosen, "grad_output").dtype})
                assert found == [{DType[f"kFloat8{forward}"]}, {DType[f"kFloat8{backward}"]}]
                if name == "MXFP8":
                    assert {described(each).partition("x")[2] for each in quantizers(chosen, *FORWARD)} == {block}


@pytest.mark.rule("TEL-20")
@pytest.mark.example("TEL-20")
def test_tiles_of_mxfp8_weights():
    assert re.search(r"have blocks of (\w+)", text_of("TEL-20"))[1] == rows_of("TEL-20")[0][2]
    for cell, setting, block in rows_of("TEL-20"):
        names, _, other = cell.partition(", of no linear layer")
        for role in names.split(", "):
            made = recipe.MXFP8BlockScaling(enable_2d_quantization=setting == "on")
            for module in ("dpa", "") if other else ("linear", "grouped_linear"):
                assert described(quantizer(made, role, module=module)).partition(", ")[2] == block


@pytest.mark.rule("TEL-43")
@pytest.mark.example("TEL-43")
def test_positions_without_a_known_tensor():
    for number, cell, tensor in rows_of("TEL-43"):
        roles = [None] * (int(number) + 1)
        roles[-1] = None if cell == "none" else cell
        made = quantizers(recipe.NVFP4BlockScaling(), *roles, mode="forward")[-1]
        wanted = quantizer(recipe.NVFP4BlockScaling(), tensor)
        assert (made.with_rht, made.with_2d_quantization) == (wanted.with_rht, wanted.with_2d_quantization)
    for names, mode in (("input, weight, output", "forward"), ("grad_output, grad_input", "backward")):
        assert names in text_of("TEL-43").replace("\n", " ")
        turns = names.split(", ") * 2
        found = quantizers(recipe.NVFP4BlockScaling(), *[None] * len(turns), mode=mode)
        named = quantizers(recipe.NVFP4BlockScaling(), *turns, mode=mode)
        for each, other in zip(found, named, strict=True):
            assert (each.with_rht, each.stochastic_rounding) == (other.with_rht, other.stochastic_rounding)
            assert each.with_2d_quantization == other.with_2d_quantization


@pytest.mark.rule("TEL-58")
@pytest.mark.example("TEL-58")
def test_roles_that_a_factory_hears():
    heard = []
    made = recipe.CustomRecipe(qfactory=lambda role: heard.append(role) or te.MXFP8Quantizer())
    mlp = te.LayerNormMLP(32, 64, device="cpu", name="mlp")
    with te.autocast(recipe=made):
        mlp(torch.zeros(32, 32))
    found = [(role.name, role.tensor_type) if role else ("none", "none") for role in heard]
    assert found == [(name, tensor) for _, name, tensor in rows_of("TEL-58")]
    for operand, name, tensor in rows_of("TEL-58"):
        assert operand.startswith(("output", "gradient")) or f"mlp.{operand}" == f"mlp.{tensor} of {name[4:]}"
    results = [each for each, (cell, *_) in enumerate(rows_of("TEL-58")) if found[each][0] == "none"]
    assert [rows_of("TEL-58")[each][0] for each in results] == ["output of fc2", "gradient of fc1's input"]
    consumer = QuantizerRole("dpa", "qkv", "attention")
    mlp.output_quantizer_role = mlp.grad_input_quantizer_role = consumer
    heard.clear()
    with te.autocast(recipe=made):
        mlp(torch.zeros(32, 32))
    assert [each for each, role in enumerate(heard) if role == consumer] == results


def described(made):
    """A quantizer in the words of the tables: its format, block and the rest."""
    if isinstance(made, te.NVFP4Quantizer):
        return ("NVFP4", made.with_2d_quantization, made.with_rht, made.stochastic_rounding, made.row_scaled_nvfp4)
    if isinstance(made, Float8BlockQuantizer):
        return f"{'128' if made.block_scaling_dim == 2 else '1'}x128"
    if isinstance(made, te.MXFP8Quantizer):
        block = specifications.mxfp8(made.dtype, made.with_2d_quantization).block
        return f"{made.dtype.name.removeprefix('kFloat8')}, {block.rows}x{block.columns}"
    if isinstance(made, te.Float8CurrentScalingQuantizer):
        return made.dtype.name.removeprefix("kFloat8")
    return {te.IdentityQuantizer: "identity"}[type(made)]


def nvfp4_of(tensor):
    return described(quantizer(recipe.NVFP4BlockScaling(), tensor))


@pytest.mark.rule("TEL-55", "TEL-83")
@pytest.mark.example("TEL-55", "TEL-83")
@pytest.mark.parametrize("module", ["linear", "grouped_linear"])
def test_roles_of_factories(module):
    for name, weight, gradient in rows_of("TEL-55"):
        factory = getattr(quantizer_factories, words(name)[0])
        for tensor, said in (("weight", weight), ("grad_output", gradient)):
            wanted = nvfp4_of(tensor) if said == "as TEL-1" else said
            assert described(factory(QuantizerRole(module, tensor))) == wanted
    assert [row[0] for row in rows_of("TEL-55")] == [row[0] for row in rows_of("TEL-83")]
    for name, gradient in rows_of("TEL-83"):
        factory = getattr(quantizer_factories, words(name)[0])
        wanted = nvfp4_of("input") if gradient == "as TEL-1's input" else gradient
        assert described(factory(QuantizerRole("dpa", "grad_output"))) == wanted


CELLS = {
    "identity": te.IdentityQuantizer,
    "MXFP8": te.MXFP8Quantizer,
    "NVFP4": te.NVFP4Quantizer,
    "NVFP4, amax per row of the input": lambda: te.NVFP4Quantizer(row_scaled_nvfp4=True),
}


def wanted_of(cell, tensor):
    """Return what a cell of TEL-57 asks for, as `described` does; of the input only rows where the cell says so."""
    if cell == "as TEL-1":
        return nvfp4_of(tensor)
    if tensor == "weight":
        cell = cell.removesuffix(", amax per row of the input")
    return described(CELLS[cell]())


@pytest.mark.rule("TEL-57")
@pytest.mark.example("TEL-57")
def test_factories_that_mix_formats():
    assert "NVFP4 without a word has 1x16 blocks" in text_of("TEL-57")
    before = ""
    for cell, rows, *columns, gradient in rows_of("TEL-57"):
        before = words(cell)[0] if words(cell) else before
        factory = getattr(quantizer_factory_zoo, before)
        modules = ["grouped_linear"] if "grouped layers" in cell else ["linear"]
        modules += ["grouped_linear"] if "layers" not in cell else []
        for module, (at, tensor) in itertools.product(modules, enumerate(("input", "weight"))):
            both = rows.split(", ") if rows == "as TEL-1, NVFP4" else [rows, rows]
            other, *_ = columns[at].partition(" of rows")
            made = factory(QuantizerRole(module, tensor))
            hybrid = isinstance(made, te.HybridQuantizer)
            parts = [made.rowwise_quantizer, made.columnwise_quantizer] if hybrid else [made, made]
            assert described(parts[0]) == wanted_of(both[at], tensor), (cell, tensor)
            assert described(parts[1]) == wanted_of(other, tensor), (cell, tensor)
            source = made.columnwise_source if hybrid else "original"
            assert (source == "rowwise_dequantized") == columns[at].endswith("of rows"), (cell, tensor)
            assert described(factory(QuantizerRole(module, "grad_output"))) == wanted_of(gradient, "grad_output")


@pytest.mark.rule("TEL-59", "TEL-60", "TEL-56", "TEL-88")
@pytest.mark.example("TEL-59", "TEL-60")
def test_sources_of_columns():
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    for rows, columns, source, said in rows_of("TEL-59"):
        made = te.HybridQuantizer(
            rowwise_quantizer=CELLS[rows](), columnwise_quantizer=CELLS[columns](), columnwise_source=words(source)[0]
        )(x)
        given = CELLS[rows]()(x).dequantize() if "rows' values" in said else x
        part = made.columnwise_sub_storage
        if columns == "identity":
            assert torch.equal(part.dequantize(), given)
            continue
        alone = CELLS[columns]()(given)
        assert torch.equal(part._columnwise_data, alone._columnwise_data)
        assert torch.equal(part._columnwise_scale_inv, alone._columnwise_scale_inv)
        assert said.startswith(f"the columns of {columns} of the ")
    ((cell, operand),) = rows_of("TEL-60")
    value = re.fullmatch(r"([\d.]+) in (float32)", cell)
    assert value[1] == operand
    x = torch.full((16, 16), float(value[1]), dtype=getattr(torch, value[2]))
    assert torch.equal(te.general_gemm(te.IdentityQuantizer()(torch.eye(16)), te.IdentityQuantizer()(x))[0], x)


def delayed(length=4, **fields):
    made = recipe.DelayedScaling(amax_history_len=length, fp8_format=recipe.Format.E4M3, **fields)
    return RecipeState.create(made, mode="forward", num_quantizers=1)


@pytest.mark.rule("TEL-44")
@pytest.mark.example("TEL-44")
def test_the_first_row_of_a_history():
    for before, cell, after in rows_of("TEL-44"):
        state = delayed()
        state.amax_history[0] = float(before)
        (made,) = state.make_quantizers()
        for amax in integers(cell):
            made(torch.full((16, 32), -float(amax)))
        assert state.amax_history[:, 0].tolist() == [float(after), 0, 0, 0]


@pytest.mark.rule("TEL-71")
@pytest.mark.example("TEL-71")
def test_scales_of_a_recomputation(monkeypatch):
    ((cell, recomputed),) = rows_of("TEL-71")
    first, updated = integers(cell)
    module, used = te.Linear(32, 32, params_dtype=torch.bfloat16, device="cpu"), []
    plain = te.Float8Quantizer.quantize_impl

    def noting(self, tensor):
        used.append((self.role, self.scale.item()))
        return plain(self, tensor)

    monkeypatch.setattr(te.Float8Quantizer, "quantize_impl", noting)
    x = torch.ones(16, 32, dtype=torch.bfloat16).mul(448 / updated).requires_grad_()
    with te.autocast(recipe=recipe.DelayedScaling(amax_history_len=4)):
        y = te.checkpoint(module, x)
    state = module.fp8_meta["scaling_fwd"]
    assert state.scale[0] == updated
    history = state.amax_history.clone()
    y.sum().backward()
    scales = [scale for role, scale in used if role == "input"]
    assert scales == [first, int(recomputed)]
    assert torch.equal(state.amax_history, history)


@pytest.mark.rule("TEL-48")
@pytest.mark.example("TEL-48")
def test_blocks_of_block_scaled_fp8():
    for role, cell in rows_of("TEL-48"):
        block, setting, value, other = re.fullmatch(r"(\w+), with `(\w+)=(\d)` (\w+)", cell).groups()
        assert described(quantizer(recipe.Float8BlockScaling(), role)) == block
        assert described(quantizer(recipe.Float8BlockScaling(**{setting: int(value), **alone(setting)}), role)) == other
    with pytest.raises(ValueError, match="Float8BlockScaling"):
        recipe.Float8BlockScaling(x_block_scaling_dim=2)


def alone(setting):
    """A weight without tiles where another operand gets them: tiles are multiplied by rows."""
    return {} if setting.startswith("w_") else {"w_block_scaling_dim": 1}
