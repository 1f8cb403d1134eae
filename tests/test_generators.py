"""The maps of kernels that draw their own bits, against a walk over their threads that takes one word after another."""

from __future__ import annotations

import numpy as np
import pytest

import fp4ref
from fp4ref import DomainError, ShapeError

MAPS = fp4ref.random_maps
SHAPES = ((128, 128), (192, 256), (64, 128), (1280, 256))


def pair_of_halves(row, column, lane):
    """Two turns over a row's 16 elements, 8 in each; the upper half of a warp takes the upper 8 first."""
    for turn in range(2):
        half = (turn + lane // 16) % 2
        for quarter in range(2):
            yield "row", row, column + 8 * half + 4 * quarter


def down(row, column):
    for quarter in range(4):
        yield "column", row + 4 * quarter, column


def tuned_1d(thread, produced):
    lane, warp = thread % 32, thread // 32
    for stage in range(4):
        top, left = stage // 2 * 64, stage % 2 * 64
        for turn in range(2):
            yield from pair_of_halves(top + thread // 4 + 32 * turn, left + 16 * (thread % 4), lane)
        if "column" in produced:
            for column in range(2):
                yield from down(top + 16 * ((lane // 2 + warp) % 4), left + 2 * lane + column)


def strips(thread, produced):
    for stage in range(4):
        if "column" in produced:
            for turn in range(2):
                yield from down(32 * stage + 16 * turn, thread)
        if "row" in produced:
            for turn in range(2):
                yield from pair_of_halves(32 * stage + 16 * turn + thread // 8, 16 * (thread % 8), thread % 32)


def fallback(thread, produced):
    if "row" in produced:
        for turn in range(4):
            for quarter in range(4):
                yield "row", thread // 8 + 32 * turn, 16 * (thread % 8) + 4 * quarter
    if "column" in produced:
        for turn in range(2):
            for column in range(2):
                yield from down(16 * (thread % 8), 2 * (thread // 8) + 64 * turn + column)


CHUNKED = {"te.tuned_1d": (tuned_1d, 128), "te.2d": (strips, 128), "te.fallback": (fallback, 256)}


def walk(name, shape, directions):
    """(direction, row, column) of a group's first element -> (sequence, word)."""
    program, threads = CHUNKED[name]
    produced = {"row", "column"} if directions == "both" else {directions}
    across, found = -(-shape[1] // 128), {}
    for by in range(-(-shape[0] // 128)):
        for bx in range(across):
            for thread in range(threads):
                sequence = thread + bx * threads + by * across * threads
                for word, (direction, row, column) in enumerate(program(thread, produced)):
                    place = direction, by * 128 + row, bx * 128 + column
                    if place[1] < shape[0] and place[2] < shape[1]:  # what lies outside still takes its word
                        assert place not in found
                        found[place] = sequence, word
    return found


def fused(shape, grouped, directions):
    """The same for the fused kernels: an output of four words for every block, sequences anew in every step."""
    rows, columns = shape
    steps, tiles_m, tiles_n = -(-min(rows, 1024) // 128), columns // 128, -(-rows // 1024)
    found = {}
    for m in range(tiles_m):
        for n in range(tiles_n):
            linear = m + n * tiles_m
            for step in range(steps):
                top = n * 1024 + step * 128
                for thread in range(128, 512):
                    role = "column" if thread < 256 else "row"
                    local = thread - (128 if role == "column" else 256)
                    step_used = step + (role == "row")
                    sequence = thread + step_used * 512 + linear * steps * 512
                    if grouped and role == "row":
                        sequence += tiles_m * tiles_n * steps * 512
                    blocks = range(8) if role == "column" else range(4)
                    for block in blocks:
                        for quarter in range(4):
                            if role == "column":
                                place = "column", top + 16 * block + 4 * quarter, 128 * m + local
                            else:
                                left = 128 * m + 64 * (local % 2) + 16 * block + 4 * quarter
                                place = "row", top + local // 2, left
                            if place[1] < rows and directions in ("both", role):
                                assert place not in found
                                found[place] = sequence, 4 * block + quarter
    return found


def groups(name, shape, directions):
    """What the map says, in the same form."""
    places = MAPS[name].places(shape, directions)
    found = {}
    if places.row is not None:
        found |= {("row", r, 4 * g): tuple(places.row[r, g].tolist()) for r, g in np.ndindex(places.row.shape[:2])}
    if places.column is not None:
        columns = places.column.shape[:2]
        found |= {("column", 4 * g, c): tuple(places.column[c, g].tolist()) for c, g in np.ndindex(columns)}
    return found


@pytest.mark.rule("SR-10")
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_every_group_has_the_word_that_its_thread_takes_for_it(name, shape):
    for directions in MAPS[name].directions:
        expected = walk(name, shape, directions) if name in CHUNKED else fused(shape, "grouped" in name, directions)
        assert groups(name, shape, directions) == expected
        count = shape[0] * shape[1] // 4 * (2 if directions == "both" else 1)
        assert len(expected) == count  # every element once


@pytest.mark.sampled(4)
@pytest.mark.rule("SR-9", "SR-10")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_no_word_serves_two_groups(name, shape):
    for directions in MAPS[name].directions:
        places = [part.reshape(-1, 2) for part in MAPS[name].places(shape, directions) if part is not None]
        every = np.concatenate(places)
        assert len(np.unique(every, axis=0)) == len(every)
        assert every.min() >= 0


@pytest.mark.rule("SR-10")
@pytest.mark.parametrize(
    "name, directions, words",
    [
        ("te.tuned_1d", "both", 64),
        ("te.tuned_1d", "row", 32),
        ("te.2d", "both", 64),
        ("te.2d", "column", 32),
        ("te.fallback", "both", 32),
        ("te.fallback", "row", 16),
        ("te.rht_fused", "row", 16),
        ("te.rht_fused", "column", 32),
    ],
)
def test_words_of_a_thread(name, directions, words):
    places = [part for part in MAPS[name].places((128, 128), directions) if part is not None]
    sequences, counts = np.unique(np.concatenate([part.reshape(-1, 2) for part in places])[:, 0], return_counts=True)
    assert set(counts.tolist()) == {words}
    assert len(sequences) * words * 4 == 128 * 128 * len(places)


@pytest.mark.rule("SR-10")
def test_the_first_bytes_of_the_tuned_kernel():
    drawn = MAPS["te.tuned_1d"]((128, 128))
    assert drawn.row[0, :4].tobytes().hex() == "d5e82766"
    assert drawn.row.shape == drawn.column.shape == (128, 128)
    assert MAPS["te.tuned_1d"]((32, 64), directions="row").column is None


@pytest.mark.rule("SR-6", "SR-10")
@pytest.mark.parametrize("name", MAPS)
def test_a_byte_is_that_of_its_word_at_seed_and_offset(name):
    seed, shape = (7 << 32) + 1234, (128, 256)
    for offset, rounds in ((1024, 10), (2**64 - 2, 7)):
        drawn, places = MAPS[name](shape, seed, offset, rounds=rounds), MAPS[name].places(shape)
        for part, where, (r, c) in ((drawn.row, places.row, (77, 131)), (drawn.column, places.column, (200, 46))):
            sequence, word = where[r, c // 4].tolist()
            counter = offset + word // 4 + (sequence << 64)
            words = [counter >> 32 * i & 0xFFFFFFFF for i in range(4)]
            output = fp4ref.philox4x32(words, [1234, 7], rounds)
            assert part[r, c] == int(output[word % 4]).to_bytes(4, "little")[c % 4]


@pytest.mark.rule("SR-10")
@pytest.mark.parametrize(
    "name, shape, arguments, error",
    [
        ("te.tuned_1d", (48, 128), {}, ShapeError),
        ("te.tuned_1d", (64, 128), {"directions": "column"}, DomainError),
        ("te.fallback", (40, 128), {}, ShapeError),
        ("te.rht_fused", (64, 64), {}, ShapeError),
        ("te.2d", (64, 64), {"seed": -1}, DomainError),
        ("te.2d", (64, 64), {"offset": 1 << 64}, DomainError),
        ("te.2d", (64, 64), {"directions": "all"}, DomainError),
    ],
)
def test_what_is_refused(name, shape, arguments, error):
    with pytest.raises(error, match="SR-10"):
        MAPS[name](shape, **arguments)


@pytest.mark.rule("SR-10")
def test_empty_tensors_and_what_is_known():
    assert MAPS["te.2d"]((0, 64)).row.shape == (0, 64)
    assert MAPS["te.2d"]((0, 64)).column.shape == (64, 0)
    for each in MAPS.values():
        assert each.certain
        assert "byte" in each.inferred
