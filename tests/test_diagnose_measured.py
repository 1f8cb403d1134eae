"""Measures of a diagnosis: what they find, and that they find nothing where there is nothing."""

import numpy as np
import pytest

from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.measured.amax import bounded_amax
from fp4ref.conformance.diagnosis.measured.bits import _source
from fp4ref.conformance.diagnosis.measured.floors import floors
from fp4ref.conformance.diagnosis.measured.maps import byte_maps, code_map, factor_of_elements, mapped
from fp4ref.conformance.diagnosis.measured.missing import missing_codes, missing_scales
from fp4ref.conformance.diagnosis.measured.order import element_orders, fitted, scale_orders, smallest
from fp4ref.conformance.diagnosis.measured.scales import _rounded
from fp4ref.conformance.diagnosis.measured.specials import measured_specials
from fp4ref.conformance.families import cases
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST
from fp4ref.conformance.mistakes.kernel import kernel_of
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.layout import layout
from fp4ref.model.quantize import quantize
from fp4ref.specs import MXFP8_E4M3, NVFP4

RNG = np.random.default_rng(7)
FAMILIES = ("positions", "normal", "layout", "nan", "inf", "zero-blocks", "scale-underflow")


def items(spec, change=lambda q: q, families=FAMILIES):
    """Evidence of a kernel whose bytes are changed after it."""
    order = layout("tiled_128x4")
    found = []
    for case in cases(spec, dtypes=("float32",), families=families):
        with np.errstate(all="ignore"):
            q = quantize(case.x, spec, "row", case.amax)
        changed = change(q._replace(scales=order.from_linear(q.scales)))
        found.append(Item(case, changed, spec, order))
    return [item for item in found if item.size]


def sides(spec, evidence):
    parts = [part for item in evidence for part in item.parts(False)]
    kernel = kernel_of(spec)
    return kernel, parts, [(part, side) for part in parts if part.whole and (side := part.side(kernel)) is not None]


def measures(spec, evidence):
    """Everything that is measured."""
    kernel, parts, pairs = sides(spec, evidence)
    one = [missing_scales(kernel, parts), missing_codes(kernel, pairs)]
    one += [measure(kernel, pairs, LOW_FIRST) for measure in (factor_of_elements, code_map)]
    several = [scale_orders(kernel, parts), element_orders(kernel, pairs), byte_maps(kernel, parts, DECLARED)]
    return [m.name for m in one if m] + [m.name for found in [*several, floors(kernel, parts)] for m in found]


@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize("spec", [NVFP4, MXFP8_E4M3], ids=lambda spec: spec.name)
def test_nothing_is_measured_where_nothing_is_wrong(spec):
    assert not measures(spec, items(spec))


@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize("spec", [NVFP4, MXFP8_E4M3], ids=lambda spec: spec.name)
def test_random_bytes_follow_no_rule(spec):
    def noise(q):
        return q._replace(data=RNG.integers(0, 256, q.data.shape, np.uint8))

    assert not measures(spec, items(spec, noise))

    def scales(q):
        return q._replace(scales=RNG.integers(0, 127, q.scales.shape, np.uint8))

    kernel, parts, _ = sides(spec, items(spec, scales))
    assert not [*scale_orders(kernel, parts), *byte_maps(kernel, parts, DECLARED), *floors(kernel, parts)]
    assert missing_scales(kernel, parts) is None


@pytest.mark.parametrize("size", [2, 4, 8, 32])
@pytest.mark.parametrize("wrong", [0, 0.4])
def test_orders_are_found_though_other_bytes_are_wrong(size, wrong):
    order = RNG.permutation(size)
    while (order == np.arange(size)).any():
        order = RNG.permutation(size)
    wanted = RNG.integers(0, 16, (512, size), np.uint8)
    got = np.empty_like(wanted)
    got[:, order] = np.where(RNG.random(wanted.shape) < wrong, 15 - wanted, wanted)
    assert fitted(got, wanted)[0] == tuple(order)


