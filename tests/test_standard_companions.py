"""Example tables of the companion volumes, computed: files, checkpoints and linear layers."""

from __future__ import annotations

import dataclasses
import json
import os
import re

import numpy as np
import pytest

import checkpoints_corpus as corpus
import fp4ref
from fp4ref import rules
from fp4ref.catalogue import PROMISES
from fp4ref.checkpoints import access, lint
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.groups import recognize
from fp4ref.checkpoints.transfer.converting import request_to_convert
from fp4ref.checkpoints.transfer.running import run
from fp4ref.conformance import families
from fp4ref.errors import DomainError, FileError
from fp4ref.files import Entry, write_tensors
from fp4ref.model.quantize import quantize
from fp4ref.promise import Checked
from fp4ref.quantized import DirectionData
from fp4ref.standard import formulas
from fp4ref.standard.tables import tables

F = np.float32
RULES = rules.defined()
UP = "model.layers.0.mlp.up_proj"


def rows_of(rule, number=0):
    return tables(RULES[rule].text)[number][1:]


def codes(folder):
    return {each.code for each in lint(folder).findings}


def expected(cell):
    return set() if cell == "none" else {re.match("`(.*?)`", cell)[1]}


# Volume 1


@pytest.mark.rule("LAY-6")
@pytest.mark.example("LAY-6")
def test_padding_is_not_read():
    text = RULES["LAY-6"].text
    scale, value, name, count, fill, many, code = re.search(
        r"scale (\w\w) \(([\d.]+)\) in `(\w+)` and (\d+) padding bytes (\w\w), (\w+) codes (\d) dequantize", text
    ).groups()
    assert (many, len(scale)) == ("sixteen", 2)
    form = fp4ref.LAYOUTS[name]
    buffer = form.from_linear(np.array([[int(scale, 16)]], np.uint8))
    padding = ~form.valid(1, 1)
    assert np.count_nonzero(padding) == int(count)
    buffer[padding] = int(fill, 16)
    data = DirectionData(np.full((1, 8), int(code) * 17, np.uint8), buffer, np.array([2688], F))
    quantized = dataclasses.replace(fp4ref.quantize(np.ones((1, 16), F), "nvfp4", scale_layout=name), row=data)
    assert fp4ref.dequantize(quantized, backend="numpy").tolist() == [[float(value)] * 16]
    moved = fp4ref.to_layout(quantized, "linear", backend="numpy").row.scales
    assert moved.tobytes().hex() == re.search(r"to `linear`\s+is (\w\w)", text)[1]


# Volume 2


@pytest.mark.rule("CNF-34")
@pytest.mark.example("CNF-34")
def test_two_blocks_with_equal_scales_in_all_cases():
    cases = list(families.cases(fp4ref.NVFP4, families=["layout"]))
    for cell, said in rows_of("CNF-34"):
        first, second = (bytes.fromhex(part) for part in re.findall("`(.*?)`", cell))
        assert len(first) == len(second) == 2
        assert said.startswith("refused" if first == second else "fit")
    with np.errstate(all="ignore"):
        scales = [quantize(case.x, case.spec, case.direction, case.amax, None).scales for case in cases]
    spelled = [bytes(part[row, column] for part in scales) for row, column in np.ndindex(scales[0].shape)]
    assert len({*spelled}) == len(spelled) > 128 * 4
    assert len({word[:1] for word in spelled}) < len(spelled)  # one case cannot tell them apart


# Volume 4


@pytest.mark.rule("CKP-4")
@pytest.mark.example("CKP-4")
def test_names_in_two_shards(tmp_path):
    for number, (cell, finding) in enumerate(rows_of("CKP-4")):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file, name in zip("xy", re.findall("`(.*?)`", cell), strict=True):
            write_tensors(folder / f"{file}.safetensors", [Entry(name, "F32", (2,))], {}, [np.ones(2, F)])
        assert codes(folder) == expected(finding)


@pytest.mark.rule("CKP-5")
@pytest.mark.example("CKP-5")
def test_a_file_is_cut_after_its_header_was_read(tmp_path):
    for span, size, outcome in rows_of("CKP-5"):
        begin, last = map(int, span.split(" to "))
        header = json.dumps({"a": {"dtype": "U8", "shape": [last + 1 - begin], "data_offsets": [0, last + 1 - begin]}})
        path = tmp_path / f"{size}.safetensors"
        length = begin - 8
        path.write_bytes(length.to_bytes(8, "little") + header.ljust(length).encode() + bytes(range(last + 1 - begin)))
        found = open_checkpoint(path)
        os.truncate(path, int(size))
        if outcome.startswith("an error"):
            with pytest.raises(FileError, match=rf"{path.name}.*ends at {outcome.rpartition(' and ')[2]}"):
                found.tensors["a"].bytes()
        else:
            assert found.tensors["a"].bytes() == bytes(range(int(re.search(r"\d+", outcome)[0])))


