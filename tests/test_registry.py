"""Backends: found, chosen, and refused with a reason."""

from __future__ import annotations

import types
from collections.abc import Iterator

import numpy as np
import pytest

import fp4ref
from fp4ref import BackendError, registry
from fp4ref import model as fp4ref_model
from fp4ref.layout import Layout
from fp4ref.model import backend
from fp4ref.registry import Backend, Call

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
            unsupported=lambda call: ["no arithmetic te"],
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


@pytest.mark.rule("CNF-5", "CNF-84")
def test_no_backend_for_a_device_names_every_reason() -> None:
    with pytest.raises(BackendError, match="numpy: an array on rocm, not on cpu"):
        registry.choose(Call("quantize", fp4ref.NVFP4, device="rocm"), None)


VENDOR = Layout("vendor.rows_of_8", "m(8,*) k(4,*): m0 k0 k1 m1")


@pytest.fixture
def vendor() -> Iterator[None]:
    """A layout that this project does not have."""
    fp4ref.register(VENDOR)
    yield
    fp4ref.LAYOUTS.forget(VENDOR.name)


@pytest.mark.rule("CNF-5", "LAY-7", "CNF-84")
@pytest.mark.usefixtures("vendor")
def test_a_layout_that_a_backend_does_not_declare_is_never_handed_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Call] = []

    def anything(call: Call) -> list[str]:
        asked.append(call)
        return []

    fast = Backend(name="fast", load=refusing, operations=("quantize",), speed=99, unsupported=anything)
    found = registry.backends() | {"fast": fast}
    monkeypatch.setattr(registry, "backends", lambda: found)
    q = fp4ref.quantize(np.ones((9, 16), np.float32), "nvfp4", scale_layout=VENDOR.name)
    assert q.row.scales.tobytes() == bytes([126] * 8 + [0] * 24 + [126] + [0] * 31)  # row 8 is in the next tile
    assert not asked  # it would have failed the test when called
    with pytest.raises(BackendError, match=r"backend fast: layout vendor.rows_of_8, not one of linear, .*tiled_8x4"):
        fp4ref.quantize(X, "nvfp4", scale_layout=VENDOR.name, backend="fast")


def test_a_backend_is_asked_about_the_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Call] = []

    def columns_only(call: Call) -> list[str]:
        asked.append(call)
        return [] if call.direction == "column" else ["rows"]

    picky = Backend(name="picky", load=refusing, operations=("quantize",), speed=99, unsupported=columns_only)
    found = registry.backends() | {"picky": picky}
    monkeypatch.setattr(registry, "backends", lambda: found)
    fp4ref.quantize(X, "nvfp4", scale_layout="tiled_8x4")
    described = Call("quantize", fp4ref.NVFP4, layout=fp4ref.LAYOUTS["tiled_8x4"], device="cpu", shape=(2, 16))
    assert asked == [described]


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize("operation", ["to_layout", "dequantize", "gemm"])
@pytest.mark.usefixtures("vendor")
def test_every_operation_names_the_layouts_that_it_reads(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = Backend(name="strict", load=lambda: backend, operations=fp4ref_model.BACKEND.operations)
    found = registry.backends() | {"strict": strict}
    monkeypatch.setattr(registry, "backends", lambda: found)
    q = fp4ref.quantize(X, "nvfp4", scale_layout=VENDOR.name)
    plain = fp4ref.to_layout(q, "linear")  # by the golden model
    calls = {
        "to_layout": lambda: fp4ref.to_layout(plain, VENDOR.name, backend="strict"),
        "dequantize": lambda: fp4ref.dequantize(q, backend="strict"),
        "gemm": lambda: fp4ref.gemm(plain, q, backend="strict"),
    }
    with pytest.raises(BackendError, match="backend strict: layout vendor.rows_of_8, not one of linear"):
        calls[operation]()
    assert np.array_equal(fp4ref.dequantize(q), fp4ref.dequantize(plain))
    assert np.array_equal(fp4ref.gemm(plain, q), fp4ref.gemm(plain, plain))