def test_an_order_is_that_of_the_smallest_group():
    wanted = RNG.integers(0, 16, 4096, np.uint8)
    got = wanted.reshape(-1, 4)[:, ::-1].reshape(-1)
    assert smallest((got.reshape(-1, n), wanted.reshape(-1, n)) for n in (2, 4, 8, 16)) == (3, 2, 1, 0)
    assert smallest((wanted.reshape(-1, n), wanted.reshape(-1, n)) for n in (2, 4, 8, 16)) is None


def test_a_map_must_be_a_function():
    wanted = RNG.integers(0, 16, 512, np.uint8)
    table = mapped(np.where(wanted == 8, 0, wanted).astype(np.uint8), wanted)
    assert table[8] == 0
    assert (np.delete(table, 8) == np.delete(np.arange(256), 8)).all()
    assert mapped(wanted, wanted) is None
    assert mapped(RNG.integers(0, 16, 512, np.uint8), wanted) is None


def test_bytes_that_are_missing_have_a_rule():
    def lane(q):
        data = q.data.copy()
        data[7::8] = 0
        return q._replace(data=data)

    kernel, _, pairs = sides(NVFP4, items(NVFP4, lane))
    assert missing_codes(kernel, pairs).text == "codes of rows 7 of 8 are not written (0x00)"

    def tile(q):
        scales = q.scales.copy()
        scales.reshape(-1)[512:] = 0
        return q._replace(scales=scales)

    kernel, parts, _ = sides(NVFP4, items(NVFP4, tile))
    assert missing_scales(kernel, parts).text == "scale bytes of offsets from 512 on are not written (0x00)"


def test_whose_bits_are_used():
    drawn = RNG.integers(0, 256, (256, 8), np.uint8)
    used = drawn[:, [0, 0, 2, 2, 4, 4, 6, 6]]
    needed = RNG.uniform(0, 256, drawn.shape)
    low, high = np.where(used >= needed, needed, -np.inf), np.where(used < needed, needed, np.inf)
    assert _source([(drawn, low, high)], 2) == [0, 0]
    assert _source([(drawn[::-1], low, high)], 2) is None


def test_a_bound_of_maxima_is_a_special_rule_where_it_meets_zeros_alone():
    """A floor that only tensors of zeros reach is learnt from what is returned for them."""

    def floor(q):
        return q._replace(amax=np.maximum(q.amax, np.float32(2.0**-40)))

    with np.errstate(all="ignore"):
        evidence = items(NVFP4, floor, families=("normal", "zero-tensor"))
        found = next(measured_specials(kernel_of(NVFP4), evidence, DECLARED, LOW_FIRST))
    assert found.text == "amax is clamped below at 9.09495e-13, and returned so"
    assert found.special
    assert bounded_amax(kernel_of(NVFP4), items(NVFP4, families=("normal", "zero-tensor"))) is None


def test_between_boundaries_that_were_seen_the_codec_rounds():
    """A value that was never seen is the codec's, as far as that is between the seen neighbours."""
    first, last, values = (np.array(one, np.float32) for one in ([1, 2, 4], [1.5, 3, 5], [10, 20, 40]))
    t = np.array([0, 0.5, 1.25, 1.75, 2, 3.5, 4, 6], np.float32)
    made = _rounded(first, last, values, lambda t: t * 12, t)
    assert made.tolist() == [0, 6, 10, 20, 20, 40, 40, 72]


def test_special_values_are_read_off():
    def zero(q):
        return q._replace(scales=np.where(q.scales == 0, 5, q.scales).astype(np.uint8))

    with np.errstate(all="ignore"):  # as in a diagnosis: a signalling NaN is an invalid operand
        found = list(measured_specials(kernel_of(NVFP4), items(NVFP4, zero), DECLARED, LOW_FIRST))
    assert "the scale byte of a block of zeros is 0x05" in [mistake.text for mistake in found]
    assert "NaN becomes code 0x7" in [mistake.text for mistake in found]
