"""The layouts of the field against the maps that their owners' code wrote, and the parts of the algebra they need."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from fp4ref import registry
from fp4ref.errors import DomainError, LayoutError
from fp4ref.layout import LAYOUTS, ORIGINS, STANDARD_LAYOUTS, Layout, layout, scale_layouts
from fp4ref.layout.origin import READ
from fp4ref.packings import PACKINGS, bit_of, packed_shape, packing, repack
from fp4ref.rules import chapters
from fp4ref.spec_root import spec_root

RECORDED = np.load(Path(__file__).parent / "data/layouts.npz")
IRREGULAR = {  # names in the recordings that are not those of the catalogue with a dot for the first underscore
    "nv_128x4": "torchao.to_blocked",
    "nv_128x4_comfy": "comfy.to_blocked",
    "nv_128x4_te": "te.swizzled_rows",
    "nv_128x4_cutlass_k": "cutlass.sf_k_major",
    "nv_128x4_cutlass_mn_tiles_down": "cutlass.sf_mn_major",
    "nv_128x4_batched": "flashinfer.sf_128x4",
    "nv_8x4_batched": "flashinfer.sf_8x4",
    "nv_128x4_columnwise_mxfp8": "te.swizzled_columns",
    "sm12x_128x4": "flashinfer.sm12x_sf",
    "sm90_mixed_scale_fold_mxfp4": "flashinfer.sm90_scale_fold",
    "kv_v_scale_hnd": "flashinfer.kv_v_scale_hnd",
    "kv_v_scale_vllm": "vllm.kv_v_scale",
    "kv_v_scale_nhd": "flashinfer.kv_v_scale_nhd",
    "pack_low_first": "low_first",
    "pack_high_first_comfy": "high_first",
    "marlin_weight_fp4": "vllm.marlin_fp4",
    "marlin_weight_fp4_a8": "vllm.marlin_fp4_a8",
    "marlin_scale_nvfp4": "vllm.marlin_scale_nvfp4",
    "marlin_scale_mxfp4": "vllm.marlin_scale_mxfp4",
    "marlin_scale_mxfp4_a8": "vllm.marlin_scale_mxfp4_a8",
    "gguf_mxfp4_data": "ggml.mxfp4_data",
    "gguf_mxfp4_scale": "ggml.mxfp4_scale",
    "gguf_nvfp4_data": "ggml.nvfp4_data",
    "gguf_nvfp4_scale": "ggml.nvfp4_scale",
}
LARGE = {  # the first 16 digits of the SHA-256 of a recorded map, int32, up to its last unit that holds something
    "aiter.moe_gfx1250|m=128,b=24": "1f5eeb161f0a011c",
    "aiter.scale_a16w4_gate_up|e=2,m=96,b=16": "99b43a78db2ec0b9",
    "aiter.scale_a16w4|e=2,m=96,b=16": "7bfcfb8749fb70c2",
    "aiter.shuffle_mxfp8fp4_a|m=6,k=384": "977f630d8dde56ba",
    "aiter.shuffle_scale|m=256,b=16": "1fd4e4285faf3d55",
    "aiter.shuffle_scale|m=300,b=9": "bfe6b71ef56e7b88",
    "aiter.shuffle_weight_16x16|n=48,k=96": "3932261ab334be30",
    "aiter.shuffle_weight_f4|n=48,k=80": "3e4cf548e662f744",
    "vllm.marlin_fp4_a8|n=128,k=32": "d9adb9e3c8eebceb",
    "flashinfer.sf_128x4|e=2,m=256,b=8": "70997e4f7a135178",
    "flashinfer.sf_128x4|e=3,m=130,b=5": "f885592e41f52649",
    "cutlass.sf_mn_major|m=256,b=12": "c16071fd95963d78",
    "torchao.to_blocked|m=256,b=12": "8527b5b02ab73980",
    "rocm.gfx950_32x8|m=256,b=16": "1fd4e4285faf3d55",
    "flashinfer.sm90_fp4_bf16_bits|n=16,k=128,q=4": "71b8369cacbb2bd9",
    "flashinfer.sm90_fp4_bf16_bits|n=32,k=64,q=4": "7a1d35c930799503",
    "flashinfer.sm90_fp4_fp8_bits|n=16,k=128,q=4": "a03726a297b85d37",
    "flashinfer.sm90_fp4_fp8_bits|n=32,k=64,q=4": "83dad09df46bf23e",
    "flashinfer.sm90_scale_fold|e=3,m=192,b=4": "96c9214755dc3668",
    "triton.blackwell_act_scale|m=130,b=9": "4ea63a78c0d67742",
    "triton.blackwell_scale|b=9,n=130": "e769f30442cd453b",
    "triton.blackwell_value_packed_shuffled|k=130,n=20": "d50e630f512ce46f",
    "triton.blackwell_value_shuffled|k=260,n=12": "c4e09e9298ceca1b",
    "triton.hopper_scale_w8|b=5,n=320": "72d5210ee64d6d88",
    "triton.hopper_value_before_bits|k=6,n=256": "8980ee75fec82d25",
    "triton.hopper_value_bits|k=128,n=256,q=4": "f6dbdca2fb407a23",
}
GROUPS = {  # the same of torchao's buffers for groups: rows of each member, or its columns of scales
    "k|m=130,sizes=5+0+4+9": "2013a31ca713fbab",
    "k|m=40,sizes=1+2+3": "ce6657cd075f9b01",
    "m|sizes=1+1+257,b=4": "99b23805b2d3ca5d",
    "m|sizes=3+130+0+128,b=8": "e49ba356bf52cbaa",
}
FIELD = {name: (LAYOUTS if name in LAYOUTS else PACKINGS)[name] for name in ORIGINS}
SWIZZLED = Layout("swizzled", "m(8,*) k(8,*): k0^m0 m0 k1 m1")
ONCE = Layout("once", "m(128,*) k(*): k0 m1; repeat m0")
MOVED = Layout("moved", "n(*) k(3,*): k0 k1 n0; table 2,0,1")
ODD = (SWIZZLED, Layout("swizzled_rows", "m(8,*) k(2,4,*): k1 k0 m0^k1 m1 k2; base 3; pad k 0x5"), MOVED)


def named(recorded: str) -> str:
    return IRREGULAR.get(recorded) or recorded.replace("_", ".", 1)


def mapped(form: Layout, key: str) -> np.ndarray:
    """The map of a layout as recordings have it: the index in the owner's array of each unit of the buffer."""
    sizes = {axis: int(size) for axis, size in re.findall(r"(\w+)=(\d+)", key.partition("|")[2])}
    owner = list(sizes)
    mine = [axis.name for axis in form.axes]
    assert sorted(owner) == sorted(mine)
    index = np.arange(math.prod(sizes.values())).reshape([*sizes.values()]).transpose([owner.index(a) for a in mine])
    stored = np.full(math.prod(form.padded_shape(*index.shape)), -1)
    stored[form.offsets(list(np.indices(index.shape)), index.shape)] = index
    return stored


