"""Backends: found, chosen, and refused with a reason."""

from __future__ import annotations

import types
from collections.abc import Iterator

import numpy as np
import pytest

import fp4ref
from fp4ref import BackendError, registry
from fp4ref.registry import Backend

X = np.ones((2, 16), np.float32)


def missing() -> types.ModuleType:
    raise ImportError("no such library (libexample.so.1 not found)\nsecond line")


def refusing() -> types.ModuleType:
    return types.SimpleNamespace(quantize=lambda *arguments: pytest.fail("called"))  # type: ignore[return-value]


@pytest.fixture
def extra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two more backends: one that cannot start, and one faster that serves no spec."""
    found = registry.backends() | {
        "broken": Backend(name="broken", load=missing, operations=("quantize",), speed=99),
        "picky": Backend(
            name="picky",
            load=refusing,
            operations=("quantize",),
            speed=50,
            unsupported=lambda spec: ["no arithmetic te"],
        ),
    }
    monkeypatch.setattr(registry, "backends", lambda: found)
    registry._loaded.cache_clear()
    yield
    registry._loaded.cache_clear()


def test_numpy_is_registered_as_an_entry_point() -> None:
    assert "numpy" in registry.backends()
    assert ("numpy", None) in registry.available()


@pytest.mark.rule("CNF-5")
def test_an_unknown_backend() -> None:
    with pytest.raises(BackendError, match="unknown name 'nunpy', need one of .*numpy"):
        fp4ref.quantize(X, "nvfp4", backend="nunpy")


@pytest.mark.rule("CNF-5")
@pytest.mark.usefixtures("extra")
def test_a_backend_that_cannot_start_is_an_error_by_name_and_a_line_in_the_list() -> None:
    with pytest.raises(
        BackendError, match=r"backend broken: unavailable: no such library \(libexample.so.1 not found\)"
    ):
        fp4ref.quantize(X, "nvfp4", backend="broken")
    assert registry.available()[0] == ("broken", "no such library (libexample.so.1 not found)")


@pytest.mark.rule("CNF-5")
@pytest.mark.usefixtures("extra")
def test_a_backend_that_does_not_serve_the_spec() -> None:
    with pytest.raises(BackendError, match="quantize on backend picky: no arithmetic te"):
        fp4ref.quantize(X, "nvfp4", backend="picky")
    q = fp4ref.quantize(X, "nvfp4")  # without a name, the fastest one that can
    with pytest.raises(BackendError, match="no operation dequantize"):
        fp4ref.dequantize(q, backend="picky")


@pytest.mark.rule("CNF-5")
def test_no_backend_for_a_device_names_every_reason() -> None:
    with pytest.raises(BackendError, match="numpy: an array on rocm, not on cpu"):
        registry.choose("quantize", fp4ref.NVFP4, "rocm", None)
