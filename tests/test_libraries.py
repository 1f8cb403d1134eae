"""Functions of C libraries as subjects: what they are given, what is found, and signatures that are refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from covering import few
from fp4ref.cli import main
from fp4ref.conformance import families as aimed
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import runner
from fp4ref.conformance.run.libraries import library, named, names, parse
from fp4ref.conformance.subjects.library.arguments import KINDS
from fp4ref.conformance.subjects.library.binding import bind
from fp4ref.conformance.subjects.library.expression import ExpressionError, evaluated, parsed
from fp4ref.conformance.subjects.library.records import Records
from fp4ref.conformance.subjects.library.signature import facts_of
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.product_runs import check
from fp4ref.errors import BackendError, DomainError, FileError
from fp4ref.formats import E2M1, E4M3
from fp4ref.testing import assert_conforms
from standard_rules import rows_of

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
SOURCE, SIGNATURE = EXAMPLES / "quantize_library.c", EXAMPLES / "quantize_library.toml"
FLAGS = ["-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC"]
FEW = ["normal", "ragged", "element-ties", "zero-blocks"]
MORE = """
#include <stdlib.h>
#include <signal.h>
#include <stdio.h>
#include <stdbool.h>
int quantize(const float *, int64_t, int64_t, uint8_t *, uint8_t *);
int past_the_end(const float *x, int64_t m, int64_t n, uint8_t *d, uint8_t *s)
{ d[m * ((n + 1) / 2)] = 1; return quantize(x, m, n, d, s); }
int last_scale_missing(const float *x, int64_t m, int64_t n, uint8_t *d, uint8_t *s)
{ int64_t last = m * ((n + 31) / 32) - 1; uint8_t kept = s[last]; quantize(x, m, n, d, s); s[last] = kept; return 0; }
int writes_x(float *x, int64_t m, int64_t n, uint8_t *d, uint8_t *s) { quantize(x, m, n, d, s); x[0] += 1; return 0; }
int refuses(const float *x, int64_t m, int64_t n, uint8_t *d, uint8_t *s)
{ return n % 32 ? 7 : quantize(x, m, n, d, s); }
int crashes(const float *x, int64_t m, int64_t n, uint8_t *d, uint8_t *s)
{ (void)x; (void)m; (void)n; (void)d; (void)s; raise(SIGSEGV); return 0; }
void prints(const float *x, int64_t m, int64_t n, uint8_t *d, uint8_t *s)
{ printf("hello\\n"); quantize(x, m, n, d, s); }
int many(int dtype, float eps, void *nothing, const float *x, size_t pitch, int m, int n, uint8_t *d, uint8_t *s,
         uint8_t *work, float *amax, bool yes, void *stream, int processors)
{
    if (dtype != 5 || eps != 0.5f || nothing || stream || amax || !yes || processors != 1) return 1;
    if (pitch < (size_t)n) return 2;
    float *packed = malloc((size_t)m * n * 4 + 1);
    for (int i = 0; i < m; i++) memcpy(packed + (size_t)i * n, x + i * pitch, 4 * (size_t)n);
    memset(work, 1, (size_t)m * ((n + 31) / 32));
    quantize(packed, m, n, d, s);
    free(packed);
    return 0;
}
int work_past_the_end(const float *x, int64_t m, int64_t n, uint8_t *d, uint8_t *s, uint8_t *work)
{ work[m] = 0; return quantize(x, m, n, d, s); }
void records(const float *x, uint8_t *y, int64_t k)
{
    for (int64_t b = 0; b < k / 32; b++) {
        uint8_t d[16], *to = y + 17 * b;
        quantize(x + 32 * b, 1, 32, d, to);
        for (int i = 0; i < 16; i++) {
            int low = d[i / 2] >> 4 * (i % 2) & 15, high = d[8 + i / 2] >> 4 * (i % 2) & 15;
            to[1 + i] = (uint8_t)(low | high << 4);
        }
    }
}
void dequantize(const uint8_t *d, const uint8_t *s, int m, int n, float *out)
{
    static const float values[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    for (int i = 0; i < m * n; i++) {
        int code = d[i / n * ((n + 1) / 2) + i % n / 2] >> 4 * (i % n % 2) & 15;
        float v = scalbnf(values[code & 7], s[i / n * ((n + 31) / 32) + i % n / 32] - 127);
        out[i] = code & 8 ? -v : v;
    }
}
static float value(const uint8_t *d, const uint8_t *s, int row, int column, int depth)
{
    static const float values[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    int code = d[row * ((depth + 1) / 2) + column / 2] >> 4 * (column % 2) & 15;
    uint8_t scale = s[row * ((depth + 31) / 32) + column / 32];
    float v = scale == 255 ? NAN : scalbnf(values[code & 7], scale - 127);
    return code & 8 ? -v : v;
}
void gemm(const uint8_t *a, const uint8_t *sa, const uint8_t *b, const uint8_t *sb, float *out, int m, int n, int k)
{
    for (int i = 0; i < m; i++) for (int j = 0; j < n; j++) {
        float sum = 0;
        for (int c = 0; c < k; c++) sum += value(a, sa, i, c, k) * value(b, sb, j, c, k);
        out[i * n + j] = sum;
    }
}
void gemm_odd(const uint8_t *a, const uint8_t *sa, const uint8_t *b, const uint8_t *sb, float *out, int m, int n, int k)
{ gemm(a, sa, b, sb, out, m, n, k); if (m > 1) out[n] += 1; }
void to_layout(const uint8_t *s, int m, int blocks, int wide, uint8_t *out)
{
    memset(out, 0, (size_t)((m + 127) / 128 * 128 * wide));
    for (int i = 0; i < m; i++) for (int j = 0; j < blocks; j++)
        out[i / 128 * 128 * wide + j / 4 * 512 + i % 32 * 16 + i / 32 % 4 * 4 + j % 4] = s[i * blocks + j];
}
void both(const float *x, int m, int n, uint8_t *d, uint8_t *s, uint8_t *dt, uint8_t *st)
{
    float *t = malloc((size_t)m * n * 4 + 1);
    for (int i = 0; i < m * n; i++) t[i % n * m + i / n] = x[i];
    quantize(x, m, n, d, s);
    quantize(t, n, m, dt, st);
    free(t);
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no C compiler")
    folder = tmp_path_factory.mktemp("library")
    (folder / "more.c").write_text(SOURCE.read_text() + MORE)
    (folder / "wrong.c").write_text(SOURCE.read_text().replace("4 * (c % 2)", "4 * (1 - c % 2)"))
    (folder / "abort.c").write_text("void abort(void); __attribute__((constructor)) static void it(void) { abort(); }")
    for source, name in (
        (folder / "abort.c", "abort"),
        (SOURCE, "mine"),
        (folder / "more.c", "more"),
        (folder / "wrong.c", "wrong"),
    ):
        subprocess.run([compiler, *FLAGS, source, "-o", folder / f"lib{name}.so", "-lm"], check=True)
    return folder


FIVE = json.loads(json.dumps(named(str(SIGNATURE)).record))


def changed(**settings):
    """The example's signature with other fields."""
    record = FIVE | settings
    return record | {"declaration": FIVE["declaration"] | settings.get("declaration", {})}


def report(folder, function, record=FIVE, spec="mxfp4", families=FEW):
    """Return what is found when a function is called in this process, without a diagnosis."""
    signature, spec = parse(function, record), fp4ref.profiles[spec]
    signature.require(spec)
    declared = signature.declaration
    bound = bind(f"{folder}/libmore.so:{function}", signature, facts_of(spec), declared)
    found = KernelReport(function, spec, declared)
    chosen = aimed.cases(spec, 1, (declared.direction,), declared.dtypes, families)
    for item in runner.run(Subject(function, declared, bound), chosen):
        found.add(judge(item.case, item.outcome, declared, item.expected))
    return found


def finding(found):
    """Return the first finding of a report, and how many cases have it."""
    (kind, (_, first)), *_ = found.first.items()
    return f"{kind} in {found.findings[kind]} of {found.cases}: {first.text}"


# The command, on the example as it is shipped


def run(line, status):
    result = CliRunner().invoke(main, line)
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.slow
@pytest.mark.rule("CNF-16")
def test_the_example_conforms_and_a_wrong_one_is_diagnosed(compiled, monkeypatch):
    monkeypatch.chdir(compiled)
    line = ["--signature", str(SIGNATURE), "--spec", "mxfp4", "--family=normal", "--family=element-ties"]
    right = run(["verify", "--library", "libmine.so:quantize", *line], 0)
    assert "libmine.so:quantize: conforms to mxfp4: no byte differs in " in right
    assert "guards around results: not applicable" not in right
    wrong = run(["verify", "--library", "./libwrong.so:quantize", *line], 1)
    assert "libwrong.so:quantize: wrong: " in wrong
    assert "nibble" in wrong.split("libwrong.so:quantize: wrong: ")[1].splitlines()[0]


@pytest.mark.rule("CNF-16")
def test_options(compiled, monkeypatch):
    monkeypatch.chdir(compiled)
    for line, message in (
        (["--library", "libmine.so:quantize", "--spec", "mxfp4"], "--library needs --signature"),
        (["--signature", str(SIGNATURE), "--spec", "mxfp4"], "--library needs --signature"),
        (
            ["--library", "libmine.so:quantize", "--signature", "nowhere", "--spec", "mxfp4"],
            "need a .json or .toml file",
        ),
        (["--library", "libmine.so:quantize", "--signature", "no.toml", "--spec", "mxfp4"], "no.toml: no such file"),
        (
            ["--library", "libmine.so:quantise", "--signature", str(SIGNATURE), "--spec", "mxfp4"],
            "no function quantise",
        ),
        (["--library", "libnone.so:f", "--signature", str(SIGNATURE), "--spec", "mxfp4"], "libnone.so"),
        (
            ["--library", str(SIGNATURE) + ":f", "--signature", str(SIGNATURE), "--spec", "mxfp4"],
            "quantize_library.toml",
        ),
    ):
        text = run(["verify", *line], 2)
        assert message in text
        assert len(text.splitlines()) <= 4, text
    assert [line.split(":")[0] for line in run(["verify", "--signatures"], 0).splitlines()[::2]] == names()


@pytest.mark.gpu
@pytest.mark.rule("CNF-16")
def test_pointers_and_a_stream_of_a_device(tmp_path):
    torch = pytest.importorskip("torch")
    if shutil.which("nvcc") is None or not torch.cuda.is_available():
        pytest.skip("needs nvcc and a CUDA device")
    source = SOURCE.with_suffix(".cu").read_text()
    line = ["--signature", str(SIGNATURE).replace(".toml", "_cuda.toml"), "--spec", "mxfp4"]
    for name, old, new, status, message in (
        ("right", "", "", 0, "conforms to mxfp4"),
        ("tie", "a >= .75f", "a > .75f", 1, "the tie 0.75 becomes 0.5"),
        ("past", "bytes[c / 2] =", "bytes[c / 2 + 2000] =", 1, "wrote-outside in "),
        ("far", "scales[b] =", "scales[b + (1LL << 40)] =", 1, "cuda-error in "),
    ):
        path = tmp_path / f"{name}.cu"
        path.write_text(source.replace(old, new, 1) if old else source)
        flags = ["-O2", "--fmad=false", "-arch=native", "-shared", "-Xcompiler", "-fPIC"]
        subprocess.run(["nvcc", *flags, path, "-o", tmp_path / f"lib{name}.so"], check=True)
        library = f"{tmp_path}/lib{name}.so:quantize"
        assert message in run(["verify", "--library", library, *line, *(f"--family={each}" for each in FEW)], status)


# What is passed, and what is found


@pytest.mark.example("CNF-16")
@pytest.mark.rule("CNF-16")
def test_arguments_of_every_kind(compiled):
    shown = [name for cell, _ in rows_of("CNF-16") for name in re.findall("`(.*?)`", cell)]
    assert sorted(shown) == sorted(KINDS)
    listed = [
        {"dtype": {"float32": 5}, "type": "int32"},
        {"constant": 0.5, "type": "float"},
        {"handle": "null"},
        {"input": "x"},
        {"size": "x_stride", "type": "size_t"},
        {"size": "rows", "type": "int32"},
        {"size": "columns", "type": "int32"},
        {"output": "data"},
        {"output": "scales"},
        {"workspace": "rows * ceil_div(columns, 32)"},
        {"output": "amax"},
        {"constant": True, "type": "bool"},
        {"handle": "stream"},
        {"size": "multiprocessors", "type": "int32"},
    ]
    assert report(compiled, "many", changed(arguments=listed, declaration={"strided": True})).ok


@pytest.mark.rule("CNF-9", "CNF-16")
@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("past_the_end", "wrote-outside in 3 of 3: data: 1 byte outside, 0 bytes after its end"),
        ("last_scale_missing", "not-written in 3 of 3: 1 of 128 bytes of scales are never written, first byte 127"),
        ("writes_x", "mutated-input in 3 of 3: x: "),
    ],
)
def test_findings(compiled, function, text):
    assert text in finding(report(compiled, function, families=["normal", "zero-blocks"]))


@pytest.mark.rule("CNF-9", "CNF-16")
def test_a_crash_is_a_finding(compiled):
    subject = library(f"{compiled}/libmore.so:crashes", parse("it", FIVE), fp4ref.MXFP4)
    with pytest.raises(AssertionError, match="crashed in 2 of 2 cases, first normal/1/f32/row: SIGSEGV"):
        assert_conforms(subject, "mxfp4", families=["normal"])


@pytest.mark.rule("CNF-100")
@pytest.mark.example("CNF-100")
def test_a_status_is_a_finding_unless_it_means_success(compiled):
    (returned, success, result), (_, nothing, compared) = rows_of("CNF-100")
    kind, _, said = result.partition(": ")
    text = finding(report(compiled, "refuses", changed(success=int(success)), families=["ragged"]))
    assert f"{kind} in 19 of 22: {said}" in text
    assert f"returned {returned}, success is {success}" in said
    assert (nothing.partition(":")[0], compared) == ("none", "compared")
    assert report(compiled, "prints", changed(returns="void")).ok
    text = finding(report(compiled, "quantize", changed(success=1)))
    assert "the function returned 0, success is 1" in text


@pytest.mark.example("CNF-99")
@pytest.mark.rule("CNF-99")
def test_a_workspace_has_guards(compiled):
    ((cell, kind),) = rows_of("CNF-99")
    written, size = re.findall("`(.*?)`", cell)
    listed = [*FIVE["arguments"], {"workspace": size}]
    found = finding(report(compiled, "work_past_the_end", changed(arguments=listed), families=["normal"]))
    assert found == f"{kind} in 2 of 2: workspace {size} #0: 1 byte outside, 0 bytes after its end"
    listed[-1] = {"workspace": written}
    assert report(compiled, "work_past_the_end", changed(arguments=listed)).ok


@pytest.mark.rule("CNF-40", "PACK-1")
def test_records(compiled):
    record = dict(named("ggml-mxfp4").record)
    assert report(compiled, "records", record, families=[*FEW, "empty"]).ok
    assert not report(compiled, "records", record | {"records": record["records"] | {"order": "pairs"}}).ok


@pytest.mark.rule("CNF-16")
def test_both_directions_in_one_call(compiled):
    listed = [
        {"input": "x"},
        {"size": "x_rows", "type": "int32"},
        {"size": "x_columns", "type": "int32"},
        *({"output": name, "direction": direction} for direction in ("row", "column") for name in ("data", "scales")),
    ]
    for direction in ("row", "column"):
        record = changed(arguments=listed, returns="void", declaration={"direction": direction})
        found = report(compiled, "both", record)
        assert found.ok, found.headline
        assert found.declaration.direction == direction


@pytest.mark.rule("CNF-16")
def test_other_operations(compiled):
    shape = [{"size": name, "type": "int32"} for name in ("rows", "columns")]
    back = [{"input": "data"}, {"input": "scales"}, *shape, {"output": "values"}]
    record = {"arguments": back, "declaration": {"operation": "dequantize", "dtypes": ["float32"]}}
    assert report(compiled, "dequantize", record, families=["normal", "ragged"]).ok
    tiles = [{"input": "scales"}, *shape, {"size": "scale_columns", "type": "int32"}, {"output": "scales"}]
    declared = {"operation": "to_layout", "scale_layout": "tiled_128x4", "dtypes": ["float32"]}
    assert report(
        compiled, "to_layout", {"arguments": tiles, "declaration": declared}, families=["layout", "ragged"]
    ).ok


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.rule("CNF-16", "GEM-13")
@pytest.mark.parametrize(("function", "right"), few([("gemm", True), ("gemm_odd", False)], 1))
def test_products(compiled, function, right):
    operands = [{"input": f"{side}_{part}"} for side in "ab" for part in ("data", "scales")]
    sizes = [{"size": name, "type": "int32"} for name in ("rows", "columns", "depth")]
    declared = {"operation": "gemm", "specials": ["nan"]}
    signature = parse("it", {"arguments": [*operands, {"output": "values"}, *sizes], "declaration": declared})
    bound = bind(f"{compiled}/libmore.so:{function}", signature, facts_of(fp4ref.MXFP4), signature.declaration)
    found = check(Subject(function, signature.declaration, bound), fp4ref.MXFP4, seconds=0)
    assert found.ok is right, found.headline
    assert len(found.judgements) > 10


@pytest.mark.rule("CNF-16")
@pytest.mark.parametrize(
    ("size", "text"),
    [
        ("rows - 100000", "signature: rows - 100000 is -9998"),
        ("rows * 1000000000", "0000 as int32, need a number that"),
    ],
)
def test_a_size_without_a_value_is_a_finding(compiled, size, text):
    listed = [*FIVE["arguments"], {"size": size, "type": "int32"}]
    assert text in finding(report(compiled, "quantize", changed(arguments=listed), families=["normal"]))


# Libraries and signatures that are refused


@pytest.mark.rule("CNF-16")
def test_libraries_that_do_not_load(compiled):
    signature = parse("it", FIVE)
    with pytest.raises(BackendError, match="no function absent in .*, need the name of one it exports"):
        library(f"{compiled}/libmine.so:absent", signature, fp4ref.MXFP4)
    with pytest.raises(BackendError, match="SIGABRT"):
        library(f"{compiled}/libabort.so:quantize", signature, fp4ref.MXFP4)
    with pytest.raises(DomainError, match="is a folder"):
        library(f"{compiled}:quantize", signature, fp4ref.MXFP4)
    with pytest.raises(DomainError, match="need libfile.so:function"):
        library("libmine.so", signature, fp4ref.MXFP4)


@pytest.mark.rule("CNF-101")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arguments": []}, "bad: arguments: [], need a list with one entry for every argument [CNF-16]"),
        ({"argument": []}, "bad: argument: an unknown field, need one of arguments, "),
        ({"arguments": [{"input": "y"}]}, "bad: arguments[0].input: 'y', need one of x, amax, "),
        ({"arguments": [{"size": "rows"}]}, "bad: arguments[0].type: '', need one of bool, int8, "),
        (
            {"arguments": [{"size": "row", "type": "int32"}]},
            "arguments[0].size: unknown size 'row', need whole numbers",
        ),
        ({"arguments": [{"input": "x", "output": "data"}]}, "arguments[0]: input and output, need a table with one of"),
        ({"arguments": ["x"]}, 'arguments[0]: "x", need a table with one of input, '),
        (
            {"arguments": [{"input": "x", "type": "int32"}]},
            "arguments[0].type: an unknown field, need one of input, name",
        ),
        ({"arguments": [{"output": "data", "direction": "up"}]}, "arguments[0].direction: 'up', need row or column"),
        (
            {"arguments": [{"constant": "1", "type": "int32"}]},
            "arguments[0].constant: '1', need a number of type int32",
        ),
        (
            {"arguments": [{"constant": 1.5, "type": "int32"}]},
            "arguments[0].constant: 1.5, need a number of type int32",
        ),
        ({"arguments": [{"dtype": {}, "type": "int32"}]}, "arguments[0].dtype: {}, need a number for every dtype"),
        ({"arguments": [{"handle": "queue"}]}, "arguments[0].handle: 'queue', need one of stream, null"),
        ({"arguments": [{"output": "data"}]}, "arguments: no output scales, need the outputs of quantize"),
        (
            {"arguments": [{"output": "records"}]},
            "records: none, need both a table of records and an argument for them",
        ),
        ({"records": {"bytes": 17}}, "records: no argument of that name, need both"),
        ({"records": {"bytes": 0}}, "records.bytes: 0, need 1 to "),
        ({"returns": "float"}, "returns: 'float', need void or one of bool, "),
        ({"success": "0"}, "success: '0', need the status of a good call"),
        ({"note": 1}, "note: 1, need text"),
        ({"declaration": {"inputs": ["x"]}}, "declaration.inputs: an unknown field, need one of operation, "),
        ({"declaration": {"empty": 0}}, "declaration.empty: 0, need a value like true"),
        ({"declaration": {"multiple": [1, "16"]}}, "declaration.multiple: [1, '16'], need a value like [1, 1]"),
        ({"declaration": {"operation": "add"}}, "declaration.operation: 'add', need one of quantize, "),
        ({"declaration": {"direction": "up"}}, "declaration: direction 'up', need one of row, column"),
    ],
)
def test_bad_signatures(settings, message):
    with pytest.raises(FileError) as caught:
        parse("bad", changed(**settings))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.rule("CNF-16")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[1", "need JSON text"),
        ("a.json", "[" * 100_000, "need JSON text"),
        ("a.json", "[]", "list, need a table"),
        ("a.toml", "x = ", "need TOML text"),
        ("a.toml", b"\xff", "need TOML text"),
        ("a.json", " " * ((1 << 20) + 1), "more than 1048576 bytes"),
        ("a.yaml", "", "an unknown name, need a .json or .toml file, or one of flashinfer-nvfp4, "),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileError) as caught:
        named(str(path))
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.rule("CNF-16")
def test_specifications_that_a_signature_rules_out():
    scale = {"number": "encode_scale", "type": "float"}
    by_value = parse("it", changed(arguments=[*FIVE["arguments"], scale]))
    by_value.require(fp4ref.NVFP4)
    with pytest.raises(FileError, match="encode_scale by value for nvfp4-row-scaled, which has one per row"):
        by_value.require(fp4ref.NVFP4_ROW_SCALED)
    with pytest.raises(FileError, match="records: scales at 0 and 32 bytes of codes at 1 for mxfp8-e4m3"):
        named("ggml-mxfp4").require(fp4ref.MXFP8_E4M3)
    with pytest.raises(FileError, match=r"multiple: \[1, 64\] for records of mxfp4, need columns in multiples of 128"):
        parse("it", {**named("ggml-nvfp4").record, "records": {"bytes": 68, "blocks": 4, "data": 4}}).require(
            fp4ref.MXFP4
        )


