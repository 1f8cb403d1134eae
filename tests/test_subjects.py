from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import fp4ref
from commands import GOOD
from covering import few
from fp4ref.conformance import families
from fp4ref.conformance.judge import cases as judge
from fp4ref.conformance.run import runner
from fp4ref.conformance.run.messages import receive, send
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.subjects.calling import Caller
from fp4ref.conformance.subjects.guards import FENCE, GUARD, Arrays, Guarded
from fp4ref.conformance.subjects.loading import load
from fp4ref.conformance.subjects.outcomes import FindingKind
from fp4ref.conformance.subjects.subject import Subject, golden, job_of, reasons
from fp4ref.conformance.verdict.dump_report import Verdict
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.errors import BackendError, Fp4Error
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.kernels import Declaration, declaration_of
from fp4ref.layout import layout
from standard_rules import rows_of

NVFP4 = fp4ref.NVFP4
FEW = ["normal", "ragged", "layout", "minus-zero", "overflow"]
KERNELS = """
import ctypes, os, time
import numpy as np

def crash(x):
    if x.shape == (3, 17):
        ctypes.string_at(0)
    return good(x)

def leave(x):
    print("a last word", file=__import__("sys").stderr)
    os._exit(3)

def hang(x):
    time.sleep(60)

def chatty(x):
    print("hello")
    os.write(1, b"hello")
    input()
    return good(x)

@fp4ref.kernel(inputs=("x", "amax"), outputs=("data",), nibble_order="high", multiple=(2, 16))
def declared(x, amax):
    ...

value = 7
"""


@pytest.fixture
def kernels(tmp_path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(GOOD + KERNELS)
    return path


def good(x, layout="linear", **more):
    q = fp4ref.quantize(x, "nvfp4", scale_layout=layout, backend="numpy", **more)
    return q.row.data, q.row.scales, q.row.amax


def judged(function, names=FEW, spec=NVFP4, **changes):
    subject = Subject.of(function, **changes)
    cases = families.cases(spec, directions=(subject.declaration.direction,), families=names)
    return [judge.judge(r.case, r.outcome, subject.declaration, r.expected) for r in runner.run(subject, cases)]


def kinds(judgements) -> set[str]:
    return {"equal" if j.equal else j.finding.kind if j.finding else "differs" for j in judgements}


# Declarations


@pytest.mark.rule("CNF-8")
def test_a_decorator_declares():
    @fp4ref.kernel(inputs=["x", "encode_scale"], outputs=("data", "scales"), scale_layout="tiled_128x4")
    def one(x, encode_scale): ...

    @fp4ref.kernel
    def two(x): ...

    assert declaration_of(one).inputs == ("x", "encode_scale")
    assert declaration_of(two) == declaration_of(lambda x: x)
    assert declaration_of(two).optional_amax
    assert Declaration(**declaration_of(one).to_json()) == declaration_of(one)


@pytest.mark.rule("CNF-8")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inputs": ("y",)}, "input 'y' of quantize"),
        ({"inputs": ()}, "inputs none"),
        ({"outputs": ("data", "data")}, "outputs data, data"),
        ({"operation": "gemv"}, "operation 'gemv'"),
        ({"operation": "gemm"}, "input 'x' of gemm"),
        ({"operation": "dequantize", "inputs": ("x",)}, "input 'x' of dequantize"),
        ({"nibble_order": "middle"}, "nibble_order 'middle'"),
        ({"scale_layout": "tiled"}, "LAY-59"),
        ({"direction": "both"}, "direction 'both'"),
        ({"device": "cuda"}, "numpy arrays on cuda"),
        ({"arrays": "jax"}, "arrays 'jax'"),
        ({"alignment": 12}, "alignment 12"),
        ({"dtypes": ("float64",)}, "dtype 'float64'"),
        ({"transposed": True, "scale_layout": "tiled_8x4"}, "transposed"),
        ({"layout": "linear"}, "unknown layout"),
    ],
)
def test_wrong_declarations(settings, message):
    with pytest.raises(Fp4Error, match=message):
        fp4ref.kernel(**settings)


