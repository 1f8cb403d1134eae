from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from commands import GOOD, folder_with
from fp4ref.cli import main
from fp4ref.conformance.run import long_calls
from fp4ref.conformance.run.huge_tile import PARTS, Size, plan
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.run.runner import subject
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind
from fp4ref.conformance.subjects.subject import Declaration, Subject
from fp4ref.conformance.verdict import huge
from fp4ref.conformance.verdict.dump_report import Verdict
from fp4ref.errors import DomainError
from standard_rules import rows_of

SIZES = Size("byte", 18), Size("element", 18)
WIDTH = 512
ROW = (1 << 18) // WIDTH  # the row that holds element 2^18


def check(function, spec=fp4ref.NVFP4, sizes=SIZES, **how):
    return huge.check(Subject.of(function), spec, sizes=sizes, width=WIDTH, **how)


def parts(x, spec="nvfp4", direction="row", scale_layout="linear", amax=None, bits=None):
    q = fp4ref.quantize(x, spec, direction, scale_layout, amax, bits, backend="numpy")
    return tuple(part for part in getattr(q, direction) if part is not None)


def good(x):
    return parts(x)


@pytest.mark.rule("CNF-53", "CNF-52")
def test_a_right_kernel_conforms_and_the_basis_names_the_sizes():
    report = check(good)
    assert report.kind is Verdict.CONFORMS
    assert report.headline == "conforms to nvfp4: no byte differs in 2 huge cases"
    rows, elements = report.cases[1].rows, report.cases[1].rows * report.cases[1].columns
    assert elements > 1 << 18
    assert report.coverage.lines[0] == (
        f"rests on 2 huge cases, bfloat16, up to {rows:,} rows, 512 columns, {elements:,} elements"
    )
    samples = report.cases[1].results["data"]["samples"]
    assert {"0:128", f"{ROW - 128}:{ROW}", f"{ROW}:{ROW + 128}", f"{rows - 128}:{rows}"} <= set(samples)
    assert set(samples.values()) == {0}


@pytest.mark.rule("CNF-29")
def test_no_power_of_two_is_a_whole_number_of_tiles_and_no_two_rows_are_alike():
    x = plan(fp4ref.NVFP4, Declaration(), WIDTH).body.x
    assert all((1 << power) % x.size for power in range(64))
    assert len({row.tobytes() for row in x}) == len(x)


def wraps(x):
    rows = np.arange(len(x)) % ROW
    return parts(x[rows], amax=fp4ref.quantize(x, "nvfp4", backend="numpy").row.amax)


def stops(x):
    data, scales, amax = good(x)
    data[ROW:] = 0
    return data, scales, amax


def loses_the_last_rows(x):
    data, scales, amax = good(x)
    data[-8:] = data[-9]
    return data, scales, amax


def loses_the_last_maximum(x):
    return parts(x, amax=np.abs(x[:-1].astype(np.float32)).max(keepdims=True).reshape(1))


def repeats_rows(x):
    data, scales, amax = good(x)
    data[ROW + 1], scales[ROW + 1] = data[ROW], scales[ROW]
    return data, scales, amax


