"""Examples of the chapter on conformance, acted out: cases, their names and sizes, what is given, and streams."""

from __future__ import annotations

import io
import re
import struct

import numpy as np
import pytest

import fp4ref
from commands import printed
from fp4ref.conformance import families
from fp4ref.conformance.families.fitting import fitted
from fp4ref.conformance.families.places import LARGEST
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import stream
from fp4ref.conformance.subjects.library.records import Records
from fp4ref.conformance.subjects.library.signature import named as signature
from fp4ref.conformance.subjects.subject import Declaration, cases_of, reasons
from fp4ref.errors import FileError
from fp4ref.specs import NVFP4
from standard_rules import integers, rows_of, text_of


def words(cell):
    return re.findall("`(.*?)`", cell)


def shape_of(cell):
    return tuple(integers(re.search(r"\[(.*?)\]", cell)[1]))


def one(name, **more):
    """The case of NVFP4 of a name."""
    seed = families.seed_of(name)
    found = families.cases(NVFP4, families=[name.split("/")[0]], seed=seed, **more)
    return next(case for case in found if case.id == name)


def matrix_case(shape):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return families.Case("a/b/f32/row", "a", "", (), x, NVFP4, "row")


# Cases


@pytest.mark.example("CNF-103", "CNF-21", "CNF-106")
def test_names_of_cases():
    ((name, line),) = rows_of("CNF-103")
    assert line.endswith(f"--case {words(name)[0]}`")
    assert one(words(name)[0]).id == words(name)[0]
    member = words(text_of("CNF-21").split("| seed |")[1])[0]
    twice, two = rows_of("CNF-21")
    seeds = [integers(twice[0])[0]] * 2, integers(two[0])
    for pair, said in zip(seeds, (twice[1], two[1]), strict=True):
        made = [one(f"{member}@{seed}").x.tobytes() for seed in pair]
        assert (made[0] == made[1]) == (said == "the same bytes")
    plain, seeded, product, own = (words(row[0])[0] for row in rows_of("CNF-106"))
    assert families.seed_of(plain) == integers(rows_of("CNF-106")[0][1])[0] == 0
    assert seeded.partition("@")[0] == plain == member
    for name, said in zip((seeded, product, own), (row[1] for row in rows_of("CNF-106")[1:]), strict=True):
        assert families.seed_of(name) == integers(said)[-1]
    assert one(seeded).x.tobytes() != one(plain).x.tobytes()


@pytest.mark.example("CNF-19")
def test_shapes_at_multiples():
    for case, multiples, given in rows_of("CNF-19"):
        shape, multiple = shape_of(case), tuple(integers(multiples))
        if given.startswith("does not apply"):
            assert len(shape) == 1
            assert multiple[0] > 1
            assert reasons(fitted(matrix_case(shape), multiple), Declaration(multiple=multiple))
            continue
        found = fitted(matrix_case(shape), multiple)
        assert found.x.shape == shape_of(given)
        for what, number, of in re.findall(r"(row|column) (\d+) is \w+ (\d+)", given):
            index = {"row": np.s_[int(number)], "column": np.s_[:, int(number)]}[what]
            other = {"row": np.s_[int(of)], "column": np.s_[:, int(of)]}[what]
            assert shape["row column".split().index(what)] == int(number)
            assert np.array_equal(found.x[index], found.x[other])


def sizes(level, **more):
    return {case.x.shape for case in families.cases(NVFP4, level, families=["sizes", "everywhere"], **more)}


@pytest.mark.example("CNF-104", "CNF-20")
def test_sizes_that_levels_reach():
    ((multiple, shapes),) = rows_of("CNF-104")
    multiple = tuple(integers(multiple))
    wanted = {tuple(integers(shape)) for shape in shapes.split(", ")}
    made = {case.x.shape for case in families.cases(NVFP4, families=["sizes"], multiple=multiple)}
    assert made == wanted
    (power,) = re.findall(r"2\^(\d+) elements", text_of("CNF-20").split("|")[0])
    assert 1 << int(power) == LARGEST
    first, second = rows_of("CNF-20")
    many = integers(first[1])[0]
    assert integers(first[1])[:2] == [1 << 16] * 2
    assert [int(row[0]) for row in (first, second)] == [1, 2]
    assert max(shape[0] for shape in sizes(1)) > many < max(shape[-1] for shape in sizes(1))
    assert sum(case.x.shape[0] > many for case in families.cases(NVFP4, 1, families=["sizes"])) == 1
    power, types = re.findall(r"2\^(\d+) elements", second[1])[0], integers(second[1])[-1]
    assert sum(case.x.size > 1 << int(power) for case in families.cases(NVFP4, 2, families=["sizes"])) == 1
    patterns = {case.x.dtype.itemsize * 8 for case in families.cases(NVFP4, 2, families=["every-pattern"])}
    assert patterns == {types}
    for level, named, shows in rows_of("CNF-20", 1):
        for name in named.split(", "):
            assert tuple(integers(name)) in sizes(int(level)), name
        if "16 bits" in shows:
            assert all(number < many for number in integers(shows))