@pytest.mark.rule("CKP-7")
@pytest.mark.example("CKP-7")
def test_tensors_that_are_not_stored(tmp_path):
    for number, (cell, finding) in enumerate(rows_of("CKP-7")):
        export = corpus.CLEAN["modelopt-nvfp4"]()
        export.drop(*(f"{UP}.{name}" for name in re.findall("`(.*?)`", cell)))
        folder = export.write(tmp_path / str(number))
        if "two shards" not in cell:
            assert codes(folder) == expected(finding)
            continue
        for gone in (max(folder.glob("*.safetensors")), folder / "model.safetensors.index.json"):
            gone.unlink()
        assert finding == "none of this code"
        assert "missing-tensor" not in codes(folder)


@pytest.mark.rule("CKP-8")
@pytest.mark.example("CKP-8")
def test_tensors_that_belong_to_nothing(tmp_path):
    for number, (cell, finding) in enumerate(rows_of("CKP-8")):
        export = corpus.CLEAN["modelopt-nvfp4"]()
        name = (re.findall("`(.*?)`", cell) or [""])[0]
        if name == "weight_scale":
            export.put("model.layers.0.mlp.o_gate.weight_scale", "F8_E4M3", np.full((8, 8), 0x40))
        elif name:
            export.put(f"{UP}.{name}", "F32", 1.0)
        assert codes(export.write(tmp_path / str(number))) == expected(finding)


@pytest.mark.rule("CKP-10")
@pytest.mark.example("CKP-10")
def test_shapes_of_a_group(tmp_path):
    for number, (cell, finding) in enumerate(rows_of("CKP-10")):
        export = corpus.CLEAN["modelopt-nvfp4"]()
        for name, sizes in zip(("weight", "weight_scale"), re.findall(r"\[(\d+), (\d+)\]", cell), strict=True):
            rows, columns = map(int, sizes)
            array = export.array(f"{UP}.{name}")
            assert array.shape[1] == columns
            export.put(f"{UP}.{name}", export.tensors[f"{UP}.{name}"][0], array[:rows])
        assert codes(export.write(tmp_path / str(number))) == expected(finding)


@pytest.mark.rule("CKP-14")
@pytest.mark.example("CKP-14")
def test_bytes_that_a_scale_cannot_have(tmp_path):
    for number, (byte, elements, finding) in enumerate(rows_of("CKP-14")):
        export = corpus.CLEAN["modelopt-nvfp4"]()
        export.array(f"{UP}.weight_scale")[5, 2] = int(re.match("`(.*?)`", byte)[1], 16)
        block = export.array(f"{UP}.weight")[5, 16:24]
        assert block.any()
        if elements == "all 0":
            block[...] = 0
        assert codes(export.write(tmp_path / str(number))) == expected(finding)


