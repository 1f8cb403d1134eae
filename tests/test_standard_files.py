"""The tables of chapter 13: every condition is broken once in a file that is else right, and every example is read."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from file_bytes import archive, safetensors, with_field
from fp4ref.conformance.dumps.files import read_dump
from fp4ref.errors import FileError, Fp4Error
from fp4ref.files import DTYPES, open_tensors
from fp4ref.spec_root import spec_root
from fp4ref.standard.tables import tables
from standard_rules import RULES, rows_of

NPY_HEAD = b"{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }\n"


def parts_of(rule):
    """The first cells of a rule's conditions, without marks of code."""
    return [row[0].replace("`", "") for row in rows_of(rule)]


def read_all(path, data=None):
    if data is not None:
        path.write_bytes(data)
    with open_tensors(path) as file:
        return {name: (*file.entry(name), file.read(name).tobytes()) for name in file.names}


def first_dump(path, **given):
    with read_dump(path, **given) as file:
        return file[0]


def held(**changes):
    return {"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]} | changes}


BROKEN = {
    "first 8 bytes": safetensors(held(), b"ab", length=1 << 20),
    "header": safetensors(b" " + json.dumps(held()).encode(), b"ab"),
    "its JSON": safetensors(b'{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"ab"),
    "__metadata__": safetensors(held() | {"__metadata__": {"k": 1}}, b"ab"),
    "each other key": safetensors(held(more=1), b"ab"),
    "dtype": safetensors(held(dtype="F6_E2M3"), b"ab"),
    "shape": safetensors(held(shape=[2] + [1] * 64), b"ab"),
    "data_offsets": safetensors(held(shape=[3]), b"ab"),
    "all tensors": safetensors(held(), b"abc"),
}


@pytest.mark.rule("FIL-1")
@pytest.mark.example("FIL-1")
def test_conditions_of_safetensors(tmp_path):
    path = tmp_path / "a.safetensors"
    assert read_all(path, safetensors(held(), b"ab")) == {"a": ("U8", (2,), b"ab")}
    assert parts_of("FIL-1") == [*BROKEN]
    for data in BROKEN.values():
        with pytest.raises(FileError, match="FIL-1"):
            read_all(path, data)
    header = ""
    for cell, count, verdict in rows_of("FIL-1", 1):
        header = header if cell == "the same" else cell.strip("`")
        data = safetensors(header.encode(), bytes(int(count.split()[0])))
        if verdict == "read":
            assert len(read_all(path, data)) == 1
        else:
            with pytest.raises(FileError, match="FIL-1"):
                read_all(path, data)


def npy(header=NPY_HEAD, data=b"ab"):
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data


STORED = archive(("a.npy", npy()))
DEFLATED = archive(("a.npy", npy()), compression=zipfile.ZIP_DEFLATED)
BROKEN_NPZ = {
    "the end record": STORED + bytes(65_537),
    "a member's version": with_field(STORED, 6, b"\x40\0"),
    "a member's flags in the directory": with_field(STORED, 8, b"\x20\0"),
    "members": with_field(DEFLATED, 20, b"\xff\xff\0\0"),
    "compression": archive(("a.npy", npy()), compression=zipfile.ZIP_BZIP2),
    "a stored member": with_field(STORED, 24, b"\xff\xff\0\0"),
    "a deflated member": with_field(DEFLATED, 24, b"\xff\xff\0\0"),
    "checksum": STORED.replace(b"\nab", b"\nac"),
    "NAME.npy": archive(("a.npy", npy(data=b"abc"))),
    "its header": archive(("a.npy", npy(NPY_HEAD.replace(b"}", b"'shape': (2,), }")))),
    "descr": archive(("a.npy", npy(NPY_HEAD.replace(b"|u1", b">f4"), b"abcdefgh"))),
    "NAME.json, or NAME.npy of one string, of shape ()": archive(("a.json", b"\xff")),
    "any other member": archive(("a.npy", npy()), ("readme.txt", b"hello")),
}


@pytest.mark.rule("FIL-2")
@pytest.mark.example("FIL-2")
def test_conditions_of_npz(tmp_path):
    path = tmp_path / "a.npz"
    assert read_all(path, STORED) == read_all(path, DEFLATED) == {"a": ("U8", (2,), b"ab")}
    assert parts_of("FIL-2") == [*BROKEN_NPZ]
    for data in BROKEN_NPZ.values():
        with pytest.raises(FileError, match="FIL-2"):
            read_all(path, data)
    (large, _), (objects, _), (strings, _) = rows_of("FIL-2", 1)
    declared = int(re.search(r"of (\d+) GB", large)[1]) << 30
    with pytest.raises(FileError, match="FIL-2"):  # the size that the directory declares, up to 32 bits
        read_all(path, with_field(DEFLATED, 24, struct.pack("<I", min(declared, 0xFFFFFFF0))))
    assert "of type object" in objects
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(FileError, match="FIL-2"):
        read_all(path, archive(("a.npy", buffer.getvalue())))
    kind, shape = re.search("type `(.*)` and shape `(.*)`", strings).groups()
    for one, refused in ((shape, True), ("()", False)):
        header = NPY_HEAD.replace(b"|u1", kind.encode()).replace(b"(2,)", one.encode())
        data = archive(("a.npy", npy(header, "abc".encode("utf-32-le"))))
        if refused:
            with pytest.raises(FileError, match="FIL-2"):
                read_all(path, data)
        else:
            assert read_all(path, data) == {}


FREE_HEADERS = {
    b"{'descr':'|u1','shape':(2,),'fortran_order':False}": True,
    b"{ 'shape' : ( 2 , ), 'descr': '<u1', 'fortran_order': True , } \n  ": True,
    b"{'descr': '=V1', 'fortran_order': False, 'shape': (2,)}": True,
    b"{'descr': '|f1', 'fortran_order': False, 'shape': (2,), }": True,
    b"{'descr': '|u1', 'fortran_order': False, 'shape': (02,)}": True,
    b"{'descr': '|u1' 'fortran_order': False 'shape': (2,)}": False,  # no commas
    b"{'descr': '|u1', 'fortran_order': False, 'shape': (2,),, }": False,
    b" {'descr': '|u1', 'fortran_order': False, 'shape': (2,)}": False,
    b'{"descr": "|u1", "fortran_order": False, "shape": (2,)}': False,
    b"{'descr': '|u1', 'fortran_order': 0, 'shape': (2,)}": False,
    b"{\f'descr':\v'|u1', 'fortran_order': False, 'shape': (2,)}\r": True,
    b"{'descr':\x1c'|u1', 'fortran_order': False, 'shape': (2,)}": False,
    b"{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}\xa0": False,
    b"{'descr': '|u1', 'fortran_order': False, 'shape': (2)}": False,
}


LOCAL_HEADER = {0: False, 4: True, 8: True, 10: True, 14: True, 18: True, 22: True, 30: False}  # signature and name


@pytest.mark.rule("FIL-2", "FIL-13", "FIL-14", "FIL-15", "FIL-16", "FIL-17")
def test_the_directory_of_an_archive_counts(tmp_path):
    path, read = tmp_path / "a.npz", {"a": ("U8", (2,), b"ab")}
    for offset, free in LOCAL_HEADER.items():
        data = STORED[:offset] + bytes([STORED[offset] ^ 1]) + STORED[offset + 1 :]
        if free:
            assert read_all(path, data) == read
        else:
            with pytest.raises(FileError, match="FIL-2"):
                read_all(path, data)
    assert read_all(path, b"no member" + STORED + bytes(65_536)) == read
    with pytest.raises(FileError, match="FIL-2"):
        read_all(path, STORED + bytes(65_537))
    assert read_all(path, STORED.replace(b"a.npy", b"\x82.npy")) == {"\u00e9": ("U8", (2,), b"ab")}  # code page 437
    start = DEFLATED.index(b"PK\1\2")
    longer = bytearray(DEFLATED[:start] + b"junk" + DEFLATED[start:])
    for place, added in ((start + 4 + 20, 4), (len(longer) - 6, 4)):  # the compressed size, the directory's start
        longer[place : place + 4] = struct.pack("<I", struct.unpack_from("<I", longer, place)[0] + added)
    assert read_all(path, bytes(longer)) == read
    for shape, sizes in (("(2, 1, )", (2, 1)), (f"(2, {'1, ' * 63})", (2, *[1] * 63))):
        header = NPY_HEAD.replace(b"(2,)", shape.encode())
        assert read_all(path, archive(("a.npy", npy(header)))) == {"a": ("U8", sizes, b"ab")}
    with pytest.raises(FileError, match="FIL-2"):
        read_all(path, archive(("a.npy", npy(NPY_HEAD.replace(b"(2,)", f"(2, {'1, ' * 64})".encode())))))


# Fields of the first record of the directory, by their offset, and of the end record, by theirs: read or refused.
DIRECTORY = {
    (6, 63): True,
    (6, 64): False,
    (7, 64): True,
    (8, 0x01): False,
    (8, 0x20): False,
    (8, 0x40): False,
    (8, 0x82): True,
}
END_RECORD = {(4, 1): True, (8, 3): True, (10, 0): True, (12, -1): False, (16, 1): False}


@pytest.mark.rule("FIL-2", "FIL-13", "FIL-15", "FIL-43")
@pytest.mark.example("FIL-13")
def test_which_numbers_of_an_archive_count(tmp_path):
    path, read = tmp_path / "a.npz", {"a": ("U8", (2,), b"ab")}
    text = " ".join(RULES["FIL-2"].text.split())
    assert "of the format 6.3 at most, in the low byte of its field" in text
    assert "neither encrypted nor patched (bits 0, 5 and 6)" in text
    end = len(STORED[STORED.index(b"PK\5\6") :])
    assert f"with {end} bytes or more from there on" in text
    for rule in ("FIL-2", "FIL-13"):
        (tail,) = re.search(r"the last ([\d,]+) bytes of the file", " ".join(RULES[rule].text.split())).groups()
        assert int(tail.replace(",", "")) == end + 65_536
    size, comment = re.search(
        r"record has (\d+) bytes, and a comment of ([\d,]+) at most", RULES["FIL-13"].text
    ).groups()
    assert (int(size), int(comment.replace(",", ""))) == (end, (1 << 8 * len(STORED[-2:])) - 1)  # its size: 2 bytes
    for words, result in rows_of("FIL-13"):
        data = STORED + bytes(int(re.search(r"with ([\d,]+) zeros", words)[1].replace(",", "")))
        if result == "yes":
            assert read_all(path, data) == read
        else:
            with pytest.raises(FileError, match="FIL-2"):
                read_all(path, data)
            assert len(data) - data.index(b"PK\5\6") == int(re.search("is ([\\d,]+) bytes", result)[1].replace(",", ""))
    assert "white space is the ASCII characters 9 to 13 and 32;" in text
    for mark, fields in ((b"PK\1\2", DIRECTORY), (b"PK\5\6", END_RECORD)):
        for (offset, value), free in fields.items():
            data, place = bytearray(STORED), STORED.index(mark) + offset
            before = struct.unpack_from("<H", data, place)[0] if offset in {12, 16} else 0
            struct.pack_into("<H", data, place, before + value)
            if free:
                assert read_all(path, bytes(data)) == read
            else:
                with pytest.raises(FileError, match="FIL-2"):
                    read_all(path, bytes(data))


@pytest.mark.rule("FIL-2")
def test_the_end_of_deflated_data_does_not_matter(tmp_path):
    path, member = tmp_path / "a.npz", npy()
    for more, declared, free in ((b"", 0, True), (b"more", 0, True), (b"", 1, False), (b"", -1, False)):
        data = bytearray(archive(("a.npy", member + more), compression=zipfile.ZIP_DEFLATED))
        place, count = data.index(b"PK\1\2"), len(member) + declared
        struct.pack_into("<I", data, place + 16, zlib.crc32((member + more)[:count]))
        struct.pack_into("<I", data, place + 24, count)
        if free:
            assert read_all(path, bytes(data)) == {"a": ("U8", (2,), b"ab")}
        else:
            with pytest.raises(FileError, match="FIL-2"):
                read_all(path, bytes(data))


@pytest.mark.rule("FIL-2")
def test_a_string_has_the_length_of_its_type(tmp_path):
    path, text = tmp_path / "a.npz", "abc".encode("utf-32-le")
    for kind, data, found in (
        (b"<U3", text, "abc"), (b"<U4", text + bytes(4), "abc"), (b"<U0", b"", ""), (b"<U3", text + text[:4], None),
        (b"<U3", text[:8], None), (b"<U", b"", None), (b"<U1", struct.pack("<I", 0xD800), None),
    ):  # fmt: skip
        header = NPY_HEAD.replace(b"|u1", kind).replace(b"(2,)", b"()")
        path.write_bytes(archive(("a.npy", npy(header, data))))
        if found is None:
            with pytest.raises(FileError, match="FIL-2"):
                open_tensors(path)
        else:
            with open_tensors(path) as file:
                assert file.metadata == {"a": found}


@pytest.mark.rule("FIL-1", "FIL-5", "FIL-8")
def test_half_a_surrogate_pair_is_not_strict_json(tmp_path):
    for text, whole in ((r'["\ud800"]', False), (r'[["x\udc00"]]', False), (r'["\ud83d\ude00"]', True)):
        path = tmp_path / "a.json"
        path.write_text(f'{{"entries": {{}}, "fp4ref": {text}}}')
        if whole:
            assert read_all(path) == {}
        else:
            with pytest.raises(FileError, match="FIL-5"):
                read_all(path)
        with pytest.raises(FileError, match="FIL-1"):
            read_all(tmp_path / "a.safetensors", safetensors(b'{"__metadata__": {"a": %s}}' % text.encode()))


@pytest.mark.rule("FIL-2")
@pytest.mark.parametrize("header", FREE_HEADERS)
def test_what_is_free_in_the_header_of_an_array(tmp_path, header):
    path, data = tmp_path / "a.npz", archive(("a.npy", npy(header)))
    if FREE_HEADERS[header]:
        assert read_all(path, data) == {"a": ("U8", (2,), b"ab")}
    else:
        with pytest.raises(FileError, match="FIL-2"):
            read_all(path, data)


ENTRY_CHANGES = {
    "the file": {"more": 1},
    "entries.NAME": {"dtype": "F128"},
    "file": {"file": "../data.bin"},
    "offset": {"offset": 1},
}


@pytest.mark.rule("FIL-5")
@pytest.mark.example("FIL-5")
def test_conditions_of_json(tmp_path):
    record = json.loads(re.search(r"(?s)```json\n(.*?)```", RULES["FIL-5"].text)[1])
    x = np.random.default_rng(1).standard_normal((128, 64)).astype(ml_dtypes.bfloat16)
    row = fp4ref.quantize(x, "nvfp4", backend="numpy").row
    arrays = {"x": x, "data": row.data, "scales": row.scales, "amax": row.amax}
    for name, entry in record["entries"].items():
        assert entry["shape"] == [*arrays[name].shape]
        (tmp_path / entry["file"]).write_bytes(arrays[name].tobytes())
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(record))
    found = first_dump(path)
    assert (found.quantized.row.data.tobytes(), found.x.tobytes()) == (row.data.tobytes(), x.tobytes())
    assert parts_of("FIL-5") == [*ENTRY_CHANGES]
    for part, change in ENTRY_CHANGES.items():
        broken = json.loads(json.dumps(record))
        (broken if part == "the file" else broken["entries"]["data"]).update(change)
        with pytest.raises(FileError, match="FIL-5"):
            read_all(path, json.dumps(broken).encode())


def saved(path, metadata, **arrays):
    np.savez(path, metadata=np.array(json.dumps(metadata)), **arrays)
    return path


@pytest.mark.rule("FIL-3", "FIL-20")
@pytest.mark.example("FIL-3")
def test_entries_of_a_dump(tmp_path):
    """A dump with every entry of the table is read; each may be absent or not, as the table says."""
    x = np.random.default_rng(2).standard_normal((6, 40)).astype(np.float32)
    bits = fp4ref.Directions(row=np.zeros((6, 40), np.uint8), column=np.zeros((40, 6), np.uint8))
    q = fp4ref.quantize(x, "nvfp4-sr", "both", random_bits=bits, backend="numpy")
    entries = {"NAME.x": x}
    for direction, part in (("row", q.row), ("column", q.column)):
        entries |= {f"NAME.{direction}.{name}": getattr(part, name) for name in ("data", "scales", "amax")}
        entries[f"NAME.{direction}.random_bits"] = getattr(bits, direction)
    names = [name for row in rows_of("FIL-3") for name in re.findall("`(.*?)`", row[0])]
    assert sorted(names) == sorted(entries)
    metadata = {"tensors": {"NAME": {"spec": "nvfp4-sr", "shape": [6, 40], "dtype": "float32"}}}
    whole = first_dump(saved(tmp_path / "a.npz", metadata, **entries))
    assert whole.quantized.column.scales.tobytes() == q.column.scales.tobytes()
    for left_out in names:
        path = saved(tmp_path / "b.npz", metadata, **{k: v for k, v in entries.items() if k != left_out})
        if left_out.endswith((".x", ".random_bits")):
            assert first_dump(path).quantized.row.data.tobytes() == q.row.data.tobytes()
        else:
            with pytest.raises(FileError, match="FIL-3"):
                first_dump(path)
    with pytest.raises(FileError, match="FIL-3"):
        first_dump(saved(tmp_path / "c.npz", metadata, **entries, other=x))
    code = re.search(r"(?s)```python\n(.*?)```", RULES["FIL-20"].text)[1]
    plain = {"x": x, "data": q.row.data, "scales": q.row.scales, "amax": q.row.amax}
    exec(code.replace("dump.npz", str(tmp_path / "dump.npz")), {"np": np, **plain})  # the line of the rule
    by_hand = first_dump(tmp_path / "dump.npz", spec=fp4ref.NVFP4, scale_layout="linear")
    assert by_hand.quantized.row.data.tobytes() == q.row.data.tobytes()


@pytest.mark.rule("FIL-8", "FIL-9")
@pytest.mark.example("FIL-8", "FIL-9")
def test_metadata_and_sizes_of_a_dump(tmp_path):
    fields = {row[0].strip("`").split(".")[-1]: row[2] for row in rows_of("FIL-8")}
    x = np.random.default_rng(3).standard_normal((128, 64)).astype(np.float16)
    row = fp4ref.quantize(x, "nvfp4", backend="numpy").row
    arrays = {"data": row.data, "scales": row.scales, "amax": row.amax}
    record = {"spec": "nvfp4", "scale_layout": "linear", "shape": [128, 64], "dtype": "float16"}
    assert sorted(fields) == sorted([*record, "spec_version"])
    for absent, otherwise in fields.items():
        kept = {k: v for k, v in record.items() if k != absent}
        metadata = {"spec_version": fp4ref.SPEC_VERSION} if absent != "spec_version" else {}
        path = saved(tmp_path / "a.npz", metadata | {"tensors": {"": kept}}, x=x, **arrays)
        if otherwise.startswith("the reader's caller must name one"):
            with pytest.raises(Fp4Error, match="no spec"):
                first_dump(path)
        found = first_dump(path, spec=fp4ref.NVFP4)
        assert found.spec_version == fp4ref.SPEC_VERSION
        q = found.quantized
        assert (q.scale_layout, q.shape, q.dtype) == ("linear", (128, 64), "float16")
    metadata = {"tensors": {"": record | {"colour": "red"}}}
    with pytest.raises(FileError, match="FIL-8"):
        first_dump(saved(tmp_path / "b.npz", metadata, **arrays))
    for kind, said, result in rows_of("FIL-8", 1):
        stored = x if kind == "`BF16`" else x.view(np.uint16)
        stored = stored.astype(ml_dtypes.bfloat16) if kind == "`BF16`" else stored
        types = re.findall("`(.*?)`", said)
        for dtype in types + [None] * ("none" in said):
            form = {k: v for k, v in (record | {"dtype": dtype}).items() if k != "shape"}  # null counts as absent
            path = saved(
                tmp_path / "d.npz",
                {"tensors": {"": form}},
                x=stored.view("V2") if kind == "`BF16`" else stored,
                **arrays,
            )
            if result == "read":
                assert first_dump(path).quantized.dtype == (dtype or "bfloat16")
            else:
                with pytest.raises(Fp4Error, match="FIL-8"):
                    first_dump(path)
    for words, result in rows_of("FIL-9"):
        count = int(words.split()[0])
        scales = np.resize(row.scales, (128, count // 128))
        path = saved(tmp_path / "c.npz", {"tensors": {"": record}}, **(arrays | {"scales": scales}))
        if result == "read":
            assert first_dump(path).quantized.row.scales.size == count
        else:
            with pytest.raises(Fp4Error, match=r"for scale_layout linear.*LAY-60"):
                first_dump(path)


@pytest.mark.rule("FIL-1", "FIL-2")
def test_element_types_of_chapter_13():
    """The table before the rules names each type with its width."""
    text = (spec_root() / "13-files.md").read_text("utf-8")
    widths = {}
    for names, bits, _ in tables(text[: text.index("####")])[0][1:]:
        for name in re.findall("`([A-Z0-9_]+)`", names):
            if bits.isdigit():
                widths[name] = int(bits)
    assert widths == {name: kind.bits for name, kind in DTYPES.items() if name in widths}
    assert {"BF16", "F8_E4M3", "F4", "BOOL"} <= widths.keys()
    rows = tables(text[: text.index("####")])[0][1:]
    named = set(re.findall(r"`([A-Z]+\d\w*)`", " ".join(cell for row in rows for cell in row))) - {"V2"}
    assert named <= DTYPES.keys()
    between = {f"{kind}{bits}" for kind in re.findall(r"`([IU])8` to `[IU]64`", rows[0][0]) for bits in (8, 16, 32, 64)}
    assert named | between | {"BOOL"} == DTYPES.keys()
