"""Tables of rules that state one small fact each, computed; see test_standard_examples."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

import forked
import fp4ref
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.conformance.dumps.files import read_dump
from fp4ref.conformance.verdict.stochastic import Level
from fp4ref.errors import FileError, Fp4Error
from fp4ref.files import open_tensors, safetensors
from fp4ref.formats import CUDA_E8M0, FORMATS, Codec, Format
from fp4ref.layout import LAYOUTS
from fp4ref.model.quantize import constants
from fp4ref.model.tiles import widen
from fp4ref.standard.tables import codes_of, number_of, tables
from standard_rules import RULES, rows_of

F = np.float32


def record_of(name):
    return json.loads(fp4ref.profiles[name].to_json())


def read_json(record):
    return fp4ref.from_json(json.dumps(record))


def bits_of(value):
    return int(np.asarray(value, F).view(np.uint32))


# Chapter 00


@pytest.mark.rule("RES-5")
@pytest.mark.example("RES-5")
def test_unspecified_bytes():
    spec, shape, direction = re.fullmatch(r"`(.*)`, \[(.*)\], (\w+)", tables(RULES["RES-5"].text)[0][0][0]).groups()
    x = np.random.default_rng(7).standard_normal([int(n) for n in shape.split(", ")]).astype(F)
    for name, every, specified, unspecified in rows_of("RES-5"):
        q = fp4ref.quantize(x, spec, direction, name.strip("`"), backend="numpy")
        assert q.row.scales.size == int(every) == int(specified) + int(unspecified)
        rows, columns = int(np.prod(x.shape[:-1])), -(-x.shape[-1] // 16)
        places = [
            LAYOUTS[q.scale_layout].offset(m, k, rows=rows, columns=columns)
            for m in range(rows)
            for k in range(columns)
        ]
        assert len({*places}) == (int(specified) if int(unspecified) else 18)
        free = np.setdiff1d(np.arange(int(every)), places) if int(unspecified) else []
        assert len(free) == int(unspecified)
        other = q.row.scales.copy().reshape(-1)
        other[free] = 0xA5
        changed = dataclasses.replace(q, row=q.row._replace(scales=other.reshape(q.row.scales.shape)))
        for backend in ("numpy", "cpu"):
            got, want = (fp4ref.dequantize(each, backend=backend).tobytes() for each in (changed, q))
            assert got == want
        padding = np.setdiff1d(np.arange(int(every)), places)
        assert len(free) or not q.row.scales.reshape(-1)[padding].any()  # specified: 0x00


@pytest.mark.rule("RES-6")
@pytest.mark.example("RES-6")
def test_names_of_layouts_of_scales():
    for words, result in rows_of("RES-6", 1):
        name, x = re.match("`(.*?)`", words)[1], np.ones((2, 32), F)
        if result == "quantized":
            assert fp4ref.quantize(x, "nvfp4", scale_layout=name).scale_layout == name
        else:
            with pytest.raises(Fp4Error, match=r"\[(RES-6|LAY-59|SPC-4)\]"):
                fp4ref.quantize(x, "nvfp4", scale_layout=name)


@pytest.mark.rule("RES-7", "GEM-20")
@pytest.mark.example("RES-7")
def test_results_that_are_not_whole():
    q = fp4ref.quantize(np.ones((2, 16), F), "nvfp4", backend="numpy")
    changes = {
        "read as the column direction": {},
        "without its amax": {"amax": None},
        "data of int8": {"data": q.row.data.view(np.int8)},
        "scales [3, 1]": {"scales": np.zeros((3, 1), np.uint8)},
    }
    assert [words for words, _ in rows_of("RES-7")] == [*changes]
    for words, result in rows_of("RES-7"):
        broken = dataclasses.replace(q, row=q.row._replace(**changes[words]))
        direction = "column" if "column" in words else "row"
        assert result == "refused"
        also = "|LAY-60" if "scales" in words else ""
        with pytest.raises(Fp4Error, match=rf"\[(RES-7{also})\]"):
            fp4ref.dequantize(broken, direction=direction)
        also += "|GEM-20" if "column" in words else ""
        with pytest.raises(Fp4Error, match=rf"\[(RES-7{also})\]"):
            fp4ref.gemm(broken, q, directions=(direction, "row"))


# Chapter 01


@pytest.mark.rule("NUM-10")
@pytest.mark.example("NUM-10")
def test_inputs_are_widened():
    for name, word, wide in rows_of("NUM-10"):
        kind = ml_dtypes.bfloat16 if name.startswith("bfloat16") else np.float16
        value = np.array([int(word.strip("`"), 16)], np.uint16).view(kind)
        assert bits_of(widen(value)[0]) == bits_of(number_of(wide))
        assert number_of(re.search(r" ([\d.^-]+)", name)[1]) == number_of(wide)


# Chapter 05


@pytest.mark.rule("BLK-15")
@pytest.mark.example("BLK-15")
def test_directions_of_a_call():
    asked = {"row": "row", "column": "column", "both": "both", "none": (), "row twice": ("row", "row")}
    for words, result in rows_of("BLK-15"):
        directions = asked.get(words, words.strip("`"))
        if result == "quantized":
            q = fp4ref.quantize(np.ones((2, 16), F), "nvfp4", directions)
            assert [part is not None for part in (q.row, q.column)] == [words != "column", words != "row"]
        else:
            with pytest.raises(Fp4Error, match="BLK-15"):
                fp4ref.quantize(np.ones((2, 16), F), "nvfp4", directions)


# Chapter 07


@pytest.mark.rule("HAD-9")
@pytest.mark.example("HAD-9")
def test_where_there_is_no_inverse():
    for words, result in rows_of("HAD-9"):
        name, shape, direction = re.fullmatch(r"`(.*)`, \[(.*)\], (\w+)", words).groups()
        x = np.ones([int(n) for n in shape.split(", ")], ml_dtypes.bfloat16)
        q = fp4ref.quantize(x, name, direction)
        if result == "accepted":
            assert fp4ref.dequantize(q, direction=direction, inverse_hadamard=True).shape == x.shape[::-1]
        else:
            with pytest.raises(Fp4Error, match="HAD-9"):
                fp4ref.dequantize(q, direction=direction, inverse_hadamard=True)


# Chapter 09


@pytest.mark.rule("SR-16", "SR-2")
@pytest.mark.example("SR-16")
def test_a_kernel_with_given_bits_is_exact():
    codec = fp4ref.profiles["nvfp4-sr"].element
    for words, given, accepted in rows_of("SR-16"):
        y, byte = re.search(r"y = ([\d.]+) with byte (\d+)", words).groups()
        codes = codec.encode(F([float(y)]), np.uint8([int(byte)])).tolist()
        (code,) = re.findall(r"code (\d)", accepted)
        assert (given, codes == [int(code)]) == ("given", not accepted.startswith("never"))


@pytest.mark.rule("SR-18")
@pytest.mark.example("SR-18")
def test_levels_of_stochastic_verdicts():
    assert {name for name, _ in rows_of("SR-18")} == {level.value for level in Level}


# Chapter 12


@pytest.mark.rule("SPC-13", "SPC-14")
@pytest.mark.example("SPC-13", "SPC-14")
def test_json_is_read_back():
    (whole, named), (_, changed) = rows_of("SPC-13")
    spec = fp4ref.from_json(fp4ref.profiles[whole.strip("`")].to_json())
    assert (spec, spec.name) == (fp4ref.profiles[whole.strip("`")], re.search("named `(.*)`", named)[1])
    six = fp4ref.NVFP4.replace(element_max=6.0)
    assert fp4ref.from_json(six.to_json()) == six != fp4ref.NVFP4
    assert changed == "equal, and not equal to `nvfp4`"
    for version, name in rows_of("SPC-14"):
        record = record_of("nvfp4") | {"fp4ref": json.loads(version.strip("`"))}
        assert read_json(record) == fp4ref.profiles[name.strip("`")]


@pytest.mark.rule("SPC-15")
@pytest.mark.example("SPC-15")
def test_the_sign_of_a_codec_without_a_sign():
    for sign, code, result in rows_of("SPC-15"):
        record = record_of("mxfp4")
        record["scale"]["sign"] = sign.strip("`")
        spec = read_json(record)
        assert (spec == fp4ref.profiles["mxfp4"]) == (result == "equal to `mxfp4`")
        assert spec.scale.encode(F([3])).tolist() == codes_of(code)


@pytest.mark.rule("SPC-16")
def test_a_default_does_not_depend_on_other_fields():
    codec, arithmetic = (re.search("`(.*)`", row[1])[1] for row in rows_of("SPC-16", 1))
    record = record_of("mxfp4")
    del record["scale"]["rounding"], record["arithmetic"]
    spec = read_json(record | {"name": "without"})
    assert (spec.scale.rounding, spec.scale.format) == (codec, CUDA_E8M0.format)
    assert spec.arithmetic == ARITHMETIC[arithmetic]


@pytest.mark.rule("SPC-17", "SPC-2")
@pytest.mark.example("SPC-17")
def test_real_numbers_in_json():
    text = fp4ref.NVFP4.to_json()
    for number, result in rows_of("SPC-17"):
        changed = text.replace('"element_max": null', f'"element_max": {number.strip("`")}')
        value = float(result.split(",")[0].replace("infinity", "inf"))
        if rule := re.search(r"refused by (SPC-\d+)", result):
            with pytest.raises(Fp4Error, match=rf"element_max {value} .*{rule[1]}"):
                fp4ref.from_json(changed)
        else:
            assert fp4ref.from_json(changed).element_max == value


@pytest.mark.rule("SPC-18", "GLB-2")
@pytest.mark.example("SPC-18")
def test_the_product_of_both_maxima():
    for scale_max, element_max, product, exact in rows_of("SPC-18"):
        four_over_six = dataclasses.replace(fp4ref.NVFP4_4OVER6.four_over_six, scale_max=float(scale_max))
        spec = fp4ref.NVFP4_4OVER6.replace(element_max=float(element_max), four_over_six=four_over_six)
        k = constants(spec, np.dtype(F))
        expected = bits_of(number_of(product))
        assert bits_of(ARITHMETIC["te"].global_scale(F([1]), k)[0]) == expected
        assert bits_of(F(float(scale_max)) * F(float(element_max))) == expected
        assert bits_of(F(float(scale_max) * float(element_max))) == bits_of(number_of(exact))


@pytest.mark.rule("SPC-19")
@pytest.mark.example("SPC-19")
def test_a_format_without_a_zero():
    for roundings, number, code in rows_of("SPC-19"):
        for rounding in re.findall("`(.*?)`", roundings):
            codec = Codec(format=CUDA_E8M0.format, rounding=rounding, nan=CUDA_E8M0.nan)
            assert codec.encode(F([number_of(number)])).tolist() == codes_of(code)


@pytest.mark.rule("SPC-20", "SPC-4")
@pytest.mark.example("SPC-20")
def test_what_is_imported_before_a_name_is_unknown(tmp_path):
    (chosen, _, found), (nothing, _, error) = rows_of("SPC-20")
    name = chosen.strip("`")
    module = tmp_path / "chosen_rows.py"
    text = f"import fp4ref\nfp4ref.register(fp4ref.Layout({name!r}, 'm(*) k(*): k0 m0'), source='a test')\n"
    module.write_text(text, "utf-8")
    command = ["fp4ref", "layouts", "where", name, "1,0", "--shape", "2x2"]
    with_it = forked.run([*command, "--import", str(module)], tmp_path)
    assert (with_it.returncode, found, nothing) == (0, "found", chosen), with_it.stderr
    without = forked.run(command, tmp_path)
    assert (without.returncode, "Traceback" in without.stderr) == (2, False)
    assert f"unknown name '{name}', need a registered one" in without.stderr
    assert error == "an error that lists registered names"


@pytest.mark.rule("SPC-21")
@pytest.mark.example("SPC-21")
def test_a_name_registered_twice(request):
    name, bits = re.match(
        r"registered as `(.*)`, with codes of (\d) bits", tables(RULES["SPC-21"].text)[0][0][0]
    ).groups()
    request.addfinalizer(lambda: FORMATS.forget(name))
    for words, result in rows_of("SPC-21"):
        counts = [int(word) for word in re.findall(r"\d+", words)]
        first, second = (Format(name, 3, 2, bias=3, codes=codes) for codes in (counts[0], counts[-1]))
        assert first.bits == int(bits)
        fp4ref.register(first, source="a test")
        if result == "accepted":
            assert fp4ref.register(second, source="a test") == first
        else:
            with pytest.raises(Fp4Error, match="SPC-21"):
                fp4ref.register(second, source="a test")


# Chapter 13


@pytest.mark.rule("FIL-11")
@pytest.mark.example("FIL-11")
def test_the_order_of_tensors(tmp_path):
    ((given, written),) = rows_of("FIL-11")
    entries = [fp4ref.files.Entry(name, kind, (2,)) for name, kind in re.findall("`(.)` of `(.*?)`", given)]
    _, starts = safetensors.header(tmp_path / "a.safetensors", entries, {})
    assert sorted(starts, key=starts.get) == re.findall("`(.)`", written)


def archive(array=None, name="a.npy", method=zipfile.ZIP_STORED):
    member, data = io.BytesIO(), io.BytesIO()
    np.save(member, np.arange(2, dtype=np.uint8) if array is None else array)
    with zipfile.ZipFile(data, "w", method) as file:
        file.writestr(name, member.getvalue())
    return data.getvalue()


def read_archive(path, data):
    path.write_bytes(data)
    with open_tensors(path) as file:
        return {name: file.read(name).ravel().tolist() for name in file.names}


@pytest.mark.rule("FIL-14", "FIL-15", "FIL-16")
@pytest.mark.example("FIL-14", "FIL-15", "FIL-16")
def test_the_directory(tmp_path):
    path, data = tmp_path / "a.npz", archive(method=zipfile.ZIP_DEFLATED)
    for words, at, start in rows_of("FIL-14"):
        (before,) = re.findall(r"with (\d+) bytes before", words) or ["0"]
        moved = bytes(int(before)) + data
        assert struct.unpack_from("<I", moved, moved.index(b"PK\1\2") + 42)[0] == int(at)
        assert moved.index(b"PK\3\4") == int(start)
        assert read_archive(path, moved) == {"a": [0, 1]}
    fields = ((b"PK\3\4", 18), (b"PK\3\4", 30))
    for (words, result), (mark, offset) in zip(rows_of("FIL-15"), fields, strict=True):
        changed = bytearray(data)
        changed[data.index(mark) + offset] ^= 1
        if result == "read":
            assert read_archive(path, bytes(changed)) == {"a": [0, 1]}, words
        else:
            with pytest.raises(FileError, match="FIL-2"):
                read_archive(path, bytes(changed))
    ((words, result),) = rows_of("FIL-16")
    count = int(re.search(r"with (\d) bytes between", words)[1])
    directory = data.index(b"PK\1\2")
    longer = bytearray(data[:directory] + bytes(count) + data[directory:])
    struct.pack_into("<I", longer, len(longer) - 6, directory + count)
    assert (read_archive(path, bytes(longer)), result) == ({"a": [0, 1]}, "as without them")


@pytest.mark.rule("FIL-17")
@pytest.mark.example("FIL-17")
def test_names_of_members(tmp_path):
    pages = re.findall(r"code page (\d+)", f"{RULES['FIL-17'].title} {RULES['FIL-17'].text}")
    for cell, flag, name in rows_of("FIL-17"):
        raw = bytes.fromhex(cell.strip("`"))
        decoded = {raw.decode("utf-8" if flag == "set" else f"cp{page}") for page in pages}
        assert decoded == {name.strip("`")}
        data = bytearray(archive(name="x" * (len(raw) - 4) + ".npy"))
        for mark, names, flags in ((b"PK\3\4", 30, 6), (b"PK\1\2", 46, 8)):
            place = data.index(mark)
            data[place + names : place + names + len(raw)] = raw
            struct.pack_into("<H", data, place + flags, 0x800 if flag == "set" else 0)
        assert read_archive(tmp_path / "a.npz", bytes(data)) == {name.strip("`").removesuffix(".npy"): [0, 1]}


@pytest.mark.rule("FIL-18", "FIL-19")
@pytest.mark.example("FIL-18", "FIL-19")
def test_orders_and_members_of_arrays(tmp_path):
    for shape, fortran, stored, read in rows_of("FIL-18"):
        sizes = [int(word) for word in re.findall(r"\d+", shape)]
        array = np.array(stored.split(), np.uint8).reshape(sizes, order="F" if fortran == "`True`" else "C")
        data = archive(array)
        assert bytes(map(int, stored.split())) in data
        assert read_archive(tmp_path / "a.npz", data) == {"a": [int(word) for word in read.split()]}
    ((tensor, method, date),) = rows_of("FIL-19")
    path = tmp_path / "b.npz"
    entry = fp4ref.files.Entry("a", "U8", (2,))
    fp4ref.files.write_tensors(path, [entry], {}, [np.zeros(2, np.uint8)])
    (info,) = zipfile.ZipFile(path).infolist()
    assert (info.filename, info.compress_type) == (tensor.strip("`"), int(method))
    year, month, day, hour, minute, _ = info.date_time
    assert date.startswith(f"{year}-{month:02}-{day:02}, {hour:02}:{minute:02},")


def written(path, **entries):
    np.savez(path, **entries)
    return path


@pytest.mark.rule("FIL-20", "FIL-21", "FIL-22", "FIL-9")
@pytest.mark.example("FIL-20", "FIL-21", "FIL-22")
def test_names_and_shapes_of_entries(tmp_path):
    x = np.arange(240, dtype=F).reshape(6, 40)
    row, column = (fp4ref.quantize(x, "nvfp4", "both", backend="numpy").direction(d)[0] for d in ("row", "column"))
    arrays = row._asdict() if hasattr(row, "_asdict") else vars(row)
    arrays = {name: arrays[name] for name in ("data", "scales", "amax")}
    short, prefixed = rows_of("FIL-20")
    path = written(tmp_path / "a.npz", **arrays)
    assert read_dump(path, "nvfp4")[0].quantized.row.data.tobytes() == row.data.tobytes()
    assert short == ["`data`", "`row.data` of the tensor without a name"]
    for name in re.findall("`(.*?)`", prefixed[0]):
        with pytest.raises(FileError, match=re.search(r"refused by (\S+)", prefixed[1])[1]):
            read_dump(written(tmp_path / "b.npz", **arrays, **{name: row.data}), "nvfp4")
    (name_x, first, _), (name_data, second, _) = [[cell.strip("`") for cell in line] for line in rows_of("FIL-21")]
    entries = {f"{first}.row.{part}": array for part, array in arrays.items()} | {name_x: x}
    assert [(dump.name, dump.x.shape) for dump in read_dump(written(tmp_path / "c.npz", **entries), "nvfp4")] == [
        (first, x.shape)
    ]
    entries = {f"{second}.column.{part}": getattr(column, part) for part in arrays}
    assert name_data in entries
    (found,) = read_dump(written(tmp_path / "d.npz", **entries), "nvfp4")
    assert (found.name, found.quantized.column.data.tobytes()) == (second, column.data.tobytes())
    per_row = fp4ref.quantize(x, "nvfp4-row-scaled", backend="numpy").row
    for ruled, stored, result in rows_of("FIL-22", 1):
        part, *sizes = re.findall(r"\w+", ruled)
        spec, source = ("nvfp4-row-scaled", per_row) if (part, sizes) == ("amax", ["6"]) else ("nvfp4", row)
        assert getattr(source, part).shape == tuple(map(int, sizes))
        for shape in re.findall(r"\[(.*?)\]", stored):
            given = {name: getattr(source, name) for name in arrays}
            given[part] = given[part].reshape([int(word) for word in re.findall(r"\d+", shape)])
            path = written(tmp_path / "e.npz", x=x, **given)
            if result == "read":
                assert (
                    getattr(read_dump(path, spec)[0].quantized.row, part).tobytes() == getattr(source, part).tobytes()
                )
            else:
                with pytest.raises(FileError, match=re.search(r"refused by (\S+)", result)[1]):
                    read_dump(path, spec)


@pytest.mark.rule("FIL-23", "FIL-8")
@pytest.mark.example("FIL-23")
def test_what_the_caller_gives(tmp_path):
    x = np.ones((1, 16), ml_dtypes.bfloat16)
    row = fp4ref.quantize(x, "nvfp4", backend="numpy").row
    for kind, said, given, result in rows_of("FIL-23"):
        assert kind == "`BF16`"
        metadata = json.dumps({"tensors": {"": {"spec": "nvfp4", "dtype": said.strip("`")}}})
        arrays = {"data": row.data, "scales": row.scales, "amax": row.amax, "x": x.view("V2")}
        path = written(tmp_path / "a.npz", metadata=np.array(metadata), **arrays)
        if result == "read":
            assert read_dump(path, dtype=given.strip("`"))[0].quantized.dtype == given.strip("`")
        else:
            with pytest.raises(Fp4Error, match="FIL-8|NUM-3" if "NUM-3" in result else "FIL-8"):
                read_dump(path, dtype=given.strip("`"))


@pytest.mark.rule("FIL-24", "FIL-9")
@pytest.mark.example("FIL-24")
def test_a_refusal_of_scales_names_the_layouts_that_fit(tmp_path):
    shape = [int(n) for n in re.search(r"shape \[(\d+), (\d+)\]", tables(RULES["FIL-24"].text)[0][0][0]).groups()]
    row = fp4ref.quantize(np.ones(shape, F), "nvfp4", backend="numpy").row
    for words, names in rows_of("FIL-24"):
        scales = np.resize(row.scales, int(words.split()[0]))
        arrays = {"x": np.ones(shape, F), "data": row.data, "scales": scales, "amax": row.amax}
        path = written(tmp_path / "a.npz", **arrays)
        if names == "read":
            assert read_dump(path, "nvfp4")[0].quantized.row.scales.tobytes() == row.scales.tobytes()
        else:
            with pytest.raises(Fp4Error, match=r"\[(LAY-60|FIL-9)\]") as raised:
                read_dump(path, "nvfp4")
            fitting = re.search(r"\((.*) would have as many bytes", str(raised.value))[1]
            assert fitting.split(" and ") == re.findall("`(.*?)`", names)


# Chapter 15


def sizes_of(cell):
    return [int(word) for word in re.findall(r"\d+", cell.partition("]")[0])]


def one_operand(spec, code, scale):
    q = fp4ref.quantize(np.ones((1, 1), F), spec, backend="numpy")
    q.row.data[0, 0], q.row.scales[0, 0] = codes_of(code)[0], codes_of(scale)[0]
    return q


@pytest.mark.rule("GEM-20", "GEM-21", "GEM-22", "GEM-25")
@pytest.mark.example("GEM-20", "GEM-21", "GEM-22", "GEM-25")
def test_shapes_and_zeros_of_products():
    rng = np.random.default_rng(3)
    for tensor, direction, rows, depth in rows_of("GEM-20"):
        x = rng.standard_normal(sizes_of(tensor)).astype(F)
        both = fp4ref.quantize(x, "nvfp4", "both", "tiled_128x4", backend="numpy")
        other = fp4ref.quantize(np.eye(int(depth), dtype=F), "nvfp4", backend="numpy")
        got = fp4ref.gemm(both, other, directions=(direction, "row"), backend="numpy")
        assert got.shape == (int(rows), int(depth))
        values = fp4ref.dequantize(both, direction=direction, backend="numpy")
        np.testing.assert_allclose(got, values @ np.eye(int(depth)), rtol=1e-5)
        padding = both.direction(direction)[0].scales
        padding[LAYOUTS["tiled_128x4"].from_linear(np.ones((int(rows), -(-int(depth) // 16)), np.uint8)) == 0] = 0x7F
        again = fp4ref.gemm(both, other, directions=(direction, "row"), backend="numpy")
        assert again.tobytes() == got.tobytes()  # padding is never read
    for a, b, result in rows_of("GEM-21"):
        left, right = (fp4ref.quantize(np.zeros(sizes_of(cell), F), "nvfp4", backend="numpy") for cell in (a, b))
        for mode in ("exact", "blockwise", "fast"):
            got = fp4ref.gemm(left, right, mode, backend="numpy")
            assert list(got.shape) == sizes_of(result)
            assert {bits_of(value) for value in got.ravel()} <= {0}
    for a, b, result in rows_of("GEM-22"):
        left, right = (fp4ref.quantize(np.ones(sizes_of(cell), F), "nvfp4", backend="numpy") for cell in (a, b))
        if result == "refused":
            with pytest.raises(Fp4Error, match="GEM-22"):
                fp4ref.gemm(left, right)
        else:
            assert list(fp4ref.gemm(left, right).shape) == sizes_of(result)
    for a, b, total in rows_of("GEM-25"):
        left, right = (
            fp4ref.quantize(np.float32([[float(number_of(word)) for word in cell.split(",")]]), "nvfp4")
            for cell in (a, b)
        )
        assert bits_of(fp4ref.gemm(left, right)[0, 0]) == bits_of(number_of(total))


@pytest.mark.rule("GEM-23", "GEM-24")
@pytest.mark.example("GEM-23", "GEM-24")
def test_terms_that_are_not_finite():
    for a, b, term in rows_of("GEM-23"):
        spec, *left = re.findall("`(.*?)`", a)
        pair = one_operand(spec, *left), one_operand(spec, *re.findall("`(.*?)`", b))
        for mode in ("exact", "blockwise"):
            assert bits_of(fp4ref.gemm(*pair, mode, backend="numpy")[0, 0]) == bits_of(number_of(term))
    ((total, factor, result),) = rows_of("GEM-24")
    q = one_operand("mxfp8-e4m3", "38", "FF")
    got = fp4ref.gemm(q, one_operand("mxfp8-e4m3", "38", "7F"), alpha=float(factor), backend="numpy")
    assert (total, bits_of(got[0, 0])) == ("NaN", bits_of(number_of(result)))


@pytest.mark.rule("GEM-27")
@pytest.mark.example("GEM-27")
def test_absent_arguments_add_nothing():
    a, b = (fp4ref.quantize(F([[value]]), "mxfp8-e5m2", backend="numpy") for value in (-1e-38, 1e-38))
    for total, bias, result in rows_of("GEM-27"):
        assert bits_of(fp4ref.gemm(a, b)[0, 0]) == bits_of(number_of(total))
        given = None if bias == "none" else F([number_of(bias)])
        assert bits_of(fp4ref.gemm(a, b, bias=given)[0, 0]) == bits_of(number_of(result))