@pytest.mark.rule("LAY-18", "PACK-8", "PACK-9")
@pytest.mark.parametrize("recorded", [json.loads(line)["name"] for line in RECORDED["index"]])
def test_every_recorded_layout_has_a_name_and_its_owners_map(recorded):
    name = named(recorded)
    form = LAYOUTS[name] if name in LAYOUTS else PACKINGS[name]
    keys = [key for key in RECORDED.files if key.partition("|")[0] == recorded]
    assert keys
    for key in keys:
        stored, expected = mapped(form, key), RECORDED[key]  # memory that the owner does not allocate is missing
        np.testing.assert_array_equal(stored[: expected.size], expected)
        assert (stored[expected.size :] == -1).all()


@pytest.mark.rule("LAY-18", "PACK-9")
def test_every_layout_whose_code_was_run_has_a_map_that_the_code_wrote():
    recorded = {named(json.loads(line)["name"]) for line in RECORDED["index"]}
    recorded |= {key.partition("|")[0] for key in LARGE}
    assert {name for name, origin in ORIGINS.items() if origin.checked != READ} <= recorded


def digest(stored: np.ndarray) -> str:
    used = np.flatnonzero(stored != -1)[-1] + 1
    return hashlib.sha256(stored[:used].astype("<i4").tobytes()).hexdigest()[:16]


