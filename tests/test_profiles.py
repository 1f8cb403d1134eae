from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from covering import few
from fp4ref import registry, rules
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.cli import main
from fp4ref.cli.profiles import profiles
from fp4ref.conformance.explain.difference import count, fields, functions
from fp4ref.conformance.explain.probes import InputKind
from fp4ref.conformance.explain.witness import compare
from fp4ref.conformance.families import cases
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.standard.tables import tables

RUNNER = CliRunner()
MY_PROFILE = "import fp4ref\n\nfp4ref.register(fp4ref.NVFP4.replace(name='vendor.nvfp4'), source='a test')\n"
NAMES = list(fp4ref.profiles)
COMMANDS = (profiles, *profiles.commands.values())
EXAMPLES = {
    line.strip() for command in COMMANDS for line in command.epilog.splitlines() if line.strip().startswith("fp4ref")
}


def run(line: str, status: int = 0) -> str:
    result = RUNNER.invoke(main, shlex.split(line.partition(">")[0])[1:])
    assert result.exit_code == status, result.output
    return result.output


CHECKS = sorted(
    line for line in EXAMPLES if " check " in line
)  # of a few seconds; tests/test_profile_check.py has more


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", few([*CHECKS, *sorted(EXAMPLES - {*CHECKS})][::-1], len(EXAMPLES) - len(CHECKS) + 1))
def test_help_examples_run(line: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(3).standard_normal((8, 160)).astype(ml_dtypes.bfloat16)
    fp4ref.files.write_tensors("model.safetensors", [("lm_head.weight", "BF16", x.shape)], {}, [x])
    quantize = "import fp4ref\n\n\ndef quantize(x):\n    return fp4ref.quantize(x, 'nvfp4').row\n"
    Path("my_package").mkdir()
    Path("my_package/mx.py").write_text(quantize.replace("nvfp4", "torchao.mxfp4_floor"), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("my_kernel.py").write_text(quantize, "utf-8")
    Path("my_profile.py").write_text(MY_PROFILE + quantize, "utf-8")
    try:
        assert run(line)
    finally:
        if "vendor.nvfp4" in fp4ref.profiles:
            fp4ref.profiles.forget("vendor.nvfp4")


@pytest.mark.rule("SPC-5", "PRO-2")
def test_table_lists_all() -> None:
    lines = run("fp4ref profiles").splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ") and "formats" not in line] != []
    for name, spec in fp4ref.profiles.items():
        (line,) = (line for line in lines if line.split()[:1] == [name])
        assert line.split()[1:5] == [
            f"{spec.element.format.name}/{spec.scale.format.name}",
            f"{spec.block.rows}x{spec.block.columns}",
            str(spec.global_scale),
            spec.arithmetic.name,
        ]
        assert fp4ref.profiles.source(name) in lines
    assert lines[-1] == f"{len(NAMES)} of {len(NAMES)} profiles"
    assert len(NAMES) >= 83


def test_table_names_what_differs_from_the_standard() -> None:
    text = run("fp4ref profiles --match 'qwix.mxfp4'")
    assert "amax" not in text.replace("amax propagate", "")
    assert "subnormals flush" in text
    assert "element nan 8/8" in text
    assert "equals nvfp4-fast" in run("fp4ref profiles --match te.fast_math_1d")
    assert "4over6 mse 256 dequantized halves" in run("fp4ref profiles --match fouroversix.nvfp4_mse")


@pytest.mark.rule("CNF-5")
def test_which_backends_serve_which_profiles() -> None:
    found = json.loads(run("fp4ref profiles backends --json"))
    assert found["numpy"] == {}
    logarithms = ("qwix.mxfp4@0.1.8", "qwix.mxfp8@0.1.8")
    forms = "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2"
    scales = {f"quark.{form}_{mode}" for form in forms for mode in ("floor", "ceil")}
    sums = {f"fouroversix.nvfp4_2d_{metric}" for metric in ("mse", "mae", "abs_max")}
    metal = {f"mlx.{form}_metal" for form in ("mxfp4", "mxfp8", "nvfp4", "nvfp4_global")}
    one_scale = {f"te.fp8_{kind}{form}" for kind in ("current", "delayed", "rows") for form in ("", "_e5m2")}
    only_golden = {*logarithms, *scales, *sums, *metal}
    assert {name for names in found["cpu"].values() for name in names} == only_golden | one_scale
    assert not one_scale & {name for names in found["torch"].values() for name in names}
    for backend, reasons in found.items():
        refused = {name: reason for reason, names in reasons.items() for name in names}
        for name, spec in fp4ref.profiles.items():
            assert refused.get(name, "") == "; ".join(
                registry.backends()[backend].unserved(registry.Call("quantize", spec))
            )
    lines = [line.strip() for line in run("fp4ref profiles backends --match 'jax*'").splitlines()]
    assert "cpu: 2 of 2" in lines
    assert lines[lines.index("cuda: 0 of 2") + 2] == "jax.nvfp4, jax.mxfp8"


@pytest.mark.rule("PRO-3", "SPC-9")
def test_every_arithmetic_of_the_catalogue_has_a_row() -> None:
    known = rules.defined()
    read = (table for rule in ("PRO-3", "SPC-9") for table in tables(known[rule].text) if table[0][0] == "arithmetic")
    rows = {row[0].strip("`") for table in read for row in table[1:]}
    assert rows == {name for name in ARITHMETIC if "." not in name}


def test_json_holds_whole_records() -> None:
    records = json.loads(run("fp4ref profiles --json"))
    assert [record["name"] for record in records] == NAMES
    for record in records:
        assert fp4ref.from_json(json.dumps(record["spec"])) == fp4ref.profiles[record["name"]]
    assert [r["name"] for r in json.loads(run("fp4ref profiles --json --match 'nvfp4-2*'"))] == [
        "nvfp4-2d",
        "nvfp4-2d-sr",
    ]


@pytest.mark.rule("SPC-3")
def test_show_prints_a_record_that_comes_back(tmp_path) -> None:
    text = run("fp4ref profiles show nvfp4-4over6")
    assert fp4ref.from_json(text) == fp4ref.NVFP4_4OVER6
    path = tmp_path / "mine.json"
    path.write_text(text)
    assert run(f"fp4ref profiles show {path}") == text
    assert "equal specifications" in run(f"fp4ref profiles diff {path} nvfp4-4over6")


def test_python_reference_differs_in_minus_zero_and_nan() -> None:
    found = compare(fp4ref.profiles["te.python_reference"], fp4ref.NVFP4)
    assert [witness.kind for witness in found.witnesses] == [InputKind.MINUS_ZERO, InputKind.NAN_INF]
    minus_zero, nan = found.witnesses
    assert minus_zero.probe.x.tobytes() == np.float32([[-0.0]]).tobytes()
    assert [outcome.code for outcome in minus_zero.outcomes] == [0x0, 0x8]
    assert np.isnan(nan.probe.x).all()
    assert [outcome.code for outcome in nan.outcomes] == [0x0, 0x7]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("a", "b", "kinds"),
    [
        ("torchao.nvfp4_2lvl", "modelopt.nvfp4", set(InputKind)),
        pytest.param("nvfp4", "nvfp4-2d", {InputKind.ORDINARY}, marks=pytest.mark.heavy),
        pytest.param("nvfp4", "nvfp4-row-scaled", {InputKind.ORDINARY}, marks=pytest.mark.heavy),
        ("nvfp4", "nvfp4-4over6", {InputKind.ORDINARY}),
        pytest.param("nvfp4", "nvfp4-rht", {InputKind.ORDINARY}, marks=pytest.mark.heavy),
        ("mxfp4", "torchao.mxfp4_floor", {InputKind.ORDINARY, InputKind.NAN_INF}),
        ("mxfp8-e4m3", "te.mxfp8_cast_only", {InputKind.MINUS_ZERO}),
        pytest.param("mxfp4", "nvfp4", {InputKind.ORDINARY}, marks=pytest.mark.heavy),
        pytest.param("mxfp4", "mxfp8-e4m3", {InputKind.ORDINARY}, marks=pytest.mark.heavy),
        ("nvfp4-rht", "te.rht_fused", {InputKind.NAN_INF}),
        ("te.cpp_test_oracle", "nvfp4", {InputKind.EXTREME}),
    ],
)
def test_witnesses_replay(a: str, b: str, kinds: set[InputKind]) -> None:
    found = compare(fp4ref.profiles[a], fp4ref.profiles[b])
    assert kinds <= {witness.kind for witness in found.witnesses}
    for witness in found.witnesses:
        for spec, outcome in zip((found.a, found.b), witness.outcomes, strict=True):
            record = json.loads(run(witness.command(spec) + " --json"))
            assert (record["code"], record["scale"]) == (outcome.code, outcome.scale)
            assert int(record["dequantized"], 16) == int(outcome.value.view(np.uint32))
        first, second = witness.outcomes
        assert (first.code, first.scale, str(first.value)) != (second.code, second.scale, str(second.value))


def test_witness_is_small() -> None:
    witness, *_ = compare(fp4ref.MXFP4, fp4ref.profiles["mxfp8-e4m3"]).witnesses
    assert witness.probe.x.tolist() == [[1.25]]


def test_equal_arithmetic_other_name() -> None:
    assert "equal specifications" in run("fp4ref profiles diff te.fast_math_1d nvfp4-fast")
    assert json.loads(run("fp4ref profiles diff te.fast_math_1d nvfp4-fast --json")) == {"equal": True}
    assert fields(fp4ref.NVFP4, fp4ref.NVFP4.replace(name="other")) == {}


def test_says_when_nothing_was_found() -> None:
    text = run("fp4ref profiles diff torchao.mxfp4_floor gfloat.mxfp4")
    assert "equal specifications" in text
    text = run("fp4ref profiles diff cutlass.nvfp4_epilogue cutlass.nvfp4_epilogue")
    assert "equal specifications" in text
    x = np.ones((4, 64), np.float32)
    found = compare(fp4ref.NVFP4, fp4ref.profiles["te.python_reference"], x)
    assert not found.witnesses
    assert not found.counts[0].differs


def test_no_difference_found_counts_blocks(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=np.ones((4, 64), np.float32))
    text = run("fp4ref profiles diff nvfp4 te.python_reference x.npz")
    assert "no difference found in the bytes of 16 blocks of 1 tensors" in text
    text = run("fp4ref profiles diff nvfp4 nvfp4-rht x.npz:x")
    assert "column direction is left out" in text


def test_functions_as_formulas() -> None:
    changed = functions(fp4ref.profiles["torchao.nvfp4_2lvl"], fp4ref.profiles["modelopt.nvfp4"])
    assert [(slot, b) for slot, _, b in changed] == [
        ("block_scale", "amax / (6 * g), an exact 0 taken as 1; held within [2^-9, scale_max], E4M3's positive values"),
        ("scaled", "x / (s * g)"),
    ]
    a, b = (fp4ref.profiles[f"flashinfer.ref_4over6_mae_448_{name}"] for name in ("strict", "fast"))
    assert [slot for slot, _, _ in functions(a, b)] == ["4over6 difference"]


@pytest.mark.rule("CNF-1")
def test_counts_are_those_of_the_bytes() -> None:
    x = next(cases(fp4ref.NVFP4, families=["minus-zero"])).x
    a, b = fp4ref.NVFP4, fp4ref.profiles["te.python_reference"]
    found = count(a, b, x)
    minus_zero = int(((x == 0) & np.signbit(x)).sum())
    assert (found.codes, found.scales, found.values) == (minus_zero, 0, 0)
    assert (found.elements, found.blocks) == (x.size, x.size // 16)


@pytest.mark.heavy
def test_values_where_bytes_cannot_be_compared() -> None:
    text = run("fp4ref profiles diff mxfp4 nvfp4")
    assert "bytes cannot be compared one to one" in text
    assert "scale bytes" not in text
    found = count(fp4ref.MXFP4, fp4ref.NVFP4, np.float32([[1.25, 0, -0.0, 0]]))
    assert (found.codes, found.scales, found.values) == (None, None, 1)
    a, b = (fp4ref.profiles[f"torchao.{name}_floor"] for name in ("mxfp4", "mxfp8_e4m3"))
    assert count(a, b, np.float32([[np.nan, 1]])).values == 0


@pytest.mark.heavy
def test_stochastic_specs_share_a_random_byte(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = fp4ref.NVFP4.replace(name="mine.json", element=STOCHASTIC_E2M1)
    (tmp_path / "mine.json").write_text(spec.to_json())
    record = json.loads(run("fp4ref profiles diff mine.json nvfp4 --json"))
    assert record["fields"] == {"element.rounding": ["stochastic", "even"]}
    lines = record["witnesses"][0]["explain"]
    assert ["--random-byte 128" in line for line in lines] == [True, False]
    assert [json.loads(run(f"{line} --json"))["code"] for line in lines] == [
        outcome["code"] for outcome in record["witnesses"][0]["outcomes"]
    ]


PAIRS = list(itertools.combinations(NAMES, 2))


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), few(PAIRS[:: len(PAIRS) // 2], 1))
def test_any_pair(a: str, b: str) -> None:
    text = run(f"fp4ref profiles diff {a} {b}")
    assert a in text
    assert "equal specifications" in text or "what differs" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("diff nvfp4", "Missing argument"),
        ("diff nvfp4 nvfp5", "unknown name 'nvfp5'"),
        ("diff nvfp4 mxfp4 missing.npz", "missing.npz"),
        ("diff nvfp4 mxfp4 two.npz", "2 floating-point tensors, need FILE:TENSOR to choose one (a, b)"),
        ("diff nvfp4 mxfp4 two.npz:c", "no tensor 'c'"),
        ("diff nvfp4 mxfp4 two.npz:d", "NUM-3"),
        ("show nothing", "unknown name 'nothing'"),
        ("show two.npz", "unknown name"),
        ("show bad.json", "SPC-11"),
        ("nothing", "No such command"),
    ],
)
def test_bad_arguments(arguments: str, message: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = np.ones((2, 2), np.float32)
    np.savez("two.npz", a=one, b=one, d=np.ones((2, 2), np.float64))
    (tmp_path / "bad.json").write_bytes(b"\xff{")
    text = run(f"fp4ref profiles {arguments}", status=2)
    assert message in text
    assert "Traceback" not in text
