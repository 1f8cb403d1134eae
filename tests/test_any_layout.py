"""A layout that one line registers, on every backend: AMD's, DeepGEMM's, and layouts drawn from the algebra."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import Phase, assume, example, find, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

import forked
import fp4ref
import fp4ref_numerics
from fp4ref import registry
from fp4ref.conformance.vectors.sources import layouts
from fp4ref.conformance.verdict.dumps import DumpRequest, verify
from fp4ref.errors import LayoutError
from fp4ref.explorer.tables import tables
from fp4ref.layout import LAYOUTS, Layout, scale_layouts
from fp4ref.registry import Call
from fp4ref.strategies import drawn_layouts
from fp4ref_cuda import BACKEND as CUDA
from fp4ref_cuda import shared_places
from fp4ref_numerics.layouts import lower_layout

GFX950 = Layout("amd.gfx950_32x8", "m(16,2,*) k(4,2,*): m1 k1 m0 k0 k2 m2")
WORDS = Layout("deepgemm.words", "m(*) k(4,*): k0 m0 k1; pad m 4 unspecified")
GATED = Layout("gated", "m(16,*,2) k(4,*): k0 m2 m0 k1 m1; pad m 0x7f")
DOWN = Layout("cutlass.down", "m(32,4,*) k(4,*): k0 m1 m0 m2 k1")
RECORD = Layout("record", "m(*) k(8,*): k0^5 |34 k1 m0; base 2; pad k 16 0x7f")
TURNED = Layout("turned", "m(8,4,*) k(4,*): k0^m1 m0 k1 m1 m2; pad k 0x7f")
BANKS = Layout("banks", "m(8,*) k(3,8,*): k0 k1^m0 m0^1 k2 m1; base 3; pad m 0x11")
TABLE = Layout("table", "m(2,*) k(*): m0 k0 m1; table 4,2,0,1,3")
SHARED = Layout("shared", "m(16,*) k(2,*): k0 k1 m1; repeat m0; pad m 32 0x7f; pad k 0x22")
SPECS = [fp4ref.NVFP4, fp4ref.MXFP8_E4M3]
OTHERS = ["cpu", "torch"]


@contextmanager
def registered(form: Layout):
    """Register a layout for as long as a test needs it."""
    LAYOUTS.register(form)
    try:
        yield form.name
    finally:
        LAYOUTS.forget(form.name)


def decided(form: Layout, buffer, rows, columns):
    """The bytes that a rule decides."""
    return np.where(form.compared(rows, columns), buffer, np.uint8(0)).tobytes()


def placed(array, backend: str):
    """The array where a backend reads it."""
    if backend != "cuda":
        return array
    import torch

    return torch.from_numpy(array).cuda()


def host(array) -> np.ndarray:
    """An array of any library in the memory of the host."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def check(form: Layout, backend: str, rows: int, columns: int, spec, seed: int) -> None:
    """Quantize, dequantize and convert in a layout: bit for bit what the golden model does, padding included."""
    x = np.random.default_rng(seed).standard_normal((rows, columns), np.float32)
    blocks, others = -(-columns // spec.block.columns), (columns, -(-rows // spec.block.columns))
    with registered(form) as name:
        golden = fp4ref.quantize(x, spec, "both", scale_layout=name, backend="numpy")
        linear = fp4ref.quantize(x, spec, backend="numpy")
        assert golden.row.scales.tobytes() == form.from_linear(linear.row.scales).tobytes()
        got = fp4ref.quantize(placed(x, backend), spec, "both", scale_layout=name, backend=backend)
        assert decided(form, host(got.row.scales), rows, blocks) == decided(form, golden.row.scales, rows, blocks)
        assert decided(form, host(got.column.scales), *others) == decided(form, golden.column.scales, *others)
        assert host(got.row.data).tobytes() == golden.row.data.tobytes()
        values = fp4ref.dequantize(got, backend=backend)
        assert host(values).tobytes() == fp4ref.dequantize(linear, backend="numpy").tobytes()
        back = fp4ref.to_layout(got, "linear", backend=backend)
        assert host(back.row.scales).tobytes() == linear.row.scales.tobytes()
        there = fp4ref.to_layout(back, name, backend=backend)
        scales = host(there.row.scales)
        assert decided(form, scales, rows, blocks) == decided(form, golden.row.scales, rows, blocks)
        poisoned = placed(np.where(form.valid(rows, blocks), scales, np.uint8(0x7F)), backend)
        poisoned = dataclasses.replace(there, row=there.row._replace(scales=poisoned), column=None)
        back = fp4ref.to_layout(poisoned, "linear", backend=backend)
        assert host(back.row.scales).tobytes() == linear.row.scales.tobytes()


@pytest.mark.rule("LAY-13", "LAY-15", "LAY-16", "LAY-17", "LAY-19", "LAY-21")
@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize("form", [GFX950, WORDS, GATED, DOWN, RECORD, TURNED, BANKS, TABLE], ids=lambda form: form.name)
@pytest.mark.parametrize("rows, columns, spec", [(70, 300, SPECS[0]), (33, 1000, SPECS[1]), (0, 16, SPECS[0])])
def test_named_layouts(form, backend, rows, columns, spec):
    check(form, backend, rows, columns, spec, 1)


@pytest.mark.rule("LAY-13", "LAY-15", "LAY-16", "LAY-17", "LAY-19", "LAY-21")
@settings(max_examples=25, deadline=None)
@given(form=drawn_layouts(), rows=st.integers(0, 70), columns=st.integers(1, 200), seed=st.integers(0, 9))
@example(form=RECORD, rows=1, columns=16, seed=0)
@example(form=Layout("rest", "m(*) k(*): |16 m0 k0; base 5; table 0,1,2"), rows=1, columns=1, seed=0)
def test_layouts_drawn_from_the_algebra(form, rows, columns, seed):
    for backend in OTHERS:
        check(form, backend, rows, columns, fp4ref.NVFP4, seed)


@pytest.mark.rule("LAY-20", "LAY-46", "LAY-48")
@pytest.mark.parametrize("backend", OTHERS)
def test_scales_that_share_a_place(backend):
    """Equal scales are stored once by the backends that read them back; others are refused."""
    x = np.random.default_rng(8).standard_normal((32, 128), np.float32)
    with registered(SHARED) as name:
        golden = fp4ref.quantize(x, fp4ref.NVFP4_2D, scale_layout=name, backend="numpy")
        got = fp4ref.quantize(x, fp4ref.NVFP4_2D, scale_layout=name, backend=backend)
        assert [part.tobytes() for part in got.row] == [part.tobytes() for part in golden.row]
        filled = fp4ref.quantize(x, fp4ref.NVFP4_2D, scale_layout=name, backend=backend, out=got)
        assert filled.row.scales.tobytes() == golden.row.scales.tobytes()
        values = fp4ref.dequantize(golden, backend="numpy").tobytes()
        assert fp4ref.dequantize(golden, backend=backend).tobytes() == values
        linear = fp4ref.to_layout(golden, "linear", backend=backend)
        assert fp4ref.to_layout(linear, name, backend=backend).row.scales.tobytes() == golden.row.scales.tobytes()
        different = fp4ref.quantize(x, fp4ref.NVFP4, backend=backend)
        for refusing in ("numpy", backend):
            with pytest.raises(LayoutError, match=r"scales that differ along digit m0, which is repeated.* \[LAY-46\]"):
                fp4ref.quantize(x, fp4ref.NVFP4, scale_layout=name, backend=refusing)
            with pytest.raises(LayoutError, match=r"\[LAY-46\]"):
                fp4ref.to_layout(different, name, backend=refusing)


def test_a_backend_that_does_not_repeat_digits_says_so():
    theirs = dataclasses.replace(CUDA, irregular=("LAY-19", "LAY-21"))
    assert theirs.unserved(call_of(SHARED)) == ["layout shared with digit m0, which is repeated"]
    assert not theirs.unserved(call_of(TURNED))
    assert not CUDA.unserved(call_of(SHARED))
    assert shared_places.in_linear(call_of(SHARED)) is shared_places.in_linear(call_of(SHARED))  # programs go by it
    grouped = dataclasses.replace(call_of(SHARED), operation="quantize_grouped")
    assert CUDA.unserved(grouped) == ["a group at once in shared, whose scales are compared member by member"]


@st.composite
def repeating_layouts(draw) -> Layout:
    """A drawn layout of which digits that turn no other are repeated instead of stored."""
    head, *clauses = draw(drawn_layouts()).text.split("; ")
    axes, _, order = head.partition(": ")
    turning = {item.partition("^")[2] for item in order.split()}
    digits = [item.partition("^")[0] for item in order.split() if item[0] != "|"]
    repeated = draw(st.lists(st.sampled_from(digits), min_size=1, max_size=3, unique=True))
    assume(not turning & {*repeated})
    stored = [item for item in order.split() if item.partition("^")[0] not in repeated]
    return Layout("repeating", "; ".join([f"{axes}: {' '.join(stored)}", *clauses, f"repeat {' '.join(repeated)}"]))


@pytest.mark.rule("LAY-13", "LAY-15", "LAY-16", "LAY-20", "LAY-21", "LAY-40", "LAY-46", "LAY-48")
@given(form=repeating_layouts(), rows=st.integers(0, 40), columns=st.integers(0, 20), seed=st.integers(0, 9))
@example(form=SHARED, rows=33, columns=3, seed=0)
def test_repeated_digits_drawn_from_the_algebra(form, rows, columns, seed):
    """Scales that agree have the golden model's bytes; one that was changed is refused by all or by none."""
    rng = np.random.default_rng(seed)
    buffer = rng.integers(0, 256, form.padded_shape(rows, columns), np.uint8)
    scales = form.to_linear(buffer, rows, columns)
    changed = scales.copy()
    if changed.size:
        changed.flat[rng.integers(changed.size)] ^= 0x55
    with registered(form):
        call = Call("to_layout", shape=(rows, columns), target=form)
        back = Call("to_layout", shape=(rows, columns), layout=form, target=LAYOUTS["linear"])
        wanted, refusal = form.from_linear(scales), said(lambda: form.from_linear(changed))
        for backend in map(registry.get, OTHERS):
            assert backend.to_layout(call, scales).tobytes() == wanted.tobytes()
            assert backend.to_layout(back, buffer).tobytes() == scales.tobytes()
            assert said(lambda backend=backend: backend.to_layout(call, changed)) == refusal


def said(act) -> str:
    """Return the message that refuses an act; empty if it is not refused."""
    try:
        act()
    except LayoutError as error:
        return str(error)
    return ""


def call_of(form: Layout) -> Call:
    """A call that quantizes rows into a layout."""
    return Call("quantize", fp4ref.NVFP4, "bfloat16", layout=form, shape=(32, 128))


@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize("form", [GFX950, TURNED, TABLE], ids=lambda form: form.name)
def test_products_and_groups_in_another_layout(form, backend):
    x = np.random.default_rng(3).standard_normal((48, 160), np.float32)
    linear = fp4ref.quantize(x, fp4ref.NVFP4)
    expected = fp4ref.gemm(linear, linear, backend="numpy")
    with registered(form) as name:
        q = fp4ref.quantize(x, fp4ref.NVFP4, scale_layout=name, backend=backend)
        assert fp4ref.gemm(q, q, backend=backend).tobytes() == expected.tobytes()


@pytest.mark.rule("LAY-13")
def test_other_registered_layouts_disturb_nobody(tmp_path):
    """Vectors are about the standard's layouts, the explorer shows all, and a wrong buffer is refused as before."""
    groups = layouts.layout_groups()
    refusing = Layout("test.refusing", "m(16,*) k(4,*): k0 m0 k1 m1; pad m refused; pad k refused")
    with registered(DOWN), registered(GATED), registered(RECORD), registered(refusing), registered(GFX950):
        assert layouts.layout_groups() == groups
        shown = [layout["name"] for layout in tables().data["layouts"]]
        assert shown[:4] == [form.name for form in registry.STANDARD_LAYOUTS]
        assert {form.name for form in (DOWN, GATED, RECORD, GFX950, refusing)} <= {*shown}
        q = fp4ref.quantize(np.ones((33, 40), np.float32), "nvfp4")
        wrong = {"row.data": q.row.data, "row.scales": q.row.scales[:5], "row.amax": q.row.amax}
        np.savez(tmp_path / "d.npz", x=np.ones((33, 40), np.float32), **wrong)
        with pytest.raises(LayoutError, match="shape"):
            verify(DumpRequest(path=tmp_path / "d.npz", spec=fp4ref.NVFP4, scale_layout="linear"))


def test_a_packing_is_no_layout_of_scales():
    packing = Layout("nibbles", "n(*) k(2,*): k0 k1 n0; unit 4")
    with registered(packing), pytest.raises(LayoutError, match=r"'nibbles', which has units of 4 bits, not 8, need"):
        fp4ref.quantize(np.ones((2, 16), np.float32), fp4ref.NVFP4, scale_layout="nibbles")


@pytest.mark.rule("LAY-13", "LAY-16", "LAY-17", "LAY-19", "LAY-21")
@pytest.mark.parametrize("seed", range(2))
def test_the_lowered_structs_store_every_scale_where_the_layout_does(seed, tmp_path):
    drawn: list[Layout] = []

    @settings(max_examples=25, deadline=None, database=None, phases=[Phase.generate])
    @hypothesis_seed(seed)
    @given(form=drawn_layouts())
    def draw(form):
        drawn.append(form)

    draw()
    forms = [
        *(form for form in scale_layouts(37, 11, field=True) if not form.refuses(130, 9)),
        GFX950,
        WORDS,
        GATED,
        DOWN,
        RECORD,
        TURNED,
        BANKS,
        TABLE,
        *drawn,
    ]
    sizes = [(37, 11), (1, 1), (130, 9)]
    lines = ["#include <fp4ref/fp4ref.h>", "#include <cstdio>"]
    lines += [lower_layout(form, f"L{number}") for number, form in enumerate(forms)]
    lines += [
        "template <class L> void all(unsigned rows, unsigned columns) {",
        "for (unsigned m = 0; m < rows; ++m) for (unsigned k = 0; k < columns; ++k)",
        'std::printf("%llu\\n", L::offset(m, k, columns, rows)); }',
        "int main() {",
        *(f"all<L{number}>({rows}, {columns});" for number in range(len(forms)) for rows, columns in sizes),
        "}",
    ]
    (tmp_path / "maps.cpp").write_text("\n".join(lines))
    flags = ["-std=c++17", "-O0", "-ffp-contract=off", f"-I{fp4ref_numerics.INCLUDE}"]
    subprocess.run(["c++", *flags, str(tmp_path / "maps.cpp"), "-o", str(tmp_path / "maps")], check=True)
    printed = subprocess.run([str(tmp_path / "maps")], capture_output=True, text=True, check=True).stdout
    expected = [
        offset
        for form in forms
        for rows, columns in sizes
        for offset in form.offset(*np.indices((rows, columns)).reshape(2, -1), columns, rows).tolist()
    ]
    assert list(map(int, printed.split())) == expected


def test_a_layout_of_another_name_with_the_same_map_takes_the_fast_paths():
    from fp4ref_cuda import demands, plan

    same = Layout("cublas", LAYOUTS["tiled_128x4"].text)
    with registered(same) as name, registered(GFX950):
        assert not demands.fused_reason(fp4ref.NVFP4, "bfloat16", (128, 128), name, 0)
        call = Call("quantize", fp4ref.NVFP4, "bfloat16", layout=same, shape=(128, 128))
        assert plan.choose(call, 0, False) == (plan.ROWS, "")
        path, reason = plan.choose(dataclasses.replace(call, layout=GFX950), 0, False)
        assert path == plan.TILES
        assert reason == "scales amd.gfx950_32x8, which only the general kernels serve"


def no_gpu() -> str:
    """Why the kernels cannot run here; empty if they can."""
    return dict(registry.available()).get("cuda", "not installed") or ""


@pytest.mark.gpu
@pytest.mark.rule("LAY-13", "LAY-15", "LAY-16", "LAY-17", "LAY-19", "LAY-21")
@pytest.mark.parametrize("form", [GFX950, WORDS, GATED, DOWN, RECORD, TURNED, BANKS, TABLE], ids=lambda form: form.name)
@pytest.mark.parametrize("rows, columns, spec", [(70, 300, SPECS[0]), (256, 512, SPECS[0]), (33, 1000, SPECS[1])])
def test_named_layouts_on_a_gpu(form, rows, columns, spec):
    if no_gpu():
        pytest.skip(no_gpu())
    check(form, "cuda", rows, columns, spec, 2)


@pytest.mark.gpu
@settings(max_examples=12, deadline=None)
@given(form=drawn_layouts(), rows=st.integers(1, 200), columns=st.integers(1, 300))
def test_layouts_drawn_from_the_algebra_on_a_gpu(form, rows, columns):
    if no_gpu():
        pytest.skip(no_gpu())
    check(form, "cuda", rows, columns, fp4ref.NVFP4, 3)


@pytest.mark.gpu
@pytest.mark.rule("LAY-8")
@pytest.mark.parametrize("form", [GFX950, WORDS, GATED, DOWN, TURNED, TABLE], ids=lambda form: form.name)
def test_groups_on_a_gpu_in_another_layout(form):
    if no_gpu():
        pytest.skip(no_gpu())
    x = np.random.default_rng(5).standard_normal((290, 192), np.float32)
    splits = [100, 0, 33, 157]
    with registered(form) as name:
        got = fp4ref.quantize_grouped(placed(x, "cuda"), splits, fp4ref.NVFP4, "both", scale_layout=name)
        for member, part in zip(got, np.split(x, np.cumsum(splits)[:-1]), strict=True):
            golden = fp4ref.quantize(part, fp4ref.NVFP4, "both", scale_layout=name, backend="numpy")
            for direction in ("row", "column"):
                mine, theirs = getattr(member, direction), getattr(golden, direction)
                lines = part.shape if direction == "row" else part.shape[::-1]
                size = lines[0], -(-lines[1] // 16)
                assert decided(form, host(mine.scales), *size) == decided(form, theirs.scales, *size)
                assert host(mine.data).tobytes() == theirs.data.tobytes()


KERNELS = '''
import numpy as np
import fp4ref
from fp4ref.layout import Layout

AMD = fp4ref.register(Layout("amd.gfx950_32x8", "m(16,2,*) k(4,2,*): m1 k1 m0 k0 k2 m2"))
WORDS = fp4ref.register(Layout("deepgemm.words", "m(*) k(4,*): k0 m0 k1; pad m 4 unspecified"))
DRAWN = fp4ref.register(Layout("test.drawn", {drawn!r}))


def stored(written, declared):
    def kernel(x):
        """Scales stored in one layout, in a buffer of the size of another."""
        q = fp4ref.quantize(x, "nvfp4", scale_layout=written.name, backend="numpy")
        buffer = np.zeros(declared.padded_shape(len(x), -(-x.shape[1] // 16)), np.uint8)
        buffer.reshape(-1)[: q.row.scales.size] = q.row.scales.reshape(-1)[: buffer.size]
        return q.row.data, buffer, q.row.amax

    results = ("data", "scales", "amax")
    return fp4ref.kernel(inputs=("x",), outputs=results, scale_layout=declared.name, multiple=(32, 128))(kernel)


amd, words, drawn = stored(AMD, AMD), stored(WORDS, WORDS), stored(DRAWN, DRAWN)
linear = fp4ref.LAYOUTS["linear"]
amd_as_words, linear_as_drawn = stored(AMD, WORDS), stored(linear, DRAWN)
'''


def command(line: str, here) -> subprocess.CompletedProcess[str]:
    """Run the command line with the values of the kernels' file."""
    return forked.run(["fp4ref", *line.split(), "--import", "kernels.py"], here)


@pytest.mark.heavy  # five runs of verify
@pytest.mark.slow
@pytest.mark.rule("LAY-13")
def test_one_line_serves_where_diagram_and_verify(tmp_path):
    drawn = find(
        drawn_layouts(),
        lambda form: form.has_gaps and form.tile[0] > 4 and form.tile[1] > 1 and form.axes[0].multiple < 64,
        settings=settings(max_examples=2000, deadline=None, database=None),
    )
    (tmp_path / "kernels.py").write_text(KERNELS.replace("{drawn!r}", repr(drawn.text)))
    for form in (GFX950, WORDS, drawn):
        name = "test.drawn" if form is drawn else form.name
        offset = form.offset(37, 8, columns=16, rows=128)
        there = command(f"where 37 130 --shape 128x256 --layout {name}", tmp_path)
        assert f"scale (37, 8), {name} byte {offset}" in there.stdout, there.stderr
        back = command(f"where --shape 128x256 --scale-byte {offset} --layout {name}", tmp_path)
        assert "scale (37, 8)" in back.stdout, back.stderr
        figure = command(f"diagram {name} --shape 40x160 --element 3,17 -o figure.svg", tmp_path)
        assert figure.returncode == 0, figure.stderr
        assert f"byte {form.offset(3, 1, columns=10, rows=40)}: scale (3, 1)" in (tmp_path / "figure.svg").read_text()
    few = "--spec nvfp4 --family normal"
    for name in ("amd", "words", "drawn"):
        good = command(f"verify --kernel kernels.py:{name} {few}", tmp_path)
        assert good.returncode == 0, good.stdout + good.stderr
    wrong = command(f"verify --kernel kernels.py:amd_as_words {few}", tmp_path)
    assert re.search("scales are (amd|rocm).gfx950_32x8 where deepgemm.words is declared", wrong.stdout), wrong.stdout
    wrong = command(f"verify --kernel kernels.py:linear_as_drawn {few}", tmp_path)
    assert "scales are linear where test.drawn is declared" in wrong.stdout
