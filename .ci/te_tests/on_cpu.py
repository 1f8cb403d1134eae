"""A pytest plugin: Transformer Engine's names stand for the emulation, and what tests ask of a CUDA device is answered.

It also selects one of N tests, by FP4REF_TE_EVERY, so that a run over thousands of tests fits into minutes: every Nth,
or with FP4REF_TE_SEED those that a hash of the seed and the test's name picks. FP4REF_TE_TOKENS is the most tokens of a
sequence in the tests of attention; longer ones get that many, and the rest of their settings stays.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fp4ref import te
from fp4ref.te import helpers
from fp4ref.te.attention import dot_product_attention

CAPABILITY = (10, 0)  # that of the emulated device


class _Nothing:
    """A stream or an event of a device that does one thing after another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cpu")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def _bytes_of_parameters(*args: Any, **kwargs: Any) -> int:
    """Return the memory of all parameters that are not on the meta device: tables of the layer are not counted."""
    gc.collect()
    found = [x for x in gc.get_objects() if isinstance(x, torch.nn.Parameter) and x.device.type != "meta"]
    return sum(x.numel() * x.element_size() for x in found)


def _answers() -> dict[str, Any]:
    """Return functions of torch.cuda that mean something without a device."""
    properties = SimpleNamespace(multi_processor_count=1, major=10, minor=0, total_memory=1 << 34, name="emulated")
    return {
        "is_available": lambda: False,  # what is random comes from the CPU's generator
        "synchronize": lambda *args: None,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_capability": lambda *args: CAPABILITY,
        "get_device_properties": lambda *args: properties,
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": lambda seed: None,  # torch.manual_seed calls it, after the CPU's
        "get_rng_state": lambda *args: torch.get_rng_state(),
        "set_rng_state": lambda state, *args: torch.set_rng_state(state),
        "current_stream": _Nothing,
        "default_stream": _Nothing,
        "Stream": _Nothing,
        "Event": _Nothing,
        "stream": lambda *args: contextlib.nullcontext(),
        "device": lambda *args: contextlib.nullcontext(),
        "set_device": lambda *args: None,
        "empty_cache": lambda: None,
        "memory_allocated": _bytes_of_parameters,
        "max_memory_allocated": lambda *args, **kwargs: 0,
        "reset_peak_memory_stats": lambda *args, **kwargs: None,
        "is_current_stream_capturing": lambda: False,
    }


def _by_the_formula(q: Any, k: Any, v: Any, *, scale: float, hidden: Any, bias: Any, sink: Any, dropout: float) -> Any:
    """Attend step by step in float32, without the product's own code; tests compare fused kernels with this."""
    repeats = q.shape[1] // k.shape[1]
    keys, values = (x.float().repeat_interleave(repeats, 1) for x in (k, v))
    scores = torch.einsum("bhid,bhjd->bhij", q.float(), keys) * scale
    scores = scores if bias is None else scores + bias
    scores = scores if hidden is None else torch.where(hidden, -torch.inf, scores)
    rest = torch.full((1, scores.shape[1], 1, 1), -torch.inf) if sink is None else sink.float().view(1, -1, 1, 1)
    top = torch.maximum(scores.amax(-1, keepdim=True), rest).detach()
    top = torch.where(top.isinf(), 0.0, top)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True) + torch.exp(rest - top)
    weights = torch.where(total == 0, 0.0, weights / torch.where(total == 0, 1.0, total))
    return torch.einsum("bhij,bhjd->bhid", torch.nn.functional.dropout(weights, dropout), values).to(q.dtype)


def _attend(*args: Any, **kwargs: Any) -> Any:
    fused = any(os.environ.get(f"NVTE_{kind}_ATTN", "1") != "0" for kind in ("FLASH", "FUSED"))
    return (_PRODUCT if fused else _by_the_formula)(*args, **kwargs)


_PRODUCT = dot_product_attention.attend
dot_product_attention.attend = _attend
for _name, _answer in _answers().items():
    setattr(torch.cuda, _name, _answer)
torch.version.cuda = "13.0"  # a number that files read before their first test
helpers.get_cudnn_version = lambda: (9, 18, 0)  # tests of attention ask for one
te.install_alias()


def pytest_configure(config: pytest.Config) -> None:
    """Shorten the sequences of the tests' models."""
    most = int(os.environ.get("FP4REF_TE_TOKENS", "0"))
    if most:
        made = importlib.import_module("utils").ModelConfig
        longer = made.__init__

        def shorter(self: Any, batch_size: int, max_seqlen_q: int, *rest: Any, **options: Any) -> None:
            longer(self, batch_size, min(max_seqlen_q, most), *rest, **options)
            if options.get("max_seqlen_kv") or rest[2:]:
                self.max_seqlen_kv = min(self.max_seqlen_kv, 2 * most if max_seqlen_q > most else most)
                self.attn_type = "self" if self.max_seqlen_q == self.max_seqlen_kv else "cross"

        made.__init__ = shorter


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one of N tests."""
    every, seed = int(os.environ.get("FP4REF_TE_EVERY", "1")), os.environ.get("FP4REF_TE_SEED")
    numbers = (
        enumerate(items) if seed is None else ((zlib.crc32(f"{seed} {item.name}".encode()), item) for item in items)
    )
    kept = [item for number, item in numbers if number % every == 0]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write how many tests are to run, so that those which a timeout leaves out are counted."""
    target = os.environ.get("FP4REF_TE_COUNT")
    if target:
        Path(target).write_text(str(len(session.items)), encoding="utf-8")
