"""Each claim must refute a planted mistake, and a record must notice that code changed."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fp4ref import formats, processors, rules
from fp4ref.cli import main
from fp4ref.errors import BackendError
from fp4ref.formats import codec as codec_module
from fp4ref.proof import (
    citations,
    cpp_sources,
    encoders,
    estimates,
    golden_scales,
    records,
    second_solver,
    solver,
    sources,
    steps,
)
from fp4ref.proof.catalogue import claims
from fp4ref.proof.claims import ClaimSubject, Replayed
from fp4ref.proof.python_sources import find_module
from refuting import decided


def test_a_wrong_key_of_the_golden_table_is_refuted(monkeypatch):
    right = codec_module._decision
    monkeypatch.setattr(
        codec_module,
        "_decision",
        lambda values: right(np.asarray((values.view(np.uint32) & ~np.uint32(2)).view(np.float32))),
    )
    assert "0x00000002" in decided("decision-key/golden").witness


@pytest.mark.rule("E2M1-3", "E4M3-2", "E5M2-2", "E8M0-2")
@pytest.mark.parametrize("name", encoders.CODECS)
def test_a_wrong_rounding_of_the_golden_model_is_refuted(name, monkeypatch):
    wrong = formats.Rounding.DOWN if encoders.CODECS[name].format.signed else formats.Rounding.AWAY
    table = codec_module._code_table

    def rounded_otherwise(codec):
        return table(formats.Codec(format=codec.format, rounding=wrong, nan=codec.nan, overflow=codec.overflow))

    monkeypatch.setattr(codec_module, "_code_table", rounded_otherwise)
    assert "has code" in decided(f"encode-{name}/golden").witness


@pytest.mark.parametrize("name", encoders.CODECS)
def test_a_mistake_in_one_input_of_torch_is_refuted(name, monkeypatch):
    torch = pytest.importorskip("torch")
    from fp4ref_torch import codecs

    right, start = codecs.encode, int(encoders.expected(name).starts[1])

    def wrong(values, codec, random_bits=None):
        return torch.where(values.view(torch.int32) == start - 1, 1, right(values, codec, random_bits))

    assert decided(f"encode-{name}/torch").witness is None
    monkeypatch.setattr(codecs, "encode", wrong)
    assert f"0x{start - 1:08X}" in decided(f"encode-{name}/torch").witness


@pytest.mark.rule("GLB-2", "GLB-3", "BLK-3", "BLK-4", "DEQ-1", "BLK-5")
@pytest.mark.parametrize(
    "name, function, wrong",
    [
        ("encoding-448", "encoding_te", lambda amax, k: np.fmin(k.scale_max * k.element_max / amax, np.float32(3e38))),
        ("encoding-256", "encoding_te", lambda amax, k: k.element_max * (k.scale_max / amax)),
        ("block-scale", "block_scale_te", lambda a, g, k: np.fmin(a * g * np.float32(1 / 6), np.finfo("f").max)),
        ("factor", "scaled_te", lambda x, s, g, k: x * np.fmin(g / s, np.finfo("f").max)),
        ("decode", "dequantized_te", lambda q, s, amax, k: q * (s * (amax * np.float32(1 / 2688)))),
        ("block", "scaled_te", lambda x, s, g, k: x * g / s),
    ],
)
def test_a_mistake_in_the_golden_scales_is_refuted(name, function, wrong, monkeypatch):
    monkeypatch.setattr(golden_scales, function, np.errstate(all="ignore")(wrong))
    assert decided(f"{name}/golden").witness


@pytest.fixture
def solvers():
    """Return z3, where both solvers are installed."""
    pytest.importorskip("cvc5", reason="the extra `prove` is not installed")
    return pytest.importorskip("z3", reason="the extra `prove` is not installed")


def test_an_empty_premise_proves_nothing(solvers):
    with pytest.raises(BackendError, match="an unmet premise"):
        solver.refuted(solvers.BoolVal(False), solvers.BoolVal(True), (), 1)


def test_a_second_solver_decides_each_formula_and_has_to_agree(solvers, monkeypatch):
    asked, decide = [], second_solver.decided

    def recorded(text, logic):
        asked.append((logic, decide(text, logic)))
        return asked[-1][1]

    monkeypatch.setattr(second_solver, "decided", recorded)
    assert decided("e2m1-sums/formula").witness is None
    assert asked == [("QF_BVFP", "sat"), ("QF_BVFP", "unsat")]
    assert solver.sums(lambda done: None, ones=0x4B000003).witness
    assert asked[2:] == [("QF_BVFP", "sat"), ("QF_BVFP", "sat")]
    assert estimates._squares() is None
    assert asked[4:] == [("QF_NRA", "sat"), ("QF_NRA", "unsat")]
    for other in ("sat", "unknown (TIMEOUT)"):
        monkeypatch.setattr(second_solver, "decided", lambda text, logic, other=other: other)
        with pytest.raises(BackendError, match=re.escape(f"the answer unsat of z3 and {other} of cvc5")):
            second_solver.confirm(solvers.Solver(), solvers.unsat, "QF_NRA")


def test_a_formula_is_not_replayed_without_the_second_solver(monkeypatch):
    prove = importlib.import_module("fp4ref.cli.prove")
    find = prove.util.find_spec
    monkeypatch.setattr(prove.util, "find_spec", lambda name: None if name == "cvc5" else find(name))
    result = CliRunner().invoke(main, ["prove", "e2m1-sums/formula"])
    assert "not replayed: " in result.output
    assert "1 not replayed" in result.output


def test_an_interrupted_formula_has_no_answer(solvers):
    formula = solvers.Solver()
    formula.reason_unknown = lambda: "interrupted from keyboard"
    with pytest.raises(KeyboardInterrupt):
        second_solver.confirm(formula, solvers.unknown, "QF_NRA")


@pytest.mark.rule("CNF-11")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_interrupted_run_shows_what_was_decided(options, monkeypatch):
    prove = importlib.import_module("fp4ref.cli.prove")
    right = prove._decided

    def interrupted(claim, quiet):
        if claim.name == interrupted.second:
            raise KeyboardInterrupt
        return right(claim, quiet)

    known = [name for name in claims() if name.startswith("encode-") and name.endswith("/golden")][:2]
    interrupted.second = known[1]
    monkeypatch.setattr(prove, "_decided", interrupted)
    result = CliRunner().invoke(main, ["prove", *known, *options])
    assert result.exit_code == 130
    if options:
        assert [each["name"] for each in json.loads(result.stdout)] == known[:1]
    else:
        assert result.stdout.endswith("1 proved, 1 not reached\n")


@pytest.mark.rule("CNF-11")
def test_a_record_is_whole_or_that_of_before(tmp_path, monkeypatch):
    claim = claims()["decision-key/golden"]
    before = records.read(claim)
    monkeypatch.setattr(records, "folder", lambda: tmp_path)
    records._write(claim, before)
    whole = Path.write_text

    def cut(path, text, encoding):
        whole(path, text[: len(text) // 2], encoding)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", cut)
    with pytest.raises(KeyboardInterrupt):
        records._write(claim, {**before, "statement": "?"})
    assert records.read(claim) == before
    assert [*tmp_path.iterdir()] == [records.path_of(claim)]


@pytest.mark.heavy
@pytest.mark.slow  # starts processes
@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
@pytest.mark.rule("CNF-11")
def test_claims_are_decided_side_by_side_until_an_interrupt():
    names = "decision-key/golden", "encode-e2m1-all/golden", "encode-e4m3-all/golden"  # the others take minutes
    command = [sys.executable, "-m", "fp4ref", "prove", *names, "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        line = run.stdout.readline()
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=20)  # ends when the last process that can write has ended
    assert line.startswith("decision-key/golden: proved")
    assert said.endswith("1 proved, 2 not reached\n")
    assert run.returncode == 130


def test_processes_that_start_together_share_the_processors(monkeypatch):
    monkeypatch.setattr(processors, "count", lambda: 6)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "5")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for processes, share in ((1, "6"), (4, "1"), (9, "1")):
        with processors.shared(processes):
            assert (os.environ["OMP_NUM_THREADS"], os.environ["OPENBLAS_NUM_THREADS"]) == (share, "5")
        assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.rule("E2M1-1", "E2M1-3")
def test_steps_are_those_of_the_rules():
    found = steps.steps(formats.CUDA_E2M1)
    halves = [0, 0x3E800001, 0x3F400000, 0x3FA00001, 0x3FE00000, 0x40200001, 0x40600000, 0x40A00001]
    assert found.starts[:8].tolist() == halves
    assert found.codes[:10].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 7, 7]  # past the largest, and NaN


# Digests


HEADER = """// a comment
namespace fp4ref {
struct Pair {
    int low;  // of two
    FP4_API int sum(int a) { return helper(a) + Other::twice(a); }
    FP4_API int unused(int a) { return a; }
};
template <class A> FP4_API int helper(A a) { return a + LIMIT; }
constexpr int LIMIT = 3;
}  // namespace fp4ref
"""


@pytest.mark.parametrize(
    "right, wrong, changes",
    [
        ("// of two", "// of them", False),
        ("return a; }", "return -a; }", False),
        ("LIMIT = 3", "LIMIT = 4", True),
        ("helper(a) +", "helper(a) -", True),
        ("return a + LIMIT", "return a  +\n  LIMIT", False),
    ],
)
def test_a_digest_of_the_header_changes_with_what_is_used(right, wrong, changes, tmp_path, monkeypatch):
    monkeypatch.setattr(cpp_sources, "folder", lambda: tmp_path)

    caches = [part for part in vars(cpp_sources).values() if hasattr(part, "cache_clear")]

    def digest(text):
        (tmp_path / "pair.h").write_text(text)
        for part in caches:
            part.cache_clear()
        return sources.total(sources.digests(("pair.h:Pair::sum",)))

    try:
        assert right in HEADER
        assert (digest(HEADER) != digest(HEADER.replace(right, wrong))) == changes
    finally:
        for part in caches:
            part.cache_clear()


def test_a_digest_of_python_follows_what_is_used():
    found = sources.digests(("fp4ref.formats.codec:Codec.encode",))
    assert {
        "fp4ref.formats.codec:_decision",
        "fp4ref.formats.codec:_code_table",
        "fp4ref.formats.codec:Codec._stochastic",
        "fp4ref.formats.codec:Codec._round",
        "fp4ref.formats.grids:Format.sign_bit",
    } <= found.keys()
    assert "fp4ref.formats.floats:ignoring_float_warnings" not in found


@pytest.mark.heavy
@pytest.mark.usefixtures("rules_read_once")
def test_sources_that_need_torch_are_read_without_it():
    program = """import sys
