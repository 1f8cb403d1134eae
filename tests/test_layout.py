from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fp4ref
from fp4ref.errors import DomainError, DTypeError, LayoutError, ShapeError
from fp4ref.layout import STANDARD_LAYOUTS, Digit, Layout, layout, swizzle_index, swizzle_offset

LAYOUTS = {form.name: form for form in STANDARD_LAYOUTS}
RULES = {"linear": "LAY-1", "linear_padded": "LAY-2", "tiled_128x4": "LAY-3", "tiled_8x4": "LAY-4"}
TILED = ("tiled_128x4", "tiled_8x4")
SIDES = {"linear": (1, 1), "linear_padded": (128, 4), "tiled_128x4": (128, 4), "tiled_8x4": (8, 4)}

each_layout = pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.rule(r)) for n, r in RULES.items()])
edges = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 127, 128, 129, 255, 256, 257, 300])
counts = edges | st.integers(0, 400)
widths = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17]) | st.integers(0, 40)


def padded(name, rows, columns):
    high, wide = SIDES[name]
    while rows % high:
        rows += 1
    while columns % wide:
        columns += 1
    return rows, columns


def lay_out(name, rows, columns):
    """Positions in storage order: visit tiles, then the bytes of a tile, and append."""
    high, wide = padded(name, rows, columns)
    if name in {"linear", "linear_padded"}:
        return [(m, k) for m in range(high) for k in range(wide)]
    order = []
    for tile_row in range(0, high, SIDES[name][0]):
        for tile_column in range(0, wide, 4):
            if name == "tiled_8x4":
                order += [(tile_row + m, tile_column + k) for m in range(8) for k in range(4)]
            else:
                order += [
                    (tile_row + 32 * g + m, tile_column + k) for m in range(32) for g in range(4) for k in range(4)
                ]
    return order


