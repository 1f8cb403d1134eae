from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from fp4ref import BackendError, DomainError, DTypeError, ShapeError, registry
from fp4ref.formats import STOCHASTIC_E2M1

STOCHASTIC = fp4ref.NVFP4.replace(name="stochastic", element=STOCHASTIC_E2M1)
# Lines `philox4x32` of tests/kat_vectors, Random123 1.14.0 (see data/README.md): rounds, counter, key, output.
KNOWN_ANSWERS = """
7 00000000 00000000 00000000 00000000 00000000 00000000 5f6fb709 0d893f64 4f121f81 4f730a48
7 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 5207ddc2 45165e59 4d8ee751 8c52f662
7 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 4dfccaba 190a87f0 c47362ba b6b5242a
10 00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8
10 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd
10 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1
""".strip().splitlines()
WORDS = st.integers(0, 2**32 - 1)


def naive_philox(counter, key, rounds=10):
    """One output in Python integers; the key grows before each round but the first."""
    r0, l0, r1, l1 = counter
    for number in range(rounds):
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32] if number else list(key)
        high0, low0 = divmod(0xD2511F53 * r0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * r1, 2**32)
        r0, l0, r1, l1 = high1 ^ key[0] ^ l0, low1, high0 ^ key[1] ^ l1, low0
    return [r0, l0, r1, l1]


def naive_byte(whole, direction, seed, stream, row, column):
    """The byte of one element of the direction's matrix, by the text of the rule."""
    width = whole[1] if direction == "row" else whole[0]
    block = row * ((width + 15) // 16) + column // 16
    upper = 2 * stream + (direction == "column")
    words = naive_philox([block % 2**32, block >> 32, upper % 2**32, upper >> 32], [seed % 2**32, seed >> 32])
    return b"".join(word.to_bytes(4, "little") for word in words)[column % 16]


def backends():
    return [name for name, reason in registry.available() if reason is None and name in {"numpy", "cpu", "torch"}]


@pytest.mark.rule("SR-6")
@pytest.mark.parametrize("line", KNOWN_ANSWERS)
def test_philox_known_answers(line):
    rounds, *words = line.split()
    values = [int(word, 16) for word in words]
    assert fp4ref.philox4x32(values[:4], values[4:6], int(rounds)).tolist() == values[6:]
    assert naive_philox(values[:4], values[4:6], int(rounds)) == values[6:]


@pytest.mark.rule("SR-6")
def test_philox_of_a_seed_a_sequence_and_an_offset():
    got = fp4ref.philox4x32(np.array([1024, 0, 5, 0]), np.array([1234, 0]))
    assert [f"{word:08x}" for word in got] == ["b5400eb0", "56484ae6", "c952a471", "8bc54853"]
    assert got.dtype == np.uint32


@pytest.mark.rule("SR-6")
@given(
    counter=st.lists(WORDS, min_size=4, max_size=4),
    key=st.lists(WORDS, min_size=2, max_size=2),
    rounds=st.integers(1, 16),
)
def test_philox_is_the_naive_one(counter, key, rounds):
    assert fp4ref.philox4x32(counter, key, rounds).tolist() == naive_philox(counter, key, rounds)


@pytest.mark.rule("SR-6")
def test_philox_broadcasts():
    counters = np.arange(24).reshape(2, 3, 4)
    keys = np.arange(4).reshape(2, 1, 2)
    got = fp4ref.philox4x32(counters, keys)
    assert got.shape == (2, 3, 4)
    for i, j in np.ndindex(2, 3):
        assert got[i, j].tolist() == naive_philox(counters[i, j].tolist(), keys[i, 0].tolist())
    assert fp4ref.philox4x32(np.zeros((0, 4), int), [0, 0]).shape == (0, 4)


@pytest.mark.rule("SR-6")
@pytest.mark.parametrize(
    "arguments, error",
    [
        (([0, 0, 0], [0, 0]), ShapeError),
        (([0, 0, 0, 0], [0]), ShapeError),
        ((np.zeros((2, 4), int), np.zeros((3, 2), int)), ShapeError),
        (([0.0, 0, 0, 0], [0, 0]), DTypeError),
        (([0, 0, 0, 1 << 32], [0, 0]), DomainError),
        (([0, 0, 0, -1], [0, 0]), DomainError),
        (([0, 0, 0, 0], [0, 0], 0), DomainError),
        (([0, 0, 0, 0], [0, 0], 17), DomainError),
        (([0, 0, 0, 0], [0, 0], True), DomainError),
    ],
)
def test_philox_refuses(arguments, error):
    with pytest.raises(error, match="SR-6"):
        fp4ref.philox4x32(*arguments)


@pytest.mark.rule("SR-7")
@pytest.mark.parametrize("backend", backends())
@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 5), st.integers(0, 40)),
    direction=st.sampled_from(["row", "column"]),
    seed=st.sampled_from([0, 1, 2**32, 2**64 - 1]) | st.integers(0, 2**64 - 1),
    stream=st.sampled_from([0, 1, 2**31, 2**63 - 1]) | st.integers(0, 2**63 - 1),
)
def test_every_byte_is_that_of_the_rule(backend, shape, direction, seed, stream):
    got = fp4ref.random_bits(shape, direction, seed, stream, backend=backend)
    lines, width = shape if direction == "row" else shape[::-1]
    assert got.shape == (lines, width)
    assert got.dtype == np.uint8
    expected = [[naive_byte(shape, direction, seed, stream, r, c) for c in range(width)] for r in range(lines)]
    assert got.tolist() == expected