sys.modules["torch"] = None
from fp4ref.proof import citations, records
from fp4ref.proof.catalogue import claims
claim = next(claim for claim in claims().values() if any(name.startswith("fp4ref.te.") for name in claim.covers))
assert records.outdated(claim, records.read(claim)) == []
assert all(path.is_file() for path in citations.homes(claim))
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parent.parent)


def test_a_name_in_a_module_is_no_module_of_that_name_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "encode.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_module("encode") is not None
    assert find_module("fp4ref.formats.codec.encode") is None


@pytest.mark.heavy
@pytest.mark.usefixtures("rules_read_once")
def test_a_record_of_other_code_is_out_of_date(monkeypatch):
    claim = claims()["encode-e2m1/golden"]
    record = records.read(claim)
    assert records.outdated(claim, record) == []
    changed = {**record, "statement": "?", "covered": {**record["covered"], "fp4ref.formats.codec": "0"}}
    assert records.outdated(claim, changed) == ["its statement", "fp4ref.formats.codec"]
    monkeypatch.setattr(records, "read", lambda _: changed)
    result = CliRunner().invoke(main, ["rules", "--check"])
    assert result.exit_code == 1
    assert "certificate encode-e2m1/golden: out of date: its statement, fp4ref.formats.codec changed" in result.output


