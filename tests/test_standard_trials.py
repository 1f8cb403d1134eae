"""Examples of the chapter on kernels on trial, computed: rules that were divided."""

from __future__ import annotations

import ctypes
import io
import re
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from collected import collected
from commands import fp4
from fp4ref.conformance import families
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import runner, stream, sweep_plan
from fp4ref.conformance.run.huge_tile import SIZES, Size, plan
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.run.timed_input import TimedInput
from fp4ref.conformance.subjects.guards import Arrays, Guarded
from fp4ref.conformance.subjects.library.expression import ExpressionError, evaluated, parsed
from fp4ref.conformance.subjects.subject import Declaration, Subject
from fp4ref.conformance.verdict import huge
from fp4ref.conformance.verdict.dump_report import Verdict
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.standard import formulas
from fp4ref.standard.tables import tables
from standard_rules import RULES, integers, rows_of, text_of

F = np.float32
NVFP4 = fp4ref.NVFP4


def good(x):
    return tuple(fp4ref.quantize(x, "nvfp4", backend="numpy").row)


def report_of(kernel):
    """The report on a kernel, from the six cases of the family normal."""
    subject = Subject.of(kernel)
    runs = runner.run(subject, families.cases(NVFP4, families=["normal"]))
    return collected(
        KernelReport("kernel", NVFP4, subject.declaration),
        (judge(run.case, run.outcome, subject.declaration, run.expected) for run in runs),
        0,
    )


# Findings


@pytest.mark.rule("CNF-9")
@pytest.mark.example("CNF-9")
def test_findings_have_a_kind_and_numbers():
    def short(x):
        data, *rest = good(x)
        return data[:, :-1], *rest

    def changes(x):
        found = good(x)
        x[0, 0] = 0 if x[0, 0] else 1
        return found

    listed = {kind for cell, _ in rows_of("CNF-9") for kind in cell.split(", ")}
    sizes = integers(re.search(r"given \[\d+, \d+\]", text_of("CNF-9"))[0])
    for kernel, (_, finding) in zip((short, changes), rows_of("CNF-9", 1), strict=True):
        kind, text = finding.split(": ")
        assert kind in listed
        case = next(c for c in families.cases(NVFP4, families=["normal"]) if [*c.x.shape] == sizes)
        assert case.x.dtype == F
        found = Subject.of(kernel)
        (run,) = runner.run(found, [case])
        assert run.outcome.finding.kind == kind
        assert text.rpartition(", ")[2] in run.outcome.finding.text


@pytest.mark.rule("CNF-118")
@pytest.mark.example("CNF-118")
def test_a_finding_makes_the_verdict_wrong():
    count = int(re.search(r"(\d+) cases", text_of("CNF-118"))[1])
    names = [case.id for case in families.cases(NVFP4, families=["normal"])]
    for cell, findings, differ, verdict in rows_of("CNF-118"):
        seen = []

        def kernel(x, seen=seen, changing="changes" in cell):
            found = good(x)
            seen.append(x.shape)
            if changing and len(seen) == 1:
                x[...] = 1 - x
            return found

        report = report_of(kernel)
        assert report.cases == count == len(names)
        assert sum(report.findings.values()) == int(findings)
        assert sum(report.differing.values()) == int(differ)
        assert report.kind is Verdict(verdict)


@pytest.mark.rule("CNF-119")
@pytest.mark.example("CNF-119")
def test_a_kernel_that_fails_does_not_end_the_run():
    for cell, compared, findings in rows_of("CNF-119"):
        calls = []

        def kernel(x, calls=calls, always="every" in cell):
            calls.append(x.shape)
            if always or len(calls) == 1:
                raise ValueError("no")
            return good(x)

        report = report_of(kernel)
        assert report.cases == int(compared) + int(findings)
        assert (report.compared, sum(report.findings.values())) == (int(compared), int(findings))


# Huge inputs

