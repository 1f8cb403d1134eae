"""Kinds of arrays that are recognized together have the same number exactly if each of them is the same."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fp4ref import repeats  # noqa: E402


def variants(x):
    """Tensors that differ from each other in one thing each."""
    shared = torch.zeros(64, 96, dtype=x.dtype)
    yield from (x, x.clone(), torch.nn.Parameter(x.clone()), x.clone().requires_grad_(), x.to(torch.float32), x.half())
    yield from (x.view(torch.float16), x.t(), x.t().contiguous(), x[:, :64], x[:32], x.view(8, 8, 64), x.flatten())
    yield from (torch._neg_view(x), torch.zeros(64, 128, dtype=x.dtype)[:, ::2], shared[:, :64], shared[:, 32:])
    yield from (
        x.to_sparse(),
        x.to("meta"),
        x.clone().as_subclass(type("Own", (torch.Tensor,), {})),
        x.expand(1, 64, 64),
    )
    with torch.inference_mode():
        yield x.clone()
    yield from (x.numpy(force=True) if x.dtype is torch.float16 else x.float().numpy(), None, 3.0, x[:0])


@pytest.mark.parametrize("guarded", [False, True])
def test_numbers_of_kinds(guarded, monkeypatch):
    """Arrays have the same number exactly if their kinds are the same, wherever they come from."""
    if not guarded:
        monkeypatch.setattr(repeats, "_guards", lambda: None)
    for name in ("_seen", "_numbers"):
        monkeypatch.setattr(repeats, name, {})
    torch.manual_seed(3)
    x = torch.randn(64, 64).bfloat16()
    others, chosen = list(variants(x)), torch.randint(0, 26, (3000, 3)).tolist()
    often = [chosen[(at // 3) % 40] if at % 3 else three for at, three in enumerate(chosen)]  # most of them come again
    kinds_of: dict[int, Any] = {}
    for at, three in enumerate(often):
        parts = tuple(others[place % len(others)] for place in three)
        got = repeats.number_of_kinds(at % 2, parts)
        kinds = tuple(None if part is None else repeats.kind_of(part) for part in parts)
        if any(kind is None and part is not None for kind, part in zip(kinds, parts, strict=True)):
            assert got is None
            continue
        assert kinds_of.setdefault(got, kinds) == kinds
        assert list(kinds_of.values()).count(kinds) == 1
    assert len(kinds_of) > 100
    assert bool(repeats._seen) is guarded


def test_tensors_that_change_in_place_are_read_anew(monkeypatch):
    for name in ("_seen", "_numbers"):
        monkeypatch.setattr(repeats, name, {})
    x, y = torch.zeros(8, 4), torch.ones(8, 4)
    first = repeats.number_of_kinds("place", (x, y))
    for change in (x.t_, lambda: x.resize_(4, 4), lambda: setattr(x, "data", torch.zeros(8, 4).half())):
        change()
        assert repeats.number_of_kinds("place", (x, y)) != first
    x.data = torch.zeros(8, 4)
    assert repeats.number_of_kinds("place", (x, y)) == first
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            assert repeats.number_of_kinds("place", (x, y)) == first
