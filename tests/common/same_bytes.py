"""Comparing the buffers that a kernel wrote with the expected ones, in every byte that a rule decides."""

import numpy as np

from fp4ref.layout import layout
from fp4ref.quantized import DirectionData


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