@pytest.mark.parametrize(
    ("reduction", "computed", "is_enough"),
    [("", 8, True), ("", 7, False), ("", 9, False), ("why", 7, True), ("why", 9, False), ("why", 0, False)],
)
def test_a_claim_that_computes_another_number_of_inputs_than_it_states_is_refuted(
    reduction, computed, is_enough, monkeypatch
):
    whole = claims()["cases-determined/golden"]
    claim = dataclasses.replace(whole, size=8, reduction=reduction, decide=lambda tell: Replayed(computed))
    record = {**records.read(whole), "size": 8, "reduction": reduction, "inputs_computed": computed}
    assert ("its inputs_computed" in records.outdated(claim, record)) is not is_enough
    monkeypatch.setitem(claims(), claim.name, claim)
    result = CliRunner().invoke(main, ["prove", claim.name])
    assert (result.exit_code == 0) is is_enough, result.output
    said = f"witness: {computed} inputs were computed, and the claim states {'at most ' if reduction else ''}8\n"
    assert (said in result.output) is not is_enough


def test_a_record_of_code_that_only_moved_is_renewed_without_a_replay(monkeypatch, tmp_path):
    claim = claims()["encode-e2m1/golden"]
    right = records.read(claim)
    parts = records.covered(claim.name)
    moved = {name.replace("fp4ref.formats.codec:", "fp4ref.was:"): part for name, part in parts.items()}
    changed, more = {**moved, "fp4ref.was:_decision": "0"}, {**moved, "fp4ref.was:gone": "0"}
    assert moved != parts
    monkeypatch.setattr(records, "folder", lambda: tmp_path)
    path = records.path_of(claim)

    def of(definitions, **stated):
        digests = {"digest": sources.total(definitions), "covered": sources.by_file(definitions)}
        return {**right, **digests, **stated}

    for record, count in (
        (of(moved), "1 record renewed"),
        (of(changed), "0 records renewed"),
        (of(more), "0 records renewed"),
        (of(moved, statement="?"), "0 records renewed"),
        (right, "0 records renewed"),
    ):
        path.write_text(json.dumps(record), "utf-8")
        result = CliRunner().invoke(main, ["prove", claim.name, "--moved"])
        assert (result.exit_code, result.output) == (0, f"{count}\n")
        kept = json.loads(path.read_text("utf-8"))
        assert kept == (right if count[0] == "1" else record)