@pytest.mark.example("CNF-8")
@pytest.mark.rule("CNF-8")
def test_inputs_are_computed_by_the_specification():
    case = next(families.cases(NVFP4, families=["normal"]))
    expected = golden(case)
    declared = Declaration(inputs=("x", "amax", "encode_scale", "decode_scale", "hadamard_signs", "rows", "columns"))
    given = job_of(case, declared, expected).arguments
    g = np.float32(2688) / expected.amax
    assert list(given) == list(declared.inputs)
    shown = {name.strip("`"): value for cell, value in rows_of("CNF-8") for name in cell.split(", ")}
    assert {*shown} == {*declared.inputs, "random_bits"}
    for name in ("amax", "hadamard_signs"):
        (size,) = re.findall(r"float32 \[(\d+)\]", shown[name])
        assert (given[name].dtype, given[name].shape) == (np.float32, (int(size),))
    assert set(np.abs(given["hadamard_signs"])) == {float(re.findall(r"\+-(\d)", shown["hadamard_signs"])[0])}
    assert given["encode_scale"] == g
    assert given["decode_scale"] == np.float32(1) / g
    assert given["hadamard_signs"].tolist().count(-1) == 0xD7E8.bit_count()
    assert (given["rows"], given["columns"]) == case.matrix
    peer = fp4ref.profiles["torchao.nvfp4_2lvl"]
    scales = job_of(next(families.cases(peer, families=["normal"])), declared, expected).arguments
    assert scales["decode_scale"] == expected.amax / np.float32(2688)


@pytest.mark.rule("CNF-8", "SR-1")
def test_random_bits_are_an_input():
    spec = NVFP4.replace(name="stochastic", element=STOCHASTIC_E2M1)

    @fp4ref.kernel(inputs=("x", "random_bits"))
    def kernel(x, bits):
        q = fp4ref.quantize(x, spec, random_bits=bits, backend="numpy")
        return q.row.data, q.row.scales, q.row.amax

    assert kinds(judged(kernel, ["normal", "random-bits"], spec)) == {"equal"}
    case = next(families.cases(spec, families=["normal"]))
    assert reasons(case, Declaration()) == "takes no random bits"


@pytest.mark.rule("CNF-102")
def test_what_does_not_apply():
    cases = list(families.cases(NVFP4, families=["axes", "empty", "ragged", "overflow"]))
    declared = Declaration(dtypes=("bfloat16",), multiple=(2, 16), leading=False, empty=False)
    why = {reasons(case, declared) for case in cases}
    assert why == {
        "",
        "does not take float32",
        "does not take float16",
        "takes matrices only",
        "takes no empty tensors",
        "takes multiples of 2 x 16",
        "takes no amax",
    }


# What is right


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "more", few([{"strided": True}, {"arrays": "torch", "alignment": 1}, {"alignment": 128}, {}], 2)
)
def test_a_right_kernel_conforms(more):
    if more.get("arrays") == "torch":
        pytest.importorskip("torch")
    found = judged(good, None, **more)
    assert kinds(found) == {"equal"}
    assert len(found) > 300


@pytest.mark.rule("CNF-8", "PACK-1")
def test_other_conventions():
    @fp4ref.kernel(inputs=("x", "amax"), outputs=("scales", "data"), nibble_order="high", scale_layout="tiled_8x4")
    def kernel(x, amax):
        assert amax.shape == (1,)
        data, scales, _ = good(x, "tiled_8x4", amax=amax)
        return scales.reshape(-1).view(np.int8), (data << 4 | data >> 4)

    assert kinds(judged(kernel)) == {"equal"}
    assert kinds(judged(kernel, nibble_order="low")) == {"differs"}


def test_transposed_results():
    spec = fp4ref.MXFP8_E4M3

    def kernel(x):
        q = fp4ref.quantize(x, spec, "column", backend="numpy")
        return q.column.data.T, q.column.scales.T

    found = judged(kernel, ["normal", "ragged"], spec, direction="column", transposed=True, outputs=("data", "scales"))
    assert kinds(found) == {"equal"}


def test_dequantize_is_judged_with_poisoned_padding():
    settings = {"operation": "dequantize", "inputs": ("data", "scales", "amax"), "outputs": ("values",)}

    def kernel(data, scales, amax):
        rows, columns = data.shape[0], data.shape[1] * 2
        row = fp4ref.DirectionData(data, scales, amax)
        q = fp4ref.Quantized(NVFP4, (rows, columns), "float32", "tiled_128x4", row)
        return fp4ref.dequantize(q, backend="numpy")

    def careless(data, scales, amax):
        return kernel(data, scales, amax) + np.float32(0 if (scales == 0x7F).sum() == 0 else 1)

    changes = {**settings, "scale_layout": "tiled_128x4", "multiple": (1, 16), "dtypes": ("float32",), "leading": False}
    assert kinds(judged(kernel, **changes)) == {"equal"}
    found = judged(careless, ["ragged"], **changes)
    assert "differs" in kinds(found)
    assert found[0].mismatches[0].field == "values"


