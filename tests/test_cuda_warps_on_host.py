"""The CUDA backend's fast paths on the CPU: their kernels with warps, byte for byte against the golden model.

A block's threads take turns, and meet at barriers and shuffles: see `cuda_on_host.h`. All arrays have guards around
them. The kernels for products and values are in `test_cuda_on_host.py`. Only a device shows what its own instructions
do, which `self_check` and `reciprocal_check` ask, and how lanes of a warp race that the program does not let meet.
"""

from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from cuda_on_host import UNSET, Host, guards_hold, on_host, to_bytes, to_tensor, torch
from fp4ref.formats import CUDA_E4M3, CUDA_E5M2
from fp4ref.layout import LAYOUTS
from fp4ref.model import counter_map
from fp4ref.quantized import DirectionData, Directions
from fp4ref.registry import Call
from fp4ref_cuda import operations, paths, plan
from host_compiler import KERNELS, needs_compiler

pytestmark = needs_compiler
profiles = fp4ref.profiles
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
KINDS = ("numbers", "special", "patterns", "zeros")
LINEAR, PADDED, TILED, TILED_8 = "linear", "linear_padded", "tiled_128x4", "tiled_8x4"
LAYOUTS_OF_HEADER = (LINEAR, PADDED, TILED, TILED_8)


@pytest.fixture
def host(monkeypatch) -> Host:
    return on_host(monkeypatch)


