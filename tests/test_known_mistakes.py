"""`fp4ref mistakes`: the registry as a user looks it up, and what a mistake changes."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner, Result

import fp4ref
from fp4ref.arithmetic import ARITHMETIC, TE, register_arithmetic
from fp4ref.catalogue import resolve
from fp4ref.cli import main
from fp4ref.cli.common import REFUSED
from fp4ref.conformance.diagnosis.support import tellable
from fp4ref.conformance.families import cases
from fp4ref.conformance.mistakes import MISTAKES, Mistake, Slot, elsewhere, kernel_of, known, register
from fp4ref.conformance.verdict.known_mistakes import effect, known_mistakes, mistake_named
from fp4ref.errors import DomainError
from fp4ref.kernels import INPUTS
from fp4ref.specs import MXFP4, NVFP4, NVFP4_RHT

pytestmark = pytest.mark.rule("CNF-26", "SPC-21")
SWAPPED = np.array([0, 1, 3, 2, 4, 5, 6, 7, 8, 9, 11, 10, 12, 13, 14, 15], np.uint8)
TWICE = "acme.codes-2-3", "acme.codes-2-3-again"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["mistakes", *arguments])


@pytest.fixture
def swapped():
    """Register two mistakes that make the same bytes, and one that changes nothing."""
    for name in TWICE:
        register(known(Slot.CODE, name, "codes 2 and 3 are exchanged", code=lambda codes: SWAPPED[codes]), "our kernel")
    register(known(Slot.CODE, "acme.nothing", "nothing is wrong", code=lambda codes: codes + np.uint8(0)))
    yield
    for name in [each.name for each in MISTAKES if each.name.startswith("acme.")]:
        MISTAKES.forget(name)


def test_every_mistake_of_the_registry_is_listed_once_with_its_words():
    listed = {each["name"]: each for each in json.loads(run("--json").stdout)}
    assert [each.name for each in known_mistakes()] == [*listed]
    for mistake in MISTAKES:
        record = listed[mistake.name]
        assert (record["stage"], record["text"]) == (mistake.stage.value, mistake.text)
        assert record["rules"] == list(mistake.breaks) if mistake.breaks else record["rules"]
        assert mistake.apply(kernel_of(resolve(record["spec"]))) is not None
    printed = run().stdout
    assert printed.endswith(f"{len(listed)} of {len(listed)} mistakes; `fp4ref mistakes NAME` shows one\n")
    assert Counter(line for line in printed.splitlines() if line[:6].strip() and line[:2] == "  ").total() == len(
        listed
    )


@pytest.mark.usefixtures("swapped")
def test_one_mistake_names_its_stage_rules_source_effect_and_equals():
    told = run(TWICE[0]).stdout.splitlines()
    assert told[:5] == [
        TWICE[0],
        "  codes 2 and 3 are exchanged",
        "  stage: code",
        "  may break: E2M1, SR",
        "  registered: our kernel",
    ]
    assert told[-1] == f"  the same bytes in all of them: {TWICE[1]}"
    (record,) = json.loads(run(TWICE[1], "--json").stdout)
    assert record["effect"]["alike"] == [TWICE[0]]
    assert run("acme.nothing").stdout.splitlines()[-1].startswith("  under nvfp4: no byte of ")
    assert run("acme.*", "--json").stdout.count('"name"') == 3


@pytest.mark.usefixtures("swapped")
def test_the_cases_that_a_mistake_changes_are_those_with_the_codes():
    """Counted by hand: a case changes if any of its codes is 2 or 3, of either sign."""
    mistake = mistake_named(TWICE[0])
    assert mistake is not None
    found = effect(mistake, MXFP4)
    changed: Counter[str] = Counter()
    tried = [case for case in cases(MXFP4) if 0 < case.x.size <= 4096]
    for case in tried:
        data = fp4ref.quantize(case.x, "mxfp4", backend="numpy").row.data
        columns = case.x.shape[-1]
        codes = np.stack([data & 7, data >> 4 & 7], axis=-1).reshape(len(data), -1)[:, :columns]
        changed[case.family] += bool(((codes == 2) | (codes == 3)).any())
    assert found.cases == len(tried)
    assert found.changes == {family: count for family, count in changed.items() if count}


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("swapped")
@pytest.mark.parametrize(
    "code, why",
    [
        (lambda codes: 1 // 0, "ZeroDivisionError"),
        (lambda codes: codes[:1, :16], " bytes, not "),
        (lambda codes: None, "AttributeError"),
        (lambda codes: codes.bits, "AttributeError"),
        (lambda codes: codes + unknown, "NameError"),  # noqa: F821
    ],
)
def test_a_mistake_whose_function_fails_says_so_and_harms_no_other(code, why):
    register(known(Slot.CODE, "acme.broken", "a function that is wrong", code=code))
    found = effect(mistake_named("acme.broken"), MXFP4)
    assert found.failures > found.cases // 2
    assert why in found.error
    printed = " ".join(run("acme.broken").stdout.split())
    assert "it makes no bytes, in the first because of " in printed
    assert why in printed
    assert run("acme.broken").exit_code == (REFUSED if found.failures == found.cases else 0)
    assert effect(mistake_named(TWICE[0]), MXFP4).alike == (TWICE[1],)


@pytest.mark.usefixtures("swapped")
def test_a_mistake_that_never_makes_bytes_ends_with_a_status():
    def fails(codes):
        raise ValueError("never")

    register(known(Slot.CODE, "acme.never", "a function that always fails", code=fails))
    never = run("acme.never", "--spec", "mxfp4")
    assert never.exit_code == REFUSED
    assert "it makes no bytes, in the first because of ValueError: never" in " ".join(never.stdout.split())
    assert run("acme.*").exit_code == run(TWICE[0]).exit_code == 0


@pytest.mark.parametrize(
    "options, names, absent",
    [
        (("--stage", "hadamard"), {"hadamard-missing"}, {"amax-inf"}),
        (("--rule", "GLB-1"), {"amax-inf", "global-inverse"}, {"element-down"}),
        (("--rule", "HAD-3"), {"hadamard-cut"}, {"hadamard-missing"}),
        (("--rule", "HAD"), {"hadamard-cut", "hadamard-missing"}, {"amax-inf"}),
        (("--spec", "mxfp4"), {"element-down"}, {"amax-inf", "hadamard-missing"}),
        (("--operation", "dequantize"), {"nibbles"}, {"element-down"}),
        (("--operation", "to_layout", "--layout", "tiled_128x4"), {"layout-linear"}, {"layout-tiled_128x4"}),
        (("--operation", "hadamard"), {"hadamard-missing"}, {"amax-inf"}),
        (("--operation", "gemm", "--stage", "sum"), {"sums-truncated"}, {"infinite-result-saturates"}),
        (("--layout", "tiled_128x4"), {"layout-linear", "layout-8x4-down"}, {"layout-tiled_128x4"}),
    ],
)
def test_a_part_of_the_list(options, names, absent):
    found = {each["name"] for each in json.loads(run("*", "--json", *options).stdout)}
    assert names <= found
    assert not absent & found


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("encode-fastt",), "unknown name 'encode-fastt', need a known one (encode-fast"),
        (
            ("hadamard-missing", "--spec", "mxfp4"),
            "hadamard-missing under mxfp4, need a specification that it applies to",
        ),
        (("--stage", "cod"), "stage 'cod', need one of direction, input"),
        (("--rule", "XX-1"), "rule 'XX-1', need a rule or a prefix"),
        (("--spec", "nope"), "unknown name 'nope'"),
    ],
)
def test_what_does_not_exist_is_refused_in_a_line(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("operation", INPUTS)
def test_every_operation_has_a_list_whose_words_are_a_sentence(operation):
    every = list(known_mistakes(operation))
    assert len(every) > 30
    for each in every:
        assert each.text.strip()
        assert not each.text.endswith(".")
        assert each.stage in {*Slot}
    repeated = [name for name, count in Counter(each.name for each in every).items() if count > 1]
    assert repeated == []
    assert not any(each.source for each in every)


def test_a_mistake_of_a_transform_is_tried_in_the_direction_that_has_it():
    mistake = mistake_named("hadamard-missing")
    assert mistake is not None
    assert effect(mistake, NVFP4_RHT).changes
    with pytest.raises(DomainError, match="hadamard-missing under nvfp4, need a specification"):
        effect(mistake, NVFP4)


@pytest.mark.parametrize("options", [(), ("--spec", "mxfp4")])
@pytest.mark.parametrize("operation, name", [("hadamard", "hadamard-missing"), ("dequantize", "block-next")])
def test_a_mistake_of_another_operation_is_not_run_as_that_of_a_quantizer(operation, name, options):
    assert mistake_named(name) is not None
    result = run(name, "--operation", operation, "--json", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert {each["name"] for each in json.loads(result.stdout)} == {name}
    assert not any("effect" in each for each in json.loads(result.stdout))


def test_a_mistake_that_means_nothing_under_any_specification_is_refused_in_a_sentence():
    register(Mistake("acme.never", Slot.CODE, "nothing is changed", lambda kernel: None))
    try:
        assert json.loads(run("acme.never", "--json").stdout)[0]["spec"] == ""
        result = run("acme.never", "--spec", "nvfp4")
    finally:
        MISTAKES.forget("acme.never")
    assert result.exit_code == 2
    assert "acme.never under nvfp4, need a specification that it applies to [CNF-26]" in result.stderr


def test_a_function_of_a_user_that_fails_is_named():
    def apply(kernel):
        raise ValueError("no such part")

    register(Mistake("acme.fails", Slot.CODE, "it fails", apply))
    try:
        results = [run(*arguments) for arguments in ((), ("acme.fails",), ("element-down",))]
    finally:
        MISTAKES.forget("acme.fails")
    for result in results:
        assert result.exit_code == 2
        assert "acme.fails raises ValueError under " in result.stderr
        assert "[SPC-21]" in result.stderr


@pytest.mark.rule("SPC-4")
def test_an_arithmetic_of_a_user_has_the_mistakes_of_the_functions_that_it_is_made_of():
    own = register_arithmetic("acme.te", TE.block_scale, TE.scaled, TE.global_scale, TE.working_scale, TE.dequantized)
    try:
        spec = NVFP4.replace(name="acme.nvfp4", arithmetic=own)
        assert [each.name for each in known_mistakes(spec=spec)] == [each.name for each in known_mistakes(spec=NVFP4)]
    finally:
        ARITHMETIC.forget("acme.te")


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        (partial(elsewhere.clipped, 1), [1, 2, 3, 4, 4]),
        (partial(elsewhere.clipped, -2), [0, 0, 0, 1, 2]),
        (partial(elsewhere.inside, 2), [2, 3, 4, 3, 4]),
        (partial(elsewhere.inside, -2), [0, 1, 0, 1, 2]),
        (partial(elsewhere.around, -1), [4, 0, 1, 2, 3]),
        (partial(elsewhere.exchanged, 1), [1, 0, 3, 2, 4]),
        (partial(elsewhere.first_of, 2), [0, 0, 2, 2, 4]),
        (partial(elsewhere.modulo, 3), [0, 1, 2, 0, 1]),
    ],
)
def test_the_index_that_is_used_instead(order, wanted):
    values = np.arange(10).reshape(5, 2)
    assert elsewhere.taken(order, 0, values).tolist() == values[wanted].tolist()
    assert elsewhere.taken(order, 1, values.T).tolist() == values.T[:, wanted].tolist()
    assert elsewhere.taken(order, 0, values[:0]).shape == (0, 2)


def test_what_is_past_the_last_whole_group_is_zero():
    values = np.ones((5, 7), np.uint8)
    assert elsewhere.cleared(2, 3, values).tolist() == [[1] * 6 + [0]] * 4 + [[0] * 7]
    assert elsewhere.cleared(8, 1, values).tolist() == [[0] * 7] * 5
    assert values.all()


def test_special_values_that_are_taken_as_numbers_break_no_rule_of_rounding():
    """A value that is replaced when it is read is not rounded by another rule; NUM-1's own cases all pass."""
    replaced = [m for m in MISTAKES if m.name.startswith("input-") and m.special and "taken as" in m.text]
    assert len(replaced) == 9
    assert all(mistake.breaks == ("NUM-10",) for mistake in replaced)


@pytest.mark.rule("CNF-31", "SPC-4")
def test_evidence_is_asked_of_the_mistake_that_has_a_name_now():
    """Without maxima no rounding of theirs can be told; another mistake of that name can."""
    for rounding, told in ((np.float32, False), (None, True)):
        register(known(Slot.AMAX, "acme.rounded", "maxima are rounded", rounding=rounding))
        try:
            assert ("acme.rounded" in {mistake.name for mistake in tellable([], special=True)}) == told
        finally:
            MISTAKES.forget("acme.rounded")