def formula(name, row, column, columns):
    wide = padded(name, 0, columns)[1]
    if name in {"linear", "linear_padded"}:
        return row * wide + column
    high = SIDES[name][0]
    start = (row // high * (wide // 4) + column // 4) * high * 4
    if name == "tiled_8x4":
        return start + row % 8 * 4 + column % 4
    return start + row % 32 * 16 + row % 128 // 32 * 4 + column % 4


def distinct_bytes(rows, columns, seed=0):
    return np.random.default_rng(seed).integers(1, 256, (rows, columns), np.uint8)


def grid(name, rows, columns):
    """Rows and columns of every position of the padded grid."""
    return np.indices(padded(name, rows, columns))


@each_layout
@given(rows=counts, columns=widths)
def test_padded_shape(name, rows, columns):
    assert layout(name).padded_shape(rows, columns) == padded(name, rows, columns)


@each_layout
@given(rows=counts, columns=widths)
def test_offsets_are_a_permutation_and_index_inverts_them(name, rows, columns):
    row, column = grid(name, rows, columns)
    offsets = layout(name).offset(row, column, columns)
    np.testing.assert_array_equal(np.sort(offsets.ravel()), np.arange(offsets.size))
    back = layout(name).index(offsets, columns)
    np.testing.assert_array_equal(back[0], row)
    np.testing.assert_array_equal(back[1], column)


@each_layout
@pytest.mark.parametrize("rows, columns", [(1, 1), (7, 3), (8, 4), (9, 5), (127, 4), (128, 9), (129, 1), (300, 10)])
def test_map_is_the_formula_and_the_visiting_order(name, rows, columns):
    for offset, (row, column) in enumerate(lay_out(name, rows, columns)):
        assert formula(name, row, column, columns) == offset
        if offset % 7 == 0:
            assert layout(name).offset(row, column, columns) == offset
            assert layout(name).index(offset, columns) == (row, column)
    row, column = np.array(lay_out(name, rows, columns)).T
    np.testing.assert_array_equal(layout(name).offset(row, column, columns), np.arange(row.size))


@each_layout
@given(row=st.integers(0, 2**50), column=st.integers(0, 2**9), extra=st.integers(0, 9))
def test_far_offsets(name, row, column, extra):
    columns = column + 1 + extra
    offset = layout(name).offset(row, column, columns)
    assert offset == formula(name, row, column, columns)
    assert type(offset) is int
    assert layout(name).index(offset, columns) == (row, column)


@pytest.mark.rule("LAY-3")
@pytest.mark.parametrize(
    "row, column, offset",
    [(0, 0, 0), (1, 0, 16), (32, 0, 4), (0, 1, 1), (127, 3, 511), (0, 4, 512), (128, 0, 1024), (200, 6, 1674)],
)
def test_worked_offsets_128x4(row, column, offset):
    assert swizzle_offset(row, column, 8) == offset
    assert swizzle_index(offset, 8) == (row, column)


@pytest.mark.rule("LAY-3")
def test_offsets_in_the_manual_of_cublas_helper():
    """The two offsets that nvmath-python's manual gives for get_block_scale_offset, NVFP4, 128 x 128."""
    assert [swizzle_offset(5, column, 8) for column in (2, 5)] == [82, 593]


@pytest.mark.rule("LAY-3")
def test_bytes_in_the_images_of_cutlass():
    """The two images of "Scale Factor Layouts": lines of 16 bytes of a tile, and starts of the tiles of [512, 16]."""
    for line in range(32):
        rows = [m for m in (line, line + 32, line + 64, line + 96) for _ in range(4)]
        assert [swizzle_offset(m, k, 4) for m, k in zip(rows, [0, 1, 2, 3] * 4, strict=True)] == [
            *range(16 * line, 16 * line + 16)
        ]
    starts = [swizzle_offset(m, k, 16) for m in (0, 128, 256, 384) for k in (0, 4, 8, 12)]
    assert starts[:6] == [0, 512, 1024, 1536, 2048, 2560]
    assert starts[6:] == [3072, 3584, 4096, 4608, 5120, 5632, 6144, 6656, 7168, 7680]


@pytest.mark.rule("LAY-4")
@pytest.mark.parametrize(
    "row, column, offset", [(0, 1, 1), (1, 0, 4), (7, 3, 31), (0, 4, 32), (8, 0, 64), (13, 6, 118)]
)
def test_worked_offsets_8x4(row, column, offset):
    assert layout("tiled_8x4").offset(row, column, 8) == offset


@pytest.mark.rule("LAY-1", "LAY-2")
def test_worked_offsets_linear():
    assert [layout("linear").offset(m, k, 6) for m, k in [(0, 5), (1, 0), (2, 1)]] == [5, 6, 13]
    assert [layout("linear_padded").offset(m, k, 6) for m, k in [(0, 5), (1, 0), (2, 1)]] == [5, 8, 17]


@pytest.mark.rule("LAY-3")
@given(down=st.integers(1, 3), across=st.integers(1, 3))
def test_128x4_is_the_known_transposition(down, across):
    scales = distinct_bytes(128 * down, 4 * across)
    moved = scales.reshape(down, 4, 32, across, 4).transpose(0, 3, 2, 1, 4)
    assert layout("tiled_128x4").from_linear(scales).tobytes() == moved.tobytes()


@each_layout
@pytest.mark.rule("LAY-5")
@given(rows=counts, columns=widths)
def test_from_linear_puts_each_byte_at_its_offset_and_zeros_elsewhere(name, rows, columns):
    scales = distinct_bytes(rows, columns)
    expected = np.zeros(padded(name, rows, columns), np.uint8)
    row, column = np.indices((rows, columns))
    expected.reshape(-1)[layout(name).offset(row, column, columns)] = scales
    got = layout(name).from_linear(scales)
    assert (got.shape, got.dtype) == (expected.shape, np.uint8)
    assert got.tobytes() == expected.tobytes()
    valid = layout(name).valid(rows, columns)
    assert (valid.shape, valid.dtype) == (expected.shape, np.bool_)
    np.testing.assert_array_equal(valid, expected != 0)


@each_layout
@pytest.mark.rule("LAY-6")
@pytest.mark.parametrize("poison", [0x7F, 0xFF])
@given(rows=counts, columns=widths)
def test_to_linear_undoes_from_linear_whatever_the_padding_holds(name, poison, rows, columns):
    scales = distinct_bytes(rows, columns)
    buffer = layout(name).from_linear(scales)
    buffer[~layout(name).valid(rows, columns)] = poison
    buffer.flags.writeable = False
    got = layout(name).to_linear(buffer, rows, columns)
    assert got.shape == scales.shape
    assert got.tobytes() == scales.tobytes()


@each_layout
def test_conversions_copy_and_take_views(name):
    scales = distinct_bytes(256, 16)
    view = scales[::2, ::-2]
    buffer = layout(name).from_linear(view)
    wide = np.zeros((256, 16), np.uint8)
    wide[::2, ::2] = buffer
    got = layout(name).to_linear(wide[::2, ::2], *view.shape)
    assert got.tobytes() == view.tobytes()
    assert not np.shares_memory(buffer, scales)
    whole = layout(name).from_linear(scales)
    assert not np.shares_memory(whole, scales)
    assert not np.shares_memory(layout(name).to_linear(whole, 256, 16), whole)


@pytest.mark.rule("LAY-5")
def test_one_scale_fills_a_tile_with_zeros():
    assert layout("tiled_128x4").from_linear(np.array([[7]], np.uint8)).tobytes() == bytes([7, *[0] * 511])


@each_layout
@pytest.mark.rule("BLK-9")
@pytest.mark.parametrize("rows, columns", [(0, 0), (0, 5), (5, 0)])
def test_zero_size(name, rows, columns):
    form = layout(name)
    buffer = form.from_linear(np.zeros((rows, columns), np.uint8))
    assert buffer.shape == padded(name, rows, columns)
    assert form.to_linear(buffer, rows, columns).shape == (rows, columns)
    assert form.valid(rows, columns).size == 0
    nothing = np.zeros(0, np.int64)
    assert form.offset(nothing, nothing, columns).shape == (0,)
    assert [part.shape for part in form.index(nothing, columns)] == [(0,), (0,)]
    assert form.row_range(0, rows, rows, columns) == slice(0, 0)
    assert form.group_offsets([(rows, columns)]) == [0, 0]


@pytest.mark.rule("LAY-5", "LAY-37")
def test_padding_is_compared_except_where_unspecified():
    assert {name: form.pads_compared for name, form in LAYOUTS.items()} == {
        "linear": True,
        "linear_padded": False,
        "tiled_128x4": True,
        "tiled_8x4": True,
    }


@pytest.mark.rule("LAY-6")
@pytest.mark.parametrize("name", ["linear_padded", *TILED])
def test_dequantize_ignores_padding(name):
    x = np.linspace(-3, 5, 9 * 40, dtype=np.float32).reshape(9, 40)
    q = fp4ref.quantize(x, fp4ref.NVFP4, scale_layout=name)
    scales = np.where(layout(name).valid(9, 3), q.row.scales, np.uint8(0x7F))
    poisoned = dataclasses.replace(q, row=q.row._replace(scales=scales))
    assert fp4ref.dequantize(poisoned).tobytes() == fp4ref.dequantize(q).tobytes()


@pytest.mark.rule("LAY-7")
def test_only_the_name_tells_layouts_of_one_shape_apart():
    scales = distinct_bytes(128, 4)
    buffers = {name: layout(name).from_linear(scales) for name in LAYOUTS}
    assert {buffer.shape for buffer in buffers.values()} == {(128, 4)}
    assert len({buffer.tobytes() for buffer in buffers.values()}) == 2
    wider = distinct_bytes(128, 8)
    assert len({form.from_linear(wider).tobytes() for form in LAYOUTS.values()}) == 3


@pytest.mark.rule("LAY-60")
@each_layout
@pytest.mark.parametrize("change", [lambda b: b.ravel(), lambda b: b.T, lambda b: b[1:], lambda b: b[None]])
def test_a_buffer_of_another_shape_is_refused(name, change):
    buffer = layout(name).from_linear(distinct_bytes(128, 8))
    with pytest.raises(ShapeError, match=rf"{name}.to_linear: shape "):
        layout(name).to_linear(change(buffer), 128, 8)


@pytest.mark.rule("LAY-59")
@pytest.mark.parametrize("name", ["tiled", "", "Linear", "128x4"])
def test_unknown_names(name):
    with pytest.raises(
        LayoutError,
        match=r"need one of linear, linear_padded, tiled_128x4, tiled_8x4.*; see `fp4ref layouts` \[LAY-59\]",
    ):
        layout(name)


@pytest.mark.rule("LAY-8")
@given(
    shapes=st.lists(st.tuples(counts, widths), max_size=5),
    name=st.sampled_from(list(LAYOUTS)),
)
def test_group_offsets(shapes, name):
    form = layout(name)
    members = [distinct_bytes(*shape, seed=i) for i, shape in enumerate(shapes)]
    buffer = b"".join(form.from_linear(member).tobytes() for member in members)
    offsets = form.group_offsets(shapes)
    assert len(offsets) == len(shapes) + 1
    assert offsets[-1] == len(buffer)
    for member, start, stop in zip(members, offsets[:-1], offsets[1:], strict=True):
        part = np.frombuffer(buffer[start:stop], np.uint8).reshape(form.padded_shape(*member.shape))
        assert form.to_linear(part, *member.shape).tobytes() == member.tobytes()


@pytest.mark.rule("LAY-8")
def test_worked_group_offsets():
    shapes = [(200, 8), (0, 8), (1, 5), (128, 4)]
    assert layout("tiled_128x4").group_offsets(shapes) == [0, 2048, 2048, 3072, 3584]
    assert layout("linear").group_offsets(iter(shapes)) == [0, 1600, 1600, 1605, 2117]
    assert layout("linear").group_offsets([]) == [0]


def owned_bytes(name, start, stop, rows, columns):
    """Offsets that LAY-9 gives to the rows: with padding columns, and the padding rows if the last row is in."""
    if start == stop:
        return []
    if stop == rows:
        stop = padded(name, rows, columns)[0]
    return sorted(
        formula(name, m, k, columns) for m in range(start, stop) for k in range(padded(name, rows, columns)[1])
    )


@pytest.mark.rule("LAY-9", "LAY-51", "LAY-52")
@given(name=st.sampled_from(list(LAYOUTS)), rows=counts, columns=st.integers(0, 9), data=st.data())
def test_row_range_is_exactly_the_owned_bytes_or_refused(name, rows, columns, data):
    near = [r for tile in range(0, rows + 1, 8) for r in (tile - 1, tile, tile + 1) if 0 <= r <= rows]
    end = st.sampled_from(near) | st.integers(0, rows)
    start, stop = sorted([data.draw(end), data.draw(end)])
    own = owned_bytes(name, start, stop, rows, columns)
    if own and own != list(range(own[0], own[0] + len(own))):
        with pytest.raises(LayoutError, match=r"lie apart, need whole tiles of \d+ rows \[LAY-51\]"):
            layout(name).row_range(start, stop, rows, columns)
    else:
        got = layout(name).row_range(start, stop, rows, columns)
        assert list(range(got.start, got.stop)) == own


def one_piece(name, start, stop, rows, columns):
    """LAY-53's list of cases."""
    if start == stop or columns == 0 or name in {"linear", "linear_padded"}:
        return True
    high = SIDES[name][0]
    stop = padded(name, rows, columns)[0] if stop == rows else stop
    if columns <= 4:
        near_edges = start % high in {0, 1, high - 1} and stop % high in {0, 1, high - 1}
        return name == "tiled_8x4" or near_edges or stop - start == 1
    return start % high == stop % high == 0


@pytest.mark.rule("LAY-53")
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("rows, columns", [(20, 4), (130, 3), (140, 5), (258, 4)])
def test_row_ranges_are_one_piece_in_the_listed_cases_only(name, rows, columns):
    for start in range(rows + 1):
        for stop in {*range(start, rows + 1, 16), start + 1, rows - 1, rows, 1, 7, 8, 9, 127, 128, 129}:
            if not start <= stop <= rows:
                continue
            try:
                layout(name).row_range(start, stop, rows, columns)
                got = True
            except LayoutError:
                got = False
            assert got == one_piece(name, start, stop, rows, columns), (start, stop)


@pytest.mark.rule("LAY-9", "LAY-53")
@pytest.mark.parametrize("name", TILED)
@given(rows=counts, columns=widths, data=st.data())
def test_whole_tiles_are_a_buffer_of_their_rows(name, rows, columns, data):
    high = SIDES[name][0]
    ends = st.sampled_from([*range(0, rows, high), rows])
    start, stop = sorted([data.draw(ends), data.draw(ends)])
    scales = distinct_bytes(rows, columns)
    piece = layout(name).from_linear(scales).ravel()[layout(name).row_range(start, stop, rows, columns)]
    assert piece.tobytes() == layout(name).from_linear(scales[start:stop]).tobytes()


@pytest.mark.rule("LAY-9")
def test_worked_row_ranges():
    form = layout("tiled_128x4")
    assert form.row_range(128, 256, 300, 8) == slice(1024, 2048)
    assert form.row_range(256, 300, 300, 8) == slice(2048, 3072)
    assert form.row_range(1, 128, 300, 3) == slice(4, 512)
    assert form.row_range(32, 33, 300, 3) == slice(4, 8)
    for start, stop, columns in [(0, 64, 8), (1, 33, 3)]:
        with pytest.raises(LayoutError):
            form.row_range(start, stop, 300, columns)


@pytest.mark.rule("LAY-51")
@pytest.mark.parametrize("start, stop", [(-1, 3), (2, 1), (0, 6), (6, 6)])
def test_row_ranges_outside_the_rows(start, stop):
    with pytest.raises(DomainError, match=r"need 0 <= start <= stop <= rows \[LAY-51\]"):
        layout("linear").row_range(start, stop, 5, 3)


@pytest.mark.rule("LAY-10")
@pytest.mark.parametrize("name", LAYOUTS)
def test_scales_of_2d_blocks_are_repeated_for_each_row(name):
    x = np.random.default_rng(5).normal(size=(37, 50)).astype(np.float32)
    q = fp4ref.quantize(x, fp4ref.NVFP4_2D, scale_layout=name)
    scales = layout(name).to_linear(q.row.scales, 37, 4)
    np.testing.assert_array_equal(scales, scales[np.arange(37) // 16 * 16])
    assert len({row.tobytes() for row in scales}) == 3


@each_layout
@pytest.mark.parametrize(
    "row, column, columns, message",
    [
        (-1, 0, 8, "row -1, need 0 <= row < "),
        (0, -1, 8, "column -1, need 0 <= column < 8"),
        (0, 8, 8, "column 8, need 0 <= column < 8"),
        (0, 0, 0, "column 0, need 0 <= column < 0"),
        (2**61, 0, 8, f"row {2**61}, need 0 <= row < "),
    ],
)
def test_offset_out_of_range(name, row, column, columns, message):
    with pytest.raises(DomainError, match=rf"{name}.offset: {message}.*\[{RULES[name]}\]"):
        layout(name).offset(row, column, columns)
    with pytest.raises(DomainError, match=message):
        layout(name).offset(np.array([0, row, 0]), np.array([[0], [column]]), columns)


@each_layout
@pytest.mark.parametrize("offset, columns", [(-1, 8), (0, 0), (2**63 - 1, 8)])
def test_index_out_of_range(name, offset, columns):
    with pytest.raises(DomainError, match=rf"{name}.index: offset {offset}, need 0 <= offset < .*\[{RULES[name]}\]"):
        layout(name).index(offset, columns)


@each_layout
def test_the_last_offset_of_63_bits(name):
    block = SIDES[name][0] * padded(name, 0, 7)[1]
    last = (2**63 - 1) // block * block - 1
    row, column = layout(name).index(last, 7)
    assert formula(name, row, column, 7) == last == layout(name).offset(row, column, 7)
    with pytest.raises(DomainError):
        layout(name).index(last + 1, 7)


@each_layout
def test_padding_has_offsets(name):
    wide = padded(name, 1, 6)[1]
    assert layout(name).offset(1000, wide - 1, 6) == formula(name, 1000, wide - 1, 6)


@each_layout
def test_wrong_types_and_shapes(name):
    form, rule = layout(name), RULES[name]
    with pytest.raises(DTypeError, match=rf"row of type float64, need integers \[{rule}\]"):
        form.offset(1.0, 0, 8)
    with pytest.raises(DTypeError, match="offset of type bool"):
        form.index(np.array([True]), 8)
    with pytest.raises(DTypeError, match=rf"scales of type float32, need uint8 \[{rule}\]"):
        form.from_linear(np.zeros((2, 2), np.float32))
    with pytest.raises(DTypeError, match=rf"to_linear: scales of type int8, need uint8 \[{rule}\]"):
        form.to_linear(np.zeros((2, 2), np.int8), 2, 2)
    with pytest.raises(ShapeError, match=r"shape \[2, 2, 2\], need two axes \[LAY-32\]"):
        form.from_linear(np.zeros((2, 2, 2), np.uint8))
    with pytest.raises(ShapeError, match=r"-1 x 3 scales, need counts >= 0 \[LAY-32\]"):
        form.padded_shape(-1, 3)


@each_layout
def test_small_integer_types_do_not_overflow(name):
    got = layout(name).offset(np.array([200], np.uint8), np.int8(6), np.int16(8))
    assert got.tolist() == [formula(name, 200, 6, 8)]
    assert layout(name).padded_shape(np.int8(100), np.int8(100)) == padded(name, 100, 100)


@pytest.mark.rule("LAY-3", "LAY-4")
def test_a_layout_is_a_value():
    form = layout("tiled_8x4")
    assert pickle.loads(pickle.dumps(form)) == form == Layout("tiled_8x4", form.text, "LAY-4")
    assert hash(form) == hash(dataclasses.replace(form))
    assert len(set(LAYOUTS.values())) == len(LAYOUTS)
    assert form.digits(20, 9) == ((Digit(8, 4), Digit(3, 96)), (Digit(4, 1), Digit(3, 32)))
