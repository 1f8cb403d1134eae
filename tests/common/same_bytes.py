"""Comparing the buffers that a kernel wrote with the expected ones, in every byte that a rule decides."""

import numpy as np

import fp4ref
from fp4ref.layout import layout
from fp4ref.quantized import DIRECTIONS, DirectionData


def on_the_host(array):
    """Return a tensor of any device as an array; None stays None."""
    return array.cpu().numpy() if hasattr(array, "cpu") else array


def same(got, expected, scale_layout, what, scales=None):
    """Compare bytes of data and scales, and amax up to the sign and payload of NaN; padding where it is specified.

    scales: rows and columns of the scales without padding; needed for a layout with unspecified padding or gaps.
    """
    form = layout(scale_layout)
    assert scales is not None or form.pads_compared, f"{scale_layout} has unspecified bytes: pass the scales' sizes"
    for field, mine, theirs in zip(DirectionData._fields, map(on_the_host, got), expected, strict=True):
        assert (mine is None) == (theirs is None), (what, field)
        if theirs is None:
            continue
        assert mine.shape == theirs.shape, (what, field)
        if field == "amax":
            assert np.array_equal(mine, theirs, equal_nan=True), (what, field, mine, theirs)
            continue
        differ = mine != theirs
        if field == "scales" and scales is not None:
            differ &= form.compared(*scales)
        wrong = np.argwhere(differ)
        assert not len(wrong), (
            f"{what} {field}: {len(wrong)} differ, first {wrong[0]}: {mine[tuple(wrong[0])]:#x}, "
            f"need {theirs[tuple(wrong[0])]:#x}"
        )


def whole(got, expected):
    """Compare every byte of both directions, padding too, and amax up to the sign and payload of NaN."""
    for direction in DIRECTIONS:
        ours, theirs = getattr(got, direction), getattr(expected, direction)
        assert (ours is None) == (theirs is None), direction
        for field, *pair in zip(DirectionData._fields, ours or (), theirs or (), strict=theirs is not None):
            mine, golden = map(on_the_host, pair)
            assert (mine is None) == (golden is None), (direction, field)
            if golden is None:
                continue
            assert (mine.shape, mine.dtype) == (golden.shape, golden.dtype), (direction, field)
            differ = mine != golden
            if field == "amax":
                differ &= ~(np.isnan(mine) & np.isnan(golden))
            wrong = np.argwhere(differ)
            assert not len(wrong), f"{direction}.{field}: {len(wrong)} differ, first at {wrong[0]}"


def same_by(backend, x, spec, directions="row", scale_layout="linear", **arguments):
    """Quantize by the golden model and by a backend, compare, and return what the model made."""
    expected = fp4ref.quantize(x, spec, directions, scale_layout, backend="numpy", **arguments)
    whole(fp4ref.quantize(x, spec, directions, scale_layout, backend=backend, **arguments), expected)
    return expected
