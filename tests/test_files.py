"""Tensor files against the safetensors library and numpy.savez, and against hostile bytes."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from file_bytes import archive, with_field
from file_bytes import safetensors as stored
from fp4ref.errors import FileError
from fp4ref.files import DTYPES, npz, open_tensors, write_tensors

RNG = np.random.default_rng(11)


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def everything(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    with open_tensors(path) as file:
        return {name: (*file.entry(name), file.read(name).tobytes()) for name in file.names}


def of_the_library(data: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (e["dtype"], tuple(e["shape"]), bytes(e["data"])) for name, e in safetensors.deserialize(data)}


def refusal(path: Path) -> str:
    with pytest.raises(FileError) as caught:
        everything(path)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text
    assert caught.value.rule in {"FIL-1", "FIL-2", "FIL-42"}
    return text


def one_of_each() -> list[tuple[str, str, tuple[int, ...], np.ndarray]]:
    """A tensor of every type, and zero-dimensional, empty and oddly named ones."""
    tensors = []
    for dtype, kind in DTYPES.items():
        raw = RNG.integers(0, 2 if dtype == "BOOL" else 256, 3 * 4 * kind.bits // 8, np.uint8)
        tensors.append((f"t.{dtype}", dtype, (3, 4), raw.view(kind.array).reshape(3, -1)))
    tensors.append(("scalar", "F32", (), np.array(7, np.float32)))
    tensors.append(("empty", "BF16", (0, 5), np.zeros((0, 5), ml_dtypes.bfloat16)))
    tensors.append(('é"\u2028/x', "U8", (1,), np.uint8([9])))
    return tensors


def write(path: Path, metadata: dict[str, str] | None = None) -> list[tuple[str, str, tuple[int, ...], np.ndarray]]:
    tensors = one_of_each()
    write_tensors(path, [tensor[:3] for tensor in tensors], metadata or {}, (tensor[3] for tensor in tensors))
    return tensors


@pytest.mark.rule("FIL-1")
def test_reads_what_the_library_writes_from_numpy(tmp_path: Path) -> None:
    tensors = {"a": np.float32([[1, 2]]), "b": np.zeros(3, ml_dtypes.bfloat16), "c": np.array(5)}
    tensors["d"] = np.zeros((2, 0), ml_dtypes.float8_e4m3fn)
    safetensors.numpy.save_file(tensors, tmp_path / "a.safetensors", {"k": "v"})
    with open_tensors(tmp_path / "a.safetensors") as file:
        assert file.metadata == {"k": "v"}
        assert {name: file.entry(name) for name in file.names} == {
            "a": ("F32", (1, 2)),
            "b": ("BF16", (3,)),
            "c": ("I64", ()),
            "d": ("F8_E4M3", (2, 0)),
        }
        assert file.read("b").dtype == ml_dtypes.bfloat16
        assert not file.read("a").flags.writeable
        kept = file.read("a")
    np.testing.assert_array_equal(kept, tensors["a"])


@pytest.mark.rule("FIL-1")
@pytest.mark.slow
def test_reads_what_the_library_writes_from_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    raw = torch.from_numpy(RNG.integers(0, 256, (3, 8), np.uint8))
    kinds = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2")
    tensors = {kind: raw.clone().view(getattr(torch, kind)) for kind in kinds}
    path = tmp_path / "a.safetensors"
    save_file(tensors, path)
    for name, (dtype, shape, data) in everything(path).items():
        assert data == raw.numpy().tobytes()
        assert (dtype, shape) == (
            ("F4", (3, 16)) if name == "float4_e2m1fn_x2" else (dtype, tuple(tensors[name].shape))
        )
    with open_tensors(path) as file:
        assert file.read("float4_e2m1fn_x2").shape == (3, 8)
        entries = [(name, *file.entry(name)) for name in file.names]
        write_tensors(tmp_path / "b.safetensors", entries, {}, map(file.read, file.names), sources=[path])
    assert (tmp_path / "b.safetensors").read_bytes() == path.read_bytes()
    back = load_file(tmp_path / "b.safetensors")
    assert {name: tensor.dtype for name, tensor in back.items()} == {kind: getattr(torch, kind) for kind in kinds}
    assert all(back[kind].view(torch.uint8).equal(raw) for kind in kinds)


@pytest.mark.rule("FIL-1")
def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    tensors = write(tmp_path / "a.safetensors", {"k": "v é"})
    data = (tmp_path / "a.safetensors").read_bytes()
    expected = {name: (dtype, shape, array.tobytes()) for name, dtype, shape, array in tensors}
    assert of_the_library(data) == expected == everything(tmp_path / "a.safetensors")
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.metadata() == {"k": "v é"}


@pytest.mark.rule("FIL-1")
def test_writes_the_bytes_of_the_library(tmp_path: Path) -> None:
    kinds = (np.int8, np.float64, np.float32, np.uint16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2)
    arrays = {f"z{np.dtype(kind).name}": np.ones((2, 3), kind) for kind in kinds}
    dtypes = ("I8", "F64", "F32", "U16", "BF16", "F8_E5M2")
    entries = [(name, dtype, (2, 3)) for name, dtype in zip(arrays, dtypes, strict=True)]
    bits = [
        array.view(np.uint8) if array.dtype.itemsize == 1 and array.dtype != np.int8 else array
        for array in arrays.values()
    ]
    write_tensors(tmp_path / "a.safetensors", entries, {"k": "v"}, bits)
    assert (tmp_path / "a.safetensors").read_bytes() == safetensors.numpy.save(arrays, {"k": "v"})


@pytest.mark.rule("FIL-1")
def test_an_unaligned_tensor_is_read_aligned(tmp_path: Path) -> None:
    header = {"a": entry("U8", [1], 0, 1), "b": entry("F32", [1], 1, 5)}
    (tmp_path / "a.safetensors").write_bytes(stored(header, b"\0" + np.float32(2.5).tobytes()))
    with open_tensors(tmp_path / "a.safetensors") as file:
        assert file.read("b") == np.float32([2.5])
        assert file.read("b").flags.aligned


@pytest.mark.rule("CKP-5", "FIL-5")
@pytest.mark.parametrize("name", ["a.safetensors", "b.json"])
def test_a_file_that_shrinks_after_it_was_opened_is_an_error(name: str, tmp_path: Path) -> None:
    """A mapped file would end the process by SIGBUS, also for an array that was read before."""
    values = np.arange(1 << 16, dtype=np.float32)
    entries = {"x": {"dtype": "F32", "shape": [len(values)], "file": "b.bin"}}
    (tmp_path / "b.json").write_text(json.dumps({"entries": entries}))
    (tmp_path / "b.bin").write_bytes(values.tobytes())
    header = stored({"x": entry("F32", [len(values)], 0, values.nbytes)})
    (tmp_path / "a.safetensors").write_bytes(header + values.tobytes())
    data, kept = (tmp_path / "b.bin", 4096) if name == "b.json" else (tmp_path / name, len(header) + 4096)
    with open_tensors(tmp_path / name) as file:
        early = file.read("x")
        os.truncate(data, kept)
        with pytest.raises(FileError, match=f"{data.name}: the file ends at byte {kept}") as refused:
            file.read("x")
        assert "\n" not in str(refused.value)
    np.testing.assert_array_equal(early, values)


U8 = entry("U8", [2], 0, 2)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "length lies": (struct.pack("<Q", 1 << 40) + b"{}", "a header of"),
    "length huge": (struct.pack("<Q", (1 << 64) - 1) + b"{}", "a header of"),
    "no object": (stored(b"[]"), "not a JSON object"),
    "spaces first": (stored(b"  {}"), "not a JSON object"),
    "byte order mark": (stored(b"\xef\xbb\xbf{}"), "not a JSON object"),
    "utf-16": (stored('{"a":1}'.encode("utf-16")), "not a JSON object"),
    "not utf-8": (stored(b'{"\xff":1}'), "a bad header"),
    "half a pair": (stored(b'{"\\ud800":{}}'), "a bad header"),
    "not a number": (stored(b'{"a":NaN}'), "a bad header"),
    "digits": (stored(b'{"a":' + b"9" * 5000 + b"}"), "a bad header"),
    "minus zero": (stored(b'{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}'), "-0 for a number"),
    "nested": (stored(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), "a bad header"),
    "two objects": (stored(b"{}{}"), "a bad header"),
    "repeated name": (stored(b'{"a":1,"a":1}'), "a repeated key"),
    "repeated field": (stored(b'{"a":{"dtype":"U8","dtype":"F32"}}'), "a repeated key"),
    "metadata number": (stored({"__metadata__": {"a": 1}}), "__metadata__"),
    "metadata null": (stored({"__metadata__": None}), "__metadata__"),
    "entry null": (stored({"a": None}), "with other fields"),
    "entry short": (stored({"a": {"dtype": "U8", "shape": []}}), "with other fields"),
    "entry long": (stored({"a": entry("U8", [1], 0, 1) | {"more": [[]]}}, b"a"), "with other fields"),
    "type unknown": (stored({"a": entry("F7_E3M3", [8], 0, 7)}, b"abcdefg"), "unknown element type"),
    "type a list": (stored({"a": entry(["U8"], [2], 0, 2)}, b"ab"), "unknown element type"),  # type: ignore[arg-type]
    "negative size": (stored({"a": entry("U8", [-2], 0, 2)}, b"ab"), "not a list of sizes"),
    "size a float": (stored({"a": entry("U8", [2.0], 0, 2)}, b"ab"), "not a list of sizes"),  # type: ignore[list-item]
    "size true": (stored({"a": entry("U8", [True], 0, 1)}, b"a"), "not a list of sizes"),
    "shape absurd": (stored({"a": entry("U8", [1 << 40, 1 << 40], 0, 0)}), "more bytes than"),
    "zero and absurd": (stored({"a": entry("U8", [0, 1 << 62, 1 << 62], 0, 0)}), "more bytes than"),
    "dimensions": (stored({"a": entry("U8", [1] * 65, 0, 1)}, b"a"), "65 dimensions"),
    "half a byte": (stored({"a": entry("F4", [2, 3], 0, 3)}, b"abc"), "ends inside a byte"),
    "inside a byte, 6 bits": (stored({"a": entry("F6_E3M2", [4, 2], 0, 6)}, b"abcdef"), "row of F6_E3M2 that ends"),
    "6 bits, cut short": (
        stored({"a": entry("F6_E2M3", [2, 4], 0, 6)}, b"abcde"),
        "at bytes 0 to 6, need 6 bytes within 5",
    ),
    "6 bits, bytes for 8": (
        stored({"a": entry("F6_E2M3", [2, 4], 0, 8)}, b"abcdefgh"),
        "at bytes 0 to 8, need 6 bytes within 8",
    ),
    "offsets short": (stored({"a": entry("U8", [3], 0, 2)}, b"ab"), "at bytes 0 to 2"),
    "offsets reversed": (stored({"a": entry("U8", [2], 2, 0)}, b"ab"), "at bytes 2 to 0"),
    "offsets negative": (stored({"a": entry("U8", [2], -2, 0)}, b"ab"), "at bytes -2 to 0"),
    "offsets far": (stored({"a": entry("U8", [2], 10**300, 10**300 + 2)}, b"ab"), "beyond 2^64"),
    "offsets text": (stored({"a": {"dtype": "U8", "shape": [], "data_offsets": "01"}}, b"a"), "two integers"),
    "offset true": (stored({"a": entry("U8", [1], False, True)}, b"a"), "two integers"),
    "outside": (stored({"a": entry("U8", [2], 1, 3)}, b"ab"), "at bytes 1 to 3"),
    "gap in front": (stored({"a": entry("U8", [1], 1, 2)}, b"ab"), "at byte 1, need byte 0"),
    "gap": (stored({"a": U8, "b": entry("U8", [1], 3, 4)}, b"abcd"), "at byte 3, need byte 2"),
    "overlap": (stored({"a": U8, "b": entry("U8", [2], 1, 3)}, b"abc"), "at byte 1, need byte 2"),
    "same bytes": (stored({"a": U8, "b": U8}, b"ab"), "at byte 0, need byte 2"),
    "bytes behind": (stored({"a": U8}, b"abc"), "3 bytes of data"),
    "escape in a name": (stored({"\x1b[2J\n": entry("U8", [-1], 0, 1)}, b"a"), r"'\x1b[2J\n'"),
    "long name": (stored({"n" * 10_000: None}), "nnn...'"),
}


@pytest.mark.rule("FIL-1", "FIL-2")
@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_every_truncation_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    arrays = [np.float32([1, 2, 3]), np.uint8([[4]])]
    write_tensors(path, [("a", "F32", (3,)), ("b", "U8", (1, 1))], {"k": "v"}, arrays)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        refusal(path)
    if suffix == "safetensors":
        path.write_bytes(data + b"\0")
        refusal(path)


@pytest.mark.rule("FIL-1", "FIL-2", "FIL-42")
@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".bin", ""])
def test_what_is_no_such_file(tmp_path: Path, suffix: str) -> None:
    assert "no such file" in refusal(tmp_path / f"none{suffix}") or suffix in {".bin", ""}
    (tmp_path / f"folder{suffix}").mkdir()
    refusal(tmp_path / f"folder{suffix}")
    (tmp_path / f"empty{suffix}").touch()
    refusal(tmp_path / f"empty{suffix}")
    os.mkfifo(tmp_path / f"pipe{suffix}")
    refusal(tmp_path / f"pipe{suffix}")
    with pytest.raises(FileError):
        open_tensors(tmp_path / f"n\0l{suffix}")


@pytest.mark.rule("FIL-2")
def test_reads_what_numpy_writes(tmp_path: Path) -> None:
    arrays = {
        "a/b": np.asfortranarray(RNG.random((3, 4), np.float32)),
        "scalar": np.float64(2),
        "empty": np.zeros((0, 3), np.int16),
    }
    arrays["bf16"] = RNG.random(6, np.float32).astype(ml_dtypes.bfloat16).reshape(2, 3)
    arrays |= {
        "e4m3": np.ones(3, ml_dtypes.float8_e4m3fn),
        "e5m2": np.ones(3, ml_dtypes.float8_e5m2),
        "t": np.bool_([1, 0]),
    }
    arrays |= {"": np.uint64([1 << 63]), "note": np.array("made here é")}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        with open_tensors(tmp_path / "a.npz") as file:
            assert file.metadata == {"note": "made here é"}
            assert set(file.names) == set(arrays) - {"note"}
            assert [file.entry(name)[0] for name in ("a/b", "bf16", "e4m3", "e5m2", "t")] == [
                "F32",
                "BF16",
                "U8",
                "U8",
                "BOOL",
            ]
            for name in file.names:
                array = file.read(name)
                assert array.shape == arrays[name].shape
                assert array.tobytes() == arrays[name].tobytes()
                assert array.flags.c_contiguous


@pytest.mark.rule("FIL-2")
def test_numpy_reads_what_we_write(tmp_path: Path) -> None:
    tensors = write(tmp_path / "a.npz", {"k": '{"a": 1}'})
    ours = everything(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        assert file["k.json"] == b'{"a": 1}'
        for name, _, _, array in tensors:
            assert file[name].tobytes() == array.tobytes() == ours[name][2]
            assert file[name].shape == array.shape == ours[name][1]
    first = (tmp_path / "a.npz").read_bytes()
    with open_tensors(tmp_path / "a.npz") as file:
        assert file.metadata == {"k": '{"a": 1}'}
        entries = [(name, *file.entry(name)) for name in file.names]
        write_tensors(tmp_path / "b.npz", entries, file.metadata, map(file.read, file.names))
    assert (tmp_path / "b.npz").read_bytes() == first


def npy(header: bytes, data: bytes = b"", version: bytes = b"\1\0", length: int | None = None) -> bytes:
    size = len(header) if length is None else length
    return b"\x93NUMPY" + version + size.to_bytes(2 if version[0] == 1 else 4, "little") + header + data


def pickled() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
    return buffer.getvalue()


U1 = b"{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }\n"
GOOD = archive(("a.npy", npy(U1, b"ab")))
DEFLATED = archive(("a.npy", npy(U1, b"ab")), compression=zipfile.ZIP_DEFLATED)
TEXT = U1.replace(b"|u1", b"<U1").replace(b"(2,)", b"()")


def one(header: bytes, data: bytes = b"", **changes: Any) -> bytes:
    return archive(("a.npy", npy(header, data, **changes)))


HOSTILE_NPZ: dict[str, tuple[bytes, str]] = {
    "no archive": (b"PK\3\4 and so on", "the archive is damaged"),
    "pickle": (archive(("a.npy", pickled())), "never loaded"),
    "structured": (one(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n"), "damaged"),
    "code": (one(b"{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }\n"), "damaged"),
    "big-endian": (one(U1.replace(b"|u1", b">f4"), b"abcdefgh"), "little-endian"),
    "text array": (one(U1.replace(b"|u1", b"<U1"), b"abcdefgh"), "an array of strings"),
    "text of many axes": (one(U1.replace(b"|u1", b"<U1").replace(b"2,", b"1," * 9999)), "9999 dimensions"),
    "text without end": (one(U1.replace(b"|u1", b"<U1").replace(b"2", b"9" * 4000)), "a shape of more bytes"),
    "bad text": (one(TEXT, b"\xff\xff\xff\xff"), "damaged"),
    "not npy": (archive(("a.npy", b"hello, this is no array")), "not a .npy array"),
    "empty member": (archive(("a.npy", b"")), "damaged"),
    "version": (one(U1, b"ab", version=b"\4\0"), "not a .npy array"),
    "header huge": (one(U1, b"ab", version=b"\2\0", length=1 << 31), "an array header of"),
    "header short": (one(U1, b"", length=4000), "damaged"),
    "key twice": (one(U1.replace(b"}", b"'shape': (1,), }"), b"ab"), "damaged"),
    "key missing": (one(b"{'descr': '|u1', 'shape': (2,), }\n", b"ab"), "damaged"),
    "negative size": (one(U1.replace(b"2,", b"-2,"), b"ab"), "damaged"),
    "size of digits": (one(U1.replace(b"2,", b"9" * 5000), b"ab"), "damaged"),
    "shape absurd": (one(U1.replace(b"2,", b"0, 99999999999, 99999999999"), b""), "more bytes than"),
    "spaces": (one(U1.replace(b"}", b" " * 60000 + b"!"), b"ab"), "damaged"),
    "too short": (one(U1, b"a"), "in 1 bytes"),
    "too long": (one(U1, b"abc"), "in 3 bytes"),
    "other member": (archive(("readme.txt", b"hello")), "end in .npy or .json"),
    "json bytes": (archive(("a.json", b"\xff")), "damaged"),
    "text twice": (archive(("a.json", b"x"), ("a.npy", npy(TEXT, b"a\0\0\0"))), "twice"),
    "bzip2": (archive(("a.npy", npy(U1, b"ab")), compression=zipfile.ZIP_BZIP2), "in an unusual way"),
    "encrypted": (with_field(GOOD, 8, b"\1\0"), "encrypted"),
    "stored size lies": (with_field(GOOD, 24, b"\xff\xff\0\0"), "in 70, need as many"),
    "deflated size lies": (with_field(DEFLATED, 24, b"\xff\xff\0\0"), "in 65467 bytes"),
    "deflated bomb": (with_field(DEFLATED, 24, b"\xf0\xff\xff\xff"), "inflates to"),
    "compressed size lies": (with_field(DEFLATED, 20, b"\xff\xff\0\0"), "leave the file"),
    "offset lies": (with_field(GOOD, 42, b"\5\0\0\0"), "damaged"),
    "checksum": (GOOD.replace(b"\nab", b"\nac"), "crc-32"),
}  # fmt: skip


@pytest.mark.rule("FIL-1", "FIL-2")
@pytest.mark.parametrize(
    "suffix, rule, case",
    [("safetensors", "FIL-1", case) for case in HOSTILE] + [("npz", "FIL-2", case) for case in HOSTILE_NPZ],
)
def test_hostile_files(tmp_path: Path, suffix: str, rule: str, case: str) -> None:
    data, why = (HOSTILE if suffix == "safetensors" else HOSTILE_NPZ)[case]
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(data)
    assert why in (text := refusal(path))
    assert len(text) < 500
    assert f"[{rule}]" in text


@pytest.mark.rule("FIL-2")
def test_members_of_one_name_or_of_the_same_bytes(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        (tmp_path / "a.npz").write_bytes(archive(("a.npy", npy(U1, b"ab")), ("a.npy", npy(U1, b"ab"))))
    assert "two members of one name" in refusal(tmp_path / "a.npz")
    start, end = GOOD.index(b"PK\1\2"), GOOD.index(b"PK\5\6")
    record = GOOD[start:end]
    names = [record.replace(b"a.npy", b"%c.npy" % letter) for letter in b"abcdefgh"]
    tail = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 8, 8, 8 * len(record), start, 0)
    (tmp_path / "a.npz").write_bytes(GOOD[:start] + b"".join(names) + tail)
    refusal(tmp_path / "a.npz")


@pytest.mark.rule("FIL-2")
def test_a_compressed_member_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1 << 16, np.uint8))
    assert len(everything(tmp_path / "a.npz")["a"][2]) == 1 << 16
    monkeypatch.setattr(npz, "INFLATED_MAX", 1 << 16)
    assert "inflates to" in refusal(tmp_path / "a.npz")
    monkeypatch.setattr(npz, "MEMBERS_MAX", 0)
    assert "1 members, need at most 0" in refusal(tmp_path / "a.npz")


SEED: dict[str, bytes] = {}


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("fuzz")
    for suffix in ("safetensors", "npz"):
        entries = [("a", "F32", (3,)), ("b", "BF16", (1, 2)), ("c", "F4", (2,)), ("d", "F6_E3M2", (2, 4))]
        arrays = [
            np.float32([1, 2, 3]),
            np.zeros((1, 2), ml_dtypes.bfloat16),
            np.uint8([7]),
            np.zeros((2, 3), np.uint8),
        ]
        write_tensors(folder / f"a.{suffix}", entries, {"k": "v"}, arrays)
        SEED[suffix] = (folder / f"a.{suffix}").read_bytes()
    SEED["deflated.npz"] = DEFLATED
    return {suffix: folder / f"fuzzed.{suffix}" for suffix in SEED}


@pytest.mark.rule("FIL-1", "FIL-2")
@pytest.mark.parametrize("suffix", ["safetensors", "npz", "deflated.npz"])
@given(changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_raise_nothing_else(seeds: dict[str, Path], suffix: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(SEED[suffix])
    for place, value in changes:
        data[place % len(data)] = value
    seeds[suffix].write_bytes(data)
    try:
        found = everything(seeds[suffix])
    except FileError:
        return
    if suffix == "safetensors":
        assert found == of_the_library(bytes(data))


def interrupted() -> Iterator[np.ndarray]:
    yield np.float32([1])
    raise KeyboardInterrupt


TWO = [("a", "F32", (1,)), ("b", "F32", (1,))]
FAILURES: dict[str, tuple[Callable[[], Any], type[BaseException]]] = {
    "interrupted": (interrupted, KeyboardInterrupt),
    "too few": (lambda: [np.float32([1])], FileError),
    "too many": (lambda: [np.float32([1])] * 3, FileError),
    "wrong shape": (lambda: [np.float32([1]), np.float32([1, 2])], FileError),
    "wrong type": (lambda: [np.float32([1]), np.int32([1])], FileError),
    "own error": (lambda: (1 // 0 for _ in TWO), ZeroDivisionError),
}


@pytest.mark.rule("FIL-4")
@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
@pytest.mark.parametrize("case", FAILURES)
@pytest.mark.parametrize("before", [None, b"what was there"])
def test_a_failure_leaves_what_was_there(tmp_path: Path, suffix: str, case: str, before: bytes | None) -> None:
    path = tmp_path / f"a.{suffix}"
    if before is not None:
        path.write_bytes(before)
    arrays, error = FAILURES[case]
    with pytest.raises(error):
        write_tensors(path, TWO, {}, arrays())
    assert [*tmp_path.iterdir()] == ([] if before is None else [path])
    assert before is None or path.read_bytes() == before


@pytest.mark.rule("FIL-4")
@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_writing_refuses(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"source")
    (tmp_path / f"link.{suffix}").symlink_to(path)
    (tmp_path / f"folder.{suffix}").mkdir()
    one = ([("a", "U8", (1,))], {}, [np.uint8([1])])
    for target, sources in ((path, [path]), (tmp_path / f"link.{suffix}", [path]), (tmp_path / f"folder.{suffix}", [])):
        with pytest.raises(FileError, match=r"\[FIL-10\]$" if sources else r"\[FIL-4\]$"):
            write_tensors(target, *one, sources=sources)
    with pytest.raises(FileError, match=r"no such file .*\[FIL-4\]$"):
        write_tensors(tmp_path / "none" / f"a.{suffix}", *one)
    with pytest.raises(FileError, match=r"\[FIL-42\]$"):
        write_tensors(tmp_path / "a.bin", *one)
    for entries in (
        [("a", "U9", (1,))],
        [("a", "U8", (-1,))],
        [("a", "F4", (3,))],
        [("a", "F6_E2M3", (6,))],
        [("__metadata__", "U8", (1,))],
        [("\ud800", "U8", (1,))],
    ):
        with pytest.raises(FileError, match=r"\[FIL-4\]$"):
            write_tensors(tmp_path / f"b.{suffix}", entries, {}, [np.uint8([1])])
    with pytest.raises(FileError, match="twice"):
        write_tensors(tmp_path / f"b.{suffix}", TWO + TWO, {}, [])
    assert path.read_bytes() == b"source"


@pytest.mark.rule("FIL-4")
def test_replacing_keeps_links_and_modes(tmp_path: Path) -> None:
    path, link = tmp_path / "a.npz", tmp_path / "link.npz"
    path.touch()
    path.chmod(0o640)
    link.symlink_to(path)
    write_tensors(link, [("a", "U8", (1,))], {}, [np.uint8([1])])
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert everything(path)["a"][2] == b"\1"