@pytest.mark.example("CNF-52")
@pytest.mark.rule("CNF-29", "CNF-52", "CNF-53")
@pytest.mark.parametrize(("function", "row"), [(wraps, ROW), (stops, ROW), (repeats_rows, ROW + 1)])
def test_a_mistake_past_a_size_is_found_where_it_begins(function, row):
    (kernel, differs), _ = rows_of("CNF-52")
    first, second = map(int, re.search(r"writes the bytes of row (\d+) into row (\d+)", kernel).groups())
    assert (first, second, differs) == (ROW, ROW + 1, f"row {ROW + 1}, in each case")
    report = check(function, sizes=SIZES[1:])
    found = report.cases[0].results["data"]
    assert report.kind is Verdict.WRONG
    assert found["row"] == row
    assert found["total"] != found["expected_total"]
    end = report.cases[0].rows if function is not repeats_rows else -(-row // 384) * 384
    assert (found["last_row"], found["row_ranges"]) == (end - 1, [[row // 384 * 384, end]])
    place = "element 2^18" if row == ROW else f"element {row * WIDTH:,}, past element 2^18"
    assert f"differs in data from row {row} on ({place}): " in report.cases[0].lines[0]
    assert report.headline == f"wrong: differs in data from row {row} on ({place}); 1 of 1 huge cases of nvfp4 fail"
    assert any(found["samples"].values())


@pytest.mark.example("CNF-52")
@pytest.mark.rule("CNF-29", "CNF-52")
def test_what_only_the_end_shows():
    assert rows_of("CNF-52")[1] == ["loses the last tile of rows", "one of the last rows, in each case"]
    report = check(loses_the_last_rows)
    assert [case.results["data"]["row"] for case in report.cases] == [case.rows - 8 for case in report.cases]
    report = check(loses_the_last_maximum)
    assert set(report.cases[0].differing) == {"data", "scales", "amax"}
    assert "differs in amax: 2 of 4 bytes" in "\n".join(report.cases[0].lines)


@pytest.mark.rule("CNF-29", "CNF-8", "CNF-52")
@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("nvfp4", {"direction": "column", "scale_layout": "tiled_128x4"}),
        ("nvfp4", {"scale_layout": "tiled_128x4", "nibble_order": "high", "inputs": ("x", "amax")}),
        ("nvfp4-2d", {"direction": "column", "scale_layout": "linear_padded"}),
        ("nvfp4-rht", {"direction": "column"}),
        ("nvfp4-row-scaled", {"inputs": ("x", "amax")}),
        ("nvfp4-sr", {"inputs": ("x", "random_bits"), "direction": "column"}),
        ("mxfp4", {"outputs": ("data", "scales"), "scale_layout": "tiled_8x4"}),
        ("mxfp8-e4m3", {"outputs": ("data", "scales"), "direction": "column", "transposed": True}),
    ],
)
def test_specs_directions_and_layouts_repeat(spec, settings):
    declared = Declaration(**settings)

    def kernel(*given):
        named = dict(zip(declared.inputs, given, strict=True))
        made = parts(
            named["x"], spec, declared.direction, declared.scale_layout, named.get("amax"), named.get("random_bits")
        )
        data, *others = made
        if declared.nibble_order == "high":
            data = data << 4 | data >> 4
        found = [data, *others][: len(declared.outputs)]
        return [part.T for part in found] if declared.transposed else found

    def late(*given):
        found = [np.array(part) for part in kernel(*given)]
        axis = 0 if (declared.direction == "row") is not declared.transposed else 1
        found[0] = np.where(np.indices(found[0].shape)[axis] == found[0].shape[axis] - 1, found[0] ^ 1, found[0])
        return found

    named = fp4ref.catalogue.resolve(spec)
    right = huge.check(Subject.of(kernel, **settings), named, sizes=SIZES[1:], width=WIDTH)
    assert right.kind is Verdict.CONFORMS, right.cases[0].lines
    wrong = huge.check(Subject.of(late, **settings), named, sizes=SIZES[1:], width=WIDTH).cases[0]
    bits = named.element.format.bits
    assert wrong.results["data"]["row"] == wrong.rows - (1 if declared.direction == "row" else 8 // bits)


@pytest.mark.rule("CNF-9", "CNF-53")
def test_memory_buffers_and_errors():
    report = check(good, memory=1 << 20)
    assert report.kind is Verdict.INCOMPLETE
    assert report.kind.status == 2
    assert "not tried, needs 0.0 GiB of memory" in report.cases[0].lines[0]

    def changes(x):
        found = good(x)
        x[-1, -1] = 0
        return found

    def exhausts(x):
        raise MemoryError

    @fp4ref.kernel(out_buffers=True)
    def lazy(x, out):
        for buffer, part in zip(out, good(x), strict=True):
            buffer[: len(part) // 2 + 1] = part[: len(part) // 2 + 1]

    @fp4ref.kernel(out_buffers=True)
    def outside(x, out):
        for buffer, part in zip(out, good(x), strict=True):
            buffer[...] = part
        np.lib.stride_tricks.as_strided(out[1], (out[1].size + 1,), (1,))[-1] = 1

    assert [check(f).cases[0].finding.kind for f in (changes, outside)] == [FindingKind.MUTATED, FindingKind.OUTSIDE]
    assert check(exhausts).kind is Verdict.INCOMPLETE
    assert check(lazy).kind is Verdict.WRONG


@pytest.mark.example("CNF-54")
@pytest.mark.rule("CNF-29", "CNF-54")
@pytest.mark.parametrize(
    ("settings", "spec", "message"),
    [
        ({"operation": "dequantize", "inputs": ("data", "scales"), "outputs": ("values",)}, "nvfp4", "a quantizer"),
        ({}, "nvfp4-sr", "random_bits"),
        ({"multiple": (1 << 16, 16)}, "nvfp4", "tiles of at most"),
    ],
)
def test_what_it_does_not_apply_to_is_refused_by_name(settings, spec, message):
    with pytest.raises(DomainError, match=message):
        huge.check(Subject.of(good, **settings), fp4ref.catalogue.resolve(spec))
    cells = {"operation": "dequantizes"}, {"inputs": "`nvfp4-sr`, inputs `x`"}
    shown = dict(rows_of("CNF-54"))
    assert shown[cells[0]["operation"]] == shown[cells[1]["inputs"]] == "refused"
    assert shown["`nvfp4-sr`, inputs `x` and `random_bits`"] == "tried"  # test_specs_directions_and_layouts_repeat


KERNELS = """
import os

def ends(x):
    os._exit(7)

@fp4ref.kernel(inputs=("x", "amax"), outputs=("data", "scales"), arrays="torch", scale_layout="tiled_128x4")
def torch_good(x, amax):
    q = fp4ref.quantize(x, "nvfp4", scale_layout="tiled_128x4", amax=amax)
    return q.row.data, q.row.scales

@fp4ref.kernel(inputs=("x", "amax"), outputs=("data", "scales"), arrays="torch", scale_layout="tiled_128x4")
def torch_counts_bytes_in_int32(x, amax):
    q = fp4ref.quantize(x, "nvfp4", scale_layout="tiled_128x4", amax=amax)
    q.row.data.view(-1)[(1 << 31) // x.element_size() // 2 :] = 0
    return q.row.data, q.row.scales

@fp4ref.kernel(operation="dequantize", inputs=("data", "scales", "amax"), outputs=("values",))
def decode(data, scales, amax): ...
"""


here = folder_with(GOOD + KERNELS)


@pytest.mark.slow
@pytest.mark.rule("CNF-29", "CNF-13")
def test_in_a_process_of_its_own(here, monkeypatch):
    own = subject("kernels.py:good")
    assert huge.check(own, fp4ref.NVFP4, sizes=SIZES, width=WIDTH).kind is Verdict.CONFORMS
    report = huge.check(subject("kernels.py:ends"), fp4ref.NVFP4, RunOptions(), sizes=SIZES, width=WIDTH)
    assert [case.finding and case.finding.kind for case in report.cases] == [FindingKind.CRASHED, None]
    assert report.cases[1].skipped == "the kernel broke down before (crashed)"
    assert "1 of 1 huge cases of nvfp4 fail" in report.headline


@pytest.mark.rule("CNF-29", "CNF-13")
def test_a_call_that_the_time_of_the_run_cuts_is_no_hang(monkeypatch):
    class Slow:
        def __init__(self, *given): ...

        def answer(self, *given):
            monkeypatch.setattr(RunOptions, "left", -1.0)
            return Finding(FindingKind.HUNG, "no result")

        def close(self): ...

    monkeypatch.setattr(long_calls, "KernelProcess", Slow)
    on_trial = Subject("slow", Declaration(), target="kernels.py:slow")
    report = huge.check(on_trial, fp4ref.NVFP4, RunOptions.starting_now(time_limit=1000), sizes=SIZES, width=WIDTH)
    assert report.kind is Verdict.INCOMPLETE
    assert [case.skipped for case in report.cases] == [
        "the time of the run was over in this call",
        "the time of the run is over",
    ]


@pytest.mark.slow
@pytest.mark.rule("CNF-29")
def test_the_command(here, monkeypatch):
    monkeypatch.setattr(huge.check, "__kwdefaults__", {"sizes": SIZES, "width": WIDTH, "memory": None})

    def verify(text, status):
        result = CliRunner().invoke(main, ["verify", *text.split()])
        assert result.exit_code == status, result.output
        return result.stderr if status == 2 else result.stdout

    text = verify("--kernel kernels.py:good --spec nvfp4 --huge", 0)
    assert "conforms to nvfp4: no byte differs in 2 huge cases" in text
    assert "huge/element-2^18/bfloat16" in text
    found = json.loads(verify("--kernel kernels.py:good --spec nvfp4 --huge --json", 0))
    assert found["coverage"]["largest"]["elements"] == found["cases"][1]["elements"] > 1 << 18
    verify("--kernel kernels.py:good --spec nvfp4 --huge --forever", 2)
    verify("--huge", 2)
    assert "operation='dequantize'" in verify("--kernel kernels.py:decode --spec nvfp4 --huge", 2)
    text = verify("--kernel kernels.py:ends --spec nvfp4 --huge --junit r.xml --html r.html", 1)
    assert "1 of 1 huge cases of nvfp4 fail" in text
    suite = ET.parse("r.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("2", "1")
    assert [case.get("name") for case in suite.iter("testcase")] == [
        "conforms",
        "huge/byte-2^18/bfloat16",
        "huge/element-2^18/bfloat16",
    ]
    assert "huge cases of nvfp4 fail" in Path("r.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.rule("CNF-52")
def test_arrays_of_torch_are_compared_where_they_are():
    pytest.importorskip("torch")

    @fp4ref.kernel(arrays="torch", outputs=("data", "scales"))
    def late(x):
        data, scales, _ = parts(x)
        data[ROW:, 0] ^= 1
        return data, scales

    found = check(late, sizes=SIZES[1:]).cases[0].results["data"]
    assert (found["row"], found["differing"]) == (ROW, found["size"] * 2 // WIDTH - ROW)


@pytest.mark.gpu
@pytest.mark.rule("CNF-51")
def test_past_2_to_the_31_on_a_device(here):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    report = huge.check(subject("kernels.py:torch_good", device="cuda"), fp4ref.NVFP4)
    assert report.kind is Verdict.CONFORMS, [case.lines for case in report.cases]
    assert report.cases[0].rows % PARTS == 0


@pytest.mark.gpu
@pytest.mark.rule("CNF-51", "CNF-53")
def test_a_mistake_past_2_to_the_31_bytes_is_found_where_it_begins_on_a_device(here):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    report = huge.check(subject("kernels.py:torch_counts_bytes_in_int32", device="cuda"), fp4ref.NVFP4)
    assert report.kind is Verdict.WRONG
    for case in report.cases:
        found = case.results["data"]
        width = 4 if case.dtype == "float32" else 2
        assert found["row"] == (1 << 31) // width // case.columns, case.lines
        assert found["total"] != found["expected_total"]
        assert not case.results["scales"].get("differing")