@pytest.mark.rule("SR-7", "SR-8")
@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("direction", ["row", "column"])
def test_a_part_far_into_a_huge_tensor(backend, direction):
    """Block indices past 2^32, and past 2^63."""
    for whole, origin in (((2**20, 2**20), (2**20 - 48, 2**20 - 48)), ((2**36, 2**31), (2**36 - 48, 2**31 - 48))):
        given = {"origin": origin, "whole": whole, "seed": 3, "stream": 5}
        got = fp4ref.random_bits((48, 40), direction, backend=backend, **given)
        near, far = (origin[0], origin[1]) if direction == "row" else (origin[1], origin[0])
        for r, c in itertools.product((0, 17, 39), (0, 16, 39)):
            assert got[r, c] == naive_byte(whole, direction, 3, 5, near + r, far + c)


def cuts(size, unit):
    """Ranges that cover an axis; all but the last are multiples of the unit."""
    return st.lists(st.integers(0, max(size // unit, 0)), max_size=3).map(
        lambda marks: [*itertools.pairwise(sorted({0, size, *(mark * unit for mark in marks)}))] or [(0, 0)]
    )


@pytest.mark.rule("SR-8")
@pytest.mark.parametrize("backend", backends())
@settings(max_examples=30, deadline=None)
@given(data=st.data(), direction=st.sampled_from(["row", "column"]), seed=st.integers(0, 2**64 - 1))
def test_any_sharding_gathered_is_the_whole(backend, data, direction, seed):
    whole = data.draw(st.tuples(st.integers(0, 70), st.integers(0, 70)))
    units = (1, 16) if direction == "row" else (16, 1)
    down, across = (data.draw(cuts(size, unit)) for size, unit in zip(whole, units, strict=True))
    expected = fp4ref.random_bits(whole, direction, seed, 9, backend="numpy")
    gathered = np.empty_like(expected)
    for (top, bottom), (left, right) in itertools.product(down, across):
        part = fp4ref.random_bits((bottom - top, right - left), direction, seed, 9, (top, left), whole, backend=backend)
        place = (slice(top, bottom), slice(left, right))
        gathered[place if direction == "row" else place[::-1]] = part
    assert np.array_equal(gathered, expected)


@pytest.mark.rule("SR-8")
@pytest.mark.parametrize("direction", ["row", "column"])
def test_sharded_quantizing_is_quantizing_the_whole(direction):
    x = np.random.default_rng(0).standard_normal((48, 80), np.float32)
    bits = fp4ref.random_bits(x.shape, direction, 4)
    q = fp4ref.quantize(x, STOCHASTIC, direction, random_bits=bits, amax=5.0).direction(direction)[0]
    axis = 1 if direction == "row" else 0
    parts = []
    for start in range(0, x.shape[axis], 16):
        part = x[:, start : start + 16] if axis else x[start : start + 16]
        origin = (0, start) if axis else (start, 0)
        drawn = fp4ref.random_bits(part.shape, direction, 4, origin=origin, whole=x.shape)
        parts.append(fp4ref.quantize(part, STOCHASTIC, direction, random_bits=drawn, amax=5.0).direction(direction)[0])
    assert np.array_equal(np.concatenate([part.data for part in parts], axis=1), q.data)
    assert np.array_equal(np.concatenate([part.scales for part in parts], axis=1), q.scales)


@pytest.mark.rule("SR-9", "SR-7")
def test_directions_streams_and_seeds_have_bytes_of_their_own():
    square = {
        (direction, seed, stream): fp4ref.random_bits((64, 64), direction, seed, stream)
        for direction in ("row", "column")
        for seed in (0, 1, 2**32)
        for stream in (0, 1)
    }
    for (_, a), (_, b) in itertools.combinations(square.items(), 2):
        assert (a != b).mean() > 0.98
        assert (a != b.T).mean() > 0.98
    blocks = square["row", 0, 0].reshape(-1, 16)
    assert len({block.tobytes() for block in blocks}) == len(blocks)


@pytest.mark.rule("SR-7")
@pytest.mark.parametrize("backend", backends())
def test_leading_dimensions_are_rows_and_empty_tensors_have_no_bytes(backend):
    flat = fp4ref.random_bits((6, 20), backend=backend)
    assert np.array_equal(fp4ref.random_bits((2, 3, 20), backend=backend), flat)
    for shape in ((0, 16), (16, 0), (0, 0), (3, 0, 5), (0,)):
        rows, columns = int(np.prod(shape[:-1])), shape[-1]
        assert fp4ref.random_bits(shape, backend=backend).shape == (rows, columns)
        assert fp4ref.random_bits(shape, "column", backend=backend).shape == (columns, rows)


@pytest.mark.rule("SR-1", "SR-7")
@pytest.mark.parametrize("backend", backends())
def test_results_go_into_a_buffer(backend):
    expected = fp4ref.random_bits((6, 40), seed=8)
    whole = np.full((6, 80), 7, np.uint8)
    for out in (np.empty((6, 40), np.uint8), whole[:, ::2]):
        assert fp4ref.random_bits((6, 40), seed=8, backend=backend, out=out) is out
        assert np.array_equal(out, expected)
    assert (whole[:, 1::2] == 7).all()


@pytest.mark.rule("SR-7")
@pytest.mark.parametrize("backend", backends())
def test_a_named_device_gives_tensors(backend):
    torch = pytest.importorskip("torch")
    got = fp4ref.random_bits((6, 40), device="cpu", backend=backend)
    assert isinstance(got, torch.Tensor)
    assert np.array_equal(got.numpy(), fp4ref.random_bits((6, 40)))
    out = torch.empty(6, 40, dtype=torch.uint8)
    assert fp4ref.random_bits((6, 40), device=torch.device("cpu"), backend=backend, out=out) is out
    assert torch.equal(out, got)


@pytest.mark.heavy  # a compiler is started
@pytest.mark.slow
@pytest.mark.rule("SR-7")
@pytest.mark.parametrize(  # to write ten rounds out as C++ takes minutes and gigabytes on some machines
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.release)]
)
def test_the_torch_generator_compiles(backend):
    torch = pytest.importorskip("torch")
    from fp4ref_torch.random_bytes import random_bytes

    arguments = ((33, 50), (2, 1), 7, 2**63 + 5, 3, torch.device("cpu"))
    compiled = torch.compile(random_bytes, fullgraph=True, backend=backend)(*arguments)
    assert torch.equal(compiled, random_bytes(*arguments))


