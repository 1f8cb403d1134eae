from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from fp4ref import DomainError
from fp4ref.cli import main
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict import stochastic_kernel
from fp4ref.conformance.verdict.statement_check import problems, read
from fp4ref.conformance.verdict.stochastic import FALSE_ALARM, Level, StochasticReport, aimed_inputs
from fp4ref.conformance.verdict.stochastic_kernel import judge_drawing
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.testing import assert_conforms

SPEC = fp4ref.NVFP4.replace(name="nvfp4-sr", element=STOCHASTIC_E2M1)


def made(x, direction, bits, layout="linear"):
    q = fp4ref.quantize(x, SPEC, direction, layout, random_bits=bits)
    return tuple(q.direction(direction)[0])


def drawing(x, direction="row", same=False):
    """A kernel with a generator of its own; both directions alike if `same`."""
    rows, columns = x.shape
    width = columns * (direction == "row") + rows * (direction == "column")
    bits = np.random.default_rng(None if not same else int(np.abs(x[1:8, :8].astype(np.float32)).sum() * 1000))
    return made(x, direction, bits.integers(0, 256, (x.size // width, width), np.uint8))


def seeded(x, seed, offset, direction="row", name="te.2d"):
    return made(x, direction, getattr(fp4ref.random_maps[name](x.shape, seed, offset), direction), "tiled_128x4")


SEEDED = {"inputs": ("x", "seed", "offset"), "scale_layout": "tiled_128x4"}


@pytest.mark.rule("SR-11", "CNF-8")
def test_a_kernel_that_draws_is_judged_at_the_level_bracket():
    report = judge_drawing(
        SPEC, Subject.of(drawing), Subject.of(partial(drawing, direction="column"), direction="column")
    )
    assert report.ok, report.headline
    assert report.level is Level.BRACKET
    one = judge_drawing(SPEC, Subject.of(drawing, dtypes=("float32",)))
    assert one.ok, one.headline


@pytest.mark.rule("SR-9", "SR-11")
def test_two_directions_with_the_same_bits_are_found():
    both = (
        Subject.of(partial(drawing, same=True)),
        Subject.of(partial(drawing, same=True, direction="column"), direction="column"),
    )
    report = judge_drawing(SPEC, *both)
    assert report.mistakes == ("both directions use the same bits", "the random bits are the same in every call")


@pytest.mark.rule("SR-13", "CNF-9")
def test_the_same_bits_in_every_call_are_a_finding():
    def seeded_again(x):
        return made(x, "row", np.random.default_rng(7).integers(0, 256, x.shape, np.uint8))

    report = judge_drawing(SPEC, Subject.of(seeded_again))
    assert report.mistakes == ("the random bits are the same in every call",)
    assert judge_drawing(SPEC, Subject.of(partial(seeded, name="te.2d"), **SEEDED)).ok  # the caller gives the seed


@pytest.mark.sampled(3)
@pytest.mark.rule("SR-10", "SR-11", "SR-16", "SR-18")
@pytest.mark.parametrize("name", ["te.tuned_1d", "te.2d", "te.rht_fused"])
def test_a_kernel_with_seed_and_offset_is_judged_by_maps(name):
    row = Subject.of(partial(seeded, name=name), **SEEDED)
    column = Subject.of(partial(seeded, name=name, direction="column"), **SEEDED, direction="column")
    for subjects in ((row,), (column,), (row, column)):
        report = judge_drawing(SPEC, *subjects)
        assert report.level is Level.MAP
        assert report.map == name


@pytest.mark.rule("CNF-9", "SR-11")
def test_what_else_goes_wrong_is_a_finding():
    def raises(x):
        raise ValueError("no")

    def nearest(x):
        return tuple(fp4ref.quantize(x, fp4ref.NVFP4).row)

    def short(x):
        data, scales, amax = drawing(x)
        return data[:, 1:], scales, amax

    assert "no" in judge_drawing(SPEC, Subject.of(raises)).headline
    assert "shape" in judge_drawing(SPEC, Subject.of(short)).headline
    assert judge_drawing(SPEC, Subject.of(nearest)).mistakes == ("always rounds to nearest",)
    assert "no case applies" in judge_drawing(SPEC, Subject.of(drawing, multiple=(1, 1024))).headline
    with pytest.raises(DomainError, match="SR-11"):
        judge_drawing(SPEC, Subject.of(drawing), Subject.of(drawing))


@pytest.mark.slow  # processes of their own
@pytest.mark.rule("CNF-2", "SR-11")
def test_the_command_states_the_level(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sr.json").write_text(SPEC.to_json())
    (tmp_path / "kernels.py").write_text("""
import numpy as np
import fp4ref
from pathlib import Path
SPEC = fp4ref.from_json(Path("sr.json").read_text())

@fp4ref.kernel(inputs=("x", "random_bits"))
def given(x, bits):
    return tuple(fp4ref.quantize(x, SPEC, random_bits=bits).row)

def own(x):
    bits = np.random.default_rng().integers(0, 256, x.shape, np.uint8)
    return tuple(fp4ref.quantize(x, SPEC, random_bits=bits).row)

def down(x):
    return tuple(fp4ref.quantize(x, SPEC, random_bits=np.zeros(x.shape, np.uint8)).row)
""")
    verify = ["verify", "--spec", "sr.json", "--kernel"]
    run = CliRunner().invoke(main, [*verify, "kernels.py:own"])
    assert run.exit_code == 0, run.output
    assert "level bracket" in run.output
    run = CliRunner().invoke(main, [*verify, "kernels.py:down", "--json"])
    assert run.exit_code == 1
    assert json.loads(run.stdout)["mistakes"] == ["always rounds down, as with random bits that are all zero"]
    run = CliRunner().invoke(main, [*verify, "kernels.py:given", "--family", "normal"])
    assert run.exit_code == 0, run.output
    assert "level exact" in run.output
    digests = []
    for seed in ([], [], ["--seed", "3"]):
        run = CliRunner().invoke(main, [*verify, "kernels.py:own", "--statement", "s.json", *seed])
        assert run.exit_code == 0, run.output
        record = read(Path("s.json"))
        assert not problems(record)
        digests.append(record["digest"])
    assert digests[0] == digests[1] != digests[2]
    run = CliRunner().invoke(main, [*verify, "kernels.py:own", "--case", "own-bits/0"])
    assert run.exit_code == 2
    run = CliRunner().invoke(main, [*verify, "kernels.py:own", "--level", "1", "--family", "normal"])
    assert "--family and --level: for a kernel that is given its random bits" in run.output


@pytest.mark.heavy
@pytest.mark.slow  # three seeds
@pytest.mark.rule("CNF-21", "SR-11")
def test_a_run_without_end_ends_with_the_seed_that_fails():
    broken = aimed_inputs("bfloat16", 7)[1].tobytes()

    def rare(x):
        return made(x, "row", np.zeros(x.shape, np.uint8)) if x.tobytes() == broken else drawing(x)

    found = judge_drawing(SPEC, Subject.of(rare), seed=5, forever=True)
    assert (found.ok, found.seed, found.seeds) == (False, 5, 3)
    assert found.coverage.extent.count == 18
    assert "seeds 5 to 7" in found.text(0)
    assert judge_drawing(SPEC, Subject.of(rare), seed=6).ok
    alone = judge_drawing(SPEC, Subject.of(rare), seed=7)
    assert not alone.ok
    assert "seed 7" in alone.text(0)


@pytest.mark.rule("CNF-21", "CNF-38")
@pytest.mark.parametrize("how", ["interrupted", "the time of the run is over"])
def test_a_run_without_end_that_is_ended_has_a_verdict(how, monkeypatch):
    calls = []

    def judged(*arguments):
        calls.append(arguments[-2:])
        if len(calls) == 3:
            if how == "interrupted":
                raise KeyboardInterrupt
            return StochasticReport(SPEC, Level.BRACKET, None, (stochastic_kernel.CUT,))
        return StochasticReport(SPEC, Level.BRACKET)

    monkeypatch.setattr(stochastic_kernel, "_judged", judged)
    found = judge_drawing(SPEC, Subject.of(drawing), seed=1, forever=True)
    assert (found.ok, found.seeds, found.coverage.stopped) == (True, 2, how)
    assert [seed for seed, _ in calls] == [1, 2, 3]
    assert [round(FALSE_ALARM / share) for _, share in calls] == [2, 6, 12]  # 1/2 + 1/6 + 1/12 + ... = 1


@pytest.mark.rule("SR-11", "CNF-22", "CNF-23")
def test_an_assertion_judges_a_kernel_that_draws_as_the_command_does():
    report = assert_conforms(drawing, "nvfp4-sr")
    assert report.level is Level.BRACKET
    assert report.coverage.tried == {"own-bits": 6}
    assert report.coverage.not_judged["random bits"] == "the kernel's own, judged by counts"
    assert report.coverage.lines[0].startswith("rests on 6 calls of 1 of ")

    def nearest(x):
        return tuple(fp4ref.quantize(x, fp4ref.NVFP4).row)

    with pytest.raises(AssertionError, match="wrong at the level bracket: always rounds to nearest"):
        assert_conforms(nearest, "nvfp4-sr")
    with pytest.raises(AssertionError, match="incomplete: the required family nan was not tried"):
        assert_conforms(drawing, "nvfp4-sr", require=["nan"])


@pytest.mark.rule("CNF-2", "SR-11")
def test_a_kernel_that_draws_has_reports(tmp_path):
    from fp4ref.conformance.reports import html, junit
    from fp4ref.conformance.reports.drawing import of_drawing

    def nearest(x):
        return tuple(fp4ref.quantize(x, fp4ref.NVFP4).row)

    view = of_drawing(judge_drawing(SPEC, Subject.of(nearest)))
    junit.write(tmp_path / "r.xml", [view])
    html.write(tmp_path / "r.html", view)
    for name in ("r.xml", "r.html"):
        text = (tmp_path / name).read_text()
        assert "always rounds to nearest" in text
        assert "rests on 6 calls" in text