@pytest.mark.rule("CNF-16")
@pytest.mark.parametrize("name", names())
def test_installed_signatures_say_where_they_are_from(name):
    signature = named(name)
    assert all(signature.record[field] for field in ("note", "source", "date"))
    spec = {"flashinfer-nvfp4": "nvfp4", "ggml-mxfp4": "mxfp4", "ggml-nvfp4": "torchao.nvfp4_1lvl"}[name]
    signature.require(fp4ref.profiles[spec])


# Expressions and records


@pytest.mark.rule("CNF-39")
@pytest.mark.parametrize(
    ("text", "value"),
    [("round_up(rows, 128) * 4", 1024), ("blocks", 3), ("rows // 4 % 5 + 2", 4), ("min(rows, 7) - max(1, 2)", 5)],
)
def test_expressions(text, value):
    sizes = {"rows": 130, "blocks": 3}
    assert evaluated(parsed(text, sizes), sizes) == value


@pytest.mark.rule("CNF-39")
@pytest.mark.parametrize(
    "text",
    ["", "rows +", "__import__('os')", "rows ** 9", "-rows", "1.5", "True", "rows.real", "[rows]", "lambda: 1",
     "round_up(rows)", "min(rows, *rows)", "a" * 201, "(" * 190, "rows if 1 else 2", "min(rows, b=1)", "9" * 60],
)  # fmt: skip
def test_what_is_no_expression(text):
    with pytest.raises(ExpressionError):
        parsed(text, ["rows", "a" * 201])


@pytest.mark.rule("CNF-16")
@pytest.mark.parametrize("text", ["rows - 131", "rows // 0", "9223372036854775807 * rows"])
def test_expressions_without_a_value(text):
    with pytest.raises(ExpressionError):
        evaluated(parsed(text, ["rows"]), {"rows": 130})


@pytest.mark.rule("CNF-40", "PACK-1")
def test_a_record_by_hand():
    codes = np.arange(32, dtype=np.uint8) % 16
    data = (codes[0::2] | codes[1::2] << 4)[None]
    scales = np.array([[200]], np.uint8)
    stored = Records(bytes=20, order="halves").pack(data, scales, 32, E2M1)
    assert stored.tolist() == [[200, *(i * 17 for i in range(16)), 0, 0, 0]]
    for records, form in ((Records(bytes=20, order="halves"), E2M1), (Records(bytes=34, data=2), E4M3)):
        rows = np.arange(6 * 2 * form.bits, dtype=np.uint8).reshape(3, -1)
        parts = rows, np.arange(6, dtype=np.uint8).reshape(3, 2)
        again = records.unpack(records.pack(*parts, 16, form), 3, 16, form)
        assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))