# The commands


def test_prove_says_what_it_proved_and_refuted(monkeypatch):
    result = CliRunner().invoke(main, ["prove", "encode-e4m3/golden", "decision-key/golden"])
    assert result.exit_code == 0, result.output
    assert "encode-e4m3/golden: proved (1,245,184 of 2^32 inputs computed" in result.output
    assert result.output.endswith("2 proved\n")
    monkeypatch.setattr(codec_module, "_code_table", lambda codec: np.zeros(1 << 17, np.uint8))
    result = CliRunner().invoke(main, ["prove", "encode-e4m3/golden", "--json"])
    assert result.exit_code == 1
    assert [(row["result"], row["witness"][:10]) for row in json.loads(result.output)] == [("refuted", "0x3A800001")]


def listed(*arguments):
    result = CliRunner().invoke(main, ["prove", "--list", *arguments])
    assert result.exit_code == 0, result.output
    return {line.split("  ")[0] for line in result.output.splitlines() if line[0] != " "}


def test_a_list_is_of_the_device_and_subject_that_are_asked_for():
    of = {subject: {name for name, claim in claims().items() if claim.subject is subject} for subject in ClaimSubject}
    assert listed() == claims().keys()
    assert listed("--device", "cuda") == of[ClaimSubject.CUDA]
    assert listed("--device", "cpu") == claims().keys() - of[ClaimSubject.CUDA]
    assert listed("--subject", "cpu") == of[ClaimSubject.CPU]
    assert listed("--subject", "cpu", "--device", "cuda") == set()
    assert listed("E2M1-3", "--device", "cuda") == {n for n in of[ClaimSubject.CUDA] if "E2M1-3" in claims()[n].rules}


def test_a_record_has_a_line_for_each_field_and_a_digest_for_each_file():
    claim = claims()["encode-e2m1/header"]
    text = records.path_of(claim).read_text("utf-8")
    record = records.read(claim)
    assert text.splitlines()[1:3] == [
        ' "name": "encode-e2m1/header",',
        ' "rules": ["E2M1-2", "E2M1-3", "E2M1-4", "E2M1-5"],',
    ]
    assert len(text.splitlines()) == len(record) + len(record["covered"]) + 3
    assert {"codec.h", "bits.h", "fp4ref.proof.encoders"} <= record["covered"].keys()
    assert sources.by_file({"a:b": "1", "a:c": "2"}).keys() == {"a"}
    assert sources.by_file({"a:b": "1", "a:c": "2"}) != sources.by_file({"a:b": "1", "a:c": "3"})


