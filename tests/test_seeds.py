"""Other random numbers by seed, runs without an end, and what failed last time first."""

from __future__ import annotations

import io
import json
import os
from itertools import islice

import pytest
from click.testing import CliRunner

import fp4ref
from fp4ref.cli import main, verify_finish
from fp4ref.conformance import families
from fp4ref.conformance.families.products import cases as products
from fp4ref.conformance.run import recent, stream
from fp4ref.conformance.run.rounds import in_order, named
from fp4ref.conformance.subjects.subject import Declaration, Subject
from fp4ref.conformance.verdict.product_runs import check
from fp4ref.errors import FileError
from fp4ref.formats import STOCHASTIC_E2M1
from operands_at_random import sides_of

NVFP4 = fp4ref.NVFP4
STOCHASTIC = NVFP4.replace(name="stochastic", element=STOCHASTIC_E2M1)
FEW = ("normal", "wide")
KERNEL = """
import fp4ref
import numpy as np

def good(x):
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    return q.row.data.copy(), q.row.scales, q.row.amax

def rare(x):
    data, scales, amax = good(x)
    if x.dtype.name == "bfloat16" and int(x.view(np.uint16).astype(np.int64).sum()) % 16 == 3:
        data ^= 1
    return data, scales, amax
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FP4REF_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "kernels.py").write_text(KERNEL)
    return tmp_path


def verify(line, status):
    result = CliRunner().invoke(main, ["verify", "--spec", "nvfp4", "--no-diagnosis", *line.split()])
    assert result.exit_code == status, result.output
    return result.stdout


@pytest.mark.rule("CNF-21", "CNF-106")
@pytest.mark.parametrize("spec", [NVFP4, fp4ref.MXFP8_E5M2, STOCHASTIC], ids=lambda spec: spec.name)
def test_a_seed_changes_the_random_numbers_and_the_names(spec):
    names = (*FEW, "element-ties", "random-bits")
    plain, one, again, two = (
        list(families.cases(spec, dtypes=["bfloat16"], families=names, seed=seed)) for seed in (0, 1, 1, 2)
    )
    assert [case.id for case in one] == [f"{case.id}@1" for case in plain]
    assert {families.seed_of(case.id) for case in two} == {2}
    assert {families.seed_of(case.id) for case in plain} == {0}
    assert [case.x.tobytes() for case in one] == [case.x.tobytes() for case in again]
    changed = [a.x.tobytes() != b.x.tobytes() for a, b in zip(one, two, strict=True)]
    assert sum(changed) >= len(changed) - 1
    if spec.stochastic:
        assert plain[0].random_bits.tobytes() != one[0].random_bits.tobytes()
        assert one[0].random_bits.tobytes() == again[0].random_bits.tobytes()


@pytest.mark.rule("CNF-21")
def test_witnesses_of_a_seed_are_searched_for():
    settings = {"dtypes": ["bfloat16"], "families": ["reciprocal"]}
    before, after = (list(families.cases(NVFP4, seed=seed, **settings)) for seed in (0, 1))
    assert after
    assert {case.x.tobytes() for case in before}.isdisjoint(case.x.tobytes() for case in after)


@pytest.mark.rule("CNF-103", "CNF-106", "CNF-107")
def test_names_give_the_cases_and_their_order():
    declared = Declaration(dtypes=("bfloat16",), multiple=(16, 16))
    first = ["wide/elements/bf16/row@7", "wide/gone/bf16/row", "nothing/at/all/row", "normal/small/bf16/row"]
    made = [case.id for case in in_order(declared, NVFP4, [*first, first[0]], families=FEW, level=1)]
    assert made[:2] == [first[0], first[3]]
    assert sorted(made[1:]) == sorted(case.id for case in families.cases(NVFP4, dtypes=["bfloat16"], families=FEW))
    case = named(declared, NVFP4, first[0], level=1)
    (same,) = (c for c in families.cases(NVFP4, seed=7, families=["wide"], multiple=(16, 16)) if c.id == first[0])
    assert case.x.tobytes() == same.x.tobytes()
    assert named(declared, NVFP4, "wide/elements/bf16/row@x", level=1) is None


@pytest.mark.rule("CNF-21")
def test_seeds_follow_each_other_until_one_fails():
    declared = Declaration(dtypes=("bfloat16",))
    endless = in_order(declared, NVFP4, forever=True, seed=5, families=["normal"], level=1)
    assert [families.seed_of(case.id) for case in islice(endless, 7)] == [5, 5, 6, 6, 7, 7, 8]
    ended = in_order(declared, NVFP4, forever=True, stop=lambda: True, families=["normal"], level=1)
    assert len(list(ended)) == 2


@pytest.mark.rule("CNF-107")
def test_what_failed_is_kept_by_name_only(here):
    assert recent.recall("k.py:f", NVFP4) == []
    recent.remember("k.py:f", NVFP4, ["wide/elements/bf16/row@35", "wide/elements/bf16/row@35"])
    assert recent.recall("k.py:f", NVFP4) == ["wide/elements/bf16/row@35"]
    assert recent.recall("k.py:g", NVFP4) == recent.recall("k.py:f", fp4ref.MXFP4) == []
    (file,) = (here / "cache" / "failing").iterdir()
    for damaged in (b"", b"{}", b"/etc/passwd\n../../x\na/b/c\0/d", b"a/b/c/\xff\xfe", b"/" * 70000):
        file.write_bytes(damaged)
        assert recent.recall("k.py:f", NVFP4) == []
    recent.remember("k.py:f", NVFP4, [])
    assert not file.exists()


@pytest.mark.rule("FIL-4", "CNF-107")
def test_what_failed_is_kept_whole_or_not_at_all(here, monkeypatch):
    recent.remember("k.py:f", NVFP4, ["wide/elements/bf16/row@35"])
    folder = here / "cache" / "failing"

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    recent.remember("k.py:f", NVFP4, ["wide/elements/bf16/row@36"])
    assert recent.recall("k.py:f", NVFP4) == ["wide/elements/bf16/row@35"]
    assert len([*folder.iterdir()]) == 1


@pytest.mark.slow  # three runs with processes of their own
@pytest.mark.rule("CNF-21")
def test_a_run_without_end_finds_a_seed_that_replays(here):
    (here / "values.py").write_text("import fp4ref\n")
    text = verify("--import values.py --kernel kernels.py:rare --family wide --forever --save-case case.npz", 1)
    again = next(line for line in text.splitlines() if line.startswith("see it again: "))
    assert "verify --import values.py --kernel kernels.py:rare " in again
    name = again.split("--case ")[1]
    assert families.seed_of(name) > 0
    assert "--family" not in again
    assert name in verify(again.partition("fp4ref verify ")[2].replace("--spec nvfp4", ""), 1)
    assert recent.recall("kernels.py:rare", NVFP4) == [name]
    assert f"saved {name}" in text
    assert "differs from nvfp4" in CliRunner().invoke(main, ["verify", "case.npz", "--no-diagnosis"]).stdout


@pytest.mark.slow  # a process of its own
@pytest.mark.rule("CNF-21")
def test_a_run_without_end_that_is_ended_keeps_what_it_found(here, monkeypatch):
    found = []

    def judge(*arguments):
        if found:
            raise SystemExit(143)
        judgement = verify_finish.compared(*arguments)
        found.extend([judgement] if not judgement.equal else [])
        return judgement

    monkeypatch.setattr(verify_finish, "compared", verify_finish.judge, raising=False)
    monkeypatch.setattr(verify_finish, "judge", judge)
    verify("--kernel kernels.py:rare --family wide --forever --save-case case.npz", 143)
    assert recent.recall("kernels.py:rare", NVFP4) == [found[0].case.id]
    assert "differs from nvfp4" in CliRunner().invoke(main, ["verify", "case.npz", "--no-diagnosis"]).stdout


@pytest.mark.slow  # a process of its own
@pytest.mark.rule("CNF-21")
def test_an_interrupted_run_without_end_has_a_verdict(here, monkeypatch):
    judged = []

    def judge(*arguments):
        if len(judged) == 8:
            raise KeyboardInterrupt
        judged.append(verify_finish.compared(*arguments))
        return judged[-1]

    monkeypatch.setattr(verify_finish, "compared", verify_finish.judge, raising=False)
    monkeypatch.setattr(verify_finish, "judge", judge)
    text = verify("--kernel kernels.py:good --family wide --forever --json", 0)
    found = json.loads(text)
    assert found["families"]["wide"]["total"] == 8
    assert found["coverage"]["stopped"] == "interrupted"
    assert judged[-1].case.id == "wide/elements/f32/row@1"


@pytest.mark.rule("CNF-6", "CNF-21")
def test_a_stream_has_a_seed():
    plan = stream.StreamPlan(NVFP4, families=("normal",), seed=3)
    assert all(case.id.endswith("@3") for case in plan.cases())
    text = io.BytesIO()
    stream.write(text, plan)
    text.seek(0)
    assert stream.read_plan(stream.Reader(text, "it")) == plan
    hostile = text.getvalue().replace(b'"seed": 3', b'"seed":-3')
    with pytest.raises(FileError, match="seed -3"):
        stream.read_plan(stream.Reader(io.BytesIO(hostile), "it"))


GEMM = """
import fp4ref
import numpy as np

