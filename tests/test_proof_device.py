"""Sweeps of the cuda backend's kernels, here with the cpu backend in its place: right, and wrong in one value."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from fp4ref import api, groups
from fp4ref.catalogue import resolve
from fp4ref.proof import calls, device, device_calls, device_products, device_sweeps, draws, native, six_bits, whole
from fp4ref.proof.catalogue import claims
from fp4ref.proof.claims import ClaimSubject
from refuting import other_member

torch = pytest.importorskip("torch")
ON_HOST = {"device": "cpu", "backend": "cpu"}
FEW = {"rows": (0, device_sweeps.ONE, 0x7F80)}


def quiet(done):
    """Take the part that is done."""


@pytest.fixture
def few_maxima(monkeypatch):
    """Keep few global maxima of each case."""
    for name, case in device_sweeps.CASES.items():
        few = replace(case, maxima=FEW.get(name, (device_sweeps.ONE,)))
        monkeypatch.setitem(device_sweeps.CASES, name, few)


def wrong_in_one_value(monkeypatch, place="data"):
    """Make results wrong in one byte: that of a value in one block, or of a scale."""
    right = api.quantize

    def wrong(x, spec, directions, *rest, **named):
        q = right(x, spec, directions, *rest, **named)
        for part in (part for part in (q.row, q.column) if part is not None):
            buffer = getattr(part, place).view(-1)
            buffer[len(buffer) // 3] ^= 1
        return q

    monkeypatch.setattr(device_sweeps.api, "quantize", wrong)


ONCE = [name for name, case in device_sweeps.CASES.items() if case.repeated == 1]  # the others' sweeps fill a host
SWEEPS = {
    **{name: lambda name=name: device_sweeps.bfloat16(name, quiet, **ON_HOST) for name in ONCE},
    **{name: lambda name=name: device_sweeps.drawn(name, quiet, every=128, **ON_HOST) for name in device_sweeps.DRAWN},
    **{f"both-{name}": lambda name=name: device_sweeps.both(name, quiet, **ON_HOST) for name in device_sweeps.BOTH},
}


@pytest.mark.heavy
@pytest.mark.rule("BLK-3", "BLK-5", "SR-2")
@pytest.mark.parametrize("name", SWEEPS)
def test_one_wrong_byte_in_a_sweep_of_bfloat16_is_refuted(name, few_maxima, monkeypatch):
    assert SWEEPS[name]().witness is None
    wrong_in_one_value(monkeypatch)
    assert "1 bytes" in SWEEPS[name]().witness


@pytest.mark.parametrize("name", sorted(set(device_sweeps.CASES) - set(ONCE)))
def test_squares_are_rows_that_lie_there_sixteen_times(name, monkeypatch):
    case = device_sweeps.CASES[name]
    x = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    q = api.quantize(np.repeat(x, 16, 0), case.spec, "row", "linear", backend="numpy").row
    rows, data, scales = map(torch.from_numpy, (x, q.data[::16].copy(), q.scales[::16].copy()))
    assert not device_sweeps._difference(case, rows, data, scales, "cpu")
    wrong_in_one_value(monkeypatch)
    assert int(device_sweeps._difference(case, rows, data, scales, "cpu")) == 1


@pytest.mark.heavy
def test_one_wrong_value_in_a_sweep_of_float32_is_refuted(monkeypatch):
    how = {"part": 1 << 16, "every": 1 << 13, **ON_HOST}
    found = device_sweeps.float32(quiet, **how)
    assert found == (device_sweeps.WIDE_SIZE, None)
    wrong_in_one_value(monkeypatch, "scales")
    assert "under the byte 00" in device_sweeps.float32(quiet, **how).witness


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name, codec", [("e2m1", "hardware_e4m3"), ("e4m3", "hardware_e5m2"), ("e5m2", "hardware_e4m3")]
)
def test_wrong_codes_of_pairs_are_refuted(name, codec, monkeypatch):
    monkeypatch.setattr(device, "sweep", native.sweep)
    monkeypatch.setattr(device, "PATTERNS", 1 << 30)  # up to 2
    monkeypatch.setitem(device.CONVERTED, name, codec)
    assert device.converted(name, quiet).witness


@pytest.mark.parametrize("name, codec", [("e2m3", "saturating_e3m2"), ("e3m2", "saturating_e2m3")])
def test_wrong_codes_of_sixteens_are_refuted(name, codec, monkeypatch):
    right = native.sweep

    def some(text, function, size, tell, numbers):
        return right(text, function, 1 << 8, tell, numbers, 0x3E400000)  # from 3 / 16 on

    monkeypatch.setattr(six_bits.native, "sweep", some)
    checks = six_bits.encoded, six_bits.pairs, six_bits.sixteens
    assert all(check(name, quiet).witness is None for check in checks)
    monkeypatch.setitem(six_bits.NATIVE, name, codec)
    assert all("256 inputs are wrong" in check(name, quiet).witness for check in checks)


def test_checks_of_the_header_run_where_they_are_told():
    ran = []

    def run(text, name, size, *_):
        ran.append((device.source(text), name, size))
        return 3, 5

    with native.elsewhere(run):
        found = claims()["encode-e2m1/header"].decide(quiet)
    assert found.witness.endswith("3 inputs are wrong")
    ((text, name, size),) = ran
    assert (name, size) == ("encode", 1 << 32)
    assert "atomicMin" in text
    assert "@" not in text


ON_DEVICE = [claim for claim in claims().values() if claim.decider() == "fp4ref.proof.device:on_device"]


@pytest.mark.heavy
def test_checks_compile_for_a_device(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="the extra `cuda` is not installed")
    from fp4ref_cuda.compile import compile_cubin

    compiled = {}

    def run(text, name, *_):
        compiled[text, name] = compiled.get((text, name)) or compile_cubin(device.source(text), "sm_90")
        return 0, None

    monkeypatch.setattr(device, "sweep", run)
    for claim in ON_DEVICE:
        found = claim.decide(quiet).witness
        assert found is None or (claim.name, found[0]) == ("stochastic-mean/cuda", "0")  # which counts exceptions
    for name in device.CONVERTED:
        assert device.converted(name, quiet).witness is None
    assert all(compiled.values())
    # A check with a loop of its own would run the whole range in every thread.
    own = [re.findall(r"EXPORT fp4ref_\w+@\([^)]*\)\s*{\s*(\w+)", text) for text, _ in compiled]
    assert {name for names in own for name in names} == {"sweep", "sweep_steps"}


# Calls, with the cpu backend in the place of the device's

OF_CALLS = [
    claim.name for claim in claims().values() if claim.decider() in device_calls.CODE and claim.name[-4:] == "cuda"
]
QUICK = ("part-nvfp4-sr/cuda", "flags/cuda", "offset-tiled_8x4/cuda", "amax-kept/cuda")


@pytest.fixture
def cpu_for_device(monkeypatch):
    """Let the cpu backend serve the calls of claims about the cuda backend."""
    monkeypatch.setitem(whole.BACKENDS, ClaimSubject.CUDA, "cpu")
    monkeypatch.setitem(draws.DEVICES, ClaimSubject.CUDA, None)
    for module in (whole, calls):
        monkeypatch.setattr(module, "_array", lambda x, subject: x)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.heavy) for n in OF_CALLS])
def test_calls_of_the_device_are_those_of_the_cpu_backend(name, cpu_for_device):
    assert claims()[name.replace("/cuda", "/cpu")].decider() == claims()[name].decider()
    assert claims()[name].decide(quiet) == (claims()[name].size, None)


def test_each_rule_of_the_device_is_claimed_by_its_own_code():
    assert {claim.decider() for claim in claims().values()} >= device_calls.CODE.keys()
    of_device = {rule for claim in claims().values() if claim.subject is ClaimSubject.CUDA for rule in claim.rules}
    assert of_device >= {"BLK-1", "BLK-9", "GLB-4", "GLB-5", "HAD-5", "LAY-8", "LAY-12", "LAY-15", "SR-8", "TEL-12"}


@pytest.mark.heavy
def test_another_member_is_refuted(cpu_for_device, monkeypatch):
    of_groups = [name for name in claims() if name.startswith("group-members") and name.endswith("cuda")]
    right = groups.quantize_grouped
    assert all(claims()[name].decide(quiet).witness is None for name in of_groups)
    monkeypatch.setattr(
        "fp4ref.proof.group_calls.quantize_grouped", lambda *given, **named: other_member(right, *given, **named)
    )
    assert all("member 2" in claims()[name].decide(quiet).witness for name in of_groups)


# Operations that the cuda backend alone has, in torch

SOME = {"device": "cpu", "part": 1 << 14, "every": 1 << 16}


def decoded(call, codes, wrong=None):
    """Decode by the golden codec; a wrong code has the value of the next one."""
    values = call.required.element.decode(np.arange(256, dtype=np.uint8))
    if wrong is not None:
        values[wrong] = values[wrong + 1]
    return torch.from_numpy(values)[codes.long()].to(getattr(torch, call.to))


def ended(call, sums, factors, bias, fused=False):
    """Finish sums in float32; fused: with one rounding of the product and the sum."""
    y = sums * torch.tensor(factors[0], dtype=torch.float32)
    if bias is not None:
        y = (sums.double() * factors[0] + bias.double()).float() if fused else y + bias
    return y.to(getattr(torch, call.to))


def multiplied(numbers, backwards=False):
    """Multiply numbers from the left in float32."""
    found = np.float32(1)
    with np.errstate(all="ignore"):
        for each in numbers[::-1] if backwards else numbers:
            found = found * np.float32(float(each))
    return np.array([found, 0], np.float32)


@pytest.mark.rule("E4M3-1", "E5M2-1")
@pytest.mark.parametrize("to", device_products.TYPES)
@pytest.mark.parametrize("name", device_products.FORMATS)
def test_a_wrong_value_of_a_code_is_refuted(name, to, monkeypatch):
    monkeypatch.setattr(device_products, "_operations", lambda _: decoded)
    assert device_products.values(name, to, quiet, **SOME) == (1 << 32, None)
    monkeypatch.setattr(device_products, "_operations", lambda _: lambda call, codes: decoded(call, codes, 0x11))
    assert device_products.values(name, to, quiet, **SOME).witness


def scaled(call, codes, scale):
    """Decode by the golden codec and multiply by a scale."""
    values = call.required.element.decode(np.arange(256, dtype=np.uint8))
    return (torch.from_numpy(values)[codes.long()] * scale).to(getattr(torch, call.to))


def spoiled(call, codes, scale, where):
    """Do the same, with values of another sign where a mask of the codes says so."""
    right = scaled(call, codes, scale)
    return torch.where(where(codes, ~torch.isfinite(scaled(call, codes, torch.ones(1)))), -right, right)


def vectors_with(mask):
    """Return which elements of a run are in a vector of eight that has one of a mask."""
    whole = mask[:, : mask.shape[1] // 8 * 8].view(-1, 8).any(1).repeat_interleave(8).view(1, -1)
    return torch.cat([whole, torch.zeros(1, mask.shape[1] % 8, dtype=torch.bool)], 1)


@pytest.mark.rule("DEQ-2", "DEQ-3", "TEL-8")
@pytest.mark.parametrize("name, to", [("e4m3", "bfloat16"), ("e5m2", "float16"), ("e5m2", "float32")])
def test_a_wrong_product_with_the_scale_of_a_tensor_is_refuted(name, to, monkeypatch):
    monkeypatch.setattr(device_products, "SCALES", 32)  # whose upper halves begin at 0, 1.5 and infinity, too
    size = 2 * device_products.arranged(name).size - device_products.TAIL
    for operation in (
        scaled,
        lambda call, codes, scale: scaled(call, codes, scale.bfloat16().float()),
        lambda call, codes, scale: scaled(call, codes, torch.where(scale.isinf(), 3e38, scale)),
        lambda *given: spoiled(*given, lambda codes, other: vectors_with(other) & (codes < 0x78) & (codes > 0x70)),
        lambda *given: spoiled(*given, lambda codes, other: ~vectors_with(other) & (codes == 0x11)),
        lambda *given: spoiled(*given, lambda codes, other: codes == 0x80),
        lambda *given: spoiled(*given, lambda codes, _: torch.arange(codes.shape[1])[None] >= codes.shape[1] // 8 * 8),
    ):
        monkeypatch.setattr(device_products, "_operations", lambda _, operation=operation: operation)
        found = device_products.decoded(name, to, quiet, device="cpu", every=170)
        assert (found.witness is None) == (operation is scaled)
        assert found.witness or found.computed == (1 << 17) * size
    codes = device_products.arranged(name).reshape(-1, 8)
    usual = np.isfinite(resolve(device_products.FORMATS[name]).element.decode(codes))
    assert usual[:32].all()
    assert (~usual[32:]).any(1).all()
    assert set(codes[32:].ravel()) == set(range(256))
    assert set(codes[:32].ravel()) == set(codes[usual].ravel())


@pytest.mark.rule("GEM-5", "GEM-8")
@pytest.mark.parametrize("to", device_products.TYPES)
def test_a_fused_end_of_a_product_is_refuted(to, monkeypatch):
    monkeypatch.setattr(device_products, "_operations", lambda _: ended)
    assert device_products.finished(to, quiet, **SOME) == (1 << 32, None)
    some = {**SOME, "part": 1 << 18, "every": 1 << 6}
    monkeypatch.setattr(device_products, "_operations", lambda _: lambda *given: ended(*given, fused=True))
    assert "with the bias" in device_products.finished(to, quiet, **some).witness


@pytest.mark.rule("GEM-5", "TEL-12")
def test_factors_from_the_right_are_refuted(monkeypatch):
    monkeypatch.setattr(device_products, "_factor", lambda numbers, _: multiplied(numbers))
    assert device_products.factors(quiet, "cpu") == (claims()["product-factor/cuda"].size, None)
    monkeypatch.setattr(device_products, "_factor", lambda numbers, _: multiplied(numbers, backwards=True))
    assert device_products.factors(quiet, "cpu").witness


def test_each_path_of_the_backend_is_claimed():
    from fp4ref_cuda import plan

    paths = {case.path for case in (*device_sweeps.CASES.values(), *device_sweeps.DRAWN.values())}
    assert paths == {plan.ROWS, plan.ROW_BLOCKS, plan.TILES, plan.FUSED, plan.SQUARES, plan.DRAWN}
    kernels = {name for claim in claims().values() if claim.subject is ClaimSubject.CUDA for name in claim.covers}
    assert {f"fp4ref_cuda/kernels/{name}.cu" for name in ("rows", "row_blocks", "fused", "bytes", "decode")} <= kernels
    assert len(np.unique(device_sweeps.SOME)) == len(device_sweeps.SOME)
