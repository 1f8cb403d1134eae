"""Sweeps of every value under every scale byte: right kernels conform, one wrong value under one byte is found."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from fp4ref.catalogue import resolve
from fp4ref.cli import main
from fp4ref.conformance.run import sweep_plan
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict import exhaustive
from fp4ref.conformance.verdict.dump_report import Verdict
from fp4ref.conformance.verdict.sweep_report import SweepReport
from fp4ref.conformance.verdict.sweep_store import Pace, SweepStore
from fp4ref.errors import DomainError, FileError
from fp4ref.kernels import kernel
from standard_rules import rows_of

pytestmark = pytest.mark.rule("CNF-46")
ONE = 0x3F80  # bfloat16


def parts(x, spec, **how):
    return tuple(part for part in fp4ref.quantize(x, spec, backend="cpu", **how).row if part is not None)


def check(function, spec, dtype="bfloat16", maxima=(ONE,), **more):
    return exhaustive.check(Subject.of(function), resolve(spec), dtype, global_maxima=[*maxima], **more)


def right(spec, **how):
    return lambda x: parts(x, spec, **how)


@pytest.fixture
def few(monkeypatch):
    """Keep the first three scale bytes, one in the middle, and the largest, which holds the global maximum."""
    every = sweep_plan._GoldenSweep.maxima

    def some(self):
        found = every(self)
        return {byte: found[byte] for byte in [*found][:3] + [*found][len(found) // 2 :: 40] + [max(found)]}

    monkeypatch.setattr(sweep_plan._GoldenSweep, "maxima", some)
    sweep_plan.steps_of.cache_clear()
    yield
    sweep_plan.steps_of.cache_clear()


@pytest.mark.example("CNF-46", "CNF-56")
@pytest.mark.rule("CNF-56")
def test_a_right_kernel_conforms_to_nvfp4_with_the_count():
    report = check(right("nvfp4"), "nvfp4")
    assert report.kind is Verdict.CONFORMS, report.first
    ((_, verdict),) = rows_of("CNF-56")  # of all global maxima; here is one
    most = re.search(r"and (\d+) global maxima, with", verdict)
    assert len(sweep_plan.maxima(fp4ref.NVFP4, "bfloat16")) == int(most[1])
    shown = f"{verdict[: most.start()]}and 1 global maximum, {report.patterns:,} elements"
    assert report.headline.startswith(f"conforms to nvfp4: {shown}")
    (count,) = re.findall(r"conforms, with (\d+) scale bytes", rows_of("CNF-46")[0][1])
    assert report.bytes_tried == {*range(int(count))}
    assert report.coverage.extent.elements == report.patterns


@pytest.mark.parametrize(
    "spec, dtype",
    [("mxfp4", "bfloat16"), ("mxfp8-e5m2", "float16"), ("nvfp4-row-scaled", "float16"), ("nvfp4", "float16")],
)
def test_right_kernels_of_other_specifications_conform(few, spec, dtype):
    maxima = (None,) if spec.startswith("mx") else (0x3C00,)
    assert check(right(spec), spec, dtype, maxima).kind is Verdict.CONFORMS


def test_a_kernel_in_another_layout_conforms(few):
    made = kernel(scale_layout="tiled_128x4", outputs=("data", "scales"), dtypes=("bfloat16",))
    function = made(lambda x: parts(x, "nvfp4", scale_layout="tiled_128x4")[:2])
    assert check(function, "nvfp4").kind is Verdict.CONFORMS


@pytest.mark.heavy
def test_a_kernel_on_torch_tensors_conforms_in_columns(few):
    torch = pytest.importorskip("torch")
    made = kernel(arrays="torch", direction="column", inputs=("x", "amax"), outputs=("data", "scales"))

    def columns(x, amax):
        q = fp4ref.quantize(x, "nvfp4", "column", amax=amax, backend="cpu").column
        return tuple(torch.as_tensor(part) for part in q[:2])

    assert check(made(columns), "nvfp4").kind is Verdict.CONFORMS


@pytest.mark.parametrize("value, code", [(0.25, 3), (-0.0625, 0xD)])
def test_one_wrong_value_under_some_bytes_is_found(value, code):
    def wrong(x):
        data, scales, amax = parts(x, "nvfp4")
        low, high = data & 15, data >> 4
        for lanes, half in ((x[:, ::2], low), (x[:, 1::2], high)):
            half[(lanes.astype(np.float32) == value) & (half == code)] ^= 1
        return low | high << 4, scales, amax

    report = check(wrong, "nvfp4")
    assert report.kind is Verdict.WRONG
    assert f"({value:.9g}) beside the block maximum" in report.first["codes"]
    assert report.first["codes"].endswith(f"code {code ^ 1:X}, expected {code:X}")


def test_a_wrong_scale_byte_and_a_wrong_amax_are_found(few):
    def wrong(x):
        data, scales, amax = parts(x, "nvfp4")
        return data, np.where(scales == 2, 1, scales).astype(np.uint8), np.nextafter(amax, np.float32(9))

    report = check(wrong, "nvfp4")
    assert report.headline.startswith("wrong: ")
    assert report.first["scales"].endswith("byte 01, expected 02")
    assert report.counts["amax"] == 1


@pytest.mark.example("CNF-46")
def test_a_kernel_that_is_wrong_for_nan_only_conforms_except(few):
    def wrong(x):
        return parts(np.where(np.isnan(x.astype(np.float32)), 0, x).astype(x.dtype), "nvfp4")

    report = check(wrong, "nvfp4")
    assert report.kind is Verdict.EXCEPT
    kernel, verdict = rows_of("CNF-46")[-1]
    assert kernel == "wrong for NaN, and for nothing else"
    assert report.headline.startswith(f"{verdict.removesuffix(' (CNF-2)')} (")


@pytest.mark.rule("CNF-57")
def test_a_kernel_that_raises_is_wrong_and_time_ends_a_sweep(few):
    def raises(x):
        raise ValueError("no")

    assert check(raises, "nvfp4").headline.startswith("wrong: raised: ValueError: no (test_exhaustive.py:")
    report = check(right("nvfp4"), "nvfp4", options=RunOptions.starting_now(30, None, 1e-9, 0))
    assert report.kind is Verdict.INCOMPLETE


def test_a_wrong_verdict_of_a_sweep_that_time_ended_claims_no_whole_domain():
    report = SweepReport("k", fp4ref.NVFP4, Subject.of(right("nvfp4")).declaration, "float32")
    report.patterns, report.counts, report.stopped = 1000, {"codes": 1, "nan": 2}, exhaustive.LATE
    assert report.headline == (
        "wrong: 1 code differs, 2 codes of NaN differ from nvfp4; the time of the run is over after 1,000 elements"
    )


@pytest.mark.rule("CNF-55")
def test_global_maxima_of_a_sweep():
    every = 0x3F80 + np.arange(128)  # bfloat16 from 1 to below 2
    assert sweep_plan.maxima(fp4ref.NVFP4, "bfloat16") == every.tolist()
    assert sweep_plan.maxima(fp4ref.NVFP4, "float16") == (0x3C00 + 8 * np.arange(128)).tolist()
    assert sweep_plan.maxima(fp4ref.NVFP4, "float32") == [0x3FCD0000]  # 1.6015625
    assert sweep_plan.maxima(resolve("mxfp4"), "float32") == [None]


def test_every_value_meets_every_column(few):
    seen = set()

    def spy(x):
        for place in np.argwhere(x.view(np.uint16) == 0x3F81):
            seen.add(int(place[1]) % 32)
        return parts(x, "mxfp4")

    check(spy, "mxfp4", maxima=sweep_plan.maxima(fp4ref.MXFP4, "bfloat16")[:32])
    assert seen == {*range(32)}


@pytest.mark.parametrize("byte", [1, 0x38, 0x7E])
def test_steps_of_float32_are_those_of_fractions(byte):
    spec, largest = fp4ref.NVFP4, 0x3FCD0000
    golden = sweep_plan._GoldenSweep(spec, "float32", largest)
    maximum = golden.maxima()[byte]
    found = golden.steps(byte, maximum)
    for start in found.starts[(found.starts > 0) & (found.starts <= maximum)].tolist():
        for pattern in (start - 1, start):
            x = np.zeros((1, 32), np.float32)
            x[0, 0] = np.uint32(largest).view(np.float32)
            x[0, 16:18] = np.uint32([maximum, pattern]).view(np.float32)
            q = fp4ref.quantize(x, spec, backend="cpu").row
            assert q.scales[0, 1] == byte
            assert q.data[0, 8] >> 4 == found.of(pattern)


# A sweep in several runs


@pytest.fixture
def pieces(monkeypatch):
    monkeypatch.setitem(exhaustive.PIECES, "cpu", 20_000)


def stopping(calls, after):
    """Return a right kernel that is interrupted in a call, and later counts on."""

    def stops(x):
        calls.append(len(calls))
        if len(calls) in after:
            raise KeyboardInterrupt
        return parts(x, "nvfp4")

    return stops


@pytest.mark.heavy
@pytest.mark.parametrize("spec, largest", [("nvfp4", 0x3FCCCCCD), pytest.param("mxfp4", None, marks=pytest.mark.heavy)])
def test_a_part_of_a_sweep_of_float32_has_met_every_byte(spec, largest):
    """The calls of all bytes come by turns: 1 of 40 have met each byte, and magnitudes from end to end."""
    fp4ref_spec, piece = resolve(spec), 1 << 22
    found = sweep_plan.steps_of(fp4ref_spec, "float32", largest)
    every = sweep_plan._spread(found, fp4ref_spec, "float32", piece)
    assert sum(part.stop - part.start for part in every) == sweep_plan.elements(fp4ref_spec, "float32", largest)
    assert len({(part.steps, part.start) for part in every}) == len(every)
    some = every[: len(every) // 40]
    assert {part.steps for part in some} == {*range(len(found))}
    of_top = sorted(part.start for part in every if part.steps == len(found) - 1)
    seen = [of_top.index(part.start) / len(of_top) for part in some if part.steps == len(found) - 1]
    assert min(seen) < 0.2
    assert max(seen) > 0.8


@pytest.mark.example("CNF-57", "CNF-114")
@pytest.mark.rule("CNF-57", "CNF-114")
def test_an_interrupted_sweep_goes_on_where_it_ended(few, pieces, tmp_path):
    (run, verdict), _ = rows_of("CNF-57")
    ((_, rest),) = rows_of("CNF-114")
    after, count = map(int, re.search(r"after (\d+) of (\d+) calls, none", run).groups())
    assert rest == f"the other {count - after} calls, then conforms"
    maxima = (ONE, ONE + 1)
    whole = check(right("nvfp4"), "nvfp4", maxima=maxima)
    calls = []
    kernel = stopping(calls, {after, after + 2, whole.calls})
    reports = [check(kernel, "nvfp4", maxima=maxima, store=SweepStore(tmp_path / "s.json")) for _ in range(5)]
    assert [report.stopped for report in reports] == ["interrupted"] * 3 + ["", ""]
    assert reports[0].headline.startswith(f"{verdict}: interrupted; nothing differs from nvfp4 in ")
    assert [report.kind for report in reports[:3]] == [Verdict.INCOMPLETE] * 3
    assert [report.to_json() for report in reports[3:]] == [
        {**whole.to_json(), "subject": report.subject} for report in reports[3:]
    ]
    assert len(calls) == whole.calls + 3  # each call once, but for those that were interrupted
    assert whole.calls > 8


@pytest.mark.example("CNF-57")
@pytest.mark.rule("CNF-57", "CNF-114")
def test_a_wrong_byte_of_an_earlier_run_counts(few, pieces, tmp_path):
    calls = []
    kernel = stopping(calls, {3})

    def wrong(x):
        data, scales, amax = kernel(x)
        return (data ^ 1 if len(calls) == 1 else data), scales, amax

    first, last = (check(wrong, "nvfp4", store=SweepStore(tmp_path / "s.json")) for _ in range(2))
    assert (first.kind, last.kind, last.stopped) == (Verdict.WRONG, Verdict.WRONG, "")
    assert rows_of("CNF-57")[1][1] == Verdict.WRONG.value
    assert last.first == first.first
    assert last.counts == first.counts


@pytest.mark.example("CNF-115")
@pytest.mark.rule("CNF-115")
def test_progress_of_another_sweep_is_refused(few, pieces, tmp_path):
    path = tmp_path / "s.json"

    def store():
        return SweepStore(path)

    assert dict(rows_of("CNF-115"))["another specification"] == "refused"
    check(stopping([], {2}), "nvfp4", store=store())
    with pytest.raises(FileError, match=r"a sweep with another spec and dtype.*CNF-115"):
        check(stopping([], ()), "mxfp4", "float16", (None,), store=store())
    path.write_text(path.read_text().replace('"done"', '"other"'))
    with pytest.raises(FileError, match="a damaged file"):
        check(stopping([], ()), "nvfp4", store=store())
    path.write_text("{}")
    with pytest.raises(FileError, match="not the progress of a sweep"):
        check(stopping([], ()), "nvfp4", store=store())


def test_the_pace_has_the_share_and_the_time_that_is_left():
    now = [100.0]
    pace = Pace(50, lambda: now[0])
    assert pace.text(50, 1000) == "5.0% of 1,000 elements"
    now[0] += 10
    assert pace.text(250, 4_000_250) == "0.0% of 4,000,250 elements, 0.0 million a second, about 55 h 33 min left"
    assert pace.text(1050, 2050).endswith(", about 10 s left")


@pytest.mark.example("CNF-115")
@pytest.mark.rule("CNF-115")
def test_progress_of_a_changed_kernel_is_refused(tmp_path, monkeypatch):
    shown = dict(rows_of("CNF-115"))
    assert [shown[run] for run in ("the same kernel and settings", "the kernel's file changed")] == [
        "goes on",
        "refused",
    ]
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "package"
    package.mkdir()
    for path in (package / "__init__.py", package / "swept.py"):
        path.write_text("raise ValueError  # it is found without importing it\n")
    for number, target in enumerate(("package/swept.py:slow", "package.swept:slow")):
        store = SweepStore(tmp_path / f"{number}.json")
        store.read(target, dtype="float32")
        store.keep({"calls_of_pass": 3})
        store.write()
        assert SweepStore(store.path).read(target, dtype="float32") == {"calls_of_pass": 3}
        with (package / "swept.py").open("a") as file:
            file.write("# other\n")
        with pytest.raises(FileError, match="a sweep with another file"):
            SweepStore(store.path).read(target, dtype="float32")


def test_progress_is_kept_of_sweeps_only():
    words = ["verify", "--kernel", "kernels.py:mx", "--spec", "mxfp8-e4m3", "--resume", "s.json"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, "--resume is for --exhaustive" in result.output) == (2, True)


@pytest.mark.example("CNF-58")
@pytest.mark.rule("CNF-58")
def test_specifications_that_a_sweep_cannot_decide_are_refused():
    for cell, result in rows_of("CNF-58"):
        assert result.startswith("refused")
        for spec in re.findall("`(.*?)`", cell):
            function = kernel(nibble_order="high")(right(spec)) if "the high nibble first" in cell else right(spec)
            with pytest.raises(DomainError, match="CNF-58"):
                check(function, spec)


def test_the_command_takes_one_choice_of_inputs():
    words = ["verify", "--kernel", "kernels.py:mx", "--spec", "mxfp8-e4m3", "--exhaustive", "float16", "--huge"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, "--huge and --exhaustive" in result.output) == (2, True)


@pytest.mark.slow  # a process of its own
@pytest.mark.rule("CNF-110")
def test_the_command_writes_a_test_report_and_a_page(tmp_path):
    path, junit, page = tmp_path / "kernels.py", tmp_path / "r.xml", tmp_path / "r.html"
    path.write_text("def mx(x):\n    raise ValueError('no')\n")
    words = ["verify", "--kernel", f"{path}:mx", "--spec", "mxfp8-e4m3", "--exhaustive", "float16"]
    result = CliRunner().invoke(main, [*words, "--junit", str(junit), "--html", str(page)])
    assert result.exit_code == 1, result.output
    assert "raised: ValueError: no" in ET.parse(junit).find(".//failure").text
    assert "raised: ValueError: no" in page.read_text(encoding="utf-8")


@pytest.mark.rule("CNF-56")
@pytest.mark.release  # two minutes
def test_the_command_writes_the_count_into_its_verdict_and_statement(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(
        "import fp4ref\nfrom fp4ref import kernel\n"
        "@kernel(dtypes=('float16',), outputs=('data', 'scales'))\n"
        "def mx(x):\n    return fp4ref.quantize(x, 'mxfp8-e4m3', backend='cpu').row[:2]\n"
    )
    words = ["verify", "--kernel", f"{path}:mx", "--spec", "mxfp8-e4m3", "--exhaustive", "float16"]
    result = CliRunner().invoke(main, [*words, "--statement", str(tmp_path / "s.json")])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "s.json").read_text())["found"]
    assert found["sweep"]["scale_bytes"] == len({0, *range(95, 136)})
    assert f"{found['sweep']['elements']:,} elements" in result.output
