"""Backends: found, chosen, and refused with a reason."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fp4ref
from fp4ref import BackendError, DomainError, formats, registry
from fp4ref import model as fp4ref_model
from fp4ref.conformance.oracle import rationals
from fp4ref.formats import Rounding, Sign
from fp4ref.layout import Layout
from fp4ref.model import backend
from fp4ref.registry import Backend, Call
from fp4ref.specs import NVFP4

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


def pick(monkeypatch: pytest.MonkeyPatch, kind: Any, name: str) -> Any:
    """A member that a later version of the package might add: the enum has it, and nothing else does."""
    new = str.__new__(kind, name)
    new._name_, new._value_ = name.upper(), name
    monkeypatch.setitem(kind._value2member_map_, name, new)
    return new


PICKS = [("rounding", Rounding, "ROUNDINGS"), ("sign", Sign, "SIGNS")]


@pytest.mark.rule("E2M1-6")
@pytest.mark.parametrize("part", ["element", "scale"])
@pytest.mark.parametrize(("field", "kind", "known"), PICKS)
def test_a_pick_that_the_model_does_not_compute_makes_no_spec(
    field: str, kind: Any, known: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = dataclasses.replace(getattr(NVFP4, part), **{field: pick(monkeypatch, kind, "unheard-of")})
    with pytest.raises(
        DomainError, match=rf"spec t: {field} unheard-of, need one of .*{next(iter(kind))}.* \[E2M1-6\]"
    ):
        NVFP4.replace(name="t", **{part: codec})


@pytest.mark.rule("E2M1-6", "CNF-5")
@pytest.mark.parametrize("name", sorted(registry.backends().keys() - {"numpy"}))
@pytest.mark.parametrize("part", ["element", "scale"])
@pytest.mark.parametrize(("field", "kind", "known"), PICKS)
def test_a_pick_that_a_backend_does_not_declare_is_refused_by_name(
    field: str, kind: Any, known: str, part: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The golden model has learnt the pick, and the backend has not; it may be one whose device is missing here."""
    new = pick(monkeypatch, kind, "unheard-of")
    monkeypatch.setattr(formats.codec, known, (*getattr(formats.codec, known), new))
    spec = NVFP4.replace(name="t", **{part: dataclasses.replace(getattr(NVFP4, part), **{field: new})})
    found = registry.backends()[name]
    (device, *_) = found.devices
    assert not registry.backends()["numpy"].reasons(Call("quantize", spec))
    for operation in ("quantize", "dequantize"):
        reasons = found.reasons(Call(operation, spec, device=device))
        assert reasons[0].startswith(f"{field} unheard-of, not one of {next(iter(kind))}, "), reasons
    products = found.reasons(Call("gemm_exact", spec, spec_b=spec, device=device))
    assert not any(f"{field} unheard-of" in reason for reason in products)
    if name == "torch":
        pytest.importorskip("torch")
    if name != "cuda":  # the call itself, by name
        with pytest.raises(
            BackendError, match=rf"quantize on backend {name}: {field} unheard-of, not one of .* \[CNF-5\]"
        ):
            fp4ref.quantize(X, spec, backend=name)


@pytest.mark.rule("E2M1-6")
def test_the_oracle_refuses_a_rounding_that_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = dataclasses.replace(NVFP4.element, rounding=pick(monkeypatch, Rounding, "unheard-of"))
    with pytest.raises(DomainError, match=r"oracle: rounding unheard-of, need one that the oracle has \[E2M1-6\]"):
        rationals.encode(0.3, codec)