@pytest.mark.example("CNF-105")
def test_the_level_of_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {}
    for option, _ in rows_of("CNF-105"):
        asked = " ".join(words(option)) if option.startswith("with ") else ""
        printed(f"gen nvfp4 --family every-pattern --dtype bfloat16 {asked} -o cases.bin".replace("  ", " "))
        plan = stream.read_plan(stream.Reader(io.BytesIO((tmp_path / "cases.bin").read_bytes()), "cases"))
        found[option] = plan.level, len(list(plan.cases()))
    without, given = rows_of("CNF-105")
    assert found[without[0]][0] == integers(text_of("CNF-105").split("|")[0])[0]
    assert found[given[0]] == (integers(given[0])[0], 0)
    assert found[without[0]][1] > 0


@pytest.mark.example("CNF-71", "CNF-72")
def test_scale_bytes_that_are_given():
    def bytes_given(spec, **declared):
        how = Declaration(operation="dequantize", outputs=("values",), **declared)
        found = cases_of(how, fp4ref.profiles[spec], families=["every-byte"])
        used = [case for case in found if not reasons(case, how)]
        return {int(byte) for case in used for byte in np.unique(case.encoded.scales)}, used

    plain = {"inputs": ("data", "scales", "rows", "columns")}
    first, second = rows_of("CNF-71")
    assert len(bytes_given("mxfp4", **plain, specials=())[0]) == integers(first[1])[-1]
    assert "mxfp4" in first[0]
    given, used = bytes_given("nvfp4", inputs=("data", "scales", "decode_scale", "rows", "columns"))
    assert (second[1].split(",")[0] == "all") == (len(given) == 256)
    assert all(np.isfinite(case.encoded.amax).all() and (case.encoded.amax > 0).all() for case in used)
    for subject, basis in rows_of("CNF-72"):
        specials = () if subject.endswith("without NaN") else ("nan", "inf")
        assert len(bytes_given("mxfp4", **plain, specials=specials)[0]) == integers(basis)[0]


@pytest.mark.example("CNF-102")
def test_cases_that_a_declaration_excludes():
    declarations = {'dtypes=("bfloat16",)': {"dtypes": ("bfloat16",)}, "leading=False": {"leading": False}}
    for declared, case in rows_of("CNF-102"):
        how = Declaration(**declarations[words(declared)[0]])
        three = "three dimensions" in case
        x = np.zeros((2, 3, 32) if three else (2, 32), np.float32 if three else case.split()[-1])
        found = families.Case("a/b/f32/row", "a", "", (), x, NVFP4, "row")
        assert reasons(found, how)
        assert not reasons(found, Declaration())


