"""A verdict is never lost: whatever is wrong with a dump or a kernel, every output is complete."""

import numpy as np
import pytest

import fp4ref
from fp4ref.conformance.evidence import SMALL, Item
from fp4ref.conformance.hypotheses import Search
from fp4ref.layout import layout
from fp4ref.specs import NVFP4


class Case:
    """The least that evidence needs."""

    direction = "row"
    amax = random_bits = None

    def __init__(self, x):
        self.x = x


def normal(rows, columns, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32).astype(dtype)


def quantized(x):
    return fp4ref.quantize(x, "nvfp4", backend="numpy").row


def large_evidence(rows=64, columns=256):
    x = normal(rows, columns)
    assert x.size > SMALL
    return Case(x), quantized(normal(rows, columns, seed=1))


@pytest.mark.rule("CNF-2")
def test_two_mistakes_are_weighed_where_every_tensor_is_large() -> None:
    search = Search(NVFP4, [Item(*large_evidence(), NVFP4, layout("linear"))], False, float("inf"), False)
    start, names = search.starts[0], ("input-bf16-cut", "global-one", "scale-stored-plus-1")
    mistakes = [mistake for mistake in search.mistakes if mistake.name in names]
    singles = [(mistake, changed) for mistake in mistakes if (changed := start.but(mistake)) is not None]
    assert len(singles) == len(names)
    assert len([*search._likeliest(start, singles)]) == 3