@pytest.mark.rule("LAY-18", "LAY-21", "PACK-9")
@pytest.mark.parametrize("key", LARGE)
def test_the_recorded_maps_that_are_kept_as_digests(key):
    name = key.partition("|")[0]
    assert digest(mapped((LAYOUTS if name in LAYOUTS else PACKINGS)[name], key)) == LARGE[key]


@pytest.mark.rule("LAY-8", "LAY-50")
@pytest.mark.parametrize("key", GROUPS)
def test_the_recorded_buffers_of_groups(key):
    """Members are row ranges of one array, with k= column ranges; the buffer is torchao's."""
    form, sizes = LAYOUTS["torchao.to_blocked"], [int(n) for n in re.findall(r"sizes=([\d+]+)", key)[0].split("+")]
    rows, columns = ([int(n) for n in re.findall(rf"\b{axis}=(\d+)", key)] for axis in "mb")
    shape = (sum(sizes), *columns) if columns else (*rows, sum(sizes))
    source = np.arange(math.prod(shape)).reshape(shape)
    members = np.split(source, np.cumsum(sizes)[:-1], axis=0 if columns else 1)
    starts = form.group_offsets([member.shape for member in members])
    stored = np.full(starts[-1], -1)
    for start, member in zip(starts, members, strict=False):
        stored[start + form.offsets(list(np.indices(member.shape)), member.shape)] = member
    assert digest(stored) == GROUPS[key]


def some_sizes(form: Layout) -> list[tuple[int, ...]]:
    """Two sizes that a layout takes: whole tiles, and as odd as it may be."""
    odd = (3, 5, 7, 2, 4)
    return [
        tuple((n + 1) * axis.multiple for n, axis in enumerate(form.axes)),
        tuple(axis.multiple if axis.refused else axis.multiple + n for n, axis in zip(odd, form.axes, strict=False)),
    ]


@pytest.mark.rule("LAY-18", "LAY-19", "LAY-21")
@pytest.mark.parametrize("form", [*FIELD.values(), *ODD], ids=lambda form: form.name)
def test_the_inverse_by_enumeration(form):
    for sizes in some_sizes(form):
        padded, found = form.padded(*sizes), form.strides(*sizes)
        grid = [part.reshape(-1) for part in np.indices(padded)]
        offsets = form.offsets(grid, sizes)
        assert offsets.min() >= 0
        assert offsets.max() < found.size == math.prod(form.padded_shape(*sizes))
        used = np.bincount(offsets, minlength=found.size)
        assert used.max() == 1
        back, known = found.gather(offsets)
        assert known.all()
        assert all((mine == theirs).all() for mine, theirs in zip(back, grid, strict=True))
        assert not found.gather(np.flatnonzero(used == 0))[1].any()  # gaps
        if form.unit in {8, 32}:
            array = np.random.default_rng(1).integers(1, 256, sizes).astype("u1" if form.unit == 8 else "u4")
            buffer = form.from_linear(array)
            assert form.to_linear(buffer, *sizes).tobytes() == array.tobytes()
            assert buffer.reshape(-1)[form.offsets(list(np.indices(sizes)), sizes)].tolist() == array.tolist()


@pytest.mark.rule("LAY-18", "PACK-9")
def test_the_chapters_say_what_is_registered():
    text = "".join(path.read_text("utf-8") for path in chapters(spec_root()))
    stated = dict(re.findall(r"(?m)^\| `(\w+\.\w+)` \| `([^`]*: [^`]*)` \|$", text))
    own = {name: form.text for name, form in FIELD.items() if form.rule != "PACK-8"}
    assert {name: line.replace("\\|", "|") for name, line in stated.items() if name in own} == own
    assert all(form.rule in {"LAY-18", "PACK-8", "PACK-9"} for form in FIELD.values())