@pytest.mark.rule("LAY-2")
def test_layout_conversion_is_judged():
    settings = {"operation": "to_layout", "inputs": ("scales", "rows", "columns"), "outputs": ("scales",)}

    def kernel(scales, rows, columns):
        return layout("tiled_128x4").from_linear(layout("linear_padded").to_linear(scales, rows, columns))

    changes = {**settings, "scale_layout": "tiled_128x4", "source_layout": "linear_padded"}
    assert kinds(judged(kernel, **changes)) == {"equal"}
    assert "differs" in kinds(judged(lambda s, r, c: s, **changes))


@pytest.mark.rule("HAD-7")
def test_hadamard_is_judged_by_its_bound():
    settings = {"operation": "hadamard", "inputs": ("x", "hadamard_signs"), "outputs": ("values",)}
    changes = {**settings, "direction": "column", "dtypes": ("bfloat16",)}
    sylvester = np.array([[(-1.0) ** (i & j).bit_count() for j in range(16)] for i in range(16)])

    def matmul(x, signs):
        groups = x.astype(np.float64).reshape(-1, 16) * signs
        return (groups @ sylvester / 4).reshape(x.shape).astype(np.float32).astype(x.dtype)

    spec = fp4ref.NVFP4_RHT
    assert kinds(judged(matmul, ["normal", "hadamard", "wide"], spec, **changes)) == {"equal"}
    wrong = judged(lambda x, signs: matmul(x, np.ones(16)), ["normal"], spec, **changes)
    assert kinds(wrong) == {"differs"}


# What is wrong


def short(x):
    data, scales, amax = good(x)
    return data[:, :-1], scales, amax


def wide(x):
    data, scales, amax = good(x)
    return data.astype(np.int32), scales, amax


def scales_of_float(x):
    data, scales, amax = good(x)
    return data, scales.astype(np.float32), amax


def amax_of_double(x):
    data, scales, amax = good(x)
    return data, scales, amax.astype(np.float64)


def mutates(x):
    result = good(x)
    x *= 2
    return result


def comes_and_goes(x, calls=[]):  # noqa: B006 - a kernel with a memory
    calls.append(1)
    data, scales, amax = good(x)
    return data ^ (len(calls) % 2), scales, amax


def raises(x):
    raise ZeroDivisionError("in the kernel\nand more")


def exits(x):
    raise SystemExit(4)


def a_list(x):
    return [[1]], [[2]], 3.0


@pytest.mark.rule("CNF-9", "CNF-85")
@pytest.mark.rule("LAY-37")
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(("unit", "seen"), [(0, {FindingKind.UNSTABLE}), (5, {"equal"})])
def test_two_calls_may_differ_only_in_bytes_that_the_layout_leaves_open(unit, seen, separate):
    calls = []

    def kernel(x):
        calls.append(1)
        q = fp4ref.quantize(x, "nvfp4", backend="numpy", scale_layout="linear_padded")
        q.row.scales[0, unit] ^= len(calls) % 2  # a row has five scales, and eight places
        return q.row.data, q.row.scales, q.row.amax

    case = next(families.cases(NVFP4, families=["positions"]))
    assert case.matrix == (3, 80)
    declared = Declaration(scale_layout="linear_padded")
    job = job_of(case, declared, golden(case))
    if separate:
        stream = io.BytesIO()
        send(stream, {"job": job})
        stream.seek(0)
        job = receive(stream)["job"]
    expected = golden(case)
    assert kinds([judge.judge(case, Caller(kernel, declared).call(job), declared, expected)]) == seen


@pytest.mark.rule("CNF-9", "CNF-85")
@pytest.mark.parametrize(
    ("kernel", "kind", "text"),
    [
        (short, FindingKind.SHAPE, "data has shape [16, 63], need [16, 64]"),
        (wide, FindingKind.DTYPE, "data is int32, need uint8"),
        (scales_of_float, FindingKind.DTYPE, "scales is float32, need uint8"),
        (amax_of_double, FindingKind.DTYPE, "amax is float64, need float32"),
        (mutates, FindingKind.MUTATED, "bytes changed"),
        (comes_and_goes, FindingKind.UNSTABLE, "1024 of 1024 bytes of data differ in two calls with the same input"),
        (raises, FindingKind.RAISED, "ZeroDivisionError: in the kernel"),
        (exits, FindingKind.RAISED, "SystemExit: 4"),
        (a_list, FindingKind.DTYPE, "data is a list, need an array"),
        (lambda x: None, FindingKind.SHAPE, "returned NoneType, need data, scales, amax"),
        (lambda x: good(x)[:1], FindingKind.SHAPE, "returned tuple, need"),
        (lambda x: (*good(x), 1), FindingKind.SHAPE, "returned 4 results"),
        (lambda x: (None, None, None), FindingKind.SHAPE, "data is None"),
    ],
)
def test_findings(kernel, kind, text):
    found = judged(kernel, ["normal"])
    assert {j.finding.kind for j in found} == {kind}
    assert text in found[0].finding.text
    assert "\n" not in found[0].finding.text


