"""Example tables of the companion volumes, computed: files, checkpoints and linear layers."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import checkpoints_corpus as corpus
import fp4ref
from fp4ref.catalogue import PROMISES
from fp4ref.checkpoints import access, lint
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.groups import recognize
from fp4ref.checkpoints.transfer.converting import request_to_convert
from fp4ref.checkpoints.transfer.running import run
from fp4ref.conformance import families
from fp4ref.conformance.families.products.cases import cases
from fp4ref.conformance.judge.products import with_additions
from fp4ref.conformance.subjects.products import job_of, reasons
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.subjects.turned_products import fitted, turned
from fp4ref.errors import DomainError, FileError, Fp4Error, ShapeError
from fp4ref.files import Entry, npz, open_tensors, raw, safetensors, write_tensors
from fp4ref.model.quantize import quantize
from fp4ref.promise import Checked
from fp4ref.quantized import DirectionData
from fp4ref.standard import formulas
from fp4ref.standard.tables import tables
from standard_rules import RULES, rows_of

F = np.float32
SIDES = ("a_data", "a_scales", "b_data", "b_scales", "rows", "columns", "depth")
UP = "model.layers.0.mlp.up_proj"


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


@pytest.mark.rule("RES-8")
@pytest.mark.example("RES-8")
def test_buffers_of_another_call():
    head = tables(RULES["RES-8"].text)[0][0][0]

    def called(cell, out=None):
        spec, dtype, sizes, name = re.search(r"`([\w-]+)`, (\w+) \[(.*?)\], `(\w+)`", cell).groups()
        dtype = {"float32": F, "bfloat16": ml_dtypes.bfloat16}[dtype]
        x = np.arange(512).reshape([int(size) for size in sizes.split(", ")]).astype(dtype)
        return fp4ref.quantize(x if out is None else x[::-1].copy(), spec, scale_layout=name, backend="numpy", out=out)

    for cell, outcome in rows_of("RES-8"):
        out = called(cell)
        before = out.row.data.tobytes()
        if outcome == "filled":
            assert called(head, out).row.data is out.row.data
            assert out.row.data.tobytes() != before
        else:
            with pytest.raises(ShapeError, match=r"quantize: out with .*\[RES-8\]"):
                called(head, out)
            assert out.row.data.tobytes() == before


@pytest.mark.rule("FIL-42")
@pytest.mark.example("FIL-42")
def test_suffixes_of_tensor_files(tmp_path):
    kinds = {"safetensors": safetensors.SafetensorsFile, "npz": npz.NpzFile, "json": raw.RawFile}
    starts = {"safetensors": lambda data: data[8:9] == b"{", "npz": lambda data: data[:2] == b"PK"}
    record = {"a": {"shape": [2], "dtype": "U8", "file": "a.bin"}}
    (tmp_path / "a.bin").write_bytes(bytes(2))
    for names, read, written in rows_of("FIL-42"):
        for name in re.findall("`(.*?)`", names):
            path = tmp_path / name
            if written == "refused":
                with pytest.raises(FileError, match=r"\[FIL-42\]"):
                    stored(tmp_path, name, ["a"])
                assert not path.exists()
            else:
                stored(tmp_path, name, ["a"])
                assert starts[written](path.read_bytes())
            if read == "refused":
                path.write_bytes(b"")
                with pytest.raises(FileError, match=r"\[FIL-42\]"):
                    open_tensors(path)
                continue
            if read == "json":
                path.write_text(json.dumps({"entries": record}))
            with open_tensors(path) as file:
                assert type(file) is kinds[read]


# Volume 2


@pytest.mark.rule("GEM-56")
@pytest.mark.example("GEM-56")
def test_kernels_that_are_not_defined_on_special_values():
    spec = fp4ref.MXFP8_E5M2
    found = {case.name: case for case in cases(spec, ("special",))}
    head = tables(RULES["GEM-56"].text)[0][0]
    for declared, *cells in rows_of("GEM-56"):
        specials = tuple(re.findall("`(.*?)`", declared))
        kernel = fp4ref.kernel(operation="gemm", inputs=SIDES, outputs=("values",), specials=specials)(
            lambda *given: given
        )
        for name, said in zip(head[1:], cells, strict=True):
            reason = reasons(found[name.strip("`")], Subject.of(kernel).declaration)
            assert reason.startswith("is not defined on") if said == "does not apply" else reason == ""


@pytest.mark.rule("CNF-34")
@pytest.mark.example("CNF-34")
def test_two_blocks_with_equal_scales_in_all_cases():
    given = list(families.cases(fp4ref.NVFP4, families=["layout"]))
    for cell, said in rows_of("CNF-34"):
        first, second = (bytes.fromhex(part) for part in re.findall("`(.*?)`", cell))
        assert len(first) == len(second) == 2
        assert said.startswith("refused" if first == second else "fit")
    with np.errstate(all="ignore"):
        scales = [quantize(case.x, case.spec, case.direction, case.amax, None).scales for case in given]
    spelled = [bytes(part[row, column] for part in scales) for row, column in np.ndindex(scales[0].shape)]
    assert len({*spelled}) == len(spelled) > 128 * 4
    assert len({word[:1] for word in spelled}) < len(spelled)  # one case cannot tell them apart


@pytest.mark.rule("GEM-50")
@pytest.mark.example("GEM-50")
def test_inputs_of_a_product_on_trial():
    names = [name for row in rows_of("GEM-50") for name in re.findall("`(.*?)`", row[0])]
    names += [name.replace("a_", "b_", 1) for name in names if name.startswith(("a_row", "a_column"))]
    case = next(case for case in cases(fp4ref.NVFP4, ("bias-accumulate",)) if case.plain)
    kernel = fp4ref.kernel(
        operation="gemm",
        inputs=tuple(names),
        outputs=("values",),
        scale_layout="tiled_128x4",
        to="bfloat16",
    )(lambda *given: given)
    declared = Subject.of(kernel).declaration
    job = job_of(fitted(case, declared), declared)
    asked, (m, n, depth) = job.arguments, case.shape
    assert [*asked] == names
    form = fp4ref.LAYOUTS["tiled_128x4"]
    for side, q, rows in (("a", case.a, m), ("b", case.b, n)):
        assert np.array_equal(asked[f"{side}_data"], q.row.data)
        scales = asked[f"{side}_scales"]
        assert np.array_equal(form.to_linear(scales, *q.row.scales.shape), q.row.scales)
        padding = scales[~form.valid(*q.row.scales.shape)]
        assert padding.size == 0 or padding.any()  # it is poisoned
        assert asked[f"{side}_amax"].tobytes() == q.row.amax.tobytes()
        assert np.array_equal(asked[f"{side}_row_data"], q.row.data)
        assert (q.shape, asked[f"{side}_data"].shape) == ((rows, depth), (rows, depth // 2))
    alpha = F(1) * case.a.row.amax[0] * case.b.row.amax[0] * (F(1) / F(7225344))
    assert asked["alpha"].tolist() == [alpha]
    assert np.array_equal(asked["bias"], case.bias)
    assert asked["bias"].shape == (n,)
    assert asked["accumulate"].shape == (m, n)
    assert asked["accumulate"].dtype == ml_dtypes.bfloat16
    assert (asked["rows"], asked["columns"], asked["depth"]) == (m, n, depth)


@pytest.mark.rule("GEM-52")
@pytest.mark.example("GEM-52")
def test_the_bound_of_other_additions():
    for added, bound in rows_of("GEM-52"):
        of_sum, of_bias = (float(number) for number in re.findall(r"[\d.]+", added))
        width = float(formulas.value(bound))
        case = SimpleNamespace(bias=np.full(1, of_bias, F), accumulate=None)
        sums = np.full((1, 1), of_sum, F)
        low, high = with_additions(case, sums, sums, np.dtype(F), row_scaled=False)
        assert [low.item(), high.item()] == [of_sum + of_bias - width, of_sum + of_bias + width]
        case = SimpleNamespace(bias=None, accumulate=np.full((1, 1), of_bias, F))
        for scaled, more in ((False, 0), (True, (of_sum + of_bias) * 2.0**-8)):  # half a step of bfloat16
            low, high = with_additions(case, sums, sums, np.dtype(ml_dtypes.bfloat16), row_scaled=scaled)
            ends = [F(of_sum + of_bias - width - more), F(of_sum + of_bias + width + more)]
            assert [low.item(), high.item()] == np.array(ends).astype(ml_dtypes.bfloat16).astype(F).tolist()


@pytest.mark.rule("GEM-54")
@pytest.mark.example("GEM-54")
def test_the_other_direction_of_an_operand():
    ((own, other),) = rows_of("GEM-54")
    own, other = ([int(n) for n in re.findall(r"\d", cell)] for cell in (own, other))
    q = fp4ref.quantize(np.random.default_rng(1).standard_normal((len(own), 32)).astype(F), "nvfp4", "both")
    case = SimpleNamespace(shape=(3, 3, 32), a=turned(q, "row"), b=turned(q, "column"))
    assert [case.a.row.data[row].tobytes() for row in own] == [row.tobytes() for row in q.row.data]
    for turning, part in ((case.a, case.a.column), (case.b, case.b.row)):
        moved = np.concatenate([q.row.data[row] for row in other])
        assert part.data.shape == (32, 2)
        assert part.data.ravel()[: moved.size].tolist() == moved.tolist()
        assert not np.array_equal(part.data, q.column.data)  # other numbers than those of the tensor
        assert turning.direction("row")[0] is not turning.direction("column")[0]


# Volume 4


def stored(folder, name, tensors):
    """Write a file of float32 tensors."""
    write_tensors(folder / name, [Entry(tensor, "F32", (2,)) for tensor in tensors], {}, [np.ones(2, F)] * len(tensors))


@pytest.mark.rule("CKP-51")
@pytest.mark.example("CKP-51")
def test_suffixes_of_a_checkpoint(tmp_path):
    for number, (cell, outcome) in enumerate(rows_of("CKP-51")):
        (name,) = re.findall("`(.*?)`", cell)
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        if name.lower().endswith("gguf"):
            path.write_bytes((corpus.CLEAN["gguf-nvfp4"]().write(tmp_path / "gguf") / "model.gguf").read_bytes())
        else:
            stored(path.parent, "a.safetensors", ["a"])
            (path.parent / "a.safetensors").rename(path)
        asked = path.parent if cell.startswith("a directory") else path
        if outcome == "read":
            assert open_checkpoint(asked).tensors
        else:
            assert outcome == "refused"
            with pytest.raises(FileError, match=r"\[CKP-51\]"):
                open_checkpoint(asked)


def homes(cell):
    """The tensors of each file of a cell such as "`a` in `x.safetensors`"."""
    found = {}
    for tensor, file in re.findall("`(.*?)` in `(.*?)`", cell):
        found.setdefault(file, []).append(tensor)
    return found


@pytest.mark.rule("CKP-3")
@pytest.mark.example("CKP-3")
def test_an_index_and_its_shards(tmp_path):
    for number, (index, shards, finding) in enumerate(rows_of("CKP-3")):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file, tensors in homes(shards).items():
            stored(folder, file, tensors)
        named = {tensor: file for file, tensors in homes(index).items() for tensor in tensors}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
        assert codes(folder) == expected(finding), index


@pytest.mark.rule("CKP-52")
@pytest.mark.example("CKP-52")
def test_names_that_lead_out_of_the_directory(tmp_path):
    (by_index, closed), (link, still), (hub, inside) = rows_of("CKP-52")
    assert closed == still
    (tmp_path / "other").mkdir()
    stored(tmp_path / "other", "model.safetensors", ["a"])
    name, target = re.search('`"(.*?)": "(.*?)"`', by_index).groups()
    folder = tmp_path / "index"
    folder.mkdir()
    stored(folder, "x.safetensors", ["b"])
    entries = {name: target, "b": "x.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": entries}))
    report = lint(folder)
    assert {each.code for each in report.findings} == expected(closed)
    assert "a" not in open_checkpoint(folder).tensors
    for cell, finding, depth in ((link, still, "link"), (hub, inside, "hub")):
        path, target = re.findall("`(.*?)`", cell)
        path = tmp_path / depth / path
        path.parent.mkdir(parents=True)
        if depth == "hub":
            (tmp_path / "hub/blobs").mkdir()
            stored(tmp_path / "other", "b.safetensors", ["a"])
            (tmp_path / "other/b.safetensors").rename(path.parent / target)
        path.symlink_to(target)
        assert path.exists()
        assert codes(path.parent) == expected(finding)
        assert ("a" in open_checkpoint(path.parent).tensors) is (finding == "none")


@pytest.mark.rule("CKP-4")
@pytest.mark.example("CKP-4")
def test_names_in_two_shards(tmp_path):
    for number, (cell, finding) in enumerate(rows_of("CKP-4")):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file, name in zip("xy", re.findall("`(.*?)`", cell), strict=True):
            stored(folder, f"{file}.safetensors", [name])
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


@pytest.mark.rule("CKP-14", "CKP-53", "CKP-54")
@pytest.mark.example("CKP-14", "CKP-53", "CKP-54")
@pytest.mark.parametrize("rule", ["CKP-14", "CKP-53", "CKP-54"])
def test_bytes_that_a_scale_cannot_have(rule, tmp_path):
    for number, (byte, elements, finding) in enumerate(rows_of(rule)):
        export = corpus.CLEAN["modelopt-nvfp4"]()
        export.array(f"{UP}.weight_scale")[5, 2] = int(re.match("`(.*?)`", byte)[1], 16)
        block = export.array(f"{UP}.weight")[5, 16:24]
        assert block.any()
        if elements == "all 0":
            block[...] = 0
        found = codes(export.write(tmp_path / str(number)))
        assert "scale-nan" not in found if finding == "none of this code" else found == expected(finding)


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


@pytest.mark.rule("TEL-62")
@pytest.mark.example("TEL-62")
def test_a_scale_that_overflows(te):
    import torch

    for amax, dtype, scale in (
        *rows_of("TEL-62"),
        ["2^-130", "bfloat16", "(2 - 2^-7) * 2^127"],
        ["1", "float32", "448"],
    ):
        x = torch.full((1, 16), float(formulas.value(amax)), dtype=getattr(torch, dtype))
        made = te.Float8CurrentScalingQuantizer()(x)
        want = torch.tensor([1.0]) / torch.tensor([float(formulas.value(scale))])
        assert made._scale_inv.flatten().tolist() == want.tolist()


@pytest.mark.rule("TEL-87")
@pytest.mark.example("TEL-87")
def test_columns_with_row_scaling(te):
    import torch

    for cell, result in rows_of("TEL-87"):
        dtype, rows, columns = re.fullmatch(r"(\w+) \[(\d+), (\d+)\]", cell).groups()
        x = torch.ones(int(rows), int(columns), dtype=getattr(torch, dtype))
        quantizer = te.NVFP4Quantizer(row_scaled_nvfp4=True, columnwise=True)
        if result == "accepted":
            assert quantizer(x)._columnwise_data.shape == (int(columns), int(rows) // 2)
        else:
            assert result == "refused"
            with pytest.raises(Fp4Error, match=r"row-scaled columnwise.*\[TEL-87\]"):
                quantizer(x)


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
