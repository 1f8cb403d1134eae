from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref.conformance.dumps.files import read_dump
from fp4ref.conformance.verdict.dumps import DumpRequest, verify
from fp4ref.errors import FileError
from fp4ref.files import is_side_file, open_tensors

TYPES = {"x": "BF16", "data": "U8", "scales": "U8", "amax": "F32"}


@pytest.fixture
def dump(tmp_path):
    """A dump of raw binaries; returns its path and its JSON as data."""
    x = np.random.default_rng(5).standard_normal((6, 48)).astype(ml_dtypes.bfloat16)
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    arrays = {"x": x, "data": q.row.data, "scales": q.row.scales, "amax": q.row.amax}
    entries = {}
    for name, array in arrays.items():
        (tmp_path / f"{name}.bin").write_bytes(array.tobytes())
        entries[name] = {"dtype": TYPES[name], "shape": list(array.shape), "file": f"{name}.bin"}
    record = {"entries": entries, "fp4ref": {"tensors": {"": {"spec": "nvfp4", "dtype": "bfloat16"}}}}
    (tmp_path / "dump.json").write_text(json.dumps(record))
    return tmp_path / "dump.json", record


def write(path, record):
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return path


@pytest.mark.rule("FIL-5")
def test_a_raw_dump_is_judged(dump):
    path, _ = dump
    assert verify(DumpRequest(path=path)).headline == "conforms to nvfp4"
    data = bytearray((path.parent / "data.bin").read_bytes())
    data[3] ^= 1
    (path.parent / "data.bin").write_bytes(data)
    assert verify(DumpRequest(path=path)).headline.endswith("differs from nvfp4 in 1 code")


@pytest.mark.rule("FIL-5")
def test_entries_may_share_a_file(dump):
    path, record = dump
    names = list(TYPES)
    whole, offset = b"\0\0\0", 3
    for name in names:
        part = (path.parent / f"{name}.bin").read_bytes()
        record["entries"][name] |= {"file": "all.bin", "offset": offset}
        whole, offset = whole + part, offset + len(part)
    (path.parent / "all.bin").write_bytes(whole)
    write(path, record)
    with read_dump(path) as file:
        assert file[0].x.dtype == ml_dtypes.bfloat16
    assert verify(DumpRequest(path=path)).ok


@pytest.mark.rule("FIL-5")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "F128"}, "unknown element type"),
        ({"shape": [6, -1]}, "a shape that is not a list of sizes"),
        ({"shape": [6, 23]}, "has 144 bytes, need 138"),
        ({"shape": [6, 25], "offset": 0}, "has 144 bytes, need 150"),
        ({"offset": 1}, "need 144 from byte 1"),
        ({"offset": -1}, "need an integer >= 0"),
        ({"offset": True}, "need an integer >= 0"),
        ({"file": "../x.bin"}, "need a name in the same directory"),
        ({"file": "/etc/passwd"}, "need a name in the same directory"),
        ({"file": ""}, "need a name in the same directory"),
        ({"file": "."}, "need a name in the same directory"),
        ({"file": "none.bin"}, "no such file"),
        ({"more": 1}, "an object of dtype, shape, file, offset"),
    ],
)
def test_wrong_entries(dump, change, message):
    path, record = dump
    record["entries"]["data"] |= change
    with pytest.raises(FileError, match="FIL-5") as caught:
        open_tensors(write(path, record))
    assert message in str(caught.value)


@pytest.mark.rule("FIL-5")
@pytest.mark.parametrize(
    "text", ["", "[", "[]", "{}", '{"entries": []}', '{"entries": {}, "x": 1}', '{"entries": {}, "entries": {}}']
)
def test_files_that_are_no_dumps(dump, text):
    path, _ = dump
    with pytest.raises(FileError, match="FIL-5"):
        open_tensors(write(path, text))


def test_other_json_is_not_taken_for_one(dump):
    path, _ = dump
    assert is_side_file(path)
    assert not is_side_file(write(path.parent / "spec.json", fp4ref.NVFP4.to_json()))


def test_empty_tensors(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"")
    record = {"entries": {"x": {"dtype": "F32", "shape": [0, 4], "file": "x.bin"}}}
    with open_tensors(write(tmp_path / "x.json", record)) as file:
        assert file.read("x").shape == (0, 4)
