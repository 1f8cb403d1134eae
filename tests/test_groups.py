"""Groups of row ranges, flags that protect buffers, and outputs that the caller owns, on every backend of the CPU."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from fp4ref import registry, repeats
from fp4ref.errors import BackendError, DomainError, DTypeError, ShapeError
from fp4ref.layout import STANDARD_LAYOUTS
from fp4ref.quantized import DirectionData, Directions

NAMES = ["nvfp4", "nvfp4-2d", "nvfp4-row-scaled", "nvfp4-rht", "mxfp8-e4m3"]
BACKENDS = [name for name, reason in registry.available() if reason is None and name in {"numpy", "cpu", "torch"}]


def values(shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return (rng.standard_normal(shape) * np.exp(rng.standard_normal(shape))).astype(ml_dtypes.bfloat16)


def parts(q):
    return [part for data in (q.row, q.column) if data is not None for part in data if part is not None]


def same(a, b):
    assert (a.spec, a.shape, a.dtype, a.scale_layout) == (b.spec, b.shape, b.dtype, b.scale_layout)
    for mine, theirs in zip(parts(a), parts(b), strict=True):
        assert mine.shape == theirs.shape
        assert mine.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.rule("LAY-8", "LAY-11", "LAY-50", "BLK-9")
@settings(max_examples=25, deadline=None)
@given(
    splits=st.lists(st.sampled_from([0, 16, 32, 48]), max_size=4),
    columns=st.sampled_from([0, 1, 16, 40]),
    name=st.sampled_from(NAMES),
    directions=st.sampled_from(["row", "column", "both"]),
    scale_layout=st.sampled_from([form.name for form in STANDARD_LAYOUTS]),
)
def test_a_member_is_what_quantize_makes_of_its_rows(backend, splits, columns, name, directions, scale_layout):
    x = values((sum(splits), columns))
    made = fp4ref.quantize_grouped(x, splits, name, directions, scale_layout, backend=backend)
    assert len(made) == len(splits)
    start = 0
    for member, rows in zip(made, splits, strict=True):
        same(member, fp4ref.quantize(x[start : start + rows], name, directions, scale_layout, backend="numpy"))
        start += rows


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.rule("GLB-4", "LAY-11")
def test_given_maxima_are_those_of_the_members(backend):
    x, splits = values((48, 32)), [16, 0, 32]
    amax = np.float32([3, 5, 7])
    for member, own in zip(fp4ref.quantize_grouped(x, splits, "nvfp4", amax=amax, backend=backend), amax, strict=True):
        assert member.row.amax == own
    both = Directions(row=np.arange(1, 49, dtype=np.float32), column=np.arange(1, 97, dtype=np.float32))
    made = fp4ref.quantize_grouped(x, splits, "nvfp4-row-scaled", "both", amax=both, backend=backend)
    assert [q.row.amax.tolist() for q in made] == [list(range(1, 17)), [], list(range(17, 49))]
    assert [q.column.amax.tolist() for q in made] == [list(range(1 + 32 * i, 33 + 32 * i)) for i in range(3)]
    with pytest.raises(ShapeError, match="GLB-4"):
        fp4ref.quantize_grouped(x, splits, "nvfp4", amax=amax[:2])
    with pytest.raises(ShapeError, match="both directions"):
        fp4ref.quantize_grouped(x, splits, "nvfp4-rht", "both", amax=amax)
    with pytest.raises(DomainError, match="not NaN"):
        fp4ref.quantize_grouped(x, splits, "nvfp4", amax=np.float32([1, np.nan, 1]))


@pytest.mark.rule("SR-1", "LAY-11")
def test_a_stochastic_group_takes_bits_per_member():
    spec = fp4ref.NVFP4.replace(element=dataclasses.replace(fp4ref.NVFP4.element, rounding="stochastic"))
    x, splits = values((48, 32)), [16, 32]
    bits = [np.random.default_rng(i).integers(0, 256, (rows, 32), np.uint8) for i, rows in enumerate(splits)]
    made = fp4ref.quantize_grouped(x, splits, spec, random_bits=bits)
    same(made[1], fp4ref.quantize(x[16:], spec, random_bits=bits[1], backend="numpy"))


@pytest.mark.rule("LAY-8", "LAY-11", "HAD-5", "RES-8")
def test_what_does_not_fit_a_group_is_refused_with_the_member():
    x = values((32, 32))
    with pytest.raises(DomainError, match="mxfp4 of member 1"):
        fp4ref.quantize_grouped(x, [16, 16], ["nvfp4", "mxfp4"])
    with pytest.raises(DomainError, match="column of member 1"):
        fp4ref.quantize_grouped(x, [16, 16], "nvfp4", ["row", "column"])
    with pytest.raises(DomainError, match="tiled_128x4 of member 2"):
        fp4ref.quantize_grouped(x, [16, 0, 16], "nvfp4", scale_layout=["linear", "linear", "tiled_128x4"])
    with pytest.raises(ShapeError, match="2 of spec"):
        fp4ref.quantize_grouped(x, [32], ["nvfp4", "nvfp4"])
    for splits in ([16, 15], [-16, 48]):
        with pytest.raises(ShapeError, match="sum of splits"):
            fp4ref.quantize_grouped(x, splits, "nvfp4")
    with pytest.raises(ShapeError, match="sum of splits"):
        fp4ref.quantize_grouped(x.reshape(2, 16, 32), [32], "nvfp4")
    with pytest.raises(ShapeError, match="member 1: hadamard of 8 rows"):
        fp4ref.quantize_grouped(x, [16, 8, 8], "nvfp4-rht", "column")
    made = fp4ref.quantize_grouped(x, [16, 16], "nvfp4")
    with pytest.raises(DomainError, match=r"shape for member 0 \[RES-8\]"):
        fp4ref.quantize_grouped(x, [32, 0], "nvfp4", out=made)
    with pytest.raises(ShapeError, match=r"out of 2 members.*\[RES-8\]"):
        fp4ref.quantize_grouped(x, [32], "nvfp4", out=made)
    with pytest.raises(DomainError, match="no column"):
        fp4ref.quantize_grouped(x, [16, 16], "nvfp4", "both", out=made)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.rule("LAY-12", "LAY-57")
def test_a_set_flag_leaves_every_buffer(backend):
    x, other = values((32, 32)), values((32, 32), 1)
    for kind in (np.uint8, np.int32, np.float32):
        q = fp4ref.quantize(x, "nvfp4", "both", backend=backend)
        before = [part.tobytes() for part in parts(q)]
        for flag in (np.ones(1, kind), np.array(3, kind)):
            assert fp4ref.quantize(other, "nvfp4", "both", backend=backend, out=q, noop=flag) is q
            assert [part.tobytes() for part in parts(q)] == before
        again = fp4ref.quantize(other, "nvfp4", "both", backend=backend, out=q, noop=np.zeros(1, kind))
        same(again, fp4ref.quantize(other, "nvfp4", "both", backend="numpy"))
        group = fp4ref.quantize_grouped(x, [16, 16], "nvfp4", backend=backend)
        before = [part.tobytes() for member in group for part in parts(member)]
        fp4ref.quantize_grouped(other, [16, 16], "nvfp4", backend=backend, out=group, noop=np.ones(1, kind))
        assert [part.tobytes() for member in group for part in parts(member)] == before
        fp4ref.quantize_grouped(other, [16, 16], "nvfp4", backend=backend, out=group, noop=np.zeros(1, kind))
        same(group[1], fp4ref.quantize(other[16:], "nvfp4", backend="numpy"))
    fp4ref.quantize(x, "nvfp4", "both", backend=backend, out=q, noop=np.float32([-0.0]))
    same(q, fp4ref.quantize(other, "nvfp4", "both", backend="numpy"))


@pytest.mark.rule("LAY-56")
def test_a_flag_of_another_kind_is_refused():
    x = values((16, 16))
    q = fp4ref.quantize(x, "nvfp4")
    with pytest.raises(DomainError, match="noop without out"):
        fp4ref.quantize(x, "nvfp4", noop=np.ones(1, np.int32))
    for flag in (np.ones(2, np.int32), np.ones(1, np.float64), np.ones(1, bool)):
        with pytest.raises(DTypeError, match="LAY-56"):
            fp4ref.quantize(x, "nvfp4", out=q, noop=flag)


@pytest.mark.rule("LAY-12", "CNF-5")
def test_a_backend_without_flags_does_not_get_one_from_a_device():
    with pytest.raises(BackendError, match="no flag on a device"):
        registry.choose(registry.Call("quantize", fp4ref.NVFP4, flag=True), "numpy")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.rule("DEQ-3", "DEQ-4")
def test_dequantize_into_a_given_array(backend):
    x = values((2, 24, 40))
    q = fp4ref.quantize(x, "nvfp4", "both", "tiled_8x4")
    for direction, shape in (("row", (2, 24, 40)), ("column", (40, 48))):
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
            out = np.full(shape, 7, dtype)
            name = np.dtype(dtype).name
            assert fp4ref.dequantize(q, name, direction, backend=backend, out=out) is out
            assert out.tobytes() == fp4ref.dequantize(q, name, direction, backend="numpy").tobytes()
    with pytest.raises(ShapeError, match="float16"):
        fp4ref.dequantize(q, "float16", out=np.empty((2, 24, 40), np.float32), backend=backend)
    with pytest.raises(ShapeError, match=r"\[48, 40\]"):
        fp4ref.dequantize(q, out=np.empty((48, 40), np.float32), backend=backend)
    with pytest.raises(BackendError, match="gaps"):
        fp4ref.dequantize(q, out=np.empty((2, 24, 80), np.float32)[..., ::2], backend=backend)


@pytest.mark.rule("CNF-5")
def test_dequantize_into_a_tensor_shares_its_memory():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(values((32, 32)).astype(np.float32)).to(torch.bfloat16)
    q = fp4ref.quantize(x, "nvfp4")
    for backend in BACKENDS:
        out = torch.zeros(32, 32, dtype=torch.bfloat16)
        assert fp4ref.dequantize(q, "bfloat16", backend=backend, out=out) is out
        assert torch.equal(out, fp4ref.dequantize(q, "bfloat16", backend="numpy"))


@pytest.mark.rule("CNF-5")
def test_an_output_among_the_codes_is_refused_by_the_cpu_backend():
    if "cpu" not in BACKENDS:
        pytest.skip("no compiler")
    q = fp4ref.quantize(values((16, 16)), "nvfp4")
    memory = np.zeros(16 * 16 * 4, np.uint8)
    codes = memory[:128].reshape(16, 8)
    codes[...] = q.row.data
    shared = dataclasses.replace(q, row=DirectionData(codes, q.row.scales, q.row.amax))
    with pytest.raises(BackendError, match="overlaps"):
        fp4ref.dequantize(shared, backend="cpu", out=memory.view(np.float32).reshape(16, 16))


@pytest.mark.rule("LAY-8", "LAY-11", "NUM-6")
def test_groups_that_come_again(monkeypatch):
    """Random sequences of calls, each several times, give what calls give that are checked."""
    monkeypatch.setattr(repeats, "_repeats", {})
    rng = np.random.default_rng(6)
    wide = values((96, 128))
    tensors = [wide[:, :64], wide[:, 64:].copy(), wide[::2, :64], wide[:48, :64].astype(np.float32), wide[:0, :64]]
    tensors += [wide.T[:96, :96], wide[:48].reshape(96, 64)]
    ways: dict[str, list] = {
        "splits": [[48, 48], (16, 0, 80), [48], (0, 48), [48.0], (True, 47), np.array([48, 48]), [96], (-1, 49), [0]],
        "spec": ["nvfp4", fp4ref.NVFP4, fp4ref.NVFP4.replace(name="test.other"), [fp4ref.NVFP4] * 2, "no", "nvfp4-rht"],
        "directions": ["row", "column", "both", ["row", "row"], None],
        "scale_layout": ["linear", "tiled_128x4", ("linear", "linear"), "no"],
        "backend": ["cpu", "numpy", None],
        "amax": [None, None, None, np.float32([2, 3])],
    }

    def outcome(x, how):
        try:
            return [(q.spec.name, q.shape, q.dtype, q.scale_layout, *map(bytes, parts(q))) for q in call(x, how)]
        except (ValueError, TypeError) as error:
            return type(error), str(error)

    def call(x, how):
        return fp4ref.quantize_grouped(x, **how)

    usual = {name: some[0] for name, some in ways.items()}
    for _ in range(400):
        how = usual | {name: some[rng.integers(len(some))] for name, some in ways.items() if rng.random() < 0.4}
        x = tensors[rng.integers(len(tensors))]
        got = [outcome(x, how) for _ in range(2)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(repeats, "find", lambda key: None)
            assert got == [outcome(x, how)] * 2
    assert sum(key[0] == "quantize_grouped" for key in repeats._repeats) > 10


@pytest.mark.rule("CNF-5", "SPC-4")
def test_groups_of_other_names_and_backends_are_checked_again(monkeypatch):
    x, name = values((64, 64)).astype(np.float32), "test.grouped"
    for spec in (fp4ref.NVFP4, fp4ref.profiles["mxfp8-e4m3"]):
        fp4ref.register(spec.replace(name=name), source="a test")
        try:
            for _ in range(2):
                group = fp4ref.quantize_grouped(x, [32, 32], name, backend="cpu")
                assert [q.spec.element for q in group] == [spec.element] * 2
        finally:
            fp4ref.profiles.forget(name)
    with pytest.raises(ValueError, match=name):
        fp4ref.quantize_grouped(x, [32, 32], name, backend="cpu")
    fp4ref.quantize_grouped(x, [32, 32], "nvfp4")
    fp4ref.quantize_grouped(x, [32, 32], "nvfp4", backend="cpu")
    only = {"numpy": registry.backends()["numpy"]}
    monkeypatch.setattr(registry, "backends", lambda: only)
    with pytest.raises(BackendError):
        fp4ref.quantize_grouped(x, [32, 32], "nvfp4", backend="cpu")


@pytest.mark.parametrize("backend", ["numpy", "cpu", "torch"])
def test_members_have_the_name_of_the_specification_that_was_given(backend):
    x, mine = values((64, 64)).astype(np.float32), fp4ref.NVFP4.replace(name="mine")
    for spec in (fp4ref.NVFP4, mine, fp4ref.NVFP4) * 2:
        assert {q.spec.name for q in fp4ref.quantize_grouped(x, [32, 32], spec, backend=backend)} == {spec.name}
