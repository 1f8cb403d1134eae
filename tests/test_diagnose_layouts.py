"""A layout's own digits in another order, or with another XOR, are named, and so is another bias of a format."""

import dataclasses

import numpy as np
import pytest

import fp4ref
from fp4ref.conformance.diagnosis.diagnose import diagnose
from fp4ref.conformance.diagnosis.measured import own_digits
from fp4ref.conformance.mistakes.biases import biases
from fp4ref.formats import Codec, Format, Rounding
from fp4ref.layout import LAYOUTS, Layout
from fp4ref.specs import MXFP6_E2M3, NVFP4

AXES, PLAIN = "m(8,4,*) k(8,*): ", "m(32,4,*) k(4,*): "
DOWN = Layout("test.down", AXES + "k0^m0 m0 m1 m2 k1")
TIES = np.array([0.25, 0.75, 2.5, 3.5, 5, 6], np.float32)
SHAPES = ((2, 240), (40, 48), (70, 300), (150, 520))


class Case:
    """The least that evidence needs."""

    direction = "row"
    amax = random_bits = None

    def __init__(self, shape, ties):
        random = np.random.default_rng(shape[0])
        self.x = random.standard_normal(shape, np.float32)
        if ties:  # under scales that are powers of two
            self.x = random.choice(TIES, shape) * 2 ** random.integers(0, 8, (shape[0], 1)).astype(np.float32)
            self.x[-1, -1] = 6 * 448


def stored(spec, declared, written, shape, ties=False):
    """Return a case, and what a kernel makes of it that stores scales in another layout than the declared one."""
    case = Case(shape, ties)
    q = fp4ref.quantize(case.x, spec, backend="numpy").row
    rows, blocks = q.scales.shape
    scales = np.zeros(declared.padded_shape(rows, blocks), np.uint8)
    offsets = written.offset(np.arange(rows)[:, None], np.arange(blocks)[None, :], blocks, rows)
    scales.reshape(-1)[offsets] = q.scales
    return case, q._replace(scales=scales)


@pytest.fixture
def declared():
    yield LAYOUTS.register(DOWN, "this test")
    LAYOUTS.forget("test.down")


ORDER = "the digits of a scale's place are stored in the order {}, not {}"
SAID = [
    (DOWN, "k0^m0 m0 m1 k1 m2", "test.down tiles follow each other along a row first (tile axes exchanged)"),
    (DOWN, "k0 m0 m1 m2 k1", "digit k0 is stored as it is, not XOR m0"),
    (DOWN, "k0^m1 m0 m1 m2 k1", "digit k0 is stored XOR m1, not XOR m0"),
    (DOWN, "k0^7 m0 m1 m2 k1", "digit k0 is stored XOR 7, not XOR m0"),
    (DOWN, "k0^m0 m1 m0 m2 k1", ORDER.format("k0 m1 m0 m2 k1", "k0 m0 m1 m2 k1")),
    (
        DOWN,
        "m1 k0 m0 k1 m2",
        ORDER.format("m1 k0 m0 k1 m2", "k0 m0 m1 m2 k1") + ", and digit k0 is stored as it is, not XOR m0",
    ),
    (
        LAYOUTS["tiled_128x4"],
        "k0 m1 m0 m2 k1",
        "128x4 tiles follow each other down the rows first (tile axes exchanged)",
    ),
    (LAYOUTS["tiled_128x4"], "k0^m1 m1 m0 k1 m2", "digit k0 is stored XOR m1, not as it is"),
]


@pytest.mark.sampled(4)
@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize(("form", "order", "words"), SAID, ids=[order for _, order, _ in SAID])
def test_own_digits_elsewhere_are_told_first(form, order, words, declared):
    written = Layout("test.written", (AXES if form is declared else PLAIN) + order)
    shapes = SHAPES if form is declared else (*SHAPES, (300, 400))
    found = diagnose(NVFP4, form.name, [stored(NVFP4, form, written, shape) for shape in shapes])
    assert found.explanations[0].text == words
    assert len(found.explanations[0].names) == 1


@pytest.mark.rule("CNF-2")
def test_other_mistakes_may_join(declared):
    away = NVFP4.replace(name="test.away", element=dataclasses.replace(NVFP4.element, rounding=Rounding.AWAY))
    written = Layout("test.written", AXES + "k0^m0 m0 m1 k1 m2")

    evidence = [stored(away, declared, written, shape, ties=True) for shape in SHAPES]
    found = diagnose(NVFP4, "test.down", evidence)
    assert found.explanations[0].text == f"ties go away from zero when elements are rounded; {SAID[0][2]}"


@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize("text", ["m(*) k(*): k0 m0", "m(8,*) k(*): k0 |16 m0 m1"])
def test_layouts_of_two_digits_or_with_gaps_have_no_other_order(text):
    assert not own_digits._changes(Layout("test.other", text))


@pytest.mark.rule("CNF-2", "SPC-7")
def test_another_bias_of_an_own_format_is_one_mistake():
    form = Format("test.e2m3", 2, 3, bias=3, codes=32)
    declared, made = (
        MXFP6_E2M3.replace(name="test.mx", element=Codec(format=dataclasses.replace(form, bias=bias), nan=(0x1F, 0x1F)))
        for bias in (3, 2)
    )
    linear = LAYOUTS["linear"]
    evidence = [stored(made, linear, linear, shape) for shape in SHAPES]
    found = diagnose(declared, "linear", evidence)
    first, other = found.explanations  # twice as large values have scales half as large, and the same codes
    assert first.text == "elements have the exponent bias 2 instead of 3"
    assert other.text.startswith("scale bytes are one too small")
    assert first.causes[0].breaks == ("SPC-7",)
    assert not biases(MXFP6_E2M3)