@pytest.mark.rule("CNF-9")
def test_results_on_another_device_are_found():
    torch = pytest.importorskip("torch")

    def kernel(x):
        return tuple(torch.from_numpy(part).to("meta") for part in good(x.numpy()))

    found = judged(kernel, ["normal"], arrays="torch", dtypes=("float32",))
    assert {j.finding.kind for j in found} == {FindingKind.DEVICE}


@pytest.mark.rule("CNF-9", "CNF-36")
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
@pytest.mark.parametrize(("offset", "where"), [(0, "0 bytes after its end"), (-1, "1 byte before its start")])
def test_writes_outside_are_found(arrays, offset, where):
    if arrays == "torch":
        pytest.importorskip("torch")

    @fp4ref.kernel(out_buffers=True, arrays=arrays, dtypes=("float32",))
    def kernel(x, out):
        for buffer, part in zip(out, good(np.asarray(x)), strict=True):
            (buffer if arrays == "numpy" else buffer.numpy())[...] = part
        flat = np.asarray(out[0]).reshape(-1)
        at = len(flat) if offset == 0 else -1
        first = flat.__array_interface__["data"][0]
        import ctypes

        ctypes.c_uint8.from_address(first + at).value = 0x11

    found = judged(kernel, ["normal"])
    assert {j.finding.kind for j in found} == {FindingKind.OUTSIDE}
    assert where in found[0].finding.text
    assert found[0].compared.equal  # the bytes inside are compared all the same


@pytest.mark.rule("CNF-93")
def test_bytes_that_are_not_written_are_seen():
    @fp4ref.kernel(out_buffers=True, scale_layout="tiled_128x4")
    def lazy(x, out):
        for buffer, part in zip(out, good(x, "tiled_128x4"), strict=True):
            buffer[...] = np.where(part == 0, buffer, part) if part.dtype == np.uint8 else part

    found = judged(lazy, ["ragged"])
    assert all(j.compared.padding for j in found if j.got.scales.size > j.case.matrix[0])
    assert {j.finding.kind for j in found if j.finding} == {FindingKind.UNWRITTEN}


@pytest.mark.rule("CNF-36", "CNF-94")
def test_buffers_are_fenced_and_aligned_to_no_more():
    for alignment in (4, 16, 64):
        values = np.arange(12, dtype=np.float32).reshape(3, 4)
        buffer = Guarded.holding(Arrays("numpy"), values, alignment, strided=True)
        address = buffer.array.__array_interface__["data"][0]
        assert address % alignment == 0
        assert address % (2 * alignment)
        assert np.array_equal(buffer.array, values)
        assert buffer.array.strides[0] > 16
        assert not buffer.outside()
        assert not buffer.changed()
        raw = buffer._raw
        assert np.isnan(raw[buffer._start + 16 : buffer._start + 20].view(np.uint8).view(np.float32)).all()
        raw[buffer._start - GUARD] = FENCE ^ 1
        assert buffer.outside() == f"1 byte outside, {GUARD} bytes before its start"


# Processes


@pytest.mark.slow
@pytest.mark.rule("CNF-9")
@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("crash", FindingKind.CRASHED, "SIGSEGV"),
        ("leave", FindingKind.CRASHED, "exit status 3: a last word"),
        ("hang", FindingKind.HUNG, "0.3 s"),
    ],
)
def test_breakdowns_are_findings(kernels, name, kind, text):
    subject = runner.subject(f"{kernels}:{name}")
    cases = families.cases(NVFP4, families=["ragged"])
    options = RunOptions(timeout=0.3, start_timeout=0.0) if name == "hang" else RunOptions()
    found = [run.outcome.finding for run in runner.run(subject, cases, options)]
    broken = [item for item in found if item is not None and item.kind is not FindingKind.NOT_RUN]
    assert {item.kind for item in broken} == {kind}
    assert len(broken) == (runner.HANGS if kind is FindingKind.HUNG else runner.BREAKDOWNS)
    assert text in broken[0].text
    assert found[-1].kind is FindingKind.NOT_RUN


