"""Dumps whose tensors are wrong for reasons of their own, and the spare bits of codes of 6 bits."""

import math
from dataclasses import replace

import numpy as np
import pytest

import fp4ref
from fp4ref.conformance.diagnosis.explanations import Diagnosis, Explanation
from fp4ref.conformance.dumps.files import Dump, write_dump
from fp4ref.conformance.verdict.dumps import DumpRequest, verify
from fp4ref.conformance.verdict.violated import blame, differing, dump_cells, worst
from standard_rules import rows_of

LATE = "scale bytes are stored one place too late, down the rows, around the end"
SWAPPED = "the high nibble comes first"


def swapped(data, scales):
    return data >> 4 | data << 4, scales


def late(data, scales):
    return data, np.roll(scales, 1, axis=0)


def random(data, scales):
    return np.random.default_rng(7).integers(0, 256, data.shape, np.uint8), scales


def spare(data, scales):
    data[::2, -1] |= 0xC0
    return data, scales


def tensor(name, change, spec="nvfp4", shape=(16, 64), scale_layout="linear"):
    x = np.random.default_rng(len(name) + ord(name[0])).standard_normal(shape).astype(np.float32)
    q = fp4ref.quantize(x, spec, scale_layout=scale_layout)
    if change is not None:
        data, scales = change(np.array(q.row.data), np.array(q.row.scales))
        q = replace(q, row=q.row._replace(data=data, scales=scales))
    return Dump(name, x, q)


def verified(tmp_path, *tensors, seconds=0.8):
    write_dump(tmp_path / "dump.npz", tensors)
    return verify(DumpRequest(path=tmp_path / "dump.npz", seconds=seconds))


@pytest.mark.rule("CNF-24", "CNF-90")
def test_tensors_that_were_not_diagnosed_break_rules_too():
    cause = Explanation(("nibbles",), "packing", "the high nibble comes first")
    found = Diagnosis(conforms=False, explanations=(cause,))
    assert list(blame(found, fp4ref.NVFP4, ["PACK-1", "LAY-1"]).broken) == ["PACK-1"]
    assert list(blame(replace(found, undiagnosed=1), fp4ref.NVFP4, ["PACK-1", "LAY-1"]).broken) == []


@pytest.mark.heavy
@pytest.mark.example("CNF-49")
@pytest.mark.slow  # a search that finds nothing, and two that do
@pytest.mark.rule("CNF-49", "CNF-2")
def test_two_mistakes_in_two_tensors(tmp_path):
    report = verified(tmp_path, tensor("a", swapped), tensor("b", late), tensor("c", None))
    assert report.headline.startswith(f"wrong: tensor a: {SWAPPED}; tensor b: {LATE}; differs from nvfp4 in ")
    shown = [verdict for _, verdict in rows_of("CNF-49")]
    assert report.headline.startswith(shown[1].removesuffix(", ..."))
    assert report.diagnosis.explained
    assert list(
        blame(report.diagnosis, fp4ref.NVFP4, worst(fp4ref.NVFP4, dump_cells(report), differing(report))).broken
    ) == [
        "LAY-1",
        "PACK-1",
    ]
    groups = report.to_json()["diagnosis"]["groups"]
    assert [(group["tensors"], group["explanations"][0]["names"]) for group in groups] == [
        (("a",), ("nibbles",)),
        (("b",), ("stored-late-rows",)),
    ]


@pytest.mark.example("CNF-49")
@pytest.mark.slow
@pytest.mark.rule("CNF-49")
def test_one_tensor_is_explained_and_one_is_not(tmp_path):
    report = verified(tmp_path, tensor("a", swapped), tensor("b", random))
    assert report.headline.startswith(f"{rows_of('CNF-49')[2][1]}; differs from nvfp4 in ")
    assert not report.diagnosis.explained
    assert (
        list(blame(report.diagnosis, fp4ref.NVFP4, worst(fp4ref.NVFP4, dump_cells(report), differing(report))).broken)
        == []
    )


