from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref.errors import Fp4Error  # noqa: E402
from fp4ref.formats import STOCHASTIC_E2M1  # noqa: E402
from fp4ref.te.sharded import gather_shards, quantize_shard  # noqa: E402


@pytest.mark.rule("TEM-7")
def test_one_process_has_the_whole() -> None:
    x = torch.randn(48, 64)
    part = quantize_shard(x, "nvfp4", "both")
    whole = fp4ref.quantize(x, "nvfp4", "both")
    for name in ("row", "column"):
        ours, theirs = getattr(gather_shards(part), name), getattr(whole, name)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.rule("TEM-9")
def test_random_bytes_are_those_of_the_seed_and_stream() -> None:
    spec = fp4ref.NVFP4.replace(element=STOCHASTIC_E2M1)
    x = torch.randn(32, 64)
    bits = fp4ref.random_bits((32, 64), "column", 5, 6, device="cpu")
    expected = fp4ref.quantize(x, spec, "column", random_bits=bits).column
    assert torch.equal(quantize_shard(x, spec, "column", seed=5, stream=6).column.data, expected.data)


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