@pytest.mark.slow
def test_a_kernel_that_prints_does_no_harm(kernels):
    subject = runner.subject(f"{kernels}:chatty")
    found = list(runner.run(subject, families.cases(NVFP4, families=["normal"], dtypes=["float32"])))
    line = 1 + (GOOD + KERNELS).splitlines().index("    input()")
    assert {run.outcome.finding.text for run in found} == {
        f"EOFError: EOF when reading a line (kernels.py:{line} in chatty)"
    }


@pytest.mark.slow
def test_a_module_of_the_current_directory(kernels, monkeypatch):
    monkeypatch.chdir(kernels.parent)
    subject = runner.subject("kernels:declared", device="cpu")
    assert subject.declaration == Declaration(
        inputs=("x", "amax"), outputs=("data",), nibble_order="high", multiple=(2, 16)
    )
    sys.modules.pop("kernels", None)


@pytest.mark.slow
@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing:here", "No module named 'nothing'"),
        ("{}:absent", "no absent in"),
        ("{}:value", "of type int, need a function"),
        ("{}", "need package.module:function or file.py:function"),
        ("missing.py:f", "no file missing.py"),
    ],
)
def test_kernels_that_cannot_be_loaded(kernels, target, message):
    with pytest.raises(BackendError, match=message):
        runner.subject(target.format(kernels))


def test_load_in_this_process():
    assert load("fp4ref.api:quantize") is fp4ref.quantize


# Reports


WITH_EMPTY = (*FEW, "empty")


def report_of(function, names=FEW, seconds=10, **changes):
    subject = Subject.of(function, **changes)
    report = KernelReport("kernel", NVFP4, subject.declaration)
    for item in judged(function, names, **changes):
        report.add(item)
    report.explain(seconds)
    return report


def test_reports():
    right = report_of(good)
    assert (right.kind, right.ok) == (Verdict.CONFORMS, True)
    assert right.headline.startswith("conforms to nvfp4: no byte differs in ")
    wrong = report_of(raises)
    assert wrong.kind is Verdict.WRONG
    assert wrong.headline.startswith("wrong: raised in ")
    assert report_of(good, ["random-bits"]).headline == "wrong: no case applies"


@pytest.mark.rule("CNF-2")
def test_a_kernel_that_takes_no_empty_tensor_is_told_how_to_say_so():
    def refuses(x):
        if not x.size:
            raise ValueError("no elements")
        return good(x)

    def wrong(x):
        data, *others = refuses(x)
        return data >> 4 | data << 4, *others

    headline = report_of(refuses, WITH_EMPTY).headline
    assert headline.startswith("wrong: raised in ")
    assert "no such tensor is declared empty=False; " in headline
    headline = report_of(wrong, WITH_EMPTY).headline
    assert "raised" not in headline.partition(";")[0], headline
    assert "; raised in " in headline
    assert "declared empty=False" in headline
    assert "declared empty=False" not in report_of(lambda x: refuses(x[:0]), WITH_EMPTY).headline


@pytest.mark.rule("CNF-2")
def test_a_kernel_that_raises_in_some_cases_is_told_what_the_others_show():
    def raises_of(then, seconds=10):
        def kernel(x):
            if x.dtype == np.float16:
                raise RuntimeError("misaligned address")
            return then(x)

        report = report_of(kernel, ["normal", "element-ties"], seconds)
        return report.headline, report.findings[FindingKind.RAISED]

    def swapped(x):
        data, *others = good(x)
        return data >> 4 | data << 4, *others

    def wrong(x):
        data, *others = good(x)
        return data ^ (data[:1, :1] & 1), *others  # no known mistake

    headline, count = raises_of(good)
    assert f"raised in {count} of " in headline
    assert "RuntimeError: misaligned address" in headline
    assert "; no byte differs in the other " in headline
    assert "; and in its bytes: the high nibble comes first;" in raises_of(swapped)[0]
    assert "; and in its bytes: not explained" in raises_of(wrong, 1)[0]  # a longer search would find nothing either


@pytest.mark.rule("CNF-2")
def test_a_kernel_that_loses_minus_zero_conforms_on_finite_input():
    def kernel(x):
        return good(np.where(x == 0, np.abs(x), x).astype(x.dtype))

    found = report_of(kernel)
    assert found.kind is Verdict.EXCEPT
    assert "wrong on -0 only" in found.headline
    assert not found.ok


def test_call_needs_no_runner():
    case = next(families.cases(NVFP4, families=["normal"]))
    outcome = Caller(good, Declaration()).call(job_of(case, Declaration(), golden(case)))
    assert judge.judge(case, outcome, Declaration()).equal