WIDTH = 512
ROW = (1 << 18) // WIDTH


def planned(width=WIDTH):
    return plan(NVFP4, Declaration(), width)


@pytest.mark.rule("CNF-29")
@pytest.mark.example("CNF-29")
def test_a_huge_input_repeats_a_tile():
    rows, seen = planned().rows, []

    def kernel(x):
        seen.append(x.copy())
        return good(x)

    assert huge.check(Subject.of(kernel), NVFP4, sizes=(Size("element", 18),), width=WIDTH).kind is Verdict.CONFORMS
    x = seen[0]
    for tile, row, place in rows_of("CNF-29"):
        assert int(tile) == rows
        assert np.array_equal(x[int(row)], x[integers(place)[0]])
    assert len(x) % rows == 0
    whole = x.reshape(-1, *x[:rows].shape).copy()
    whole[-1, -1, -1] = whole[0, -1, -1]
    assert (whole == whole[:1]).all()


@pytest.mark.rule("CNF-120")
@pytest.mark.example("CNF-120")
def test_a_tile_divides_no_power_of_two():
    ((rows, wraps, read, places),) = rows_of("CNF-120")
    assert int(rows) == planned().rows
    at, start, (first, other) = int(formulas.value(wraps.partition(" rows")[0])), integers(read)[0], integers(places)
    assert (at % at, start % int(rows), at % int(rows)) == (start, first, other)
    assert all(2**power % int(rows) for power in range(64))


@pytest.mark.rule("CNF-121")
@pytest.mark.example("CNF-121")
def test_rows_of_a_tile_differ():
    ((rows, different),) = rows_of("CNF-121")
    for width in (WIDTH, 1 << 14):
        x = planned(width).body.x
        assert (len(x), len({row.tobytes() for row in x})) == (int(rows), int(different))


@pytest.mark.rule("CNF-122")
@pytest.mark.example("CNF-122")
def test_the_last_element_is_the_largest():
    (_, last), (_, others) = rows_of("CNF-122")
    x = planned(1 << 14).last.x.astype(F)
    assert x[-1, -1] == float(last)
    x[-1, -1] = 0
    assert np.abs(x).max() == integers(others)[0]