def inputs(shape: tuple[int, int], kind: str, dtype: np.dtype = BFLOAT16) -> np.ndarray:
    """Numbers of many sizes, on ties too; the same with special ones among them; any patterns; zeros of both signs."""
    rng = np.random.default_rng([*shape, KINDS.index(kind)])
    if kind == "patterns":
        return rng.integers(0, 1 << 8 * dtype.itemsize, shape, np.uint32).astype(f"u{dtype.itemsize}").view(dtype)
    if kind == "zeros":
        return np.where(rng.random(shape) < 0.5, np.float32(0), np.float32(-0.0)).astype(dtype)
    wide = 12 if dtype == np.float16 else 60
    x = rng.integers(-64, 65, shape) / 16 * np.exp2(rng.integers(-wide, wide // 3, (shape[0], 1)))
    x *= np.exp2(rng.integers(-3, 4, (1, shape[1])))
    if kind == "special":
        hard = np.float32([np.nan, -np.nan, np.inf, -np.inf, -0.0, 1e-45, 1e-40, 6e-8])
        x = np.where(rng.random(shape) < 0.01, rng.choice(hard, shape), x)
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(dtype)


def drawn(spec: fp4ref.Spec, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Random bytes of each direction; none where a specification draws none."""
    rows = {"row": shape, "column": shape[::-1]} if spec.stochastic else {}
    return {name: counter_map.random_bytes(size, (0, 0), -(-size[1] // 16), 7, 0) for name, size in rows.items()}


def same_maxima(mine: np.ndarray, theirs: np.ndarray) -> bool:
    """True if all bytes are equal, but for those of NaN, of which any will do."""
    nan = np.isnan(theirs)
    return (
        np.array_equal(nan, np.isnan(mine)) and np.where(nan, 0, mine).tobytes() == np.where(nan, 0, theirs).tobytes()
    )


def require_same(got: DirectionData, expected: DirectionData, case: object) -> None:
    for mine, theirs, field in zip(got, expected, DirectionData._fields, strict=True):
        assert (mine is None) == (theirs is None), (case, field)
        if field == "amax" and mine is not None:
            assert same_maxima(mine.numpy(), theirs), (case, field)
        elif mine is not None:
            assert to_bytes(mine) == theirs.tobytes(), (case, field)


def require_quantized(
    host, name, shape, layout, kind="numbers", direction="both", path=None, dtype=BFLOAT16, shift=0, asked=False
):
    """Quantize on the host, and require the golden model's codes, scales with their padding, and maxima."""
    spec, case = profiles[name], (name, shape, layout, kind, direction)
    x, bits = inputs(shape, kind, np.dtype(dtype)), drawn(profiles[name], shape)
    call = Call("quantize", spec, x.dtype.name, direction, layout=LAYOUTS[layout], device="cuda", shape=shape)
    bits = {each: bits[each] for each in call.directions if bits}
    given = (Directions(**bits) if direction == "both" else bits[direction]) if bits else None
    expected = fp4ref.quantize(x, spec, direction, layout, backend="numpy", **({"random_bits": given} if bits else {}))
    out = {}
    if shift:
        for each in call.directions:
            data, scales, amax = getattr(expected, each)
            made = host.guarded(data.shape, "uint8"), host.guarded(scales.shape, "uint8", shift)
            out[each] = DirectionData(*made, None if amax is None else host.guarded((1,), "float32"))
    bits = {each: to_tensor(host, value) for each, value in bits.items()}
    got = operations.quantize_directions(call, to_tensor(host, x), {}, bits, out, None, path if asked else None)
    assert path is None or plan.last_plan().path == path, case
    for each in call.directions:
        require_same(got[each], getattr(expected, each), case)
    assert guards_hold(), case


def require_group(host, name, splits, columns, layout, kind="numbers"):
    """The same of a group's members, and of the memory that they share."""
    spec, shape = profiles[name], (sum(splits), columns)
    x = inputs(shape, kind)
    call = Call(
        "quantize_grouped", spec, "bfloat16", "both", layout=LAYOUTS[layout], device="cuda", shape=shape, splits=splits
    )
    made = operations.quantize_grouped(call, to_tensor(host, x))
    assert plan.last_plan().reason == ""
    parts = np.split(x, np.cumsum(splits)[:-1])
    members = [fp4ref.quantize(np.ascontiguousarray(part), spec, "both", layout, backend="numpy") for part in parts]
    for each in ("row", "column"):
        together = zip(*(getattr(member, each) for member in members), strict=True)
        whole = DirectionData(*(None if p[0] is None else np.concatenate([*map(np.ravel, p)]) for p in together))
        require_same(getattr(made.memory, each), whole, (name, splits, columns, layout, each))
    assert guards_hold()


def scale_of_block(x: np.ndarray, largest: np.float32, least: np.float32, power_of_two: bool) -> np.float32:
    """The scale of one block, by TEL-21, TEL-61 and TEL-62; past the edge there is nothing (TEL-73)."""
    x32 = x.astype(np.float32)
    numbers = np.abs(x32[~np.isnan(x32)])
    amax = max(numbers.max(initial=np.float32(0)), least)
    most = np.float32(ml_dtypes.finfo(x.dtype).max if x.dtype == BFLOAT16 else np.finfo(x.dtype).max)
    with np.errstate(over="ignore", divide="ignore"):
        scale = np.float32(1) if amax == 0 or np.isinf(amax) else largest / amax
    scale = most if np.isinf(scale) else scale
    return np.float32(2.0 ** (np.frexp(scale)[1] - 1)) if power_of_two else scale


def block_scaled(x: np.ndarray, element: np.dtype, squares: bool, least: np.float32, power_of_two: bool):
    """Codes of rows in blocks of 128, or of squares, and 1 over their scales as TEL-49 stores them."""
    (rows, columns), largest = x.shape, np.float32(ml_dtypes.finfo(element).max)
    high, lines, across = 128 if squares else 1, -(-rows // 128) if squares else rows, -(-columns // 128)
    codes = np.zeros(x.shape, np.uint8)
    scales = np.zeros((lines, -(-across // 4) * 4) if squares else (across, -(-lines // 4) * 4), np.float32)
    for line in range(lines):
        for block in range(across):
            at = slice(line * high, (line + 1) * high), slice(block * 128, (block + 1) * 128)
            scale = scale_of_block(x[at], largest, least, power_of_two)
            with np.errstate(all="ignore"):
                y = x[at].astype(np.float32) * scale
                made = np.clip(y, -largest, largest).astype(element).view(np.uint8)
            codes[at] = np.where(np.isnan(y), 0x7F, made)
            scales[(line, block) if squares else (block, line)] = np.float32(1) / scale
    return codes, scales


def require_block_codes(
    host, element, shape, dtype, squares, power_of_two, direction="both", kind="special", least=0.0
):
    code = CUDA_E4M3 if element == ml_dtypes.float8_e4m3fn else CUDA_E5M2
    spec, x = profiles["mxfp8-e4m3"].replace(name="vendor.blocks", element=code), inputs(shape, kind, np.dtype(dtype))
    call = Call("block_codes", spec, x.dtype.name, direction, device="cuda", shape=shape)
    got = operations.block_codes(call, to_tensor(host, x), least, power_of_two, squares)
    for name, of, parts in (("row", x, got[:2]), ("column", np.ascontiguousarray(x.T), got[2:])):
        if name not in call.directions:
            assert parts == (None, None)
            continue
        expected = block_scaled(of, np.dtype(element), squares, np.float32(least), power_of_two)
        for mine, theirs in zip(parts, expected, strict=True):
            assert tuple(mine.shape) == theirs.shape
            assert to_bytes(mine) == theirs.tobytes(), (shape, x.dtype.name, squares, power_of_two, name)
    assert guards_hold()


@pytest.mark.heavy
@pytest.mark.rule("BLK-1", "BLK-3", "GLB-1", "HAD-1", "LAY-5")
def test_rows_and_transformed_columns_of_every_kind_of_input(host):
    for shape, kind in (((192, 192), "numbers"), ((64, 64), "special"), ((128, 320), "patterns"), ((64, 128), "zeros")):
        require_quantized(host, "nvfp4-rht", shape, LINEAR, kind, path=plan.FUSED_HADAMARD)


@pytest.mark.heavy
@pytest.mark.rule("BLK-1", "MXS-1", "LAY-5", "LAY-8")
def test_members_of_a_group_some_without_rows(host):
    require_group(host, "mxfp4", (0, 128, 384, 0, 0, 256), 192, TILED, "special")
    require_group(host, "mxfp4", (128, 0), 64, TILED)


@pytest.mark.rule("BLK-1", "BLK-3", "GLB-1", "LAY-5")
def test_rows_alone_with_ragged_ends(host):
    for shape, kind in (((70, 136), "special"), ((1, 8), "numbers"), ((130, 1032), "numbers"), ((33, 520), "patterns")):
        require_quantized(host, "nvfp4", shape, TILED, kind, "row", plan.ROWS)


@pytest.mark.heavy
@pytest.mark.rule("FOS-1", "FOS-3", "LAY-5")
def test_rows_under_a_search(host):
    for shape, kind in (((70, 136), "special"), ((33, 520), "numbers")):
        require_quantized(host, "nvfp4-4over6", shape, PADDED, kind, "row", plan.ROW_BLOCKS)


@pytest.mark.rule("BLK-1", "MXS-1", "E4M3-1", "LAY-5")
def test_rows_and_columns_of_bytes(host):
    for shape, kind in (((80, 144), "special"), ((16, 16), "numbers"), ((272, 400), "patterns"), ((128, 64), "zeros")):
        require_quantized(host, "mxfp8-e4m3", shape, TILED, kind, path=plan.BYTES)


@pytest.mark.rule("TEL-48", "TEL-49", "TEL-50", "TEL-73")
def test_codes_under_float32_scales_of_blocks(host):
    for shape in ((130, 300), (1, 1), (257, 44)):
        require_block_codes(host, ml_dtypes.float8_e4m3fn, shape, BFLOAT16, squares=False, power_of_two=False)


FUSED_SPECS = {
    "nvfp4": plan.FUSED,
    "nvfp4-rht": plan.FUSED_HADAMARD,
    "nvfp4-2d": plan.FUSED,
    "mxfp4": plan.FUSED,
    "nvfp4-sr": plan.DRAWN,
    "nvfp4-rht-sr": plan.FUSED_HADAMARD,
    "nvfp4-2d-sr": plan.DRAWN,
}


def everywhere(*names: str, rest: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Every layout of the header for some names, one layout each for the rest."""
    every = [(name, layout) for name in names for layout in LAYOUTS_OF_HEADER]
    return every + [(name, LAYOUTS_OF_HEADER[i % 4]) for i, name in enumerate(rest)]


OTHER_FUSED = "nvfp4-sr", "nvfp4-2d", "nvfp4", "nvfp4-rht-sr", "nvfp4-2d-sr"


@pytest.mark.heavy
@pytest.mark.rule("BLK-1", "BLK-3", "MXS-1", "GLB-1", "HAD-1", "SR-2", "LAY-5")
@pytest.mark.parametrize(  # of the second one CI tries two layouts
    ("name", "layout"),
    [
        pytest.param(*each, marks=[pytest.mark.release] * (each in {("mxfp4", TILED), ("mxfp4", TILED_8)}))
        for each in everywhere("nvfp4-rht", "mxfp4", rest=OTHER_FUSED)
    ],
)
def test_both_directions_in_every_layout(name, layout, monkeypatch):
    # Three teams of threads, or two; where bytes are drawn, two or one.
    host = on_host(monkeypatch, *(((9, 0), 2) if layout in {LINEAR, TILED} else ((12, 0), 3)))
    for shape, kind in (
        ((192, 192), "special"),
        ((320, 64), "numbers"),
        ((64, 320), "patterns"),
        ((320, 448), "special"),
    ):
        require_quantized(host, name, shape, layout, kind, path=FUSED_SPECS[name], asked=True)
    for shift in (1, 2, 4) if layout != TILED else ():  # an address that the choice of a path refuses
        require_quantized(host, name, (192, 64), layout, path=FUSED_SPECS[name], shift=shift, asked=True)


@pytest.mark.heavy
@pytest.mark.rule("LAY-8", "GLB-1", "HAD-1", "LAY-5")
@pytest.mark.parametrize(("name", "layout"), everywhere("mxfp4", rest=("nvfp4-rht", "nvfp4-2d")))
def test_groups_in_every_layout(name, layout, monkeypatch):
    host = on_host(monkeypatch, *(((9, 0), 2) if layout in {LINEAR, TILED} else ((12, 0), 1)))
    for splits, columns in (((0, 128, 384, 0, 0, 256), 256), ((640, 0), 64), ((0, 128, 0, 256), 320)):
        require_group(host, name, splits, columns, layout)
    require_group(host, name, (128, 0, 256), 192, layout, "special")


ROWS_TO_TRY = [
    *((name, BFLOAT16, plan.ROWS, layout) for name, layout in everywhere("mxfp4", rest=("nvfp4",))),
    ("nvfp4-4over6", BFLOAT16, plan.ROW_BLOCKS, LINEAR),
    ("nvfp4-4over6", BFLOAT16, plan.ROW_BLOCKS, TILED),
    ("nvfp4-2d", BFLOAT16, plan.SQUARES, PADDED),
    ("te.python_reference_4over6_mae_256", BFLOAT16, plan.ROW_BLOCKS, TILED_8),
    ("nvfp4-sr", BFLOAT16, plan.ROW_BLOCKS, LINEAR),
    ("nvfp4", np.float16, plan.ROW_BLOCKS, PADDED),
    ("nvfp4-row-scaled", BFLOAT16, plan.ROW_BLOCKS, TILED),
    ("nvfp4-row-scaled", np.float16, plan.ROW_BLOCKS, LINEAR),
]


@pytest.mark.heavy
@pytest.mark.rule("BLK-1", "BLK-3", "MXS-1", "SR-2", "FOS-1", "LAY-5")
@pytest.mark.parametrize(("name", "dtype", "path", "layout"), ROWS_TO_TRY)
def test_rows_in_every_layout(name, dtype, path, layout, monkeypatch):
    host = on_host(monkeypatch, *(((9, 0), 2) if layout in {LINEAR, TILED} else ((8, 0), 1)))
    step = 16 if profiles[name].stochastic else 8
    ragged = (70, 128 + step), (1, step), (129, 1024 + step), (260, 512)
    for shape, kind in zip(((64, 64), (192, 320)) if path == plan.SQUARES else ragged, KINDS, strict=False):
        require_quantized(host, name, shape, layout, kind, "row", path, dtype)
        require_quantized(host, name, shape, layout, "special", "row", path, dtype)


@pytest.mark.heavy
@pytest.mark.rule("BLK-1", "MXS-1", "E4M3-1", "E5M2-1", "LAY-5")
@pytest.mark.parametrize("name", ["mxfp8-e4m3", "mxfp8-e5m2"])
def test_bytes_of_many_shapes(name, host):
    for rows in (16, 64, 112, 144, 272):
        for columns, kind in zip((16, 48, 80, 192, 400), (*KINDS, "special"), strict=True):
            require_quantized(host, name, (rows, columns), TILED, kind, path=plan.BYTES)
    require_quantized(host, name, (80, 144), LINEAR, "special", path=plan.BYTES + plan.MOVED, asked=True)


@pytest.mark.heavy
@pytest.mark.rule("BLK-1", "HAD-1", "HAD-3", "NUM-10", "LAY-5")
@pytest.mark.parametrize(
    ("name", "dtype", "path"),
    [
        ("nvfp4-rht", BFLOAT16, plan.SEPARATE),
        ("nvfp4-2d", BFLOAT16, plan.TILES),
        ("nvfp4-4over6", np.float32, plan.TILES),
        ("te.python_reference_4over6_mae_448_2d", BFLOAT16, plan.TILES),
        ("nvfp4-row-scaled", np.float16, plan.TILES),
        ("mxfp8-2d", BFLOAT16, plan.TILES),
    ],
)
def test_both_directions_of_other_shapes(name, dtype, path, host):
    for layout, kind in ((LINEAR, "numbers"), (TILED, "special"), (TILED_8, "patterns")):
        shape = (80 if profiles[name].hadamard else 70), 136
        require_quantized(host, name, shape, layout, kind, path=path, dtype=dtype)


@pytest.mark.heavy
@pytest.mark.rule("TEL-48", "TEL-49", "TEL-50", "TEL-73", "TEL-21", "TEL-61", "TEL-62")
@pytest.mark.parametrize(
    ("element", "squares", "dtype", "power_of_two", "direction"),
    [
        (ml_dtypes.float8_e4m3fn, False, BFLOAT16, True, "both"),
        (ml_dtypes.float8_e4m3fn, True, BFLOAT16, False, "column"),
        (ml_dtypes.float8_e4m3fn, False, np.float32, False, "row"),
        (ml_dtypes.float8_e5m2, True, np.float32, True, "both"),
        (ml_dtypes.float8_e5m2, False, np.float16, False, "column"),
        (ml_dtypes.float8_e5m2, True, np.float16, True, "row"),
    ],
)
def test_block_codes_of_every_kind(element, squares, dtype, power_of_two, direction, host):
    for shape, kind in (((130, 300), "patterns"), ((128, 144), "special"), ((5, 257), "zeros"), ((272, 16), "numbers")):
        for least in (0.0, 0.5):
            require_block_codes(host, element, shape, dtype, squares, power_of_two, direction, kind, least)


@pytest.mark.heavy
@pytest.mark.rule("GLB-1", "GLB-5", "BLK-2", "HAD-4")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("nvfp4", BFLOAT16),
        ("nvfp4", np.float32),
        ("nvfp4-rht", BFLOAT16),
        ("nvfp4-row-scaled", np.float16),
        ("te.python_reference", BFLOAT16),  # a NaN is kept
    ],
)
def test_maxima(name, dtype, host):
    spec = profiles[name]
    for shape in ((64, 128), (48, 264), (16, 7), (272, 24)):
        for kind in KINDS:
            x = inputs(shape, kind, np.dtype(dtype))
            for direction in ("row", "column"):
                expected = getattr(fp4ref.quantize(x, spec, direction, backend="numpy"), direction).amax
                got = operations.amax(to_tensor(host, x), spec, direction).numpy()
                assert same_maxima(got, expected), (shape, kind, direction)
    assert guards_hold()


@pytest.mark.heavy
@pytest.mark.rule("GLB-1", "HAD-4")
def test_maxima_whose_last_boxes_go_to_blocks_that_start_later(monkeypatch):
    host = on_host(monkeypatch, multiprocessors=1)
    monkeypatch.setattr(paths, "SHARED_OUT", 0)  # none of these is large
    require_quantized(host, "nvfp4-rht", (64, 64), TILED)  # no whole turn of the early blocks
    spec, shape = profiles["nvfp4-rht"], (192, 192)  # 36 boxes: 24 are theirs
    call = Call("quantize", spec, "bfloat16", "both", layout=LAYOUTS[TILED], device="cuda", shape=shape)
    for box in (0, 23, 24, 32, 33, 35):
        x = np.ones(shape, BFLOAT16)
        x[box // 3 * 16 + 5, box % 3 * 64 + 7] = -40
        expected = fp4ref.quantize(x, spec, "both", TILED, backend="numpy")
        got = operations.quantize_directions(call, to_tensor(host, x), {}, {}, {}, None)
        for each in call.directions:
            require_same(got[each], getattr(expected, each), (box, each))
    assert guards_hold()


@pytest.mark.heavy
@pytest.mark.rule("LAY-12", "LAY-56", "LAY-57")
@pytest.mark.parametrize(
    ("name", "shape", "direction", "path"),
    [
        *((name, (192, 64), "both", FUSED_SPECS[name]) for name in ("nvfp4", "nvfp4-rht", "mxfp4", "nvfp4-sr")),
        ("nvfp4", (70, 136), "row", plan.ROWS),
        ("nvfp4-4over6", (70, 136), "row", plan.ROW_BLOCKS),
        ("mxfp8-e4m3", (80, 144), "both", plan.BYTES),
        ("nvfp4-2d", (70, 136), "both", plan.TILES),
    ],
)
def test_a_flag_keeps_every_byte(name, shape, direction, path, host):
    spec, x = profiles[name], inputs(shape, "numbers")
    call = Call("quantize", spec, "bfloat16", direction, layout=LAYOUTS[TILED], device="cuda", shape=shape, flag=True)
    bits = {each: to_tensor(host, value) for each, value in drawn(spec, shape).items()}
    for flag in (1, 0):
        noop = torch.tensor([flag], dtype=torch.int32)
        got = operations.quantize_directions(call, to_tensor(host, x), {}, bits, {}, noop)
        assert plan.last_plan().path == path
        unset = [set(to_bytes(part)) == {UNSET} for each in got.values() for part in each if part is not None]
        assert all(unset) if flag else not any(unset)
    assert guards_hold()


# What a kernel may do wrong: its file, the text and what takes its place; then what shows it.
CHANGES = {
    "padding of columns": (
        ("fused.cu", "if (last) store_neighbours<4>(now.column_scales", "if (0) store_neighbours<4>(now.column_scales"),
        ("nvfp4", (192, 64), PADDED),
    ),
    "a row too high": (
        ("fused.cu", "(to + (size)row_pitch * 8) = codes[1]", "(to + (size)row_pitch * 7) = codes[1]"),
        ("nvfp4", (64, 64), TILED),
    ),
    "no barrier before a box": (
        ("fused.cu", "wait_for_copies<0>();\n        team_barrier(team);", "wait_for_copies<0>();"),
        ("nvfp4", (64, 64), TILED),
    ),
    "a barrier of another team": (
        ("fused.cu", "wait_for_copies<0>();\n        team_barrier(team);", "wait_for_copies<0>(); team_barrier(0);"),
        ("nvfp4", (448, 576), TILED),
    ),
    "copies are on their way": (
        ("fused.cu", "wait_for_copies<0>();", "wait_for_copies<1>();"),
        ("nvfp4", (64, 64), TILED),
    ),
    "the wrong side": (("fused.cu", "side = LEAVING - side;", ""), ("nvfp4", (448, 576), TILED)),
    "the wrong stage": (("fused_amax.cu", "stage = (STAGES - 1) * BOX - stage;", ""), ("nvfp4-rht", (448, 576), TILED)),
    "boxes between the early blocks and the later ones": (
        ("fused_amax.cu", "number + (is_early ? 0 : taken)", "number + (is_early ? 0 : shared_out)"),
        ("nvfp4-rht", (64, 64), TILED),
    ),
    "a store that is not aligned": (
        ("places.cuh", "column + Count <= end && (index_t)to % Count == 0", "column + Count <= end"),
        ("nvfp4", (70, 136), LINEAR),
    ),
    "scales past the last": (("places.cuh", "if (column + i < end)", ""), ("nvfp4", (70, 136), LINEAR)),
    "rows of padding past the last": (
        ("places.cuh", "if (row >= (rows + high - 1) / high * high) return;", ""),
        ("nvfp4", (70, 136), LINEAR),
    ),
    "another row's scale": (
        ("row_blocks.cu", "amax[row + turn * 32]", "amax[row + turn]"),
        ("nvfp4-row-scaled", (70, 64), TILED),
    ),
    "halves that change places": (
        ("row_blocks.cu", "lane * 32 | (lane >> 2 & 1) * 16", "lane * 32"),
        ("nvfp4-4over6", (70, 136), TILED),
    ),
    "no barrier before codes leave": (
        ("bytes.cu", "__syncthreads();\n\n        const unsigned r", "const unsigned r"),
        ("mxfp8-e4m3", (80, 144), TILED),
    ),
    "the other lane's scale": (
        ("bytes.cu", "second ? Pair{theirs, own} : Pair{own, theirs}", "Pair{own, theirs}"),
        ("mxfp8-e4m3", (80, 144), TILED),
    ),
    "a scale past the edge": (
        ("block_codes.cu", "r < high ? 1.0f / scale : 0.0f", "1.0f / scale"),
        (ml_dtypes.float8_e4m3fn, (130, 300), BFLOAT16, False, True),
    ),
}


SLOW = {"the wrong stage"}  # a minute


@pytest.mark.heavy
@pytest.mark.parametrize(  # CI runs every second one
    "change",
    [pytest.param(c, marks=[pytest.mark.release] * (i % 2 or c in SLOW)) for i, c in enumerate(CHANGES)],
)
def test_what_a_kernel_does_wrong_is_seen(change, monkeypatch, tmp_path):
    (file, text, other), case = CHANGES[change]
    folder = shutil.copytree(KERNELS, tmp_path / "kernels")
    before = (folder / file).read_text("utf-8")
    assert before.count(text) == 1
    (folder / file).write_text(before.replace(text, other), "utf-8")
    kernel = {"places.cuh": "rows"}.get(file, file.split(".")[0])
    host = on_host(monkeypatch, changed={kernel: folder})
    monkeypatch.setattr(paths, "SHARED_OUT", 0)
    more = {"direction": "row"} if kernel.startswith("row") else {}
    require = require_block_codes if file == "block_codes.cu" else require_quantized
    with pytest.raises(AssertionError):
        require(host, *case, **more)
    guards_hold()