def test_missing_are_those_without_a_record_that_holds(monkeypatch):
    none, other, kept = (claims()[f"encode-{name}/golden"] for name in ("e2m1", "e4m3", "e5m2"))
    changed = {**records.read(other), "statement": "?"}
    found = {none.name: None, other.name: changed, kept.name: records.read(kept)}
    monkeypatch.setattr(records, "read", lambda claim: found[claim.name])
    names = [*found]
    assert listed(*names, "--missing") == {none.name, other.name}
    assert CliRunner().invoke(main, ["prove", kept.name, "--missing"]).output == "nothing to prove\n"


def test_the_turns_share_what_takes_long_and_each_has_the_others(monkeypatch):
    seconds = {"e2m1": 9.0, "e4m3": 2.0, "e5m2": 5.0, "e8m0": 1.0, "e2m3": 0.9, "e3m2": 99.0, "ue5m3": 99.0}
    chosen = {name: claims()[f"encode-{name}/golden"] for name in seconds}
    found = {claim.name: {**records.read(claim), "processor_seconds": seconds[n]} for n, claim in chosen.items()}
    found[chosen["e3m2"].name] = None
    found[chosen["ue5m3"].name]["covered"] = {}  # its code has changed
    monkeypatch.setattr(records, "read", lambda claim: found[claim.name])
    parts = {1: ("e2m1", "e4m3"), 2: ("e5m2", "e8m0")}
    for turn, long in parts.items():
        names = [chosen[name].name for name in (*long, "e2m3", "e3m2", "ue5m3")]
        assert listed(*found, "--turn", str(turn), "2") == {*names}
    assert listed(*found, "--turn", "1", "1") == found.keys()
    assert "need one of 2 parts" in CliRunner().invoke(main, ["prove", "--turn", "3", "2"]).stderr


def test_a_name_without_a_subject_is_that_of_every_subject():
    of = {name: claim.subject for name, claim in claims().items() if name.rpartition("/")[0] == "cut-nvfp4"}
    assert listed("cut-nvfp4") == of.keys()
    assert {*of.values()} == {*ClaimSubject} - {ClaimSubject.HEADER, ClaimSubject.FORMULA}
    assert listed("cut-nvfp4", "--subject", "torch") == {"cut-nvfp4/torch"}
    assert listed("cut-*/torch") == {name for name in claims() if name.startswith("cut-") and name.endswith("/torch")}
    assert listed("layout-*") == {f"layout-{name}/golden" for name in ("linear", "tiled_128x4", "tiled_8x4")}
    found = CliRunner().invoke(main, ["prove", "cut-nvfp", "--list"])
    assert (found.exit_code, "no certificate of cut-nvfp" in found.output) == (2, True)


@pytest.mark.parametrize(
    "error, word", [(ZeroDivisionError("none"), "refuted"), (BackendError("x", "y", "z"), "not replayed")]
)
def test_code_that_raises_refutes_a_claim_and_a_backend_that_is_missing_does_not(error, word, monkeypatch):
    def raising(*given):
        raise error

    monkeypatch.setattr(codec_module, "_decision", raising)
    found = CliRunner().invoke(main, ["prove", "decision-key/golden"])
    assert (found.exit_code, f"decision-key/golden: {word}" in found.output) == (int(word == "refuted"), True)
    if word == "refuted":
        assert "it ended with ZeroDivisionError: none (test_proof.py:" in found.output


# Citations


@pytest.fixture
def cited(tmp_path):
    """Return a function that takes files of a package by name, and returns the gaps of its citations."""

    def gaps(files):
        package = tmp_path / "fp4ref"
        package.mkdir(exist_ok=True)
        for name, text in files.items():
            (package / name).write_text(text)
        return citations.gaps(rules.Tree(tmp_path / "spec", package))

    return gaps


