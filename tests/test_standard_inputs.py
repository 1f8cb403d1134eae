"""The inputs of examples and the formulas of statements, read from the text as well as the results."""

from __future__ import annotations

import inspect
import re

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import hadamard, packings
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.errors import Fp4Error
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, CUDA_E5M2
from fp4ref.model.quantize import constants
from fp4ref.standard import formulas
from fp4ref.standard.tables import codes_of, number_of, tables
from standard_rules import RULES, integers, rows_of

F = np.float32


def head_of(rule, number=0):
    return tables(RULES[rule].text)[number][0]


def plain(cell):
    return cell.replace("`", "")


def floats(text):
    return [number_of(word) for word in re.findall(r"-?\d[\d.]*", text)]


@pytest.mark.rule("BLK-13", "BLK-14", "BLK-1")
@pytest.mark.example("BLK-13", "BLK-14")
def test_a_ragged_row_from_its_words():
    (elements, *blocks), (_, *scales) = rows_of("BLK-13")
    rows, columns = integers(head_of("BLK-13")[0].split("]")[0])
    assert elements == "elements"
    (first, last), (*rest, zeros) = integers(blocks[0]), integers(blocks[1])
    x = np.array([*range(first, last + 1), *rest], F).reshape(rows, columns)
    assert rest == [*range(last + 1, x.size + 1)]
    assert zeros == 2 * last - x.size
    whole = np.pad(x, ((0, 0), (0, zeros)))
    for q in (fp4ref.quantize(x, "nvfp4").row, oracle.quantize(x, fp4ref.NVFP4), fp4ref.quantize(whole, "nvfp4").row):
        assert q.scales.ravel().tolist() == [codes_of(cell)[0] for cell in scales]
    rows, columns, first, last = integers(re.sub("`.*?`", "", head_of("BLK-14")[0]))
    ((_, *packed),) = rows_of("BLK-14")
    data = fp4ref.quantize(np.arange(first, last + 1, dtype=F).reshape(rows, columns), "nvfp4").row.data
    assert data.tobytes().hex() == "".join(map(plain, packed))


@pytest.mark.rule("BLK-7", "BLK-8", "GLB-1")
@pytest.mark.example("BLK-7", "BLK-8")
def test_matrices_from_their_words():
    head = head_of("BLK-7")[0]
    x = np.zeros(integers(head.split("]")[0]), F)
    places = re.findall(r"\((\d+), (\d+)\) = (\d+(?:\.\d+)?)", head)
    assert len(places) == 2
    for i, j, value in places:
        x[int(i), int(j)] = float(value)
    q = fp4ref.quantize(x, "nvfp4-2d", "both")
    (_, *scales), (first, *packed), (third, *others) = rows_of("BLK-7")
    for part, cell, line, other, row in zip((q.row, q.column), scales, packed, others, integers(third), strict=True):
        assert part.scales.ravel().tolist() == codes_of(cell.split()[0]) * len(x)
        assert part.data[integers(first)[0]].tobytes().hex() == plain(line)
        assert part.data[row].tobytes().hex() == plain(other)
    matrix = F([floats(row) for row in re.findall(r"\[([^][]+)\]", head_of("BLK-8")[0])])
    q = fp4ref.quantize(matrix, "nvfp4", "both")
    for part, (_, scales, data) in zip((q.row, q.column), rows_of("BLK-8"), strict=True):
        assert [part.scales.ravel().tolist(), part.data.ravel().tolist()] == [
            codes_of(cell.replace(",", "")) for cell in (scales, data)
        ]


@pytest.mark.rule("BLK-11")
@pytest.mark.example("BLK-11")
def test_products_that_lose_the_sign_of_zero():
    for name, x, _, codes in rows_of("BLK-11")[:2]:
        assert x == "-0.0"
        got, other, base = re.fullmatch(r"`?(\w+)`? \(`?(\w+)`? in `(.*)`\)", codes).groups()
        for spec, code in ((plain(name), got), (base, other)):
            q = fp4ref.quantize(np.full((1, 32), number_of(x)), spec, backend="numpy").row
            assert fp4ref.packing.unpack(q.data, 32, PROFILES[spec].element.format)[0, 0] == int(code, 16)
    formula = re.search(r"`nvfp4-fast` takes `f = (.*?)`", RULES["BLK-11"].text)[1]
    _, numbers, words, _ = rows_of("BLK-11")[2]
    names = dict(zip(("S_enc", "s"), floats(numbers), strict=True))
    fast, exact = (number_of(word) for word in re.findall("`0x.{8}`", words))
    assert formulas.value(formula, names) == fast
    assert formulas.value(re.search("`(.*?)`", RULES["BLK-4"].text)[1], names) == exact