@pytest.mark.example("CNF-40")
def test_records_of_the_table():
    for name, size, scales, codes, byte in rows_of("CNF-40"):
        blocks = {"four blocks": 4}.get(name.partition(", ")[2], 1)
        block = 16 if "NVFP4" in name else 32
        form = Records(bytes=int(size), blocks=blocks, scales=int(scales), data=int(codes), order="halves")
        assert not form.fault(block // 2)
        assert form.bytes == blocks * (1 + block // 2)
        first, second = re.match(r"j and j \+ (\d+)", byte)[1], block // 2
        assert int(first) == second
        values = np.arange(blocks * block, dtype=np.uint8) % 16
        data = (values[0::2] | values[1::2] << 4)[None]
        stored = form.pack(data, np.full((1, blocks), 200, np.uint8), block, NVFP4.element.format)
        assert stored.shape == (1, int(size))
        assert (stored[0, int(scales) : int(scales) + blocks] == 200).all()
        place = int(codes)
        assert (stored[0, place] & 15, stored[0, place] >> 4) == (values[0], values[second])
    mxfp4 = rows_of("CNF-40")[0]
    record = dict(signature("ggml-mxfp4").record)["records"]
    assert (record["bytes"], record["order"]) == (int(mxfp4[1]), "halves")


# Streams


def layout_of(kind):
    """Words of the head of a record, by what they hold."""
    column = {"CASE": 1, "DONE": 2, "END ": 3}[kind]
    return {row[column]: int(row[0]) for row in rows_of("CNF-80") if row[0].isdigit() and row[column] != "0"}


def word(head, kind, start):
    (place,) = (place for said, place in layout_of(kind).items() if said.startswith(start))
    return struct.unpack_from("<I", head, 4 * place)[0]


def assert_zeros(head, kind):
    """Words of a head that the table gives as 0 are 0, and no others of a case are."""
    column = {"CASE": 1, "DONE": 2, "END ": 3}[kind]
    numbers = struct.unpack("<8I", head)
    zeros = [int(row[0]) for row in rows_of("CNF-80") if row[column] == "0"]
    assert not any(numbers[place] for place in zeros)
    assert [row[0] for row in rows_of("CNF-80")[:-1]] == [str(place) for place in range(len(numbers))]


def by_the_table(cases, change=lambda index, parts: parts):
    """A program that knows a stream from the tables of CNF-6 and CNF-80 alone, and lets the golden model quantize."""
    sizes = [row[0] for row in rows_of("CNF-6")]
    magic = words(rows_of("CNF-6")[0][1])[0].encode() + b"\n"
    assert len(magic) == int(sizes[0])
    kinds = re.findall(r"(\d) (\w+)", rows_of("CNF-80")[3][1])
    types = {int(number): name for number, name in kinds}
    flags = {name: int(n) for n, name in re.findall(r"(\d) (random bits|the amax|column)", rows_of("CNF-80")[7][1])}
    source, target = io.BytesIO(cases), io.BytesIO()
    start = source.read(int(sizes[0]) + int(sizes[1]))
    assert start.startswith(magic)
    text = source.read(int.from_bytes(start[int(sizes[0]) :], "little"))
    target.write(start + text)
    count, heads = 0, []
    while True:
        head = source.read(32)
        heads.append(head)
        if head[:4] != b"CASE":
            assert head[:4] == b"END "
            assert word(head, "END ", "count of cases") == count
            assert_zeros(head, "END ")
            target.write(head)
            return target.getvalue(), heads
        assert word(head, "CASE", "index of the case") == count
        kind = fp4ref.arrays.INPUT_DTYPES[types[word(head, "CASE", "type of x")]]
        rows, columns = word(head, "CASE", "rows"), word(head, "CASE", "columns")
        flag = word(head, "CASE", "flags")
        x = np.frombuffer(source.read(rows * columns * kind.itemsize), kind).reshape(rows, columns)
        amaxes = word(head, "CASE", "count of amax")
        amax = np.frombuffer(source.read(4 * amaxes), np.float32) if amaxes else None
        direction = "column" if flag & flags["column"] else "row"
        largest = np.abs(x.astype(np.float32)).max(initial=0)
        assert flag & flags["the amax"] or np.array_equal(amax, [largest], equal_nan=True)
        assert flag in {0, flags["the amax"], flags["column"], flags["the amax"] + flags["column"]}
        assert flags["random bits"] == stream.RANDOM_BITS
        q = fp4ref.quantize(x, "nvfp4", direction, amax=amax, backend="numpy").direction(direction)
        parts = change(count, [part.tobytes() for part in q[0]])
        answer = bytearray(32)
        answer[:4] = b"DONE"
        values = {"the same": 0, "bytes of data": len(parts[0]), "bytes of scales": len(parts[1])}
        for row in rows_of("CNF-80"):
            if not row[0].isdigit() or row[2] in {"0", "the four letters"}:
                continue
            place = 4 * int(row[0])
            if row[2] == "the same":
                answer[place : place + 4] = head[place : place + 4]
            else:
                number = len(parts[2]) // 4 if row[2].startswith("count of amax") else values[row[2]]
                answer[place : place + 4] = number.to_bytes(4, "little")
        target.write(bytes(answer))
        target.writelines(parts)
        assert_zeros(answer, "DONE")
        count += 1


def cases_of_plan(**settings):
    target = io.BytesIO()
    stream.write(target, stream.StreamPlan(NVFP4, **settings))
    return target.getvalue()


def judged(answers):
    reader = stream.Reader(io.BytesIO(answers), "answers")
    plan = stream.read_plan(reader)
    declared = Declaration(inputs=("x", "amax"), direction=plan.direction)
    return [judge(run.case, run.outcome, declared, run.expected) for run in stream.read(reader, plan, declared)]


@pytest.mark.example("CNF-6", "CNF-80", "CNF-112", "CNF-113")
@pytest.mark.parametrize("direction", ["row", "column"])
def test_a_program_that_knows_only_the_tables(direction):
    answers, heads = by_the_table(cases_of_plan(families=("normal", "ragged", "overflow"), direction=direction))
    found = judged(answers)
    assert found
    assert all(each.equal for each in found)
    assert any(word(head, "CASE", "flags") & 2 for head in heads[:-1])


@pytest.mark.example("CNF-112", "CNF-113")
def test_the_order_and_the_amax_of_a_stream():
    ((cases, answered),) = rows_of("CNF-112")
    assert words(cases)[0::1] == ["CASE", "CASE", "END "]
    *indices, count = integers(cases)
    assert (integers(answered), words(answered)) == ([*indices, count], ["DONE", "DONE", "END "])
    answers, heads = by_the_table(cases_of_plan(families=("normal",), dtypes=("float32",)))
    assert [word(head, "CASE", "index") for head in heads[:-1]] == indices
    assert word(heads[-1], "END ", "count") == count
    assert [found.start() for found in re.finditer(b"DONE", answers)] == sorted(
        {answers.index(b"DONE"), answers.rindex(b"DONE")}
    )
    own, callers = rows_of("CNF-113")
    largest = integers(own[0])[0]
    assert (own[0], own[1]) == (f"{largest}, not set", str(largest))
    x = np.zeros((1, 16), np.float32)
    x[0, 3] = -largest
    case = families.Case("a/b/f32/row", "a", "", (), x, NVFP4, "row")
    assert stream.golden_amax(case) == largest
    given = families.Case("a/b/f32/row", "a", "", (), x, NVFP4, "row", amax=np.float32([12]))
    assert stream.golden_amax(given) == 12
    assert callers[1].startswith("any")
    flag = re.search(r"flag (\d)", text_of("CNF-113"))[1]
    assert f"{flag} the amax is the caller's" in text_of("CNF-80")
    assert int(flag) == stream.CALLERS_AMAX


@pytest.mark.example("CNF-82")
def test_the_sizes_of_an_answer():
    whole, short = rows_of("CNF-82")
    rows = " ".join(text_of("CNF-82").split())
    shape = shape_of(re.search(r"answer to a case of (\[.*?\])", rows)[0])
    right = fp4ref.quantize(np.ones(shape, np.float32), "nvfp4", backend="numpy").row
    data, scales, amax = integers(whole[0])
    assert (right.data.size, right.scales.size, right.amax.size) == (data, scales, amax)
    bytes_, needed = integers(short[0])[0], integers(short[1])[1]
    assert needed == scales
    cases = cases_of_plan(families=("normal",), dtypes=("float32",))
    answers, _ = by_the_table(cases, lambda index, parts: [parts[0], parts[1][:bytes_], parts[2]])
    texts = {each.finding.text for each in judged(answers) if each.case.matrix == shape}
    assert texts == {short[1].removeprefix("a finding: ")}


@pytest.mark.example("CNF-32")
def test_streams_that_break_off():
    wrong, cut = rows_of("CNF-32")
    number, index = integers(wrong[0])
    answers, _ = by_the_table(cases_of_plan(families=("normal", "ragged"), dtypes=("float32",)))
    at = [found.start() for found in re.finditer(b"DONE", answers)][number]
    other = answers[: at + 4] + index.to_bytes(4, "little") + answers[at + 8 :]
    assert wrong[1].endswith("the byte of the answer")
    with pytest.raises(FileError, match=f"the answer to case {index} at byte {at}, need that to case {number}"):
        judged(other)
    assert cut[1].endswith("the byte at which it ends")
    with pytest.raises(FileError, match=f"ends at byte {at - 5},"):
        judged(answers[: at - 5])