@pytest.mark.rule("CNF-123")
@pytest.mark.example("CNF-123")
def test_rows_around_the_sizes_are_computed():
    ((columns, size, places),) = rows_of("CNF-123")
    power, row = re.search(r"element 2\^(\d+), in row (\d+)", size).groups()
    assert (int(columns), int(row)) == (WIDTH, (1 << int(power)) // WIDTH)
    report = huge.check(Subject.of(good), NVFP4, sizes=(Size("element", int(power)),), width=int(columns))
    (case,) = report.cases
    wanted = {f"{first}:{last + 1}" for first, last in zip(*[iter(integers(places)[:-1])] * 2, strict=True)}
    wanted.add(f"{case.rows - integers(places)[-1]}:{case.rows}")
    assert set(case.results["data"]["samples"]) == wanted

    made = planned().trial(Size("element", int(power)), (Size("element", int(power)),))
    x = planned().body.x
    for part, samples in made.samples.items():
        rows = x[part % 3 * 128 :][:128].copy()
        if part == made.count * made.parts - 1:
            rows[-1, -1] = 1024
        alone = fp4ref.quantize(rows, "nvfp4", amax=F([1024]), backend="numpy").row
        assert samples["data"].tobytes() == alone.data.tobytes()
        assert samples["scales"].tobytes() == alone.scales.tobytes()


@pytest.mark.rule("CNF-53", "CNF-125")
@pytest.mark.example("CNF-53", "CNF-125")
def test_sizes_of_huge_inputs():
    (_, names), (_, why) = rows_of("CNF-53")
    wanted = re.findall(r"huge/\S+\d", names)
    assert wanted == [f"huge/{size.unit}-2^{size.power}" for size in SIZES]
    ((memory, tried, verdict, status),) = rows_of("CNF-125")
    least = integers(memory)[0] << 20
    report = huge.check(Subject.of(good), NVFP4, memory=least)
    assert [case.name.rpartition("/")[0] for case in report.cases] == wanted
    assert all("not tried, needs" in case.lines[0] and "of memory" in case.lines[0] for case in report.cases)
    assert "not tried: needs more memory" in why
    assert [sum(case.tried for case in report.cases), len(report.cases)] == integers(tried)
    assert (report.kind, report.kind.status) == (Verdict(verdict), int(status))


@pytest.mark.rule("CNF-124")
@pytest.mark.example("CNF-124")
def test_where_a_huge_result_differs():
    ((cell, said),) = rows_of("CNF-124")
    columns = integers(re.search(r"\d+ columns", text_of("CNF-124"))[0])[0]
    row, power = re.search(r"from row ([\d,]+) on \(element 2\^(\d+)\)", said).groups()
    assert int(row.replace(",", "")) == (1 << int(power)) // columns
    assert int(power) == 31  # where offsets in 32 bits with sign end
    assert "32 bits with sign" in cell

    def kernel(x):
        data, *rest = good(x)
        data[ROW:] = 0
        return data, *rest

    report = huge.check(Subject.of(kernel), NVFP4, sizes=(Size("element", 18),), width=WIDTH)
    assert report.headline.startswith(said.replace(row, str(ROW)).replace(f"2^{power}", "2^18"))


# Buffers, and streams


@pytest.mark.rule("CNF-36")
@pytest.mark.example("CNF-36")
def test_bytes_beside_buffers():
    names = {"scales": 1, "data": 0}
    for cell, finding in rows_of("CNF-36"):
        after, name = re.search(r"a byte (past|before) its (\w+)", cell).groups()

        @fp4ref.kernel(out_buffers=True)
        def kernel(x, out, at=names[name], after=after == "past"):
            for buffer, part in zip(out, good(x), strict=True):
                buffer[...] = part
            flat = out[at].reshape(-1)
            ctypes.c_uint8.from_address(flat.ctypes.data + (flat.size if after else -1)).value = 0x11

        assert {kind.value for kind in report_of(kernel).findings} == {finding}


@pytest.mark.rule("CNF-126")
@pytest.mark.example("CNF-126")
def test_buffers_are_aligned_to_no_more():
    ((declared, words),) = rows_of("CNF-126")
    divides, other = integers(words)
    assert (int(declared), 2 * divides) == (divides, other)
    for shape in ((3, 4), (1, 1), (16, 128)):
        address = Guarded.holding(Arrays("numpy"), np.ones(shape, F), divides).array.__array_interface__["data"][0]
        assert (address % divides, address % other) == (0, divides)


class Timed:
    """A reader of no bytes that remembers the seconds that it is allowed."""

    def __init__(self):
        self.seconds = []

    def allow(self, seconds):
        self.seconds.append(seconds)

    def take(self, count, what):
        raise StopIteration

    refused = more = take


@pytest.mark.rule("CNF-127")
@pytest.mark.example("CNF-127")
def test_the_time_of_the_first_answer(monkeypatch):
    timeout, start = integers(re.search(r"`--timeout.*?`", text_of("CNF-127"))[0])
    wanted = [int(seconds) for _, seconds in rows_of("CNF-127")]
    reader, options = Timed(), RunOptions.starting_now(timeout, start)
    with pytest.raises(StopIteration):
        stream.read_plan(reader, options)
    assert reader.seconds == wanted[:1]  # the preamble is a part of the first answer
    reader.seconds.clear()
    monkeypatch.setattr(stream, "_answer", lambda *_: None)
    monkeypatch.setattr(stream, "_require_end", lambda *_: None)
    small = stream.StreamPlan(NVFP4, families=("empty",), dtypes=("float32",))
    count = len([*stream.read(reader, small, Declaration(), options)])
    assert count > 1
    assert reader.seconds == [wanted[0], *wanted[1:] * (count - 1)]


@pytest.mark.rule("CNF-128")
@pytest.mark.example("CNF-128")
def test_a_file_has_no_timeout():
    timeout = integers(re.search(r"`--timeout.*?`", text_of("CNF-128"))[0])[0]
    (_, piped), (_, stored) = rows_of("CNF-128")
    assert (integers(piped), stored) == ([timeout], "any time")
    limited = TimedInput.__new__(TimedInput)
    limited._seconds, limited._end = None, None
    stream.Reader(limited, "a pipe").allow(timeout)
    assert limited._seconds == timeout
    slow = SimpleNamespace(read=lambda count: b"x" * count, allow=None)  # calling it would fail
    reader = stream.Reader(slow, "a file")
    reader.allow(-1.0)
    assert reader.take(3, "bytes") == b"xxx"


def payloads(name, direction, families_of, spec=NVFP4):
    """The case of a stream that has a shape, and the bytes of its parts."""
    given = stream.StreamPlan(spec, families=families_of, direction=direction, dtypes=("bfloat16",))
    out = io.BytesIO()
    stream.write(out, given)
    for case in given.cases():
        if [*case.x.shape] == name:
            x, amax, bits = stream._payload(case)
            assert x + amax + bits in out.getvalue()
            return case, x, bits
    raise AssertionError(name)


@pytest.mark.rule("CNF-81")
@pytest.mark.example("CNF-81")
def test_a_case_of_a_stream_is_the_matrix():
    shape = integers(re.search(r"\[[\d, ]+\]", text_of("CNF-81"))[0])
    ((cell, size),) = rows_of("CNF-81")
    case = SimpleNamespace(x=np.arange(np.prod(shape)).reshape(shape).astype(ml_dtypes.bfloat16), direction="column")
    case.amax, case.random_bits = np.ones(1, F), None
    (x, *_) = stream._payload(case)
    assert len(x) == int(size)
    assert x == case.x.tobytes()  # not its transpose
    assert integers(cell) == [shape[0] * shape[1], shape[2]]


@pytest.mark.rule("CNF-129")
@pytest.mark.example("CNF-129")
def test_random_bits_of_a_stream():
    shape = integers(re.search(r"\[[\d, ]+\]", text_of("CNF-129"))[0])
    ((cell, size),) = rows_of("CNF-129")
    assert integers(cell) == shape[::-1]
    assert int(size) == shape[0] * shape[1]
    spec = fp4ref.profiles["nvfp4-sr"]
    for direction in ("row", "column"):
        given = stream.StreamPlan(spec, families=("random-bits",), direction=direction)
        for case in given.cases():
            rows, columns = case.x.shape
            assert case.random_bits.shape == ((rows, columns) if direction == "row" else (columns, rows))
            assert stream._payload(case)[2] == case.random_bits.tobytes()


# The verdict


@pytest.mark.rule("CNF-130")
@pytest.mark.example("CNF-130")
def test_the_status_of_a_verdict(tmp_path, monkeypatch):
    statuses = {name: int(status) for names, status in rows_of("CNF-130") for name in names.split(", ")}
    of = {"wrong on ... only": Verdict.EXCEPT, "is a profile": Verdict.PROFILE, "wrong": Verdict.WRONG}
    of |= {"conforms": Verdict.CONFORMS, "incomplete": Verdict.INCOMPLETE}
    assert {name: verdict.status for name, verdict in of.items()} == {name: statuses[name] for name in of}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(
        "import fp4ref\n\ndef right(x):\n    return tuple(fp4ref.quantize(x, 'nvfp4', backend='numpy').row)\n\n"
        "def wrong(x):\n    data, *rest = right(x)\n    return data ^ 1, *rest\n"
    )
    line = ["verify", "--spec", "nvfp4", "--family", "normal", "--level", "1", "--no-diagnosis", "--kernel"]
    assert fp4(*line, "k.py:right").exit_code == statuses["conforms"]
    assert fp4(*line, "k.py:wrong").exit_code == statuses["wrong"]
    assert fp4(*line, "k.py:right", "--require", "nan").exit_code == statuses["incomplete"]
    assert fp4(*line, "k.py:absent").exit_code == statuses["an error message"]

    def broken(*_, **__):
        raise RuntimeError("inside")

    monkeypatch.setattr("fp4ref.conformance.verdict.kernel_report.KernelReport.add", broken)
    assert fp4(*line, "k.py:right").exit_code == statuses["an error message for an internal error (CNF-11)"]


# Sizes, expressions and maxima


@pytest.mark.rule("CNF-39", "CNF-101")
@pytest.mark.example("CNF-39", "CNF-101")
def test_expressions_of_signatures():
    head = tables(text_of("CNF-39"))[0][0][0]
    count, columns, block = integers(head)
    sizes = {"rows": count, "columns": columns, "blocks": -(-columns // block)}
    for cell, value in rows_of("CNF-39"):
        assert evaluated(parsed(cell.strip("`"), sizes), sizes) == int(value)
    sizes = {"rows": integers(tables(text_of("CNF-101"))[0][0][0])[0]}
    for cell, result in rows_of("CNF-101"):
        assert result.startswith("refused")
        with pytest.raises(ExpressionError):
            evaluated(parsed(cell.strip("`"), sizes), sizes)
    assert evaluated(parsed("rows - 130", sizes), sizes) == 0  # the next one is below 0


@pytest.mark.rule("CNF-51")
@pytest.mark.example("CNF-51")
def test_rows_that_pass_the_sizes():
    head = tables(text_of("CNF-51"))[0][0][0]
    (columns,) = integers(re.search(r"\d+ columns", head)[0])
    made = planned(columns)
    for words in (RULES["CNF-51"].title, text_of("CNF-51").split("|")[0]):
        powers = re.findall(r"2\^(\d+)\s+(byte|element)s", words)
        assert powers == [(str(size.power), size.unit) for size in SIZES]
    assert (made.columns, made.body.x.dtype.name) == (columns, "bfloat16")
    for size, (cell, high) in zip(SIZES, rows_of("CNF-51"), strict=True):
        assert cell == f"2^{size.power} {size.unit}s"
        assert size.elements(made.body.x.itemsize) == int(high) * columns
        assert made.count(size) * made.rows > int(high)


@pytest.mark.rule("CNF-55")
@pytest.mark.example("CNF-55")
def test_maxima_of_a_sweep():
    text = text_of("CNF-55")
    last, single = re.search(r"\.\.\. 1 \+ (\d+)/128", text)[1], float(re.search(r"maximum ([\d.]+\d)", text)[1])
    every = [1 + n / 128 for n in range(int(last) + 1)]
    kinds = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": F}
    for names, cell in rows_of("CNF-55"):
        for name in names.split(", "):
            bits = sweep_plan.maxima(NVFP4, name)
            found = np.array(bits, f"u{np.dtype(kinds[name]).itemsize}").view(kinds[name]).astype(np.float64).tolist()
            assert found == ([single] if name == "float32" else every)
            assert len(found) == integers(cell)[0]


@pytest.mark.rule("CNF-70")
@pytest.mark.example("CNF-70")
def test_unusual_maxima_of_bytes():
    made = families.cases(NVFP4, dtypes=("float32",), families=["every-byte"], encoded=True)
    found = {case.id.rpartition("/f32")[0]: case for case in made}
    for cell, amax in rows_of("CNF-70"):
        case = found[cell.strip("`")]
        value = {"2^-149": F(2.0**-149), "(2 - 2^-23) * 2^127": np.finfo(F).max}[amax]
        assert case.encoded.amax.tolist() == [value]
        assert len(np.unique(case.encoded.scales)) == 254  # all that are numbers