@pytest.mark.rule("BLK-3", "BLK-4", "GLB-2")
@pytest.mark.example("BLK-3", "BLK-4")
def test_the_formulas_of_the_statements():
    t, enc = (re.search(r"`(min\(.*?\))`", RULES[rule].text)[1] for rule in ("BLK-3", "BLK-4"))
    draw = np.random.default_rng(4)
    a, amax, x = (np.exp2(draw.uniform(-20, 20, 300)).astype(F) for _ in range(3))
    s = CUDA_E4M3.decode(draw.integers(0, 127, 300).astype(np.uint8))
    te = ARITHMETIC["te"]
    g = formulas.value("min(2688 / amax, FLT_MAX)", {"amax": amax})
    names = {"a": a, "S_enc": g, "s": s}
    k = constants(fp4ref.NVFP4, np.dtype(F))
    with np.errstate(all="ignore"):
        assert te.block_scale(a, g, k).tobytes() == formulas.value(t, names).astype(F).tobytes()
        products = (x * formulas.value(enc, names)).astype(F)
        assert te.scaled(x, s, g, k).tobytes() == products.tobytes()


@pytest.mark.rule("HAD-3", "HAD-4", "HAD-8")
@pytest.mark.example("HAD-3", "HAD-4", "HAD-8")
def test_transforms_from_their_words():
    for rule, direction in (("HAD-4", "row"), ("HAD-8", "column")):
        words, name = re.fullmatch(r"x = \[(.*)\], `(.*)`", head_of(rule)[0]).groups()
        first, second, last = integers(words)
        x = np.arange(first, last + 1, second - first).astype(ml_dtypes.bfloat16)[:, None]
        part = fp4ref.quantize(x, name, direction, backend="numpy").direction(direction)[0]
        ((_, amax, scales, packed),) = rows_of(rule)
        assert float(part.amax[0]) == float(amax)
        shown = re.findall("`(..)`", scales)
        assert [f"{part.scales[i, 0]:02X}" for i in ((0, 1, -1) if len(shown) > 1 else (0,))] == shown
        times = 16 if "sixteen times" in packed else 1
        assert part.data.tobytes().hex() == packed.split("`")[1] * times
    words, _, after = rows_of("HAD-3")[1]
    values, mask = re.fullmatch(r"(.*), mask `(0x....)`: elements 0 to 3", words).groups()
    first, second, third, last = integers(values)
    x = F([first, *range(second, last + 1, third - second)])
    assert hadamard.transform(x[None], int(mask, 16))[0, :4].tolist() == [float(word) for word in after.split()]


@pytest.mark.rule("GEM-1")
@pytest.mark.example("GEM-1")
def test_products_from_their_words():
    x = []
    for left, right, d in rows_of("GEM-1"):
        count = integers(left.split("(")[1])[0] if "(" in left else len(x)
        x = floats(left.split("...")[0]) if left != "the same" else x
        operands = [np.resize(F(v), count)[None] for v in (x, floats(right.split("...")[0]))]
        a, b = (fp4ref.quantize(v, "nvfp4", backend="numpy") for v in operands)
        assert float(fp4ref.gemm(a, b, backend="numpy")[0, 0]) == float(d) == float((operands[0] * operands[1]).sum())
        x = np.resize(F(x), count)


