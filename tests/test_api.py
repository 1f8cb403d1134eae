"""The public functions: shapes, kinds of arrays, and what they refuse."""

from __future__ import annotations

import dataclasses
import itertools
import re
import runpy
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import DirectionData, Directions, DomainError, DTypeError, LayoutError, Quantized, ShapeError
from fp4ref.arguments import buffer_shapes
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.layout import STANDARD_LAYOUTS

BF16 = ml_dtypes.bfloat16
STANDARD = [name for name, spec in fp4ref.profiles.items() if "." not in name and not spec.stochastic]
RNG = np.random.default_rng(7)


def sample(rows: int = 48, columns: int = 80, dtype: type = np.float32) -> np.ndarray:
    return np.asarray(np.random.default_rng(rows * 1000 + columns).standard_normal((rows, columns)), dtype)


def same(a: fp4ref.Quantized, b: fp4ref.Quantized) -> None:
    for one, other in ((a.row, b.row), (a.column, b.column)):
        assert (one is None) == (other is None)
        for x, y in zip(one or (), other or (), strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
                assert tuple(x.shape) == tuple(y.shape)


@pytest.mark.rule("BLK-8", "NUM-4")
@pytest.mark.parametrize("name", STANDARD)
def test_shapes_of_both_directions(name: str) -> None:
    spec = fp4ref.profiles[name]
    q = fp4ref.quantize(sample(48, 80, BF16), name, "both")
    assert (q.spec, q.shape, q.dtype, q.scale_layout) == (spec, (48, 80), "bfloat16", "linear")
    bits, block = spec.element.format.bits, spec.block.columns
    assert q.row is not None
    assert q.column is not None
    assert q.row.data.shape == (48, 80 * bits // 8)
    assert q.column.data.shape == (80, 48 * bits // 8)
    assert q.row.scales.shape == (48, -(-80 // block))
    assert q.column.scales.shape == (80, -(-48 // block))
    sizes = {"none": (None, None), "tensor": ((1,), (1,)), "row": ((48,), (80,))}[spec.global_scale]
    assert (q.row.amax if sizes[0] is None else q.row.amax.shape) == sizes[0]
    assert (q.column.amax if sizes[1] is None else q.column.amax.shape) == sizes[1]


@pytest.mark.rule("NUM-4")
@pytest.mark.parametrize("shape", [(40,), (1, 40), (2, 3, 40), (2, 3, 4, 7), (5, 1)])
def test_leading_dimensions_are_flattened(shape: tuple[int, ...]) -> None:
    x = np.float32(RNG.standard_normal(shape))
    q = fp4ref.quantize(x, fp4ref.NVFP4, "both")
    flat = fp4ref.quantize(x.reshape(-1, shape[-1]), fp4ref.NVFP4, "both")
    same(q, flat)
    assert fp4ref.dequantize(q).shape == shape
    assert fp4ref.dequantize(q, direction="column").shape == (shape[-1], x.size // shape[-1])


@pytest.mark.rule("BLK-9")
@pytest.mark.parametrize("name", STANDARD)
def test_zero_size(name: str) -> None:
    shapes = (0, 16), (16, 0), (0, 0), (2, 0, 32), (0,)
    for shape, layout in itertools.product(shapes, [form.name for form in STANDARD_LAYOUTS]):
        q = fp4ref.quantize(np.zeros(shape, BF16), name, "both", layout)
        assert fp4ref.dequantize(q, "bfloat16").shape == shape
        assert fp4ref.dequantize(q, direction="column").size == 0
        if q.row.amax is not None and q.spec.global_scale == "tensor":  # type: ignore[union-attr]
            assert q.row.amax.tolist() == [0]  # type: ignore[union-attr]


@pytest.mark.rule("NUM-4")
def test_strides_do_not_matter() -> None:
    x = sample(64, 96)
    for view in (x.T, x[::2], x[:, ::3], x[::-1], np.broadcast_to(x[:1], (4, 96)), x.reshape(8, 8, 96).swapaxes(0, 1)):
        same(fp4ref.quantize(view, "nvfp4", "both"), fp4ref.quantize(np.ascontiguousarray(view), "nvfp4", "both"))


@pytest.mark.rule("LAY-5", "LAY-6", "LAY-7")
@pytest.mark.parametrize("name", STANDARD)
@pytest.mark.parametrize("layout", [form.name for form in STANDARD_LAYOUTS])
def test_layouts_hold_the_same_values_and_padding_is_not_read(name: str, layout: str) -> None:
    q = fp4ref.quantize(sample(48, 112, BF16), name, "both", layout)
    same(fp4ref.to_layout(q, "linear"), fp4ref.quantize(sample(48, 112, BF16), name, "both"))
    poisoned = {}
    for direction in ("row", "column"):
        data, (rows, columns) = q.direction(direction)  # type: ignore[arg-type]
        valid = fp4ref.LAYOUTS[layout].valid(rows, -(-columns // q.spec.block.columns))
        assert not data.scales[~valid].any()
        poisoned[direction] = data._replace(scales=np.where(valid, data.scales, 0xFF).astype(np.uint8))
    dirty = dataclasses.replace(q, **poisoned)
    for direction in ("row", "column"):
        clean = fp4ref.dequantize(q, "float32", direction)  # type: ignore[arg-type]
        assert clean.tobytes() == fp4ref.dequantize(dirty, "float32", direction).tobytes()  # type: ignore[arg-type]
    same(fp4ref.to_layout(dirty, "tiled_8x4"), fp4ref.to_layout(q, "tiled_8x4"))


@pytest.mark.rule("GLB-4")
def test_a_callers_amax() -> None:
    x = sample(32, 64)
    own = fp4ref.quantize(x, "nvfp4", "both")
    for amax in (float(np.abs(x).max()), np.abs(x).max(), np.abs(x).max(keepdims=True)[0]):
        same(fp4ref.quantize(x, "nvfp4", "both", amax=amax), own)
    same(fp4ref.quantize(x, "nvfp4", "both", amax=Directions(own.row.amax, own.column.amax)), own)  # type: ignore[union-attr]
    low = fp4ref.quantize(x, "nvfp4", amax=0.01)
    assert low.row.amax.tolist() == [np.float32(0.01)]  # type: ignore[union-attr]
    assert (np.abs(fp4ref.dequantize(low)) <= np.float32(0.011)).all()
    rows = fp4ref.quantize(x, "nvfp4-row-scaled", "both")
    same(fp4ref.quantize(x, "nvfp4-row-scaled", amax=np.abs(x).max(1)), dataclasses.replace(rows, column=None))
    both = Directions(np.abs(x).max(1), np.abs(x).max(0))
    same(fp4ref.quantize(x, "nvfp4-row-scaled", "both", amax=both), rows)


@pytest.mark.rule("GLB-4", "GLB-6")
@pytest.mark.parametrize(
    ("name", "directions", "amax", "error"),
    [
        ("nvfp4", "row", -1.0, DomainError),
        ("nvfp4", "row", float("nan"), DomainError),
        ("nvfp4", "row", np.float32([1, 2]), ShapeError),
        ("nvfp4", "row", np.float64([1]), DTypeError),
        ("nvfp4", "row", True, DTypeError),
        ("nvfp4", "row", "1", DTypeError),
        ("mxfp4", "row", 1.0, DomainError),
        ("nvfp4-row-scaled", "row", 1.0, ShapeError),
        ("nvfp4-row-scaled", "both", np.ones(32, np.float32), ShapeError),
        ("nvfp4-rht", "both", 1.0, ShapeError),
        ("nvfp4", "row", Directions(column=np.float32([1])), ShapeError),
        ("nvfp4", "both", Directions(row=np.float32([1])), ShapeError),
    ],
)
def test_a_wrong_amax(name: str, directions: str, amax: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="quantize: .*\\[(GLB|NUM)-"):
        fp4ref.quantize(sample(32, 32, BF16), name, directions, amax=amax)


@pytest.mark.rule("NUM-3")
@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 16)),
        np.zeros((2, 16), np.int32),
        np.zeros((2, 16), bool),
        np.zeros((2, 16), np.complex64),
        np.zeros((2, 16), ml_dtypes.float8_e4m3fn),
        [[1.0] * 16],
        1.0,
        "text",
        None,
    ],
)
def test_other_inputs_are_refused(x: object) -> None:
    with pytest.raises(DTypeError, match="quantize: .*NUM-3") as raised:
        fp4ref.quantize(x, "nvfp4")
    assert "\n" not in str(raised.value)


@pytest.mark.rule("NUM-4", "BLK-8", "HAD-5", "SR-1", "LAY-7")
def test_wrong_arguments_are_refused() -> None:
    x = sample(17, 32)
    with pytest.raises(ShapeError, match="NUM-12"):
        fp4ref.quantize(np.float32(1).reshape(()), "nvfp4")
    with pytest.raises(DomainError, match="direction 'rows'"):
        fp4ref.quantize(x, "nvfp4", "rows")
    with pytest.raises(DomainError, match="direction 'both'"):
        fp4ref.dequantize(fp4ref.quantize(x, "nvfp4", "both"), direction="both")  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="128x4"):
        fp4ref.quantize(x, "nvfp4", scale_layout="128x4")
    with pytest.raises(DomainError, match="nvfp5"):
        fp4ref.quantize(x, "nvfp5")
    with pytest.raises(DTypeError, match="HAD-5"):
        fp4ref.quantize(sample(16, 32), "nvfp4-rht", "column")
    with pytest.raises(ShapeError, match="HAD-5"):
        fp4ref.quantize(sample(17, 32, BF16), "nvfp4-rht", "both")
    assert fp4ref.quantize(x, "nvfp4-rht").row is not None  # the row direction is not transformed
    with pytest.raises(DTypeError, match="DEQ-7"):
        fp4ref.dequantize(fp4ref.quantize(x, "nvfp4"), "float64")
    with pytest.raises(DomainError, match="no column"):
        fp4ref.dequantize(fp4ref.quantize(x, "nvfp4"), direction="column")
    with pytest.raises(DomainError, match="HAD-9"):
        fp4ref.dequantize(fp4ref.quantize(x, "nvfp4"), inverse_hadamard=True)


@pytest.mark.rule("HAD-5", "HAD-9")
@pytest.mark.parametrize("backend", ["numpy", "torch", "cpu"])
def test_rows_of_a_transform_that_16_does_not_divide(backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch", reason="needs the extra [torch]")
    for rows, columns in ((33, 4), (33, 0)):
        data, scales = np.full((columns, 17), 0x22, np.uint8), np.full((columns, 3), 0x38, np.uint8)
        column = DirectionData(data, scales, np.float32([6 * 448]))
        q = Quantized(fp4ref.NVFP4_RHT, (rows, columns), "float32", "linear", None, column)
        back = fp4ref.dequantize(q, direction="column", backend=backend)
        assert back.shape == (columns, rows)
        assert (np.asarray(back) == np.float32(2688) * (np.float32(1) / np.float32(2688))).all()
        with pytest.raises(ShapeError, match="inverse_hadamard of 33 rows.*HAD-9"):
            fp4ref.dequantize(q, direction="column", inverse_hadamard=True, backend=backend)


@pytest.mark.rule("SR-1")
def test_random_bits_belong_to_stochastic_specs() -> None:
    x = sample(32, 48)
    stochastic = fp4ref.NVFP4.replace(name="nvfp4-sr", element=STOCHASTIC_E2M1)
    row, column = RNG.integers(0, 256, (32, 48), np.uint8), RNG.integers(0, 256, (48, 32), np.uint8)
    both = fp4ref.quantize(x, stochastic, "both", random_bits=Directions(row, column))
    same(dataclasses.replace(both, column=None), fp4ref.quantize(x, stochastic, random_bits=row))
    for spec, directions, bits, error in (
        (stochastic, "row", None, DomainError),
        (fp4ref.NVFP4, "row", row, DomainError),
        (stochastic, "row", column, ShapeError),
        (stochastic, "row", row.astype(np.int16), DTypeError),
        (stochastic, "both", row, ShapeError),
    ):
        with pytest.raises(error):
            fp4ref.quantize(x, spec, directions, random_bits=bits)


@pytest.mark.rule("LAY-60", "RES-7")
def test_bytes_that_do_not_fit_are_refused() -> None:
    q = fp4ref.quantize(sample(), "nvfp4", scale_layout="tiled_128x4")
    row = q.row
    assert row is not None
    for rule, bad in (
        ("RES-7", row._replace(data=row.data[:, 1:])),
        ("LAY-60", row._replace(scales=row.scales[1:])),
        ("RES-7", row._replace(amax=None)),
        ("RES-7", row._replace(amax=np.ones(2, np.float32))),
    ):
        with pytest.raises(ShapeError, match=rule):
            fp4ref.dequantize(dataclasses.replace(q, row=bad))
    for kind in (row._replace(data=row.data.view(np.int8)), row._replace(amax=np.float64([1]))):
        with pytest.raises(DTypeError, match="RES-7"):
            fp4ref.dequantize(dataclasses.replace(q, row=kind))
    with pytest.raises(ShapeError, match="LAY-60"):
        fp4ref.to_layout(dataclasses.replace(q, scale_layout="linear"), "tiled_8x4")


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8-e4m3", "nvfp4-row-scaled"])
def test_out_is_filled(name: str) -> None:
    x = sample()
    expected = fp4ref.quantize(x, name, "both", "tiled_128x4")
    shapes = {d: buffer_shapes(expected.spec, x.shape, d, "tiled_128x4") for d in ("row", "column")}  # type: ignore[arg-type]
    buffers = {
        d: DirectionData(*(None if s is None else np.full(s, 0xEE, t) for s, t in zip(shapes[d], "BBf", strict=True)))
        for d in shapes
    }
    out = dataclasses.replace(expected, **buffers)
    result = fp4ref.quantize(x, name, "both", "tiled_128x4", out=out)
    same(result, expected)
    assert result.row.data is buffers["row"].data  # type: ignore[union-attr]
    with pytest.raises(ShapeError, match="scale_layout"):
        fp4ref.quantize(x, name, "both", "linear", out=out)
    with pytest.raises(ShapeError, match="shape"):
        fp4ref.quantize(x[1:], name, "both", "tiled_128x4", out=out)


@pytest.mark.rule("DEQ-3")
def test_dtypes_may_be_named_in_any_library() -> None:
    q = fp4ref.quantize(sample(), "nvfp4")
    assert fp4ref.dequantize(q, "bfloat16").dtype == BF16
    assert fp4ref.dequantize(q, BF16).dtype == BF16
    assert fp4ref.dequantize(q, np.float16).dtype == np.float16
    assert fp4ref.dequantize(q, np.dtype(np.float32)).dtype == np.float32


@pytest.mark.rule("LAY-3")
def test_swizzle_offsets_of_the_standard() -> None:
    for offset, row, column in (
        (0, 0, 0),
        (16, 1, 0),
        (4, 32, 0),
        (1, 0, 1),
        (511, 127, 3),
        (512, 0, 4),
        (1674, 200, 6),
    ):
        assert fp4ref.swizzle_offset(row, column, 8) == offset
        assert tuple(map(int, fp4ref.swizzle_index(offset, 8))) == (row, column)


def test_names_of_the_public_interface() -> None:
    for name in (
        "quantize dequantize to_layout swizzle_offset profiles Spec Codec Directions NVFP4 NVFP4_2D NVFP4_ROW_SCALED "
        "NVFP4_RHT NVFP4_4OVER6 NVFP4_FAST NVFP4_SR MXFP4 MXFP4_2D MXFP8_E4M3 MXFP8_E5M2 MXFP8_2D Fp4Error ShapeError "
        "DTypeError DomainError BackendError LayoutError"
    ).split():
        assert name in fp4ref.__all__, name


def test_the_script_for_type_checkers_uses_every_public_name() -> None:
    text = (Path(__file__).parent / "typing" / "user.py").read_text()
    assert {name for name in fp4ref.__all__ if not re.search(rf"\b{name}\b", text)} == set()


def test_the_script_for_type_checkers_runs(capsys):
    found = runpy.run_path(str(Path(__file__).parent / "typing" / "user.py"))
    assert found["row"].spec is fp4ref.NVFP4
    assert "Layout(name='linear'" in capsys.readouterr().out