@pytest.mark.rule("CKP-26")
@pytest.mark.example("CKP-26")
def test_padding_of_tiles_and_rows_below_a_bias(tmp_path):
    name = "double_blocks.0.img_attn.qkv"
    assert corpus.CLEAN["comfy-nvfp4"]().array(f"{name}.bias").shape == (40,)
    for number, (cell, finding) in enumerate(rows_of("CKP-26")):
        export = corpus.CLEAN["comfy-nvfp4"]()
        assert export.array(f"{name}.weight").shape == (48, 112 // 2)
        if "of the tiles" in cell:
            scales = export.array(f"{name}.weight_scale")
            outside = np.argwhere(corpus.tiled(np.ones((48, 7), np.uint8)) == 0)[0]
            scales[tuple(outside)] = 0x38
        elif "code of row" in cell:
            export.array(f"{name}.weight")[int(re.search(r"row (\d+)", cell)[1]), 0] = 1
        assert codes(export.write(tmp_path / str(number))) == expected(finding)


@pytest.mark.rule("CNV-2")
@pytest.mark.example("CNV-2")
def test_pieces_in_memory(tmp_path):
    for cell, most in rows_of("CNV-2"):
        rows, columns = (int(formulas.value(n)) for n in re.match(r"([\d^]+) × ([\d^]+)", cell).groups())
        assert f"2^{(rows * columns).bit_length() - 1} elements" in cell
        limit = 1 << int(re.match(r"2\^(\d+) elements", most)[1])
        path = tmp_path / f"{rows}.safetensors"
        entries = [
            Entry("w.weight", "U8", (rows, columns // 2)),
            Entry("w.weight_scale", "F8_E4M3", (rows, columns // 16)),
            Entry("w.weight_scale_2", "F32", ()),
        ]
        write_tensors(path, entries, {}, [np.zeros(e.shape, np.uint8) for e in entries[:2]] + [np.ones((), F)])
        (group,) = recognize(open_checkpoint(path)).groups
        assert (group.rows, group.columns) == (rows, columns)
        sizes = [2 * piece.packed.size for piece in access.pieces(group)]
        assert sum(sizes) == rows * columns
        assert max(sizes) <= limit
        if rows == 1:
            assert sizes == [limit]


@pytest.mark.rule("CNV-6")
@pytest.mark.example("CNV-6")
def test_a_target_that_cannot_express_the_weights(tmp_path):
    source = corpus.CLEAN["modelopt-nvfp4"]().write(tmp_path / "source")
    for weights, cell, outcome in rows_of("CNV-6"):
        assert weights == "`modelopt.nvfp4`"
        family = re.match("`(.*?)`", cell)[1]
        if outcome == "written":
            run(request_to_convert(source, tmp_path / family, to=family))
            assert list((tmp_path / family).iterdir())
        else:
            with pytest.raises(DomainError, match=r"is e2m1 with e4m3 scales .*, need .* for deepseek.*\[CNV-6\]"):
                run(request_to_convert(source, tmp_path / family, to=family))
            assert not (tmp_path / family).exists()


# Volume 6


@pytest.mark.rule("PRO-2")
@pytest.mark.example("PRO-2")
def test_evidence_of_profiles():
    for profile, said in rows_of("PRO-2"):
        name = profile.strip("`")
        assert PROMISES[name].checked is Checked(said)
        assert fp4ref.profiles.source(name).startswith(said)


# Volume 3


@pytest.fixture
def te():
    pytest.importorskip("torch")
    import fp4ref.te

    return fp4ref.te


@pytest.mark.rule("TEL-6")
@pytest.mark.example("TEL-6")
def test_random_bytes_of_states(te):
    import torch

    from fp4ref.te.rng import RngState, random_bytes

    found = {}
    for state, cell in rows_of("TEL-6"):
        seed, offset = map(int, re.findall(r"\d+", state))
        drawn = random_bytes((2, 16), "row", RngState(seed, offset), torch.device("cpu")).row
        assert bytes(drawn[0, :4].tolist()) == bytes.fromhex(cell.strip("`"))
        found[seed, offset] = cell
    assert len({*found.values()}) == len(found)
    # The quantizer takes its state from the same place: what it writes is what these bytes make of x.
    torch.manual_seed(5)
    state = te.rng.next_state(torch.device("cpu"))
    torch.manual_seed(5)
    x = torch.linspace(-3, 3, 32).reshape(2, 16).bfloat16().repeat(8, 1)
    made = te.NVFP4Quantizer(stochastic_rounding=True, columnwise=False)(x)
    bits = random_bytes((16, 16), "row", state, torch.device("cpu"))
    spec = fp4ref.profiles["nvfp4-sr"]
    assert torch.equal(made._rowwise_data, fp4ref.quantize(x, spec, random_bits=bits).row.data)


def layer_of_examples(te, group=None):
    """Return the layer whose weight has one 6 and then fifteen times 5 in each row."""
    import torch

    layer = te.Linear(16, 16, bias=False, fsdp_group=group)
    layer.weight.data = torch.full((16, 16), 5.0)
    layer.weight.data[:, 0] = 6
    return layer


def step(te, layer, override=None, **options):
    """Return the elements of the result, and those of the first three columns of dgrad."""
    import torch

    named = {} if override is None else {"backward_override": override}
    recipe = te.recipe.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True, **named)
    x = torch.ones(16, 16, requires_grad=True)
    with te.autocast(recipe=recipe):
        y = layer(x, **options)
    y.backward(torch.ones_like(y))
    (result,) = {*y.flatten().tolist()}
    assert (x.grad == x.grad[0]).all()
    assert (x.grad[:, 3:] == x.grad[0, 2]).all()
    return result, x.grad[0, :3].tolist()


@pytest.mark.rule("TEM-15")
@pytest.mark.example("TEM-15")
def test_a_step_whose_backward_pass_is_in_high_precision(te):
    for cell, result, dgrad in rows_of("TEM-15"):
        override = cell.strip("`") if cell.startswith("`") else None
        assert step(te, layer_of_examples(te), override) == (float(result), [float(n) for n in dgrad.split()])


@pytest.mark.rule("TEM-17")
@pytest.mark.example("TEM-17")
def test_a_kept_weight_gives_the_same_result(te):
    for cell, result in rows_of("TEM-17"):
        layer, kept = layer_of_examples(te), "kept" in cell
        for first in (True, False):
            assert step(te, layer, is_first_microbatch=first if kept else None)[0] == float(result)
        assert bool(layer._fp8_workspaces) is kept


def test_every_case_of_a_table_has_another_outcome():
    """A table whose rows all say the same would hold for code that ignores its input."""
    for rule in ("CKP-4", "CKP-5", "CKP-7", "CKP-8", "CKP-10", "CKP-14", "CKP-26", "CNV-6", "PRO-2", "TEM-15"):
        assert len({row[-1] for row in rows_of(rule)}) > 1, rule