def test_every_origin_is_complete():
    for origin in ORIGINS.values():
        assert all(origin), origin
        assert re.search(r"\d", origin.version)
    assert LAYOUTS.source("rocm.gfx950_32x8").startswith("ROCm/rocm-libraries 337e7289; ")


@pytest.mark.rule("LAY-18")
def test_layouts_of_the_field_serve_scales_but_are_not_offered_everywhere():
    assert scale_layouts()[:4] == list(STANDARD_LAYOUTS)
    assert not {form.name for form in scale_layouts()} & {*ORIGINS}
    every = scale_layouts(field=True)
    assert LAYOUTS["aiter.shuffle_scale"] in every
    assert not {form.name for form in every} & {"flashinfer.sf_128x4", "deepgemm.mn_major_fp32"}
    x = np.random.default_rng(2).standard_normal((64, 256), np.float32)
    for backend in ("cpu", "torch", "numpy"):
        q = fp4ref.quantize(x, "mxfp4", scale_layout="rocm.gfx950_32x8", backend=backend)
        assert q.row.scales.reshape(-1)[71] == fp4ref.quantize(x, "mxfp4").row.scales[17, 5]


@pytest.mark.rule("LAY-59", "LAY-18")
def test_an_unknown_layout_names_those_that_are_near():
    with pytest.raises(LayoutError, match=r"'aiter.shufle_scale', need one of linear, .*aiter.shuffle_scale.*layouts"):
        layout("aiter.shufle_scale")
    with pytest.raises(LayoutError, match=r"'flashinfer.sf_8x4', which has 3 axes, not rows and columns"):
        layout("flashinfer.sf_8x4")


@pytest.mark.rule("LAY-19", "LAY-20", "LAY-21", "LAY-47")
def test_worked_offsets():
    assert SWIZZLED.offset(3, 5, columns=8) == 30
    assert ONCE.offset(130, 1, columns=3, rows=256) == 4
    assert ONCE.index(4, columns=3, rows=256) == (128, 1)
    assert MOVED.offset(0, np.arange(4), columns=4).tolist() == [2, 0, 1, 5]
    assert LAYOUTS["aiter.gemm_gfx1250"].offset(17, 5, columns=8) == 197
    for form in (*ODD, ONCE):
        assert Layout(form.name, form.text) == form


