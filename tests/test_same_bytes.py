"""The comparison that tests of a device use, on the host: every byte that a rule decides, and no other."""

import dataclasses

import numpy as np
import pytest

import fp4ref
from fp4ref.layout import Layout
from same_bytes import same, whole

ROWS, COLUMNS = 5, 3  # of the scales of a 5 x 40 tensor in blocks of 16


DECIDED = {  # whether a rule decides the byte at a row and a column of the buffer
    "linear": lambda row, column: True,
    "tiled_8x4": lambda row, column: True,
    "linear_padded": lambda row, column: row < ROWS and column < COLUMNS,
    "rows.filled": lambda row, column: row >= ROWS or column < COLUMNS,  # what pads both axes belongs to the first
}


@pytest.fixture(params=DECIDED)
def laid_out(request):
    """The name of a layout, and expected bytes in it."""
    name = request.param
    if name == "rows.filled":
        fp4ref.LAYOUTS.register(Layout(name, "m(*) k(*): k0 m0; pad m 8 0x7f; pad k 4 unspecified"))
    x = np.linspace(-3, 5, ROWS * 40, dtype=np.float32).reshape(ROWS, 40)
    yield name, fp4ref.quantize(x, "nvfp4", scale_layout=name, backend="numpy").row
    if name == "rows.filled":
        fp4ref.LAYOUTS.forget(name)


@pytest.mark.rule("LAY-5", "LAY-15", "LAY-37")
def test_every_specified_byte_is_compared_and_no_other(laid_out):
    name, expected = laid_out
    same(expected, expected, name, "equal", (ROWS, COLUMNS))
    for place in np.ndindex(*expected.scales.shape):
        scales = expected.scales.copy()
        scales[place] ^= 1
        got = expected._replace(scales=scales)
        if DECIDED[name](*place):
            with pytest.raises(AssertionError, match=r"one scales: 1 differ"):
                same(got, expected, name, "one", (ROWS, COLUMNS))
        else:
            same(got, expected, name, "one", (ROWS, COLUMNS))


def test_data_and_amax_are_compared(laid_out):
    name, expected = laid_out
    with pytest.raises(AssertionError, match="data: "):
        same(expected._replace(data=expected.data ^ 1), expected, name, "data", (ROWS, COLUMNS))
    with pytest.raises(AssertionError, match="amax"):
        same(expected._replace(amax=expected.amax * 2), expected, name, "amax", (ROWS, COLUMNS))
    with pytest.raises(AssertionError, match="scales"):
        same(expected._replace(scales=None), expected, name, "none", (ROWS, COLUMNS))


def test_a_layout_with_unspecified_bytes_needs_the_sizes():
    x = np.ones((ROWS, 40), np.float32)
    expected = fp4ref.quantize(x, "nvfp4", scale_layout="linear_padded", backend="numpy").row
    with pytest.raises(AssertionError, match="pass the scales' sizes"):
        same(expected, expected, "linear_padded", "no sizes")


@pytest.mark.parametrize("direction", ["row", "column"])
def test_every_byte_of_a_whole_is_compared(direction):
    q = fp4ref.quantize(np.full((5, 16), np.nan, np.float32), "nvfp4", "both", backend="numpy")
    part = getattr(q, direction)
    whole(q, dataclasses.replace(q, **{direction: part._replace(amax=-part.amax)}))  # NaN of the other sign
    for field, wrong in (("data", part.data ^ 1), ("scales", part.scales ^ 1), ("amax", np.float32([1]))):
        changed = part._replace(**{field: wrong})
        with pytest.raises(AssertionError, match=rf"{direction}.{field}: .* differ"):
            whole(q, dataclasses.replace(q, **{direction: changed}))
    for lacking in (None, part._replace(amax=None)):
        with pytest.raises(AssertionError, match=direction):
            whole(q, dataclasses.replace(q, **{direction: lacking}))