@pytest.mark.rule("SR-14", "SR-15")
@pytest.mark.parametrize(
    "arguments, error, rule",
    [
        (((4, 32), "both"), DomainError, "BLK-15"),
        (((4, 32), "row", -1), DomainError, "SR-14"),
        (((4, 32), "row", 1 << 64), DomainError, "SR-14"),
        (((4, 32), "row", 0.5), DomainError, "SR-14"),
        (((4, 32), "row", 0, 1 << 63), DomainError, "SR-14"),
        (((4, 32), "row", 0, True), DomainError, "SR-14"),
        (((4, 32), "row", 0, 0, (0, 8), (4, 64)), ShapeError, "SR-15"),
        (((4, 32), "column", 0, 0, (8, 0), (64, 32)), ShapeError, "SR-15"),
        (((4, 32), "row", 0, 0, (1, 0)), ShapeError, "SR-15"),
        (((4, 32), "row", 0, 0, (0, 16), (4, 40)), ShapeError, "SR-15"),
        (((4, 32), "row", 0, 0, (0, -16), (4, 64)), ShapeError, "SR-15"),
        (((4, 32), "row", 0, 0, (0,), (4, 64)), ShapeError, "SR-15"),
        (((4, 32), "row", 0, 0, (0, 0), (4, 32, 1)), ShapeError, "SR-15"),
        ((4, "row"), ShapeError, "SR-15"),
        (((), "row"), ShapeError, "SR-15"),
        (((4, 2.5), "row"), ShapeError, "SR-15"),
        (((4, 32), "row", 0, 0, (0, 0), (1 << 40, 1 << 40)), ShapeError, "SR-14"),
    ],
)
def test_what_is_refused(arguments, error, rule):
    with pytest.raises(error, match=rule):
        fp4ref.random_bits(*arguments)


@pytest.mark.rule("SR-1")
def test_buffers_and_backends_that_do_not_fit_are_refused():
    with pytest.raises(DTypeError, match="SR-1"):
        fp4ref.random_bits((2, 16), out=np.empty((2, 16), np.int8))
    with pytest.raises(ShapeError, match="SR-1"):
        fp4ref.random_bits((2, 16), "column", out=np.empty((2, 16), np.uint8))
    with pytest.raises(BackendError, match="CNF-5"):
        fp4ref.random_bits((2, 16), backend="nobody")
    with pytest.raises(BackendError, match="CNF-5"):
        fp4ref.random_bits((2, 16), device="meta")
