"""Random bytes: published outputs of Philox, the counter map, and the maps of Transformer Engine's kernels."""

from __future__ import annotations

import itertools

from fp4ref.conformance.oracle import randoms as random_oracle
from fp4ref.conformance.vectors.sources.parts import ORACLE, STATED, WORKED, Json, group, refused, test
from fp4ref.conformance.vectors.text import format_rows
from fp4ref.quantized import Direction

PUBLISHED = {"name": "Random123, tests/kat_vectors, lines of philox4x32", "version": "1.14.0"}
# rounds, counter, key, output
KNOWN = (
    (7, "00000000 " * 4, "00000000 " * 2, "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (7, "ffffffff " * 4, "ffffffff " * 2, "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (7, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "4dfccaba 190a87f0 c47362ba b6b5242a"),
    (10, "00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (10, "ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (10, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)
SEQUENCE_5 = ("00000400 00000000 00000005 00000000", "000004d2 00000000", "b5400eb0 56484ae6 c952a471 8bc54853")
ZERO, FIVE = (0, 0), (1234, 1024)  # seed and offset of two known answers, the second one under sequence 5
FIRST = {ZERO: "d5e827668dc569e14cac57bcd8db009b", FIVE: "b00e40b5e64a485671a452c95348c58b"}
# map, directions, element [direction, row, column] of the direction, seed and offset, sequence, first word of four
PLACES: tuple[tuple[str, str, Direction, tuple[int, int], tuple[int, int], int, int], ...] = (
    ("te.tuned_1d", "both", "row", (0, 0), ZERO, 0, 0),
    ("te.tuned_1d", "both", "row", (1, 16), FIVE, 5, 0),
    ("te.tuned_1d", "both", "row", (32, 0), FIVE, 0, 4),
    ("te.tuned_1d", "both", "column", (0, 0), ZERO, 0, 8),
    ("te.tuned_1d", "both", "column", (1, 0), ZERO, 0, 12),
    ("te.tuned_1d", "both", "row", (0, 64), ZERO, 0, 16),
    ("te.tuned_1d", "row", "row", (0, 64), ZERO, 0, 8),
    ("te.2d", "both", "column", (0, 0), ZERO, 0, 0),
    ("te.2d", "both", "column", (5, 0), FIVE, 5, 0),
    ("te.2d", "both", "row", (0, 0), ZERO, 0, 8),
    ("te.2d", "row", "row", (0, 80), FIVE, 5, 0),
    ("te.fallback", "both", "row", (0, 0), ZERO, 0, 0),
    ("te.fallback", "both", "row", (0, 80), FIVE, 5, 0),
    ("te.fallback", "both", "row", (32, 0), ZERO, 0, 4),
    ("te.fallback", "both", "column", (0, 0), ZERO, 0, 16),
    ("te.fallback", "column", "column", (0, 80), FIVE, 5, 0),
    ("te.rht_fused", "both", "column", (0, 0), ZERO, 128, 0),
    ("te.rht_fused", "both", "row", (0, 0), FIVE, 768, 0),
)


def philox_groups() -> list[Json]:
    """Known answers."""
    known = [
        group(
            "SR-6",
            PUBLISHED,
            [
                test(
                    "Philox",
                    f"{rounds} rounds, key {key.strip()}",
                    counter=counter.strip(),
                    key=key.strip(),
                    words=words,
                )
                for _, counter, key, words in rows
            ],
            rounds=rounds,
        )
        for rounds, rows in itertools.groupby(KNOWN, key=lambda row: row[0])
    ]
    counter, key, words = SEQUENCE_5
    worked = test("Philox", "seed 1234, sequence 5, offset 1024", counter=counter, key=key, words=words)
    return [*known, group("SR-6", WORKED, [worked], rounds=10)]


def _bits(
    flags: str,
    comment: str,
    shape: tuple[int, int],
    direction: Direction = "row",
    seed: int = 0,
    stream: int = 0,
    origin: tuple[int, int] = (0, 0),
    whole: tuple[int, int] | None = None,
    error: str = "",
) -> Json:
    of = whole or shape
    if error:
        answer = refused(error, "SR-15")
    else:
        answer = {"bytes": format_rows(random_oracle.random_bytes(shape, direction, seed, stream, origin, of))}
    return test(
        flags,
        comment,
        shape=list(shape),
        direction=direction,
        seed=f"{seed:016x}",
        stream=f"{stream:016x}",
        origin=list(origin),
        whole=list(of),
        expected=answer,
    )


def random_bits_groups() -> list[Json]:
    """Return the counter map: directions, seeds, streams, parts, and what is no part."""
    far = (1 << 33, 48)
    map_tests = [
        _bits("CounterMap", "a ragged tail", (6, 40)),
        _bits("CounterMap ColumnDirection", "rows of the transpose are numbered", (6, 40), "column"),
        _bits("CounterMap", "seed 1", (1, 16), seed=1),
        _bits("CounterMap", "stream 1", (1, 16), stream=1),
        _bits("CounterMap", "all bits of seed and stream", (1, 20), seed=(1 << 64) - 2, stream=(1 << 63) - 3),
        _bits("CounterMap EmptyTensor", "no rows", (0, 16)),
    ]
    parts = [
        _bits("Shards", "from block 4 on", (2, 24), origin=(1, 16), whole=(6, 40)),
        _bits("Shards ColumnDirection", "rows 16 to 19", (4, 3), "column", origin=(16, 1), whole=(40, 6)),
        _bits("Shards", "block numbers past 32 bits", (1, 20), origin=((1 << 33) - 1, 16), whole=far),
        _bits(
            "Refused",
            "row 1 is no multiple of 16",
            (2, 24),
            "column",
            origin=(1, 16),
            whole=(6, 40),
            error="ShapeError",
        ),
        _bits("Refused", "column 8 is no multiple of 16", (2, 24), origin=(1, 8), whole=(6, 40), error="ShapeError"),
        _bits("Refused", "column 48 is past the whole", (2, 32), origin=(1, 16), whole=(6, 40), error="ShapeError"),
    ]
    return [group("SR-7", ORACLE, map_tests), group("SR-8 SR-7 SR-15", ORACLE, parts)]


def random_map_groups() -> list[Json]:
    """Places of known answers in the maps, worked out by hand from the order of a thread's words."""
    groups = []
    for name, rows in itertools.groupby(PLACES, key=lambda row: row[0]):
        tests = []
        for _, directions, direction, (row, column), state, sequence, word in rows:
            data = random_oracle.drawn(sequence, word, 4, *state)
            known = word == 0 and sequence == (0 if state == ZERO else 5)
            assert not known or data.hex() == FIRST[state]
            tests.append(
                test(
                    "MapOfWords" + (" ColumnDirection" if direction == "column" else ""),
                    f"sequence {sequence}, words {word} to {word + 3}" + (", a known answer" if known else ""),
                    shape=[128, 128],
                    directions=directions,
                    direction=direction,
                    row=row,
                    column=column,
                    seed=f"{state[0]:016x}",
                    offset=f"{state[1]:016x}",
                    bytes=data.hex(),
                )
            )
        groups.append(group("SR-10", WORKED, tests, map=name))
    halves = random_oracle.drawn(16, 0, 4)
    swapped = test(
        "MapOfWords",
        "lanes 16 to 31 draw the second half of a block first",
        shape=[128, 128],
        directions="both",
        direction="row",
        row=4,
        column=0,
        seed=f"{0:016x}",
        offset=f"{0:016x}",
        bytes=(halves[8:] + halves[:8]).hex(),
    )
    return [*groups, group("SR-10", STATED, [swapped], map="te.tuned_1d")]