INPUTS = ("a_data", "a_scales", "a_amax", "b_data", "b_scales", "b_amax", "rows", "columns", "depth")

def operand(data, scales, amax, rows, depth):
    return fp4ref.Quantized(fp4ref.NVFP4, (rows, depth), "float32", "linear", fp4ref.DirectionData(data, scales, amax))

@fp4ref.kernel(operation="gemm", inputs=INPUTS, outputs=("values",))
def rare(a_data, a_scales, a_amax, b_data, b_scales, b_amax, rows, columns, depth):
    a, b = operand(a_data, a_scales, a_amax, rows, depth), operand(b_data, b_scales, b_amax, columns, depth)
    values = fp4ref.gemm(a, b, "fast", backend="numpy")
    return values + np.float32(1) if int(a_data.astype(np.int64).sum()) % 8 == 3 else values
"""


@pytest.mark.rule("CNF-107")
def test_products_that_failed_are_tried_first(here):
    order, first = [], ["width-cancel@7", "gone@7", "dense-square"]
    report = check(product_of(NVFP4), NVFP4, ("dense", "width"), step=order.append, first=first)
    assert order[:2] == ["dense-square", "width-cancel@7"]
    assert sorted(order[2:]) == sorted(
        {case.id for case in products.cases(NVFP4, ("dense", "width"))} - {"dense-square"}
    )
    assert report.failing == []
    recent.remember("k.py:g", NVFP4, ["dense-square", "width-cancel@7"])
    assert recent.recall("k.py:g", NVFP4) == ["dense-square", "width-cancel@7"]


def product_of(spec, calls=10**9):
    """A right product, whose calls past a number are interrupted."""
    names = ("a_data", "a_scales", "b_data", "b_scales", "rows", "columns", "depth")
    names = names if spec.global_scale == "none" else (*names, "a_amax", "b_amax")
    seen = []

    def kernel(*given):
        seen.append(given)
        if len(seen) > calls:
            raise KeyboardInterrupt
        sides = sides_of(spec, dict(zip(names, given, strict=True)))
        return fp4ref.gemm(*sides, "fast", backend="numpy")

    return Subject("kernel", Declaration(operation="gemm", inputs=names, outputs=("values",)), kernel)


@pytest.mark.rule("CNF-21", "GEM-13")
def test_a_seed_changes_products_and_their_names():
    plain, one, again, two = (list(products.cases(NVFP4, ("dense", "random", "bias"), seed)) for seed in (0, 1, 1, 2))
    assert [case.id for case in one] == [f"{case.id}@1" for case in plain]

    def bytes_of(found):
        return [case.a.row.data.tobytes() + case.b.row.data.tobytes() for case in found if case.family != "bias"]

    assert bytes_of(one) == bytes_of(again)
    assert not {*bytes_of(plain)} & {*bytes_of(one)}
    assert not {*bytes_of(one)} & {*bytes_of(two)}


@pytest.mark.slow
@pytest.mark.rule("CNF-21", "GEM-13", "GEM-14")
@pytest.mark.parametrize("spec", [NVFP4, fp4ref.MXFP8_E5M2], ids=lambda spec: spec.name)
def test_a_right_product_is_right_for_every_seed(spec):
    for seed in (1, 77):
        names = ("powers", "ragged", "extremes", "alpha", "random")
        report = check(product_of(spec), spec, names, seed=seed)
        assert report.ok, report.headline
        assert report.headline.endswith(f", seed {seed}")


@pytest.mark.slow
@pytest.mark.rule("CNF-21")
def test_a_gemm_runs_until_a_seed_fails_and_its_name_is_enough_to_see_it_again(here):
    (here / "gemm.py").write_text(GEMM)
    text = verify("--kernel gemm.py:rare --family ragged --forever --seed 1", 1)
    again = text[text.index("see it again: fp4ref verify ") :].split("--case ")[1].split()[0]
    assert again.startswith("ragged-")
    assert families.seed_of(again) > 0
    found = json.loads(verify(f"--kernel gemm.py:rare --case {again} --json", 1))
    assert (found["cases"], found["seed"]) == (1, families.seed_of(again))
    assert [line.split()[0] for line in found["mismatches"]] == [again]
    whole = json.loads(verify(f"--kernel gemm.py:rare --family ragged --seed {families.seed_of(again)} --json", 1))
    assert again in [line.split()[0] for line in whole["mismatches"]]


@pytest.mark.rule("CNF-21", "CNF-38")
def test_an_interrupted_gemm_keeps_its_verdict():
    report = check(product_of(NVFP4, calls=20), NVFP4, ("ragged",), forever=True)  # two calls for each of three cases
    assert report.ok
    assert report.stopped == "interrupted"
    assert report.seeds == report.to_json()["seeds"] == 3
    assert report.headline.endswith(", seeds 0 to 2")
    assert "the run ended early: interrupted" in "\n".join(report.coverage.lines)