@pytest.mark.rule("LAY-22", "LAY-8")
@pytest.mark.example("LAY-22")
def test_starts_of_members_in_the_prose():
    text = RULES["LAY-22"].text
    name, multiple, rows, columns = re.search(
        r"In `(.*?)`, where n is (\d+), members of (.*?) rows with (\d+) columns", text
    ).groups()
    members = [(count, int(columns)) for count in integers(rows)]
    form = fp4ref.LAYOUTS[name]
    starts = {row[0].strip("`"): [int(cell) for cell in row[1:]] for row in rows_of("LAY-22", 1)}
    assert set(starts) == {row[0].strip("`") for row in rows_of("LAY-22")}
    for kind, shown in starts.items():
        assert form.group_offsets(members, kind) == shown
    formula = re.search(r"after `(pad.*?)` rows", text)[1]
    known = {"pad": lambda n, step: -(-n // step) * step, "n": int(multiple)}
    sizes = [np.prod(form.padded(*member)) for member in members]
    for i in range(len(members) + 1):
        before = sum(count for count, _ in members[:i])
        words = formula.replace("rows before", "before")
        start = eval(words, {"__builtins__": {}}, known | {"before": before, "i": i})
        assert start * form.padded(1, int(columns))[1] == starts["bound"][i]
        assert (sum(sizes[:i]), i * max(sizes)) == (starts["packed"][i], starts["fixed"][i])


@pytest.mark.rule("LAY-3", "LAY-13")
@pytest.mark.example("LAY-3", "LAY-13")
def test_strides_of_digits():
    rows, columns = 384, 12
    tiles = columns // 4
    form = fp4ref.LAYOUTS["tiled_128x4"]
    found = {}
    for digit, takes, apart in rows_of("LAY-3"):
        names = {"H": rows, "tiles": tiles}
        count = eval(takes.replace("/", "//"), {"__builtins__": {}}, names)
        step = eval(re.sub(r"(\d) tiles", r"\1 * tiles", apart), {"__builtins__": {}}, names)
        found[plain(digit).replace("/", "//")] = (count, step)
    for m in range(0, rows, 37):
        for k in range(columns):
            values = {digit: eval(digit, {"__builtins__": {}}, {"m": m, "k": k}) for digit in found}
            assert all(value < found[digit][0] for digit, value in values.items())
            total = sum(value * found[digit][1] for digit, value in values.items())
            assert total == form.offset(m, k, rows=rows, columns=columns)
    last = re.search(r"The last one: (.*?) = (.*?) and (.*?) = (.*?), so (.*?) = (\d+)\.", RULES["LAY-3"].text).groups()
    m, row, k, column, sums, offset = (eval(part, {"__builtins__": {}}) for part in last)
    assert (row, column, sums) == (m, k, offset) == (m, k, form.offset(m, k, columns=8))
    text, strides = re.search(r"(?s)In `(m\(16.*?)` the strides are (.*?)and 256 times", RULES["LAY-13"].text).groups()
    known = re.findall(r"(\d+) for ([mk]\d)", strides)
    assert len(known) == 5
    starts = {"m0": (1, 0), "m1": (16, 0), "k0": (0, 1), "k1": (0, 4), "k2": (0, 8)}
    for step, digit in known:
        assert fp4ref.Layout("it", text).offset(*starts[digit], columns=24, rows=64) == int(step)


@pytest.mark.rule("MXS-2", "MXS-3", "MXS-4")
@pytest.mark.example("MXS-2", "MXS-3", "MXS-4")
def test_the_fields_of_mx_scales():
    formats = {"E2M1": (CUDA_E2M1, 1), "E4M3": (CUDA_E4M3, 3), "E5M2": (CUDA_E5M2, 2)}
    pairs = {
        "MXS-2": [
            (rows_of("MXS-2")[0][0], *pair) for pair in zip(head_of("MXS-2")[2:], rows_of("MXS-2")[0][2:], strict=True)
        ],
        "MXS-3": [
            (rows_of("MXS-3")[0][0], *pair) for pair in zip(head_of("MXS-3")[2:], rows_of("MXS-3")[0][2:], strict=True)
        ],
        "MXS-4": [(row[0], row[i], row[i + 1]) for row in rows_of("MXS-4") for i in (1, 3)],
    }
    for rule, examples in pairs.items():
        formula = re.search("`field = (.*?)`", RULES[rule].text)[1].replace("bits(a)", "bits")
        for name, a, byte in examples:
            codec, mbits = formats[name]
            bits = int(number_of(a).view(np.uint32))
            field = eval(formula, {"__builtins__": {}}, {"bits": bits, "mbits": mbits})
            assert min(max(field - codec.format.emax, 0), 254) == codes_of(byte)[0], (rule, a)


@pytest.mark.rule("DEQ-3", "DEQ-6")
@pytest.mark.example("DEQ-3", "DEQ-6")
def test_values_of_other_types():
    for value, half, quarter in rows_of("DEQ-3"):
        for cell, dtype in ((half, ml_dtypes.bfloat16), (quarter, np.float16)):
            with np.errstate(over="ignore"):
                assert number_of(value).astype(dtype) == number_of(cell).astype(dtype)
                assert str(number_of(value).astype(dtype).astype(F)).lower().startswith(cell.lower()[:8])
    for code, word, others in rows_of("DEQ-6"):
        q = fp4ref.quantize(np.zeros((1, 32), F), "mxfp8-e4m3", backend="numpy")
        q.row.data[:], q.row.scales[:] = codes_of(code)[0], 0x7F
        bits = int(fp4ref.dequantize(q, backend="numpy").view(np.uint32)[0, 0])
        assert f"`0x{bits:08X}`" == word
        assert all(np.isnan(number_of(other)) for other in others.split(","))


@pytest.mark.rule("SR-6", "SR-7")
@pytest.mark.example("SR-6", "SR-7")
def test_the_generator_as_the_text_writes_it():
    """Compute one round from the line of the rule, with the key's steps from its sentence."""
    text = RULES["SR-6"].text
    line = re.search(r"```\n\(c0, c1, c2, c3\) = (.*?)\n```", text)[1]
    steps = [int(word, 16) for word in re.findall(r"`k[01]` (?:grows )?by (0x[0-9A-F]{8})", text)]
    default = integers(re.search(r"(\d+) by default", text)[1])[0]
    sentence = r"of (\d+)-bit words.*?the halves of the (\d+)-bit product.*?modulo (\d)\^(\d+)\."
    width, product_width, base, power = map(int, re.search(sentence, text, re.DOTALL).groups())
    assert (product_width, base**power) == (2 * width, 1 << width)
    known = {"high": lambda product: product >> width, "low": lambda product: product % (1 << width)}

    def drawn(rounds, counter, key):
        for _ in range(rounds):
            names = dict(zip(("c0", "c1", "c2", "c3", "k0", "k1"), (*counter, *key), strict=True))
            counter = eval(line, {"__builtins__": {}}, known | names)
            key = [(k + step) % base**power for k, step in zip(key, steps, strict=True)]
        return counter

    for rounds, counter, key, output in rows_of("SR-6"):
        assert [f"{word:08X}" for word in drawn(int(rounds), integers(counter), integers(key))] == plain(output).split()
    ten = re.search(r"and there are (\d+) rounds", RULES["SR-7"].text)[1]
    assert default == int(ten)
    for shape, direction, seed, stream, place, shown in rows_of("SR-7"):
        whole = integers(shape)
        (row, column), (_, end), *_ = re.findall(r"\((\d+), (\d+)\)", place)
        columns = whole[1] if direction == "row" else whole[0]
        if direction == "column":
            assert integers(place.split("of")[1]) == whole[::-1]
        block = int(row) * -(-columns // 16) + int(column) // 16
        u = 2 * int(stream) + (direction == "column")
        words = drawn(int(ten), (block, 0, u, 0), (int(seed), 0))
        found = b"".join(word.to_bytes(4, "little") for word in words)[int(column) % 16 : int(end) % 16 + 1]
        assert [*found] == codes_of(shown)
        bits = fp4ref.random_bits(tuple(whole), direction, int(seed), int(stream))
        assert bits[int(row), int(column) : int(end) + 1].tobytes() == found


def value_of(words, names):
    """The value of integers joined by +, *, mod, ^, and quotients in floor or ceil."""
    words = re.sub(r"ceil\((.*?) / (.*?)\)", r"-(-\1 // \2)", words)
    words = re.sub(r"floor\((.*?) / (.*?)\)", r"(\1 // \2)", words).replace(" mod ", " % ").replace("^", "**")
    return eval(words, {"__builtins__": {}}, names)


@pytest.mark.rule("SR-7", "SR-14")
@pytest.mark.example("SR-7", "SR-14")
def test_the_counter_map_as_the_text_writes_it():
    text = " ".join(RULES["SR-7"].text.split())
    size = int(re.search(r"Number the blocks of (\d+) consecutive", text)[1])
    assert f"per block of {size}" in RULES["SR-7"].title
    place, block = re.search(r"element `i = (.*?)` of block `number = (.*?)`", text).groups()
    counter, *upper = re.search(
        r"counter is \((.*)\), where place is (.*?) for the row direction, and (.*?) for the column", text
    ).groups()
    key = re.search(r"key is \((.*)\), and there", text)[1]
    whole, far = (2**36 + 9, 2**30 + 7), (2**36 - 3, 2**30 - 16)
    for direction, u in zip(("row", "column"), upper, strict=True):
        for seed, stream, at in ((0, 0, (0, 0)), (2**64 - 5, 2**63 - 9, far), (2**32, 2**31, (2**20, 32))):
            origin = at if direction == "row" else (at[0] // 16 * 16, at[1])
            shape = (1, 20) if direction == "row" else (20, 1)
            shape = (min(shape[0], whole[0] - origin[0]), min(shape[1], whole[1] - origin[1]))
            got = fp4ref.random_bits(shape, direction, seed, stream, origin, whole, backend="numpy")[0]
            (r, first), n = (origin, whole[1]) if direction == "row" else (origin[::-1], whole[0])
            for c, byte in enumerate(got, first):
                names = {"r": r, "c": c, "n": n, "seed": seed, "stream": stream}
                names |= {"number": value_of(block, names), "place": value_of(u, names)}
                words = fp4ref.philox4x32(
                    [value_of(part, names) for part in counter.split(", ")],
                    [value_of(part, names) for part in key.split(", ")],
                )
                assert words.astype("<u4").tobytes()[value_of(place, names)] == byte
    seeds, streams, (_, fewer, _) = rows_of("SR-14")
    assert (seeds[0], streams[0], seeds[2]) == ("seed", "stream", streams[2])
    default, most = seeds[2], re.search(r"fewer than (2\^\d+) blocks", fewer)[1]
    given = inspect.signature(fp4ref.random_bits).parameters
    assert {given["seed"].default, given["stream"].default} == {int(default)}
    fp4ref.random_bits((1, size), whole=(value_of(most, {}) - 1, size))
    with pytest.raises(Fp4Error, match="SR-14"):
        fp4ref.random_bits((1, size), whole=(value_of(most, {}), size))


@pytest.mark.rule("SR-2", "SR-4")
@pytest.mark.example("SR-2", "SR-4")
def test_the_bytes_of_a_magnitude_as_the_text_counts_them():
    counts = {name: " ".join(RULES[name].text.split()) for name in ("SR-2", "SR-4")}
    assert set(re.findall(r"byte / (\d+)", RULES["SR-2"].title + counts["SR-2"])) == {"256"}
    assert "576 magnitudes" in RULES["SR-4"].title
    assert set(re.findall(r"(\d+) magnitudes", counts["SR-4"])) == {"576"}
    shares = re.findall(r"(\d+) \* frac", counts["SR-4"]) + re.findall(r"the (\d+) byte values", counts["SR-4"])
    assert {*shares, re.search(r"step / (\d+)", RULES["SR-4"].title)[1]} == {"256"}
    top = float(re.search(r"of a magnitude up to (\d) from the lower value", counts["SR-4"])[1])
    codec = PROFILES["nvfp4-sr"].element
    assert codec.decode(codec.encode(F([top, 2 * top]), np.uint8([0, 0]))).tolist() == [top, top]
    zero = int(re.search(r"Byte (\d+) truncates toward zero", counts["SR-2"])[1])
    below = np.nextafter(F([0.5, 1, 2, 4, 6]), F(0))
    assert codec.encode(below, np.full(5, zero, np.uint8)).tolist() == [0, 1, 3, 5, 6]
    assert codec.encode(below, np.full(5, zero + 1, np.uint8)).tolist() != [0, 1, 3, 5, 6]


@pytest.mark.rule("SR-2", "SR-4")
@pytest.mark.example("SR-2")
def test_a_sum_in_binary64_needs_a_rounding_to_float32():
    """Every magnitude of which a sum with any byte is within 2^-24 of 0.5, and those beside the other values."""
    text = " ".join(RULES["SR-2"].text.replace("> ", "").split())
    low, minus, high = re.search(r"at least 2\^-(\d+) - 2\^-(\d+) and below ([\d.]+), and there", text).groups()
    values, codec, unlike = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]), PROFILES["nvfp4-sr"].element, set()
    for byte in range(256):
        around = []
        for value in values[1:]:
            for step in (0.5, 1, 2):
                start, reach = F(max(value - byte / 256 * step, 0)), F(2**-24)
                ends = (F(max(start - reach, 0)), F(min(start + reach, 5.99)))
                first, last = (int(end.view(np.uint32)) for end in ends)
                picked = np.unique(np.linspace(first, last, 4000).astype(np.uint32))
                exact = np.arange(first, last + 1, dtype=np.uint32) if last - first < 4000 else picked
                around.append(exact.view(F))
        m = np.unique(np.concatenate(around))
        step = np.select([m >= 4, m >= 2], [2, 1], 0.5)
        wide = byte / 256 * step + m.astype(np.float64)
        codes = codec.encode(m, np.full(len(m), byte, np.uint8))
        narrow, exact = (np.searchsorted(values, w, side="right") - 1 for w in (wide.astype(F), wide))
        assert np.array_equal(np.minimum(narrow, 7), codes)
        unlike.update(m[exact != codes].tolist())
    assert len(unlike) == int(re.search(r"(\d+) magnitudes", RULES["SR-4"].title)[1])
    assert min(unlike) == 2 ** -int(low) - 2 ** -int(minus)
    assert max(unlike) == np.nextafter(F(high), F(0))


@pytest.mark.rule("SR-2")
@pytest.mark.example("SR-2")
def test_the_bytes_that_round_away():
    codec = PROFILES["nvfp4-sr"].element
    for y, below, above in rows_of("SR-2"):
        codes = codec.encode(np.full(256, number_of(y)), np.arange(256, dtype=np.uint8)).tolist()
        words = [re.fullmatch(r"byte (<|>=) (\d+): (\w)", cell) for cell in (below, above)]
        if all(words):
            (_, first, low), (_, second, high) = (word.groups() for word in words)
            assert codes == [int(low, 16)] * int(first) + [int(high, 16)] * (256 - int(second))
        else:
            assert (codes, above) == ([int(below.split(": ")[1], 16)] * 256, "never")


@pytest.mark.rule("SPC-1", "PACK-13")
@pytest.mark.example("SPC-1", "PACK-13")
def test_fields_and_canonical_packings():
    fields = {row[0]: row[2] for row in rows_of("SPC-1")}
    assert tuple(integers(fields["block"])) == tuple(fp4ref.NVFP4.block)
    for name in ("element", "scale"):
        form, rounding, sign, nan, overflow, infinity = fields[name].split(", ")
        codec = getattr(fp4ref.NVFP4, name)
        assert (form.lower(), rounding, sign) == (codec.format.name, codec.rounding, codec.sign)
        assert [int(code, 16) for code in nan.split(" and ")] == [*codec.nan]
        assert {"none"} == {overflow, infinity}
        assert (codec.overflow, codec.infinity) == (None, None)
    for bits, name, text in rows_of("PACK-13"):
        form = packings.CANONICAL_OF[int(bits)]
        assert (form.name, fp4ref.Layout("it", plain(text)).text) == (plain(name), form.text)


@pytest.mark.rule("SR-4")
@pytest.mark.example("SR-4")
def test_the_magnitudes_whose_mean_is_above():
    """Every magnitude below 0.25 whose 256 * frac is just below an integer: one byte value more rounds away."""
    count = 0
    codec = PROFILES["nvfp4-sr"].element
    for step in range(1, 129):
        top = F(step / 512)
        near = [top]
        while True:
            near.append(np.nextafter(near[-1], F(0)))
            if float(top) - float(near[-1]) > 2.0**-26:
                break
        for y in near[1:-1]:
            codes = codec.encode(np.full(256, y), np.arange(256, dtype=np.uint8))
            frac = float(y) * 2
            count += int((codes == 1).sum()) == int(256 * frac) + 1
    assert count == int(re.search(r"which (\d+) magnitudes are", RULES["SR-4"].text)[1])
