from __future__ import annotations

import struct
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref.errors import Fp4Error  # noqa: E402
from fp4ref.formats import STOCHASTIC_E2M1  # noqa: E402
from fp4ref.te.sharded import gather_shards, quantize_shard, random_bytes  # noqa: E402

MASK = 2**64 - 1


def philox4x64(counter: int, key: tuple[int, int]) -> tuple[int, ...]:
    """Ten rounds, in plain integers."""
    words = [(counter >> 64 * i) & MASK for i in range(4)]
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * words[0], 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * words[2], 2**64)
        words = [high1 ^ words[1] ^ k0, low1, high0 ^ words[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return tuple(words)


@pytest.mark.rule("TEM-9")
@pytest.mark.parametrize("direction", ["row", "column"])
@pytest.mark.parametrize("columns", [16, 32, 70])
def test_random_bytes_belong_to_a_place(direction: Any, columns: int) -> None:
    whole = random_bytes(99, direction, 0, 6, columns)
    assert torch.equal(random_bytes(99, direction, 2, 3, columns), whole[2:5])
    blocks = -(-columns // 32)
    for row in range(6):
        for column in range(columns):
            counter = 1 + blocks * row + column // 32
            expected = struct.pack("<4Q", *philox4x64(counter, (99, int(direction == "column"))))
            assert whole[row, column] == expected[column % 32]


@pytest.mark.rule("TEM-7")
def test_one_process_has_the_whole() -> None:
    x = torch.randn(48, 64)
    part = quantize_shard(x, "nvfp4", "both")
    whole = fp4ref.quantize(x, "nvfp4", "both")
    for name in ("row", "column"):
        ours, theirs = getattr(gather_shards(part), name), getattr(whole, name)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_stochastic_spec_needs_a_seed() -> None:
    spec = fp4ref.NVFP4.replace(element=STOCHASTIC_E2M1)
    x = torch.randn(16, 16)
    with pytest.raises(Fp4Error, match="no seed"):
        quantize_shard(x, spec)
    assert torch.equal(quantize_shard(x, spec, seed=1).row.data, quantize_shard(x, spec, seed=1).row.data)
    assert not torch.equal(quantize_shard(x, spec, seed=1).row.data, quantize_shard(x, spec, seed=2).row.data)


def test_a_matrix_of_floats_is_needed() -> None:
    with pytest.raises(Fp4Error, match="a matrix"):
        quantize_shard(torch.randn(16), "nvfp4")
    with pytest.raises(Fp4Error, match="float64"):
        quantize_shard(torch.randn(16, 16).double(), "nvfp4")
