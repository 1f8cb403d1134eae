"""Kernels that read bytes are given every scale byte, every code and unusual amaxes."""

import numpy as np
import pytest

import fp4ref
from collected import collected
from fp4ref import rules
from fp4ref.catalogue import PROFILES
from fp4ref.conformance import families
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run.runner import run
from fp4ref.conformance.subjects.subject import Subject, cases_of, reasons
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.tally import Settings
from fp4ref.packing import unpack
from fp4ref.standard.tables import tables

F = np.float32
RULES = rules.defined()
HALVES = np.array([0, 1, 2, 3, 4, 6, 8, 12]) / 2
GRID = np.concatenate([HALVES, -HALVES]).astype(F)
THIRD = F(1) / F(2688)


def e4m3(byte):
    """Values of E4M3, read from the definition."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = np.where(exponent, np.ldexp(8.0 + mantissa, exponent - 10), np.ldexp(1.0 * mantissa, -9))
    return np.where(byte & 127 == 127, np.nan, np.where(byte & 128, -size, size)).astype(F)


def e8m0(byte):
    return np.where(byte == 255, np.nan, np.ldexp(1.0, byte.astype(int) - 127)).astype(F)


def values_of(data, columns):
    return GRID[np.stack([data & 15, data >> 4], axis=-1).reshape(len(data), -1)[:, :columns]]


def dequantizer(spec, decoded, **declared):
    """A dequantizer of 4-bit elements; decoded: the values of its scale bytes."""
    inputs = ("data", "scales", *(("amax",) if spec == "nvfp4" else ()), "rows", "columns")

    @fp4ref.kernel(operation="dequantize", inputs=inputs, outputs=("values",), **declared)
    @np.errstate(all="ignore")
    def called(data, scales, *rest):
        s = decoded(scales.astype(np.int64)).astype(F)
        s = (s * rest[0][0]) * THIRD if spec == "nvfp4" else s
        columns = rest[-1]
        return values_of(data, columns) * np.repeat(s, 16 if spec == "nvfp4" else 32, axis=1)[:, :columns]

    return called


def report_of(kernel, spec, names=("every-byte", "normal", "layout"), **settings):
    subject = Subject.of(kernel)
    report = KernelReport("k", PROFILES[spec], subject.declaration, Settings(**settings))
    cases = cases_of(subject.declaration, PROFILES[spec], families=list(names) if names else None)
    done = (judge(item.case, item.outcome, subject.declaration, item.expected) for item in run(subject, cases))
    return collected(report, done)


@pytest.mark.rule("CNF-47", "CNF-70")
@pytest.mark.parametrize(
    "name", ["nvfp4", "nvfp4-row-scaled", "nvfp4-2d", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2", "mxint8"]
)
@pytest.mark.parametrize("direction", ["row", "column"])
def test_every_code_stands_under_every_scale_byte(name, direction):
    spec = PROFILES[name]
    made = families.cases(
        spec, directions=(direction,), dtypes=("float32",), families=["every-byte"], multiple=(32, 64), encoded=True
    )
    found = {case.id.split("/")[1]: case for case in made}
    case = found["all"] if "all" in found else found["numbers"]
    codes = unpack(case.encoded.data, case.matrix[1], spec.element.format)
    scales = np.repeat(case.encoded.scales, spec.block.columns, axis=1)
    pairs = np.unique(scales.astype(np.int64) * 256 + codes)
    assert len(pairs) == 256 << spec.element.format.bits
    assert case.matrix == codes.shape
    assert case.x.dtype == F
    assert {"amax-zero", "amax-nan", "amax-inf"} <= set(found) or case.encoded.amax is None
    high = spec.block.rows
    assert (
        case.encoded.scales.reshape(-1, high, case.encoded.scales.shape[1])[:, :1]
        == case.encoded.scales.reshape(-1, high, case.encoded.scales.shape[1])
    ).all()


@pytest.mark.rule("CNF-47")
@pytest.mark.example("CNF-47")
def test_the_table_counts_the_bytes():
    for row in tables(RULES["CNF-47"].text)[0][1:]:
        spec = PROFILES[row[0].strip("`")]
        (case,) = (
            c
            for c in families.cases(spec, dtypes=("float32",), families=["every-byte"], encoded=True)
            if c.id.startswith("every-byte/all/")
        )
        values = spec.scale.decode(np.unique(case.encoded.scales))
        said = f"{len(values)}, of which {np.isnan(values).sum()} "
        assert row[1].startswith(said + ("is NaN" if np.isnan(values).sum() == 1 else "are NaN"))
        assert f"and {(values < 0).sum()} are negative" in row[1] or not (values < 0).any()
        assert int(row[2]) == 1 << spec.element.format.bits
        assert int(row[3]) == case.x.size


@pytest.mark.rule("CNF-22", "CNF-72")
@pytest.mark.parametrize(("spec", "decoded"), [("nvfp4", e4m3), ("mxfp4", e8m0)])
def test_a_right_dequantizer_conforms_and_the_verdict_counts_its_bytes(spec, decoded):
    report = report_of(dequantizer(spec, decoded), spec)
    assert report.ok, report.headline
    assert "256 scale bytes given" in report.coverage.lines[0]
    assert report.to_json()["coverage"]["scale_bytes"] == 256
    assert report.coverage.tried["every-byte"] >= 2
    assert not any("NaN" in what for what in report.coverage.not_judged)


@pytest.mark.rule("CNF-22", "CNF-71", "CNF-72")
def test_a_dequantizer_that_is_declared_without_nan_gets_none():
    plain = dequantizer("mxfp4", lambda byte: np.ldexp(1.0, byte - 127), specials=())
    report = report_of(plain, "mxfp4")
    assert report.ok, report.headline
    assert "255 scale bytes given" in report.coverage.lines[0]
    assert report.coverage.not_judged["bytes that are inf and nan"] == "the kernel is declared without them"


@pytest.mark.rule("CNF-47")
def test_a_quantizer_has_no_such_family():
    @fp4ref.kernel
    def nothing(x):
        raise NotImplementedError

    report = KernelReport("k", fp4ref.NVFP4, Subject.of(nothing).declaration)
    assert "every-byte" not in report.coverage.untried
    assert not list(families.cases(fp4ref.NVFP4, families=["every-byte"]))


WRONG = {
    "NaN as 480": (
        "nvfp4",
        lambda b: np.where(b & 127 == 127, np.where(b > 127, -480, 480), e4m3(b)),
        "decoded as 480",
    ),
    "no sign": ("nvfp4", lambda b: np.abs(e4m3(b)), "the sign bit of a scale byte is ignored"),
    "NaN as 0": ("nvfp4", lambda b: np.nan_to_num(e4m3(b)), "NaN scale is taken as 0"),
    "leading 1": (
        "nvfp4",
        lambda b: np.where(b & 120, e4m3(b), np.copysign((8 + (b & 7)) / 1024, 128.0 - 2 * (b & 128) + 0.5)),
        "subnormal scales are decoded as if they had a leading 1",
    ),
    "0xFF alone is a number": ("nvfp4", lambda b: np.where(b == 255, -480, e4m3(b)), "0xFF is decoded as -480"),
    "one byte": (
        "nvfp4",
        lambda b: np.where(b == 0x4A, 5.5, e4m3(b)),
        "scale bytes are decoded otherwise: 0x4a as 5.5 instead of 5",
    ),
    "E8M0 without NaN": ("mxfp4", lambda b: np.ldexp(1.0, b - 127), "scale byte 0xFF is decoded as infinity"),
    "shifted into the exponent": (
        "mxfp4",
        lambda b: (b.astype(np.uint32) << 23).view(F),
        "scale bytes are shifted into the exponent of a float32",
    ),
    "two large bytes": (
        "mxfp4",
        lambda b: np.where(b == 254, 0, np.where(b == 7, np.inf, e8m0(b))),
        "scale bytes are decoded otherwise: 0x07 as inf instead of 7.52316e-37, 0xfe as 0",
    ),
    "E8M0 NaN as 1": ("mxfp4", lambda b: np.where(b == 255, 1, e8m0(b)), "NaN scale is taken as 1"),
}


@pytest.mark.sampled(5)
@pytest.mark.rule("CNF-47", "CNF-2")
@pytest.mark.parametrize("name", WRONG)
def test_a_byte_that_no_quantizer_writes_is_tried_and_the_mistake_is_named(name):
    spec, decoded, says = WRONG[name]
    report = report_of(dequantizer(spec, decoded), spec)
    assert report.kind == "wrong"
    assert says in report.headline, report.headline


@pytest.mark.rule("CNF-71", "CNF-70")
def test_a_kernel_that_is_given_the_decode_scale_gets_no_amax_from_which_none_follows():
    @fp4ref.kernel(
        operation="dequantize", inputs=("data", "scales", "decode_scale", "rows", "columns"), outputs=("values",)
    )
    @np.errstate(all="ignore")
    def called(data, scales, decode, rows, columns):
        assert np.isfinite(decode).all()
        assert (decode > 0).all()
        return np.zeros((rows, columns), F)

    report = report_of(called, "nvfp4", ("every-byte",))
    made = cases_of(report.declaration, fp4ref.NVFP4, families=["every-byte"])
    left = [case.id.split("/")[1] for case in made if reasons(case, report.declaration)]
    assert {*left} == {"amax-zero", "amax-least", "amax-largest", "amax-inf", "amax-nan"}
    assert not report.findings


@pytest.mark.rule("CNF-47", "LAY-6")
def test_a_conversion_of_layouts_is_given_every_byte():
    @fp4ref.kernel(operation="to_layout", inputs=("scales", "rows", "columns"), outputs=("scales",))
    def called(scales, rows, columns):
        return np.where(scales == 0xFF, 0, scales).astype(np.uint8)

    report = report_of(called, "mxfp4", ("every-byte", "normal"))
    assert report.kind == "wrong"
    assert report.families["normal"].passed == report.families["normal"].total