@pytest.mark.rule("LAY-19")
@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 20), columns=st.integers(1, 20), data=st.data())
def test_a_swizzle_is_a_naive_loop(rows, columns, data):
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    tiles = -(-columns // 8)
    at = (row // 8 * tiles + column // 8) * 64 + row % 8 * 8 + (column % 8 ^ row % 8)
    assert SWIZZLED.offset(row, column, columns, rows) == at
    assert SWIZZLED.index(at, columns, rows) == (row, column)


@pytest.mark.rule("LAY-20", "LAY-46")
def test_a_repeated_digit_is_read_for_every_value_and_written_once():
    scales = np.uint8([[1, 2, 3], [4, 5, 6]]).repeat(128, 0)
    buffer = ONCE.from_linear(scales)
    assert buffer.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert ONCE.to_linear(buffer, 256, 3).tolist() == scales.tolist()
    assert ONCE.valid(256, 3).all()
    scales[7, 1] = 9
    with pytest.raises(
        LayoutError, match=r"once.from_linear: scales that differ along digit m0, which is repeated, .*46"
    ):
        ONCE.from_linear(scales)
    with pytest.raises(LayoutError, match=r"once.row_range: rows 0:128 of 256 along digit m0, which is repeated"):
        ONCE.row_range(0, 128, 256, 3)
    with pytest.raises(LayoutError, match=r"packing: 'once', digit m0, which is repeated, .*\[PACK-7\]"):
        packing(Layout("once", f"{ONCE.text}; unit 4"))


@pytest.mark.rule("LAY-51", "LAY-19")
def test_row_ranges_of_a_swizzle():
    assert SWIZZLED.row_range(8, 16, 16, 8) == slice(64, 128)
    assert SWIZZLED.row_range(1, 2, 16, 8) == slice(8, 16)
    with pytest.raises(LayoutError, match="lie apart, need whole tiles of 8 rows"):
        SWIZZLED.row_range(1, 2, 16, 16)
    holes = Layout("holes", "m(*) k(4,*): k0 |7 k1 m0; base 3")
    with pytest.raises(
        LayoutError, match="rows 1:3 of 10 lie apart, need rows stored one after the other, without gaps"
    ):
        holes.row_range(1, 3, 10, 24)


@pytest.mark.rule("LAY-19", "LAY-20", "LAY-21")
@pytest.mark.parametrize(
    "form, rule, said",
    [
        (SWIZZLED, "LAY-19", "digit k0^m0"),
        (ONCE, "LAY-20", "digit m0, which is repeated"),
        (MOVED, "LAY-21", "a table of 3 units"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_is_no_sum_is_served_or_refused_by_name(form, rule, said, registered):
    registered(form)
    x = np.repeat(np.random.default_rng(3).standard_normal((2, 96), np.float32), 128, 0)
    linear = fp4ref.quantize(x, "mxfp4")
    q = fp4ref.quantize(x, "mxfp4", scale_layout=form.name, backend="numpy")
    assert q.row.scales.tobytes() == form.from_linear(linear.row.scales).tobytes()
    assert fp4ref.dequantize(q).tobytes() == fp4ref.dequantize(linear).tobytes()
    for name in {"cpu", "torch", "cuda"} & set(registry.backends()):
        backend, call = registry.backends()[name], registry.Call("quantize", fp4ref.MXFP4, layout=form)
        assert backend.unserved(call) == []
        lesser = dataclasses.replace(backend, irregular=tuple(other for other in backend.irregular if other != rule))
        assert lesser.unserved(call) == [f"layout {form.name} with {said}"]
        if name != "cuda":
            assert fp4ref.quantize(x, "mxfp4", scale_layout=form.name, backend=name) == q


@pytest.mark.rule("LAY-14", "LAY-20", "LAY-26", "LAY-27", "LAY-49", "LAY-62")
@pytest.mark.parametrize(
    "text, message",
    [
        ("m(8,*) k(4,*): k0^m0 m0 k1 m1", r"'k0\^m0', need a digit of 2\^n values and another of no more values"),
        ("m(8,*) k(8,*): k0^m1 m0 k1 m1", r"another of no more values \[LAY-62\]"),
        ("m(8,*) k(8,*): k0^m0 m0^k0 k1 m1", r"need an XOR with a digit that is stored as it is \[LAY-62\]"),
        ("m(8,*) k(8,*): k0^m0 k1 m1; repeat m0", r"need an XOR with a digit that is stored as it is \[LAY-62\]"),
        ("m(8,*) k(*): k0 m0 m1; repeat m0", r"need every digit of every axis once \[LAY-26\]"),
        ("m(*) k(*): k0 m0; table 0,2", r"'table 0,2', need every place from 0 on once \[LAY-49\]"),
        ("m(*) k(*): k0 m0; table x", r"'table x', need every place"),
        ("m(*) k(*): k0 m0; unit 4; unit 4", r"2 clauses 'unit', need one \[LAY-27\]"),
        ("m(*) k(*): k0 m0; base 4; unit 4; base 8", r"2 clauses 'base', need one \[LAY-27\]"),
        ("m(*) k(*): k0 m0; pad m 8; pad k 4; pad m 0x7f", r"2 clauses 'pad m', need one \[LAY-27\]"),
        ("m(2,2,*) k(*): k0 m2; repeat m0; repeat m1", r"2 clauses 'repeat', need one \[LAY-27\]"),
        ("m(*) k(*): k0 m0; table 0,1; table 1,0", r"2 clauses 'table', need one \[LAY-27\]"),
    ],
)
def test_texts_that_are_no_layout(text, message):
    with pytest.raises(LayoutError, match=message):
        Layout("bad", text)


@pytest.mark.rule("LAY-8", "LAY-22")
@pytest.mark.parametrize(
    "rows, packed, bound",
    [  # recorded: torchao's packed starts, TensorRT-LLM's bound ones
        ((3, 130, 0, 128), [0, 128, 384, 384, 512], [0, 256, 512, 640]),
        ((1, 1, 257), [0, 128, 256, 640], [0, 128, 256]),
    ],
)
def test_where_members_of_a_group_start(rows, packed, bound):
    form, shapes = LAYOUTS["tiled_128x4"], [(n, 8) for n in rows]
    assert form.group_offsets(shapes) == [row * 8 for row in packed]
    assert form.group_offsets(shapes, "bound")[:-1] == [row * 8 for row in bound]
    largest = -(-max(rows) // 128) * 128 * 8
    assert form.group_offsets(shapes, "fixed") == [i * largest for i in range(len(rows) + 1)]


@pytest.mark.rule("LAY-22", "LAY-54", "LAY-55")
def test_bound_starts_need_rows_of_tiles():
    down = LAYOUTS["cutlass.sf_mn_major"]
    with pytest.raises(LayoutError, match=r"starts 'bound' for layout 'm\(32,4.*', need whole rows of tiles .*LAY-55"):
        down.group_offsets([(3, 4)], "bound")
    with pytest.raises(LayoutError, match=r"starts 'bound' for 2 widths of members"):
        LAYOUTS["tiled_128x4"].group_offsets([(3, 4), (3, 8)], "bound")
    with pytest.raises(LayoutError, match=r"starts 'bound' for layout .*LAY-55"):
        Layout("one", "m(*,1) k(*): k0 m0 m1").group_offsets([(3, 4)], "bound")
    with pytest.raises(DomainError, match=r"starts 'tight', need packed, bound or fixed"):
        down.group_offsets([(3, 4)], "tight")
    assert LAYOUTS["tiled_128x4"].group_offsets([], "bound") == LAYOUTS["linear"].group_offsets([], "fixed") == [0]


@pytest.mark.rule("PACK-9", "PACK-14")
@pytest.mark.parametrize("name", ["aiter.shuffle_weight_16x16", "trtllm.shuffle_a_32", "trtllm.block_major_k"])
def test_a_packing_of_bytes_moves_pairs_of_codes(name):
    form = PACKINGS[name]
    codes = np.random.default_rng(4).integers(0, 256, (32, 128), np.uint8)
    moved = form.from_linear(codes)
    assert repack(codes, 32, 256, "low_first", name).tobytes() == moved.tobytes()
    assert repack(moved, 32, 256, name, bits=4).tobytes() == codes.tobytes()
    assert packed_shape(packing(name, 4), 32, 256) == (32, 128)
    assert bit_of(packing(name, 4), (32, 256), 1, 3) == (form.offset(1, 1, 128, 32), 4)


@pytest.mark.rule("PACK-9", "PACK-14", "PACK-15")
def test_the_examples_of_packings_of_bytes():
    form = PACKINGS["trtllm.shuffle_a_32"]
    assert [form.offset(row, 0, 1, 32) for row in range(5)] == [0, 8, 16, 24, 1]
    turned = Layout("turned", "n(*) k(2,*): k0^1 k1 n0")
    assert repack(np.uint8([[0x21, 0x43]]), 1, 4, "low_first", turned).tobytes() == bytes.fromhex("4321")
    with pytest.raises(LayoutError, match=r"'turned' with units of 8 bits, need units of 6 bits"):
        packing(turned, 6)
    filled = Layout("filled", "n(*) k(4,*): k0 k1 n0; pad k 0x7f")
    with pytest.raises(LayoutError, match=r"'filled' with padding other than 0x00, need 0x00 around 4-bit codes"):
        packing(filled, 4)
    struct = Layout("struct", "n(*) k(16,*): k0 |17 k1 n0; base 1")
    assert bit_of(packing(struct, 4), (2, 64), 1, 33) == (1 + 17 * 3, 4)