def test_every_claim_is_cited_beside_its_code_and_every_citation_has_a_claim():
    assert citations.gaps() == []
    native = {cited.path.suffix for cited in citations.citations()}
    assert native >= {".py", ".h", ".cu"}


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.py", '"""Rules: E2M1-1. Certificates: encode-e2m1, none-*/golden."""\n'),
        ("a.h", "// Certificates: mx-*,\n// none-*/golden.\nint a;\n"),
        ("a.cu", "int a;  // Certificates: none-*/golden.\n"),
    ],
)
def test_a_citation_of_no_claim_is_a_gap(name, text, cited):
    (line,) = (line for line in cited({name: text}) if line.startswith("fp4ref/"))
    assert line == f"fp4ref/{name}:1: certificate none-*/golden: no claim has this name"


def test_a_claim_that_its_own_code_does_not_cite_is_a_gap(cited):
    elsewhere = cited({"a.py": "# Certificates: encode-*, e2m1-sums.\n"})
    assert "certificate encode-e2m1/golden: its code does not cite it (codec.py)" in elsewhere
    assert "certificate over-6/header: its code does not cite it (block.h)" in elsewhere
    assert "certificate stochastic-index/formula: no code cites it" in elsewhere
    assert not any("e2m1-sums" in line for line in elsewhere)  # a formula is cited where it is used


@pytest.mark.usefixtures("rules_read_once")
def test_the_check_of_rules_tells_gaps_of_citations(monkeypatch):
    monkeypatch.setattr(citations, "gaps", lambda: ["certificate ?: no code cites it"])
    result = CliRunner().invoke(main, ["rules", "--check"])
    assert (result.exit_code, "certificate ?: no code cites it" in result.output) == (1, True)


def test_each_claim_that_needs_no_gpu_has_a_record(monkeypatch):
    unrecorded = [claim.name for claim in claims().values() if not records.read(claim)]
    assert not [name for name in unrecorded if claims()[name].subject is not ClaimSubject.CUDA]
    name = "block-all/header"
    monkeypatch.setattr(records, "read", lambda claim: None if claim.name == name else {"covered": {}})
    monkeypatch.setattr(records, "outdated", lambda claim, record: [])
    said = CliRunner().invoke(main, ["prove", "--list", name]).output
    assert f"{name}  BLK-5, BLK-6, E2M1-3  exhaustive, long: no record" in said
    assert records.gaps() == [f"certificate {name}: no record; run `fp4ref prove {name} --record`"]


@pytest.mark.parametrize("cause, changed", [("no record", None), ("out of date: codec.h changed", ["codec.h"])])
def test_certificates_of_one_cause_are_one_line_and_those_of_a_gpu_another(cause, changed, monkeypatch):
    names = ("encode-e2m1/golden", "encode-e4m3/golden", "tiles-float32/cuda", "rows-bfloat16/cuda")
    monkeypatch.setattr(records, "read", lambda claim: None if not changed and claim.name in names else {"covered": {}})
    monkeypatch.setattr(records, "outdated", lambda claim, record: changed if claim.name in names else [])
    command = "run `fp4ref prove --missing --long"
    lines = [f"certificate {names[0]} and 1 more: {cause}; {command} --record`"]
    if changed:  # one of a GPU that takes long needs no record
        lines.append(
            f"certificate {names[3]} and 1 more: {cause}; {command} --device cuda --record`, on a machine with a GPU"
        )
    assert records.gaps() == lines


def test_unknown_certificates_are_refused():
    result = CliRunner().invoke(main, ["prove", "ABC-1"])
    assert result.exit_code == 2
    assert "no certificate of ABC-1" in result.output


@pytest.mark.usefixtures("rules_read_once")
def test_rules_show_each_claim_in_one_line_with_its_subjects():
    lines = CliRunner().invoke(main, ["rules", "E2M1-3"]).output.splitlines()
    (line,) = (line for line in lines if line.startswith("  encode-e2m1  "))
    told = re.findall(r"(?:^|  |; )([a-z, ]+): proved on \d{4}-\d\d-\d\d", line)  # those of one day together
    assert {name for names in told for name in names.split(", ")} >= {"header", "golden", "torch"}
    assert re.search(r"proved on \d{4}-\d\d-\d\d$", line)  # of many claims, no words
    few = CliRunner().invoke(main, ["rules", "SR-4"]).output.splitlines()
    (stated,) = (each for each in few if each.startswith("  stochastic-expectation  "))
    assert stated.endswith(
        "  The mean that the golden model states is that of the two values beside a number, weighted by bytes."
    )
    (line,) = (line for line in lines if line.startswith("  block-all  "))
    assert re.search(r"  header(, |: proved on \d{4}-\d\d-\d\d; )cuda: proved on \d{4}-\d\d-\d\d", line)
    assert {line.split()[0] for line in lines if "proved on" in line} <= {claim.split("/")[0] for claim in claims()}


def test_a_claim_rests_on_claims_and_covers_code():
    assert len(claims()) > 600
    assert [claim.name for claim in claims().values() if not set(claim.rests_on) <= claims().keys()] == []
    assert [name for name in claims() if len(records.covered(name)) <= 1] == []