@pytest.mark.example("CNF-49")
@pytest.mark.rule("CNF-49", "CNF-90")
def test_other_forms_and_more_tensors(tmp_path):
    assert rows_of("CNF-49")[0][1] == f"wrong: {SWAPPED}"
    tiled = tensor("b", swapped, scale_layout="tiled_128x4")
    assert verified(tmp_path, tensor("a", swapped), tiled).headline.startswith(f"wrong: {SWAPPED}; differs")
    right = tensor("b", None, "mxfp4")
    assert verified(tmp_path, tensor("a", swapped), right).headline.startswith(f"wrong: {SWAPPED}; differs")
    ten = verified(tmp_path, *(tensor(name, swapped) for name in "abcdefghij"))
    assert ten.headline.startswith(f"wrong: {SWAPPED}; other tensors that differ and were not diagnosed: 2; differs")


@pytest.mark.rule("PACK-5")
def test_codes_of_6_bits_have_spare_bits(tmp_path):
    report = verified(tmp_path, tensor("a", spare, "mxfp6-e3m2", (16, 33)))
    told = "wrong: spare bits of rows are not zero; differs from mxfp6-e3m2 in 8 rows with spare bits that are set"
    assert report.headline == told
    assert worst(fp4ref.NVFP4, dump_cells(report), differing(report)) == ["PACK-5"]
    assert "nibble" not in str(report.to_json())


@pytest.mark.heavy  # a diagnosis of a large tensor
@pytest.mark.rule("CNF-26", "CNF-44")
def test_rows_of_a_large_tensor_are_counted_from_where_its_part_begins(tmp_path):
    """A part of a large tensor is looked at, in whole blocks of any size."""
    spec = fp4ref.NVFP4.replace(name="vendor.nvfp4_24", block=(24, 24))
    x = np.random.default_rng(1).standard_normal((2400, 480)).astype(np.float32)
    q = fp4ref.quantize(x, spec, backend="numpy")
    data = np.array(q.row.data)
    data[1500:] ^= 0x88
    write_dump(tmp_path / "large.npz", [Dump("w", x, replace(q, row=q.row._replace(data=data)))])
    found = verify(DumpRequest(path=tmp_path / "large.npz")).diagnosis
    first = 1500 // math.lcm(128, 24) * math.lcm(128, 24)
    (one,) = found.explanations
    assert one.text == f"elements have the opposite sign, in rows from {1500 - first} on (counted from row {first})"


@pytest.mark.sampled(3)
@pytest.mark.rule("CNF-2", "CNF-24")
@pytest.mark.parametrize(
    "codec, rounding, rule",
    [("element", "truncate", "E2M1-3"), ("element", "up", "E2M1-3"), ("scale", "truncate", "E4M3-2")],
)
def test_a_dump_with_another_rounding_breaks_the_rule_on_rounding(tmp_path, codec, rounding, rule):
    """Not the rules on what is rounded, which such bytes obey."""
    spec = fp4ref.NVFP4
    x = np.random.default_rng(19).standard_normal((64, 256)).astype(np.float32)
    other = replace(getattr(spec, codec), rounding=rounding)
    q = replace(fp4ref.quantize(x, spec.replace(name="test.rounding", **{codec: other})), spec=spec)
    report = verified(tmp_path, Dump("x", x, q), seconds=9)
    failing = worst(spec, dump_cells(report), differing(report), report.diagnosis)
    assert list(blame(report.diagnosis, spec, failing).broken) == [rule]


@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize(
    "profile, first, rest",
    [
        (
            "modelopt.nvfp4",
            ["GLB-1", "GLB-2", "BLK-3", "BLK-4"],
            {"E2M1-2", "E2M1-3", "E4M3-2"},
        ),  # NaN counts; true divisions
        ("nvfp4-fast", ["BLK-4"], {"E2M1-3"}),  # the factor is rounded to bfloat16
    ],
)
def test_rules_that_a_profile_departs_from_come_first_among_equals(tmp_path, profile, first, rest):
    """In one tensor every rule fails once of once; the rules of rounding, which the profile obeys, come last."""
    x = np.random.default_rng(5).standard_normal((64, 256)).astype(np.float32)
    if profile == "modelopt.nvfp4":
        x[0, :3] = np.nan, np.inf, 0
    q = replace(fp4ref.quantize(x, profile), spec=fp4ref.NVFP4)
    report = verified(tmp_path, Dump("x", x, q))
    cells = dump_cells(report)
    assert profile in report.profiles
    assert {(cell.passed, cell.total) for rule, cell in cells.items() if rule in {*first, *rest}} == {(0, 1)}
    failing = worst(fp4ref.NVFP4, cells, differing(report), report.diagnosis, report.profiles)
    assert (failing[: len(first)], {*failing[len(first) :]}) == (first, rest)
