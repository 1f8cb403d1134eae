"""Examples of the chapter on conformance, acted out: verdicts, what they rest on, findings, failures and statuses."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace

import numpy as np
import pytest

import fp4ref
from commands import fp4
from fp4ref.cli.report import SHADES
from fp4ref.cli.session import PLAIN
from fp4ref.conformance.diagnosis import dumps as dump_diagnosis
from fp4ref.conformance.dumps.files import Dump, write_dump
from fp4ref.conformance.families import FAMILIES, cases
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.judge.coverage import not_judged
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.reports import html
from fp4ref.conformance.run import recent
from fp4ref.conformance.run.rounds import in_order
from fp4ref.conformance.subjects.guards import Arrays, Guarded
from fp4ref.conformance.subjects.subject import Declaration
from fp4ref.specs import NVFP4
from fp4ref.testing import assert_conforms
from standard_rules import rows_of

F = np.float32


def words(cell):
    return re.findall("`(.*?)`", cell)


def right(x, **given):
    return tuple(fp4ref.quantize(x, "nvfp4", backend="numpy", **given).row)


def dump(path, *tensors):
    """Write tensors of which codes are changed: x and a function of codes and scales each."""
    made = []
    for number, (x, change) in enumerate(tensors):
        q = fp4ref.quantize(x, "nvfp4", backend="numpy")
        data, scales = change(q.row.data.copy(), q.row.scales.copy())
        made.append(
            Dump(
                "w" if len(tensors) == 1 else "abcdefghij"[number],
                x,
                replace(q, row=q.row._replace(data=data, scales=scales)),
            )
        )
    write_dump(path, made)
    return path


def normal(rows=16, columns=64):
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(F)


def same(data, scales):
    return data, scales


def one_code(data, scales):
    data[0, 0] ^= 1
    return data, scales


def said(path, *more):
    """The verdict on a file, without its name, and the exit status."""
    found = fp4("verify", path, "--diagnosis-seconds", "0.1", *more)
    return found.stdout.splitlines()[0].partition(": ")[2], found.exit_code


# The verdict


@pytest.mark.rule("CNF-2")
@pytest.mark.example("CNF-2")
def test_differences_and_their_verdicts(tmp_path):
    x = normal(2, 32)
    x[1, :3] = -0.0

    def zeros_without_sign(data, scales):
        codes = fp4ref.packing.unpack(data, 32, NVFP4.element.format)
        codes[x == 0] = 0
        return fp4ref.packing.pack(codes, NVFP4.element.format), scales

    differences = {"code 0 for 8 at each -0.0": zeros_without_sign, "one code of an ordinary block": one_code}
    shown = dict(rows_of("CNF-2", 2))
    for start, change in differences.items():
        (verdict,) = (verdict for cell, verdict in shown.items() if cell.startswith(start))
        headline, status = said(dump(tmp_path / "d.npz", (x, change)))
        assert headline.startswith(verdict.partition(",")[0])
        assert status == 1
    (ties,) = (verdict for cell, verdict in shown.items() if "ties away" in cell)
    assert any(f"wrong: {mistake.text}" == ties for mistake in MISTAKES)
    named = [re.sub(r" \.\.\. only$", "", verdict) for verdict, _ in rows_of("CNF-2")]
    assert [each for each in named if each not in {"is a profile", "an error message"}] == [
        "conforms", "incomplete", "wrong on", "wrong: a known mistake", "wrong: not explained",
    ]  # fmt: skip
    assert {name for cell, _ in rows_of("CNF-2", 1) for name in cell.split(", ")} == {
        "NaN",
        "Inf",
        "scale underflow",
        "-0",
    }


@pytest.mark.rule("CNF-22")
@pytest.mark.example("CNF-22")
def test_what_is_not_judged():
    declared = {
        "returns data and scales": {"outputs": ("data", "scales")},
        "is given the amax": {"inputs": ("x", "amax")},
        "dequantizes, and is declared without NaN": {
            "operation": "dequantize", "inputs": ("data", "scales"), "outputs": ("values",), "specials": ("inf",),
        },
        "takes no `out` buffers": {},
        "is not declared strided": {},
        "is run on every case once": {},
    }  # fmt: skip
    assert [row[0] for row in rows_of("CNF-22")] == [*declared]
    for kernel, left in rows_of("CNF-22"):
        one = Declaration(**declared[kernel])
        found = not_judged(NVFP4, one, amax="amax" in one.outputs)
        what, _, why = left.replace("`", "").partition(": ")
        assert found[what] == (why or "no out= buffers"), kernel
        given = replace(one, out_buffers=True, strided=True)
        kept = not_judged(NVFP4, given, amax=True, repeated=True)
        assert what not in kept or what in {"amax", "bytes that are nan"}


@pytest.mark.rule("CNF-23")
@pytest.mark.example("CNF-23")
def test_required_families():
    def on_nan(x):
        return right(np.where(np.isnan(x.astype(F)), 0, x).astype(x.dtype))

    kernels = {"right, takes no amax": right, "wrong on NaN": on_nan}
    for kernel, required, verdict, status in rows_of("CNF-23"):
        names = required.strip("`").split(",")
        try:
            assert_conforms(
                kernels[kernel], "nvfp4", families=["normal", "nan", "overflow"], require=names, empty=False
            )
            found = "conforms"
        except AssertionError as error:
            found = str(error).splitlines()[0]
        start, _, reason = verdict.partition(": ")
        assert start in found
        assert all(part in found for part in (*words(reason), *re.findall(r"\(.*\)", reason)))
        assert int(status) == {"conforms": 0, "incomplete": 2, "wrong on NaN only": 1}[start]


# Findings


@pytest.mark.rule("CNF-85", "CNF-35", "CNF-94")
@pytest.mark.example("CNF-85", "CNF-35", "CNF-94")
def test_kernels_that_leave_or_read_too_much():
    count = iter(range(1000))

    def counter(x):
        return tuple(np.full_like(part, next(count)) for part in right(x))

    @fp4ref.kernel(out_buffers=True)
    def leaves(x, out):
        for buffer, part in zip(out, right(x), strict=True):
            kept = buffer.reshape(-1)[-1]
            buffer[...] = part
            if buffer is out[1]:
                buffer.reshape(-1)[-1] = kept

    @fp4ref.kernel(out_buffers=True)
    def at_once(x, out): ...

    def clears(x):
        return tuple(np.zeros_like(part) for part in right(x))

    def first(function):
        with pytest.raises(AssertionError) as error:
            assert_conforms(function, "nvfp4", families=["normal"], dtypes=["float32"], leading=False)
        return str(error.value)

    kernels = {"returns the bytes of a counter": counter, "leaves the last scale byte": leaves}
    for kernel, finding in rows_of("CNF-85"):
        assert f"{finding.partition(':')[0]} in " in first(kernels[kernel])
    kernels = {"returns at once": at_once, "clears its results": clears}
    for kernel, verdict in rows_of("CNF-35"):
        assert verdict.removeprefix("wrong: ") in first(kernels[kernel])
    ((_, cell),) = rows_of("CNF-94")
    byte = int(words(cell)[0].split()[0], 16)
    for dtype in (F, np.float16):
        guarded = Guarded.holding(Arrays("numpy"), np.zeros((2, 4), dtype), 16)
        outside = np.concatenate(
            [guarded._raw[: guarded._start], guarded._raw[guarded._start + 8 * dtype().itemsize :]]
        )
        around = outside[outside == byte]
        assert around.size
        assert np.isnan(np.full(dtype().itemsize, byte, np.uint8).view(dtype)).all()


# Failures inside the judge


def raising(line):
    """A function that raises in a line of a file diagnose.py."""
    space: dict = {}
    exec(
        compile("\n" * (line - 2) + "def broken(*_, **__):\n    raise ValueError('too few')\n", "diagnose.py", "exec"),
        space,
    )
    return space["broken"]


@pytest.mark.rule("CNF-10", "CNF-69")
@pytest.mark.example("CNF-10", "CNF-69")
def test_what_an_exception_inside_the_judge_costs(tmp_path, monkeypatch):
    (diagnosis, picture), ((_, text), (_, in_json)) = rows_of("CNF-10"), rows_of("CNF-69")

    def codes(data, scales):
        data[: int(re.search(r"with (\d+) wrong codes", diagnosis[0])[1]), 0] ^= 1
        return data, scales

    path, page = dump(tmp_path / "d.npz", (normal(), codes)), tmp_path / "r.html"
    whole = said(path, "--no-diagnosis")
    assert whole[0].endswith(f"differs from nvfp4 in {re.search(r'with (.*)', diagnosis[0])[1].replace('wrong ', '')}")
    monkeypatch.setattr(html, "pictures", raising(2))
    assert picture[1] == "as without the exception"
    assert said(path, "--no-diagnosis", "--html", page) == (whole[0], int(picture[2]))
    monkeypatch.undo()
    line = int(re.search(r"\(diagnose.py:(\d+)\)", text)[1])
    monkeypatch.setattr(dump_diagnosis, "diagnose", raising(line))
    headline, status = said(path)
    assert (headline.partition(";")[0], status) == (diagnosis[1], int(diagnosis[2]))
    assert text in fp4("verify", path).stdout
    (error,) = json.loads(fp4("verify", path, "--json").stdout)["files"][0]["internal_errors"]
    for each in words(in_json):
        key, value = json.loads(f"{{{each}}}").popitem()
        assert error[key] == value
    assert "in broken" in error["traceback"]


@pytest.mark.rule("CNF-68")
@pytest.mark.example("CNF-68")
def test_a_check_that_raises(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(
        "import fp4ref\n\ndef right(x):\n    return tuple(fp4ref.quantize(x, 'nvfp4', backend='numpy').row)\n"
    )
    (what, verdict, status), (_, other, same_status) = rows_of("CNF-68")
    count, total = map(int, re.search(r"(\d+) of (\d+) cases", what).groups())
    calls, compare = iter(range(100)), judge.__globals__["compare_direction"]

    def broken(*arguments, **settings):
        if next(calls) < count:
            raise ValueError("inside")
        return compare(*arguments, **settings)

    monkeypatch.setattr("fp4ref.conformance.judge.cases.compare_direction", broken)
    some = ["--family", "normal", "--family", "layout", "--level", "1"]
    made = list(cases(NVFP4, families=["normal", "layout"], level=1))
    assert len(made) == total, "choose families with as many cases"
    found = fp4("verify", "--kernel", "k.py:right", "--spec", "nvfp4", *some)
    assert found.exit_code == int(status) == int(same_status) == 3
    assert found.stdout.splitlines()[0].partition(": ")[2].startswith(verdict.split("; ")[0])
    assert verdict.split("; ")[1].replace("an internal error", "an internal error") in found.stdout.splitlines()[0]
    assert any(other.startswith(f"wrong: {mistake.text}") for mistake in MISTAKES)


# Cases


@pytest.mark.rule("CNF-7", "CNF-33")
@pytest.mark.example("CNF-7", "CNF-33")
def test_cases_by_name_and_their_families():
    ((cell, result),) = rows_of("CNF-7")
    name, spec = words(cell)
    one, other = (next(case for case in cases(fp4ref.profiles[spec]) if case.id == name) for _ in range(2))
    assert (one.x.tobytes() == other.x.tobytes()) == (result == "the same")
    for cell, aim in rows_of("CNF-33"):
        family, (rule, _, reason) = FAMILIES[cell.strip("`")], aim.partition(": ")
        assert rule in family.rules(NVFP4)
        assert family.reason.rstrip(".").lower() == reason.lower()


@pytest.mark.rule("CNF-107")
@pytest.mark.example("CNF-107")
def test_the_case_that_failed_is_first(tmp_path, monkeypatch):
    monkeypatch.setenv("FP4REF_CACHE_DIR", str(tmp_path))
    ((cell, order),) = rows_of("CNF-107")
    (name,) = words(cell)
    recent.remember("k.py:f", NVFP4, [name])
    declared, few = Declaration(), {"families": ["wide"], "level": 1}
    ids = [case.id for case in in_order(declared, NVFP4, recent.recall("k.py:f", NVFP4), **few)]
    assert order == "that case, then all others"
    assert ids[0] == name
    assert sorted(ids[1:]) == sorted(case.id for case in cases(NVFP4, **few))


# Statuses


@pytest.mark.rule("CNF-11", "CNF-109")
@pytest.mark.example("CNF-11", "CNF-109")
def test_statuses_of_commands(tmp_path, monkeypatch):
    zero, one, two, three, signals = (row[0] for row in rows_of("CNF-11"))
    ends = (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP)
    assert [int(status) for status in signals.split(", ")] == [128 + number for number in ends]
    files = {"conforms": "a.npz", "differs": "b.npz", "is damaged": "c.npz"}
    dump(tmp_path / "a.npz", (normal(), same))
    dump(tmp_path / "b.npz", (normal(), one_code))
    (tmp_path / "c.npz").write_bytes(b"")
    statuses = dict(zip(files, (int(zero), int(one), int(two)), strict=True))
    for name, status in statuses.items():
        assert fp4("verify", tmp_path / files[name], "--no-diagnosis").exit_code == status
    for cell, status in rows_of("CNF-109"):
        some = [files[name.removeprefix("one ")] for name in cell.split(", ")]
        found = fp4("verify", *(tmp_path / name for name in some), "--no-diagnosis")
        assert found.exit_code == int(status)
    monkeypatch.setattr("fp4ref.conformance.verdict.dumps._compared", raising(2))
    found = fp4("verify", tmp_path / "a.npz")
    assert (found.exit_code, len(found.stderr.splitlines())) == (int(three), 1)
    assert "(diagnose.py:2)" in found.stderr


@pytest.mark.rule("CNF-111")
@pytest.mark.example("CNF-111")
def test_shades_where_the_encoding_has_none():
    ((command, result),) = rows_of("CNF-111")
    encoding = re.search(r"PYTHONIOENCODING=(\w+) fp4ref report x\.npz", command)[1]
    first, last = map(int, re.search(r"the shades of the histogram are digits (\d) to (\d)", result).groups())
    assert SHADES.translate(PLAIN) == "".join(map(str, range(first, last + 1)))
    with pytest.raises(UnicodeEncodeError):
        SHADES.encode(encoding)
