"""Dumps: what a kernel's author saves by hand, what we write, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fp4ref
from fp4ref.conformance.dumps.files import Dump, DumpPlan, read_dump, write_dump
from fp4ref.errors import DomainError, FileError, Fp4Error, LayoutError
from fp4ref.files import open_tensors, write_tensors
from fp4ref.formats import STOCHASTIC_E2M1

BF16 = ml_dtypes.bfloat16
SUFFIXES = ("safetensors", "npz")
STOCHASTIC = fp4ref.NVFP4.replace(name="stochastic", element=STOCHASTIC_E2M1)


def tensor(shape: tuple[int, ...] = (48, 40), dtype: Any = BF16) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(dtype)


def same(a: Dump, b: Dump) -> None:
    assert (a.name, a.spec_version) == (b.name, b.spec_version)
    assert (a.x is None) == (b.x is None)
    arrays = [(a.x, b.x), *zip(a.random_bits, b.random_bits, strict=True)]
    p, q = a.quantized, b.quantized
    assert (p.spec, p.spec.name, p.shape, p.dtype, p.scale_layout) == (
        q.spec,
        q.spec.name,
        q.shape,
        q.dtype,
        q.scale_layout,
    )
    for one, other in ((p.row, q.row), (p.column, q.column)):
        assert (one is None) == (other is None)
        arrays += zip(one or (), other or (), strict=True)
    for one, other in arrays:
        assert (one is None) == (other is None)
        assert one is None or (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def dumps() -> list[Dump]:
    plain = Dump("a.row", tensor(), fp4ref.quantize(tensor(), fp4ref.NVFP4, "both", "tiled_128x4"))
    rows = Dump("b", None, fp4ref.quantize(tensor((2, 3, 33), np.float16), "nvfp4-row-scaled", "column"))
    mx = Dump(
        "", tensor((5, 70), np.float32), fp4ref.quantize(tensor((5, 70), np.float32), "mxfp8-e5m2", "both", "tiled_8x4")
    )
    empty = Dump("é", tensor((0, 7)), fp4ref.quantize(tensor((0, 7)), "torchao.nvfp4_2lvl", "both", "linear_padded"))
    bits = fp4ref.Directions(
        *(np.random.default_rng(1).integers(0, 256, shape, np.uint8) for shape in ((48, 40), (40, 48)))
    )
    random = Dump("r", tensor(), fp4ref.quantize(tensor(), STOCHASTIC, "both", random_bits=bits), random_bits=bits)
    return [plain, rows, mx, empty, random]


@pytest.mark.rule("FIL-3", "PACK-1", "LAY-1", "LAY-2", "LAY-3", "LAY-4", "GLB-1", "GLB-5")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read(tmp_path: Path, suffix: str) -> None:
    written = dumps()
    write_dump(tmp_path / f"a.{suffix}", written)
    with read_dump(tmp_path / f"a.{suffix}") as read:
        assert set(read.names) == {dump.name for dump in written}
        found = {dump.name: dump for dump in read}
    for dump in written:
        same(found[dump.name], dump)
    with read_dump(tmp_path / f"a.{suffix}") as read:
        write_dump(tmp_path / f"b.{suffix}", read, sources=[tmp_path / f"a.{suffix}"])
        with pytest.raises(FileError, match="FIL-10"):
            write_dump(tmp_path / f"a.{suffix}", read, sources=[tmp_path / f"a.{suffix}"])
        assert [dump.name for dump in read[1:3]] == list(read.names[1:3])
    with read_dump(tmp_path / f"b.{suffix}") as read:
        for dump in read:
            same(dump, found[dump.name])


@pytest.mark.rule("FIL-3", "FIL-4")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_plan_is_made_when_its_turn_comes(tmp_path: Path, suffix: str) -> None:
    made: list[str] = []

    def plan(name: str, **changes: Any) -> DumpPlan:
        def make() -> Dump:
            made.append(name)
            return Dump(name, tensor(), fp4ref.quantize(tensor(), fp4ref.NVFP4, "both", "tiled_128x4"))

        fixed: dict[str, Any] = {"spec": fp4ref.NVFP4, "shape": (48, 40), "dtype": "bfloat16", "make": make}
        fixed |= {"scale_layout": "tiled_128x4", "directions": ("row", "column")}
        return DumpPlan(name=name, **(fixed | changes))

    plans = [plan("a"), plan("b", directions=("column",), with_x=False)]
    write_dump(tmp_path / f"a.{suffix}", plans)
    assert made == ["a", "b"]
    a, b = read_dump(tmp_path / f"a.{suffix}")
    same(a, plans[0].make())
    assert b.x is None
    assert b.quantized.row is None
    for wrong in ({"spec": fp4ref.MXFP4}, {"shape": (48, 41)}, {"dtype": "float32"}, {"scale_layout": "linear"}):
        with pytest.raises(Fp4Error):
            write_dump(tmp_path / f"b.{suffix}", [plan("c", **wrong)])
    assert not (tmp_path / f"b.{suffix}").exists()


@pytest.mark.rule("FIL-9", "LAY-43")
def test_a_layout_may_refuse_the_direction_that_a_file_has_not(tmp_path: Path) -> None:
    x = np.linspace(-3, 3, 32 * 128, dtype=np.float32).reshape(32, 128)
    q = fp4ref.quantize(x, "nvfp4", scale_layout="aiter.shuffle_scale_f4_nvfp4")
    write_dump(tmp_path / "q.npz", [Dump("w", x, q)])
    same(read_dump(tmp_path / "q.npz")[0], Dump("w", x, q))


def by_hand(q: fp4ref.Quantized, **changes: Any) -> dict[str, Any]:
    arrays = {"x": tensor(), "data": q.row.data, "scales": q.row.scales, "amax": q.row.amax}  # type: ignore[union-attr]
    return {name: array for name, array in (arrays | changes).items() if array is not None}


Q = fp4ref.quantize(tensor(), fp4ref.NVFP4, scale_layout="tiled_128x4", backend="numpy")  # which compiles nothing
LINEAR = fp4ref.quantize(tensor(), fp4ref.NVFP4, backend="numpy")


@pytest.mark.rule("FIL-3", "FIL-8", "LAY-7", "NUM-3")
def test_a_file_saved_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **by_hand(Q))
    with pytest.raises(DomainError, match=r"no spec for the tensor, need .*--spec.*\[FIL-8\]$"):
        read_dump(path)
    with pytest.raises(
        LayoutError, match=r"need \[48, 3\] for scale_layout linear .*linear_padded and tiled_128x4 .*\[LAY-60\]$"
    ):
        read_dump(path, "nvfp4")
    expected = Dump("", tensor(), Q)
    same(*read_dump(path, "nvfp4", "tiled_128x4"), expected)
    flat = {"data": Q.row.data.ravel(), "scales": Q.row.scales.view(np.int8).ravel(), "amax": Q.row.amax[0]}
    np.savez_compressed(path, **by_hand(Q, **flat))
    same(*read_dump(path, fp4ref.NVFP4, "tiled_128x4"), expected)
    np.savez(path, **by_hand(Q, x=tensor().view(np.uint16)))
    with pytest.raises(Fp4Error, match="x of the tensor is U16, need F32, BF16, F16, or U16 bits and their dtype"):
        read_dump(path, "nvfp4", "tiled_128x4")
    same(*read_dump(path, "nvfp4", "tiled_128x4", "bfloat16"), expected)
    record = {"spec": "nvfp4", "scale_layout": "tiled_128x4", "dtype": "bfloat16"}
    np.savez(path, **by_hand(Q, x=tensor().view(np.uint16)), metadata=json.dumps({"tensors": {"": record}}))
    same(*read_dump(path), expected)
    assert read_dump(path, "te.rht_fused")[0].quantized.spec.name == "te.rht_fused"


@pytest.mark.rule("FIL-3")
@pytest.mark.slow
def test_a_file_saved_by_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    arrays = {name: torch.from_numpy(array) for name, array in by_hand(Q, x=None).items()}
    arrays["data"] = arrays["data"].view(torch.float4_e2m1fn_x2)
    arrays["scales"] = arrays["scales"].view(torch.float8_e4m3fn)
    arrays["x"] = torch.from_numpy(tensor().view(np.uint16)).view(torch.bfloat16)
    save_file(arrays, tmp_path / "a.safetensors")
    same(*read_dump(tmp_path / "a.safetensors", "nvfp4", "tiled_128x4"), Dump("", tensor(), Q))
    arrays["scales"] = arrays["scales"].view(torch.float8_e5m2)
    save_file(arrays, tmp_path / "a.safetensors")
    with pytest.raises(FileError, match="row.scales of the tensor is F8_E5M2"):
        read_dump(tmp_path / "a.safetensors", "nvfp4", "tiled_128x4")


@pytest.mark.rule("FIL-3", "FIL-8")
def test_a_missing_shape_comes_from_x_or_from_data(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **by_hand(LINEAR, x=None))
    assert read_dump(path, "nvfp4")[0].quantized.shape == (48, 40)
    column = fp4ref.quantize(tensor((48, 40), np.float32), "mxfp8-e4m3", "column")
    np.savez(path, **{"t.column.data": column.column.data, "t.column.scales": column.column.scales})  # type: ignore[union-attr]
    same(*read_dump(path, "mxfp8-e4m3"), Dump("t", None, column))
    np.savez(path, **by_hand(LINEAR, x=None, data=LINEAR.row.data.ravel()))
    with pytest.raises(FileError, match="no shape for the tensor"):
        read_dump(path, "nvfp4")
    assert column.column is not None
    leading = {"t.column.data": column.column.data.reshape(4, 10, 48), "t.column.scales": column.column.scales.ravel()}
    np.savez(path, **leading)
    same(*read_dump(path, "mxfp8-e4m3"), Dump("t", None, column))


@pytest.mark.rule("FIL-3", "FIL-8")
def test_entries_that_no_tensor_has(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **by_hand(LINEAR, **{"data": None, ".row.data": LINEAR.row.data}))  # type: ignore[union-attr]
    with pytest.raises(FileError, match=r"entry '\.row\.data', .*FIL-3"):
        read_dump(path, "nvfp4")
    np.savez(path, **by_hand(LINEAR, x=None, data=np.uint8(7)))
    with pytest.raises(FileError, match=r"no shape for the tensor.*FIL-8"):
        read_dump(path, "nvfp4")
    np.savez(path, **by_hand(LINEAR, data=np.uint8(7)))
    with pytest.raises(FileError, match=r"row\.data of the tensor has shape \[\].*FIL-9"):
        read_dump(path, "nvfp4")


@pytest.mark.rule("FIL-8")
def test_a_caller_replaces_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"

    def save(text: str, key: str = "fp4ref") -> None:
        arrays = by_hand(LINEAR)
        types = {"x": "BF16", "amax": "F32"}
        entries = [(name, types.get(name, "U8"), array.shape) for name, array in arrays.items()]
        write_tensors(path, entries, {key: text}, arrays.values())

    save(described(dtype="float16"))
    with pytest.raises(Fp4Error, match=r"x of the tensor is BF16, its dtype float16.*FIL-8"):
        read_dump(path)
    same(*read_dump(path, dtype="bfloat16"), Dump("", tensor(), LINEAR))
    save(described(spec="mxfp4", scale_layout="tiled_8x4"))
    same(*read_dump(path, "nvfp4", "linear"), Dump("", tensor(), LINEAR))
    wrong = (
        {"spec": "nvfp9"},
        {"scale_layout": "diagonal"},
        {"scale_layout": "flashinfer.sf_128x4"},
        {"dtype": "float64"},
    )
    for changes in wrong:
        save(described(**changes))
        with pytest.raises(Fp4Error):
            read_dump(path, "nvfp4", "linear", "bfloat16")
    save(described(dtype=None), "metadata")
    same(*read_dump(path), Dump("", tensor(), LINEAR))


def described(**changes: Any) -> str:
    record = {"spec": "nvfp4", "scale_layout": "linear", "shape": [48, 40], "dtype": "bfloat16"} | changes
    return json.dumps({"spec_version": fp4ref.SPEC_VERSION, "tensors": {"": record}})


SPEC = json.loads(fp4ref.NVFP4.to_json())
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no data": ({"data": None}, "without row.data"),
    "no scales": ({"scales": None}, "without row.scales"),
    "no amax": ({"amax": None}, "without row.amax"),
    "only x": ({"data": None, "scales": None, "amax": None}, "without quantized bytes"),
    "an amax too many": ({"metadata": described(spec="mxfp4")}, "no global scale"),
    "amax of float64": ({"amax": np.float64([1])}, "row.amax of the tensor is F64, need F32"),
    "amax of two": ({"amax": np.float32([1, 2])}, "row.amax of the tensor has shape [2], need [1]"),
    "data of uint16": ({"data": LINEAR.row.data.view(np.uint16)}, "row.data of the tensor is U16"),
    "data too small": ({"data": LINEAR.row.data[1:]}, "row.data of the tensor has shape [47, 20]"),
    "data transposed": ({"data": LINEAR.row.data.T.copy()}, "row.data of the tensor has shape [20, 48]"),
    "scales too small": ({"scales": LINEAR.row.scales[1:]}, "scales of the tensor has shape [47, 3]"),
    "two of one": ({"row.data": LINEAR.row.data}, "need one of them"),
    "unknown entry": ({"scale": LINEAR.row.scales}, "entry 'scale', need names that"),
    "x of float64": ({"x": tensor(dtype=np.float64)}, "x of the tensor is F64"),
    "x of another type": ({"x": tensor(dtype=np.float32)}, "x of the tensor is F32, its dtype bfloat16"),
    "x of another shape": ({"x": tensor((40, 48))}, "x of the tensor has shape [40, 48], need [48, 40]"),
    "x without dimensions": ({"x": tensor(()), "metadata": described(shape=None)}, "without dimensions"),
    "no JSON": ({"metadata": "hello"}, "metadata that is not JSON"),
    "a list": ({"metadata": "[]"}, "metadata that is not an object"),
    "tensors a list": ({"metadata": '{"tensors": []}'}, "of another type"),
    "repeated key": ({"metadata": '{"tensors": {}, "tensors": {}}'}, "a repeated key"),
    "nested": ({"metadata": "[" * 200_000}, "metadata that is not JSON"),
    "unknown field": ({"metadata": described(layout="linear")}, "with other fields"),
    "another tensor": ({"metadata": described().replace('"": {', '"t": {')}, "no entries for 't'"),
    "unknown spec": ({"metadata": described(spec="nvfp5")}, "unknown name 'nvfp5'"),
    "spec a list": ({"metadata": described(spec=[1])}, "SPC-11"),
    "spec without version": ({"metadata": described(spec={"name": "x"})}, "SPC-11"),
    "spec huge": ({"metadata": described(spec=SPEC | {"element_max": 10**400})}, "element_max"),
    "block huge": ({"metadata": described(spec=SPEC | {"block": [1, 10**400]})}, "scales of the tensor"),
    "layout unknown": ({"metadata": described(scale_layout="tiled")}, "LAY-59"),
    "layout a number": ({"metadata": described(scale_layout=1)}, "that is not text"),
    "dtype unknown": ({"metadata": described(dtype="float64")}, "dtype 'float64'"),
    "shape negative": ({"metadata": described(shape=[-48, -40])}, "not a list of sizes"),
    "shape absurd": ({"metadata": described(shape=[0, 1 << 62]), "x": None}, "more bytes than"),
    "shape empty": ({"metadata": described(shape=[]), "x": None}, "without dimensions"),
    "shape another": ({"metadata": described(shape=[48, 42]), "x": None}, "has shape [48, 20], need [48, 21]"),
}


@pytest.mark.rule("FIL-3", "FIL-9")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    changes, why = REFUSED[case]
    np.savez(tmp_path / "a.npz", **by_hand(LINEAR, **({"metadata": described()} | changes)))
    with pytest.raises(Fp4Error) as caught:
        read_dump(tmp_path / "a.npz")
    assert why in (text := str(caught.value))
    assert "\n" not in text
    assert len(text) < 1000


@pytest.mark.rule("FIL-3")
def test_a_file_of_other_things(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", [], {}, [])
    with pytest.raises(FileError, match="no entries for any tensor"):
        read_dump(tmp_path / "a.safetensors")
    write_tensors(tmp_path / "a.safetensors", [("model.weight", "F32", (1,))], {}, [np.float32([1])])
    with pytest.raises(FileError, match="entry 'model.weight'"):
        read_dump(tmp_path / "a.safetensors", "nvfp4")


@pytest.mark.rule("FIL-8", "SPC-4")
def test_metadata_names_what_is_registered_and_spells_out_the_rest(tmp_path: Path) -> None:
    write_dump(tmp_path / "a.npz", dumps())
    with open_tensors(tmp_path / "a.npz") as file:
        records = json.loads(file.metadata["fp4ref"])["tensors"]
        assert file.entry("a.row.x") == ("U16", (48, 40))
    assert records["a.row"] == {"spec": "nvfp4", "scale_layout": "tiled_128x4", "shape": [48, 40], "dtype": "bfloat16"}
    assert fp4ref.from_json(json.dumps(records["r"]["spec"])) == STOCHASTIC


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=3),
    lambda v: st.lists(v, max_size=3),
)


@pytest.mark.rule("FIL-8")
@given(data=st.data())
def test_changed_metadata_raises_nothing_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.npz"
    record: dict[str, Any] = json.loads(described(spec=SPEC))["tensors"][""]
    place: Any = record
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(VALUES)
    np.savez(path, **by_hand(LINEAR, metadata=json.dumps({"tensors": {"": record}})))
    try:
        read_dump(path)[0]
    except Fp4Error:
        return


@pytest.mark.rule("FIL-1", "FIL-3", "PACK-4", "PACK-5")
@pytest.mark.parametrize("form, other", [("e2m3", "e3m2"), ("e3m2", "e2m3")])
def test_codes_of_six_bits_in_a_type_of_their_own(tmp_path, form, other):
    spec, x = f"mxfp6-{form}", np.random.default_rng(6).standard_normal((6, 44)).astype(np.float32)
    row = fp4ref.quantize(x, spec).row

    def stored(dtype, columns, data):
        entries = [("data", dtype, (6, columns)), ("scales", "F8_E8M0", row.scales.shape)]
        path = tmp_path / "a.safetensors"
        write_tensors(path, entries, {}, [data, row.scales])
        return path

    path = stored(f"F6_{form.upper()}", 44, row.data)
    with read_dump(path, spec) as read:
        (dump,) = read
        assert dump.quantized.shape == (6, 44)
        assert dump.quantized.row.data.tobytes() == row.data.tobytes()
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) - row.scales.size, len(whole) // 2):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match="FIL-1"):
            read_dump(path, spec)
    with pytest.raises(FileError, match=f"is F6_{other.upper()}, need .*FIL-3"):
        read_dump(stored(f"F6_{other.upper()}", 44, row.data), spec)
    with pytest.raises(FileError, match=f"a row of F6_{form.upper()} that ends inside a byte"):
        stored(f"F6_{form.upper()}", 45, row.data)
    ragged = fp4ref.quantize(x[:, :43], spec)  # a row of 33 bytes, of which two bits are left over
    write_dump(tmp_path / "r.safetensors", [Dump("", x[:, :43], ragged)])
    with read_dump(tmp_path / "r.safetensors") as read:
        assert read[0].quantized.row.data.tobytes() == ragged.row.data.tobytes()
