"""Examples of the chapter on checkpoints, acted out: findings in files, names, declarations and bytes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from dataclasses import replace

import numpy as np
import pytest

import checkpoints_corpus as corpus
import fp4ref
from commands import convert, fp4
from file_bytes import safetensors
from fp4ref.checkpoints import CONVENTIONS, check_scales, diagnoses, lint, permutations, source
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.groups import recognize
from fp4ref.checkpoints.source import _astray, _far
from fp4ref.files import Entry, write_tensors
from fp4ref.standard import formulas
from standard_rules import integers, rows_of, text_of

UP = "model.layers.0.mlp.up_proj"
GATE = "model.layers.0.mlp.gate_proj"
Q, K = (f"model.layers.0.self_attn.{name}_proj" for name in "qk")


def words(cell):
    return re.findall("`(.*?)`", cell)


def codes(path, **options):
    return {each.code for each in lint(path, **options).findings}


def finding_of(cell):
    """The code that a cell says is found; None for none."""
    return None if cell.startswith("none") else words(cell)[0]


def found_in(export, folder, **options):
    """The only code of an export, None for none, and the tensors or files that it names."""
    report = lint(export.write(folder), **options)
    assert len({each.code for each in report.findings}) <= 1, report.findings
    return next((each.code for each in report.findings), None), [n for each in report.findings for n in each.tensors]


def change(export, name, **elements):
    """Change a tensor in place by a function of a copy of its array."""
    array = export.array(name).copy()
    elements["by"](array)
    export.tensors[name] = export.tensors[name][0], array


def entry(count, begin, end):
    return {"dtype": "U8", "shape": [count], "data_offsets": [begin, end]}


# Files


@pytest.mark.rule("CKP-1", "CKP-2", "CKP-35")
@pytest.mark.example("CKP-1", "CKP-2", "CKP-35")
def test_headers(tmp_path):
    path = tmp_path / "a.safetensors"
    (length, first), (offsets, second), (same, third) = rows_of("CKP-1")
    path.write_bytes(struct.pack("<Q", int(formulas.value(length.rpartition(" ")[2]))) + b"{}")
    assert codes(path) == {words(first)[0]}
    assert first.endswith("on the file")
    count, begin, end = integers(offsets)
    path.write_bytes(safetensors({"a": entry(count, begin, end)}, bytes(end)))
    (found,) = lint(path).findings
    assert ([found.code], [*found.tensors], second) == (words(second), ["a"], "`header`, on the tensor")
    path.write_bytes(safetensors({"a": entry(4, 0, 4), "b": entry(4, 0, 4)}, bytes(4)))
    (found,) = lint(path).findings
    assert (same, third) == ("two tensors at the same bytes", "`header`, on both")
    assert (found.code, sorted(found.tensors)) == ("header", ["a", "b"])
    ((cell, code),) = rows_of("CKP-2")
    promised, there = integers(cell)
    for size, wanted in ((promised, set()), (there, {*words(code)})):
        half = promised // 2
        whole = safetensors({"a": entry(half, 0, half), "b": entry(promised - half, half, promised)}, bytes(size))
        path.write_bytes(whole)
        report = lint(path)
        assert {each.code for each in report.findings} == wanted
        assert len(report.findings) == len(wanted)
    ((cell, said),) = rows_of("CKP-35")
    head = integers(cell)[0] << 10
    folder = corpus.modelopt().write(tmp_path / "shards")
    shard = folder / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    assert len(whole) > head
    shard.write_bytes(whole[:head])
    report = lint(folder, header_only=True)
    assert report.findings == []
    assert said == "none; a note: only its head may be here"
    assert any("only their heads were fetched" in each and shard.name in each for each in report.remarks)


@pytest.mark.rule("CKP-34", "CKP-6")
@pytest.mark.example("CKP-34", "CKP-6")
def test_statuses(tmp_path):
    (written, status), (renamed, same) = rows_of("CKP-34")
    assert (written, renamed, same) == (
        "a byte is written to a shard",
        "another file is renamed to the shard's name",
        "the same",
    )
    for name in ("written", "renamed"):
        folder = corpus.gguf().write(tmp_path / name)
        path = folder / "model.gguf"

        def touch(step, path=path, name=name):
            data = path.read_bytes()
            other = path.with_name("other")
            (other if name == "renamed" else path).write_bytes(data)
            if name == "renamed":
                other.rename(path)
            else:
                os.utime(path, ns=(1, 1))

        report = lint(folder, step=touch)
        assert report.status == integers(status)[0]
        assert path.name in report.failure
        assert "\n" not in report.failure
    wanted = dict(rows_of("CKP-6"))
    folder = corpus.modelopt().write(tmp_path / "shards")
    shard = folder / "model-00002-of-00002.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-9])
    assert fp4("lint", folder).exit_code == int(wanted["a truncated shard beside a whole one"])
    result = fp4("lint", folder, "--header-only")
    said = wanted["`--header-only`, and a file ends before bytes that its header promises"]
    assert said == f"{result.exit_code}, with a note that names it: only its head may be here"
    assert shard.name in result.stdout
    shard.write_bytes(data)
    export = corpus.CLEAN["modelopt-mxfp4"]()
    change(export, f"{UP}.weight", by=lambda a: a.__setitem__((5, slice(0, 16)), 0))
    change(export, f"{UP}.weight_scale", by=lambda a: a.__setitem__((5, 0), 0))
    folder = export.write(tmp_path / "notes")
    assert {each.severity for each in lint(folder).findings} == {"note"}
    assert fp4("lint", folder).exit_code == int(wanted["notes only"])
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes(safetensors(b"not JSON"))
    result = fp4("lint", alone)
    said = wanted["one file, whose header is not JSON"]
    assert said == f"{result.exit_code}, with the finding and a line on standard error"
    assert "header" in result.stdout
    assert result.stderr.count("\n") == 1


# Recognition


@contextlib.contextmanager
def registered(convention):
    fp4ref.register(convention, source="a test")
    try:
        yield convention
    finally:
        CONVENTIONS.forget(convention.name)


@pytest.mark.rule("CKP-28", "CKP-36")
@pytest.mark.example("CKP-28", "CKP-36")
def test_conventions(tmp_path):
    ours = CONVENTIONS["modelopt.nvfp4"]
    elements, scales, overall = (cell for _, cell in rows_of("CKP-28"))
    assert (words(elements)[0], elements.split(", ")[1:]) == ("weight", ["U8", "two codes a byte"])
    assert (ours.codes.suffix, ours.bits) == (f".{words(elements)[0]}", 4)
    assert scales.split(", ") == [f"`{ours.scales.suffix[1:]}`", "F8_E4M3", "linear"]
    direction = ours.global_direction
    assert overall.startswith(f"`{ours.global_scale.suffix[1:]}`, F32, a {direction.way} with the constant ")
    assert direction.constant == integers(overall)[-1]
    for role, types in ((ours.codes, "U8"), (ours.scales, "F8_E4M3"), (ours.global_scale, "F32")):
        assert types in role.dtypes
    ((cell, said),) = rows_of("CKP-36")
    name, suffix = words(cell)
    made = replace(ours, name=name, scales=ours.scales._replace(suffix=f".{suffix}"))
    export = corpus.modelopt()
    for tensor in [tensor for tensor in export.tensors if tensor.endswith(".weight_scale")]:
        export.tensors[tensor.replace(".weight_scale", f".{suffix}")] = export.tensors.pop(tensor)
    export.config = export.hf = None
    with registered(made):
        option = re.search("`fp4ref lint --convention (.*?)`", text_of("CKP-36"))[1]
        report = lint(export.write(tmp_path), convention=option, header_only=True)
        assert report.families == [name]
        assert report.findings == []
        assert words(said) == ["X.weight", f"X.{suffix}"]


@pytest.mark.rule("CKP-29")
@pytest.mark.example("CKP-29")
def test_conventions_of_shapes(tmp_path):
    for number, (tensors, convention) in enumerate(rows_of("CKP-29")):
        path = tmp_path / f"{number}.safetensors"
        entries = [
            Entry(name, dtype, tuple(integers(shape)))
            for name, dtype, shape in re.findall(r"`(\S+)` (\w+) (\[.*?\])", tensors)
        ]
        zeros = [np.zeros(each.shape, np.float32 if each.dtype == "F32" else np.uint8) for each in entries]
        write_tensors(path, entries, {}, zeros)  # no value tells a convention from another
        (group,) = recognize(open_checkpoint(path)).groups
        assert group.convention.name == words(convention)[0]


@pytest.mark.rule("CKP-31", "CKP-37")
@pytest.mark.example("CKP-31", "CKP-37")
def test_declarations_are_read_again(tmp_path):
    head = re.search(r"\| `(\S+)` with input scales, (.*) in high precision \|", text_of("CKP-31"))
    convention, excluded = CONVENTIONS[head[1]], words(head[2])
    convert(corpus.compressed().write(tmp_path / "source"), tmp_path / "q", to=convention.family)
    for cell, value in rows_of("CKP-31"):
        file, path = words(cell)
        found = json.loads((tmp_path / "q" / file).read_text())
        for key in path.split("."):
            found = found[key]
        assert (found if isinstance(found, str) else json.dumps(found)) == words(value)[0]
        assert isinstance(found, str) or found == excluded
    ((written, read),) = rows_of("CKP-37")
    report = lint(tmp_path / "q")
    assert report.families == [words(read)[0]]
    assert words(written) == words(read) == [convention.name]
    assert report.findings == []


@pytest.mark.rule("CKP-32", "CKP-38", "CKP-22")
@pytest.mark.example("CKP-32", "CKP-38", "CKP-22")
def test_consumers_of_findings(tmp_path):
    (code, convention, consumers), (other, _, said) = rows_of("CKP-32")
    export = corpus.compressed()
    export.array(f"{UP}.weight_global_scale")[...] *= 2
    folder = export.write(tmp_path / "fused")
    (found,) = lint(folder).findings
    assert (found.code, convention) == (words(code)[0], "`compressed-tensors.nvfp4`")
    assert [*found.consumers] == consumers.split(", ")
    assert all(found.consumers.values())
    for cell, severity in rows_of("CKP-38"):
        (found,) = lint(folder, consumer=cell.removeprefix("for ")).findings
        assert (found.code, found.severity) == (words(code)[0], severity)
    export = corpus.CLEAN["modelopt-mxfp4"]()
    change(export, f"{UP}.weight", by=lambda a: a.__setitem__((5, slice(0, 16)), 0))
    change(export, f"{UP}.weight_scale", by=lambda a: a.__setitem__((5, 0), 0))
    (found,) = lint(export.write(tmp_path / "bytes")).findings
    assert (found.code, [*found.consumers]) == (words(other)[0], [])
    assert said == "none: decoded values are the same"
    members = [
        f"model.layers.0.self_attn.{name}" for name in words(re.search(r"\| (`q_proj`.*?) \|", text_of("CKP-22"))[1])
    ]
    for number, (cell, finding) in enumerate(rows_of("CKP-22")):
        for scale in ("weight_scale_2", "input_scale"):
            export = corpus.modelopt()
            for member, value in zip(members, cell.split(", "), strict=True):
                export.put(f"{member}.{scale}", "F32", float(value))
            code, _ = found_in(export, tmp_path / f"{number}{scale}")
            assert code == finding_of(finding)


# Types, sizes and declarations


@pytest.mark.rule("CKP-9", "CKP-11", "CKP-12", "CKP-39")
@pytest.mark.example("CKP-9", "CKP-11", "CKP-12", "CKP-39")
def test_types_sizes_and_declarations(tmp_path):
    (name, dtype, none), (_, wrong, finding) = rows_of("CKP-9")
    assert corpus.modelopt().tensors[f"{UP}.{words(name)[0]}"][0] == dtype
    export = corpus.modelopt()
    export.put(f"{UP}.{words(name)[0]}", wrong, export.array(f"{UP}.{words(name)[0]}"))
    assert (found_in(export, tmp_path / "type")[0], finding_of(none)) == (finding_of(finding), None)
    for number, (cell, finding) in enumerate(rows_of("CKP-11")):
        high, wide, rows, blocks, declared = integers(cell)
        export = corpus.modelopt()
        assert [*export.array(f"{Q}.weight").shape] == [high, wide // 2]
        assert [*export.array(f"{Q}.weight_scale").shape] == [rows, blocks]
        export.hf["quantization"]["group_size"] = declared
        assert found_in(export, tmp_path / f"size{number}")[0] == finding_of(finding)
    (declared, none), (integer, finding) = rows_of("CKP-12")
    assert corpus.modelopt().hf["quantization"][words(declared)[0]] == "NVFP4"
    assert declared.endswith("E2M1 with E4M3 scales in blocks of 16")
    assert found_in(corpus.modelopt(), tmp_path / "right")[0] is finding_of(none)
    export = corpus.compressed("mxfp8")
    assert integer.endswith("E4M3 elements")
    key, value = words(integer)[0], integers(integer.partition(",")[0].replace("`", " "))[0]
    export.config["quantization_config"]["config_groups"]["group_0"]["weights"][key] = value
    assert found_in(export, tmp_path / "bits")[0] == finding_of(finding)
    ((listed, quantized, finding),) = rows_of("CKP-39")
    (kept,), both = words(listed), words(quantized)
    export = corpus.CLEAN["torchao-nvfp4"]()
    missing = next(each for each in both if each != kept)
    del export.metadata[f"model.layers.0.self_attn.{missing}.weight"]
    code, names = found_in(export, tmp_path / "listed")
    assert code == words(finding)[0]
    assert words(finding)[1] == missing
    assert all(f"self_attn.{missing}" in name for name in names)


@pytest.mark.rule("CKP-13", "CKP-40")
@pytest.mark.example("CKP-13", "CKP-40")
def test_lists_of_excluded_modules(tmp_path):
    for number, (cell, module, finding) in enumerate(rows_of("CKP-13")):
        (entry_,), (quantized,) = words(cell), words(module)
        export = corpus.modelopt()
        if quantized == "lm_head":
            values = corpus.weight(3, export.array("lm_head.weight").shape)
            data, scales = corpus.quantized(values, "modelopt.nvfp4", np.abs(values).max())
            export.put("lm_head.weight", "U8", data)
            export.put("lm_head.weight_scale", "F8_E4M3", scales)
            export.put("lm_head.weight_scale_2", "F32", np.abs(values).max() / np.float32(2688))
            export.put("lm_head.input_scale", "F32", 0.003)
        else:
            for entries in (
                export.hf["quantization"]["exclude_modules"],
                export.config["quantization_config"]["ignore"],
            ):
                entries.append(entry_)
        (found,) = lint(export.write(tmp_path / f"{number}")).findings
        assert (found.code, found.severity) == (finding_of(finding), re.search("`, (error|warning)", finding)[1])
        assert any(name.startswith(quantized) for name in found.tensors)
        if finding.count("`") == 4:  # the entry is a part of a fused name
            assert words(finding)[1] == "gate_up_proj"
            assert words(finding)[1].startswith(entry_.rpartition(".")[2])
            assert {name.rpartition(".")[2] for name in found.tensors} == {"gate_proj", "up_proj"}
            assert [*found.consumers] == ["vllm"]
    ((cell, both, finding),) = rows_of("CKP-40")
    export = corpus.modelopt(experts=True)
    kept, other = words(both)
    assert words(cell) == [kept]
    for entries in (export.hf["quantization"]["exclude_modules"], export.config["quantization_config"]["ignore"]):
        assert {kept, other} <= {*entries}
        entries[:] = [each for each in entries if each != other]
    (found,) = lint(export.write(tmp_path / "gate")).findings
    assert (found.code, finding) == (finding_of(finding), "`exclude-list`, on the second")
    assert any(name.startswith(other) for name in found.tensors)


# Scales and bytes


@pytest.mark.rule("CKP-21")
@pytest.mark.example("CKP-21")
def test_scales_that_are_no_positive_numbers(tmp_path):
    names = {
        "global": f"{UP}.weight_scale_2",
        "input": f"{UP}.input_scale",
        "KV cache": "model.layers.1.self_attn.k_proj.k_scale",
    }
    assert "zero, negative, infinite or NaN" in text_of("CKP-21")
    for cell, finding in rows_of("CKP-21"):
        kind, value = cell.split(", ")
        for number in (float(value), 0.0, -1.0, np.inf, np.nan):
            export = corpus.CLEAN["modelopt-nvfp4-kv"]()
            export.put(names[kind], "F32", number)
            assert finding_of(finding) in codes(export.write(tmp_path / f"{kind}{number}")), (kind, number)


@pytest.mark.rule("CKP-15", "CKP-16")
@pytest.mark.example("CKP-15", "CKP-16")
def test_shapes_and_values_of_scales(tmp_path):
    size = integers(re.search(r"(\[\d+, \d+\]) in blocks", rows_of("CKP-15")[0][0])[1])
    for number, (_, shape, finding) in enumerate(rows_of("CKP-15")):
        rng = np.random.default_rng(3)
        data, scales = corpus.quantized(rng.standard_normal(size, np.float32), "modelopt.nvfp4")
        assert [*scales.shape] == integers(rows_of("CKP-15")[0][1])
        padded = np.zeros(integers(shape), np.uint8)
        padded[: len(scales)] = scales
        export = corpus.modelopt()
        export.config = {"quantization_config": export.config["quantization_config"]}
        export.tensors, export.shards = {}, 1
        export.put(f"{UP}.weight", "U8", data)
        export.put(f"{UP}.weight_scale", "F8_E4M3", padded)
        export.put(f"{UP}.weight_scale_2", "F32", 0.01)
        export.put(f"{UP}.input_scale", "F32", 0.01)
        assert found_in(export, tmp_path / f"shape{number}")[0] == finding_of(finding)
    wild = formulas.value(re.search(r"half are above (2\^\d+)", text_of("CKP-16"))[1])
    assert wild == check_scales.WILD
    (first, code), (zeros, _), (less, _) = rows_of("CKP-16")
    for number, cell in enumerate((first, zeros, less)):
        export = corpus.CLEAN["compressed-mxfp4"]()
        dtype, *values = re.match(r"(\w+) ([\d., ]+\d)", cell).groups()
        values = [float(each) for each in values[0].split(", ")]
        scales = export.array(f"{UP}.weight_scale")
        if "less the bias" in cell:
            true, bias = [integers(cell)[at] for at in (4, 5, 6)], integers(cell)[-1]
            assert [int(each) for each in values] == [(each - bias) % 256 for each in true]
            export.put(f"{UP}.weight_scale", dtype, (scales.astype(int) - bias) % 256)
        else:
            export.put(f"{UP}.weight_scale", dtype, np.resize(values, scales.shape))
        assert found_in(export, tmp_path / f"cast{number}")[0] == finding_of(code)


@pytest.mark.rule("CKP-17", "CKP-44", "CKP-18", "CKP-49")
@pytest.mark.example("CKP-17", "CKP-44", "CKP-18", "CKP-49")
def test_bytes_of_scales_and_elements(tmp_path):
    first, last = integers(re.search(r"rows (\d+ to \d+) of scales", text_of("CKP-17"))[1])
    for number, (cell, given, finding) in enumerate(rows_of("CKP-17")):
        export, high = corpus.modelopt(), corpus.source()
        rows = slice(first, last + 1)
        byte = int(re.match("0x(..)", cell)[1], 16)
        change(export, f"{UP}.weight_scale", by=lambda a, rows=rows, byte=byte: a.__setitem__(rows, byte))
        if "elements 0" in cell:
            change(export, f"{UP}.weight", by=lambda a, rows=rows: a.__setitem__(rows, 0))
            change(high, f"{UP}.weight", by=lambda a, rows=rows: a.__setitem__(rows, 0))
        options = {"source": high.write(tmp_path / f"source{number}")} if given == "zeros there" else {}
        assert (finding_of(finding) or "unwritten") in codes(export.write(tmp_path / f"{number}"), **options) or (
            finding == "none"
        )
        if finding == "none":
            assert "unwritten" not in codes(tmp_path / f"{number}", **options)
            assert "unwritten" in codes(tmp_path / f"{number}")
    ((cell, finding),) = rows_of("CKP-44")
    low, high = (int(each, 16) for each in re.findall("0x(..)", cell))
    export = corpus.modelopt()
    rng = np.random.default_rng(4)
    drawn = rng.integers(low, high + 1, (64, 8), np.uint8)
    change(export, f"{UP}.weight_scale", by=lambda a: a.__setitem__(slice(64, 128), drawn))
    assert found_in(export, tmp_path / "memory")[0] == finding_of(finding)
    ((cell, finding),) = rows_of("CKP-18")
    low, high, odd = (int(each, 16) for each in re.findall("0x(..)", cell))
    for wrong, wanted in ((odd, finding_of(finding)), (high, None)):
        export = corpus.CLEAN["torchao-nvfp4"]()
        scales = export.array(f"{UP}._weight_scale")
        scales[...] = np.random.default_rng(5).integers(low, high + 1, scales.shape)
        scales[5, 3] = wrong
        assert found_in(export, tmp_path / f"odd{wrong}")[0] == wanted
    ((cell, finding),) = rows_of("CKP-49")
    export = corpus.CLEAN["modelopt-mxfp8"]()
    change(export, f"{UP}.weight", by=lambda a: a.__setitem__((3, 4), int(cell[:2], 16)))
    assert cell.endswith("once")
    assert found_in(export, tmp_path / "nan")[0] == finding_of(finding)


@pytest.mark.rule("CKP-27")
@pytest.mark.example("CKP-27")
def test_zeros_of_producers(tmp_path):
    zeros = {
        name: tuple(int(each, 0) for each in cell.split(", "))
        for name, cell in ((words(a)[0], b) for a, b in rows_of("CKP-27"))
    }
    for name, form in zeros.items():
        assert CONVENTIONS[name].zero_block == form
    names = {"modelopt.nvfp4": "weight", "compressed-tensors.nvfp4": "weight_packed", "torchao.nvfp4": "_weight_qdata"}
    scales = {"torchao.nvfp4": "_weight_scale"}
    for name, codes_name in names.items():
        for other in {byte for each, (byte, _) in zeros.items() if each in names}:
            export = corpus.CLEAN[f"{name.partition('.')[0].removesuffix('-tensors')}-nvfp4"]()
            change(export, f"{UP}.{codes_name}", by=lambda a: a.__setitem__((5, slice(0, 8)), 0))
            change(
                export,
                f"{UP}.{scales.get(name, 'weight_scale')}",
                by=lambda a, other=other: a.__setitem__((5, 0), other),
            )
            found = lint(export.write(tmp_path / f"{name}{other}")).findings
            assert [each.code for each in found] == ([] if other == zeros[name][0] else ["producer-bytes"]), (
                name,
                other,
            )
            assert {each.severity for each in found} <= {"note"}


# With the source


@pytest.mark.rule("CKP-45", "CKP-66")
@pytest.mark.example("CKP-45", "CKP-66")
def test_other_roundings_of_single_elements(tmp_path):
    """A block of one element that is not 0: its quotient is the row's, and its code is what is stored."""
    convention = CONVENTIONS["modelopt.nvfp4"]
    near = formulas.value(re.search(r"by more than (\S+) of the distance", text_of("CKP-45"))[1])
    assert near == source.NEAR
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]

    def judged(quotient, stored, judge):
        path = tmp_path / "w.safetensors"
        row = np.zeros((16, 16), np.uint8)
        row[0, 0], row[0, 1] = values.index(stored), 7
        expected = row.copy()
        expected[0, 0] = int(np.argmin(np.abs(np.array(values) - quotient)))
        entries = [
            Entry("w.weight", "U8", (16, 8)),
            Entry("w.weight_scale", "F8_E4M3", (16, 1)),
            Entry("w.weight_scale_2", "F32", ()),
        ]
        packed = row[:, ::2] | row[:, 1::2] << 4
        scales = np.full((16, 1), 0x38, np.uint8)
        write_tensors(path, entries, {}, [packed, scales, np.float32(1)])
        (group,) = recognize(open_checkpoint(path)).groups
        assert group.convention is convention
        (piece,) = group_pieces(group)
        rows = np.zeros((16, 16), np.float32)
        rows[0, 0], rows[0, 1] = quotient, 6
        if judge is _astray:
            return _astray(group, rows, piece)
        other = piece._replace(packed=expected[:, ::2] | expected[:, 1::2] << 4)
        return _far(group, rows, piece, other)

    for quotient, cell, finding in rows_of("CKP-45"):
        stored, _ = cell.split(", ")
        other, by = re.search(r"where (\S+) is nearer by (\S+) of 1", cell).groups()
        value = float(quotient)
        assert abs(float(stored) - value) - abs(float(other) - value) == pytest.approx(float(by), rel=1e-3)
        assert judged(value, float(stored), _far) == (finding == "`bit-damage`")
    share = formulas.value(re.search(r"over (\S+) of the distance", text_of("CKP-66"))[1])
    fewest, share_of = max(check_scales.RARE, diagnoses.SINGLE // 2), 2 * 1000  # of which one is a single byte
    assert (fewest, f"one in {share_of}," in text_of("CKP-66")) == (8, True)
    assert "at most eight elements" in text_of("CKP-66")
    for quotient, cell, finding in rows_of("CKP-66"):
        value, (stored, other) = float(quotient), map(float, re.findall(r"[\d.]+", cell))
        assert (abs(stored - value) > share * abs(stored - other)) == (finding == "`bit-damage`")
        assert judged(value, stored, _astray) == (finding == "`bit-damage`")


def group_pieces(group):
    from fp4ref.checkpoints.access import pieces

    return [*pieces(group)]


@pytest.mark.rule("CKP-24", "CKP-50")
@pytest.mark.example("CKP-24", "CKP-50")
def test_comparison_with_the_source(tmp_path, monkeypatch):
    (same, first), (other, second) = rows_of("CKP-24")
    assert same == f"those of `{words(same)[0]}` of the source"
    assert (first, other) == ("no more is computed", "those of no specification")
    assert second == "the values are compared"
    high = corpus.source().write(tmp_path / "source")
    report = lint(corpus.modelopt().write(tmp_path / "same"), source=high)
    assert report.findings == []
    export = corpus.modelopt()
    change(export, f"{UP}.weight", by=lambda a: a.__setitem__((slice(None), slice(0, 4)), a[:, :4] ^ 0x11))
    report = lint(export.write(tmp_path / "other"), source=high)
    assert report.facts[UP]["differing_bytes"] > 0
    text = text_of("CKP-50")
    assert float(re.search(r"over (\d+) dB", text)[1]) == diagnoses.LOSS
    found = {explanation: words(code) for explanation, code in rows_of("CKP-50")}
    least, most = integers(re.search(r"repeats after (\d+ to \d+)", text)[1])
    assert (permutations.PERIODS[0], permutations.PERIODS[-1]) == (least, most)
    single = re.search(r"at most (\d+) bytes or one element in a thousand, or one block in a thousand", text)
    assert int(single[1]) == diagnoses.SINGLE == source.SINGLE
    assert re.search("eight or more rows", text)
    assert diagnoses.FEW == 8
    codes_of = [code for listed in found.values() for code in listed]
    assert {*codes_of} <= {*known_codes()}
    order = ["scale-direction", "value-factor", "nibble-order", "element-order", "scale-layout", "row-order"]
    assert codes_of == [*order, "bit-damage", "value-mismatch"]


def known_codes():
    from fp4ref.checkpoints.findings import CODES

    return CODES
