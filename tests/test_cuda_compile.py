"""Every CUDA kernel compiles for every target without a GPU, keeps to registers, and uses the conversions it should."""

from __future__ import annotations

import re
import struct
import subprocess
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import accumulate, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fp4ref
import fp4ref_numerics
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.errors import BackendError
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.layout import LAYOUTS, STANDARD_LAYOUTS, Layout, layout
from fp4ref.registry import Call
from fp4ref_numerics import cache

TARGETS = ("sm_80", "sm_90", "sm_100a", "sm_103a", "sm_120a")
NATIVE = ("sm_100a", "sm_103a", "sm_120a")


def missing() -> str:
    """What these tests need and this machine does not have."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "needs cuda-bindings"
    from fp4ref_cuda import compile as compiling

    try:
        compiling.compiler_version()
    except (ImportError, RuntimeError, BackendError) as error:
        return f"needs NVRTC: {str(error).splitlines()[0]}"
    return "" if disassembler() else "needs nvidia-cuda-nvdisasm"


def disassembler() -> str | None:
    spec = find_spec("nvidia")
    found = [
        p for root in (spec.submodule_search_locations or () if spec else ()) for p in Path(root).glob("*/bin/nvdisasm")
    ]
    return str(found[0]) if found else None


REASON = missing()
compiled = pytest.mark.skipif(bool(REASON), reason=REASON or "runs")


def kernels(target):
    """(kernel, prelude, whether it encodes E2M1 from float32) of everything that the backend launches."""
    yield from searched_and_stochastic(target)
    yield from others(target)
    yield from products()


def searched_and_stochastic(target):
    from fp4ref_cuda import paths
    from fp4ref_cuda.plan import prelude

    profiles = fp4ref.profiles
    both = {"HAS_ROW": True, "HAS_COLUMN": True}
    for name in (
        "nvfp4",
        "nvfp4-2d",
        "nvfp4-rht",
        "nvfp4-row-scaled",
        "nvfp4-4over6",
        "nvfp4-fast",
        "mxfp4",
        "mxfp6-e2m3",
        "mxfp8-e4m3",
        "mxint8",
    ):
        spec = profiles[name]
        yield "quantize", prelude(spec, "bfloat16", **both), spec.element.format.bits == 4
    for base in ("nvfp4", "nvfp4-2d", "nvfp4-rht"):
        stochastic = profiles[base].replace(element=STOCHASTIC_E2M1)
        yield "quantize", prelude(stochastic, "bfloat16", **both), False
        rows = {"WARPS": paths.block_warps(target), "SEARCHED": True}
        constants = {
            "TEAMS": paths.fused_teams(target, False, stochastic=True),
            "GROUPED": False,
            "SEARCHED": False,
            "HAS_COLUMN": True,
        }
        for scale_layout in ("tiled_128x4", "linear_padded"):
            yield "fused", prelude(stochastic, "bfloat16", scale_layout, **constants), False
        if base == "nvfp4":
            yield "row_blocks", prelude(stochastic, "bfloat16", "tiled_128x4", **rows), False
    for name in ("nvfp4-row-scaled", "nvfp4-4over6"):
        rows = {"WARPS": paths.block_warps(target), "SEARCHED": False}
        yield "row_blocks", prelude(profiles[name], "bfloat16", "linear", **rows), True


def products():
    from fp4ref_cuda import gemm

    for name, exact in product(("nvfp4", "nvfp4-row-scaled", "mxfp4", "mxfp8-e4m3"), (True, False)):
        operand = fp4ref.profiles[name], layout("tiled_128x4")
        types = "using In = fp4ref::float32; using Out = fp4ref::bfloat16;"
        yield "gemm", gemm._text(operand, operand, types, 4096, exact), False
        yield "gemm_finish", gemm._specifications(operand[0], operand[0]) + types, False


def blocks_of_bytes():
    from fp4ref_cuda.plan import prelude

    for dtype, squares, vectors in product(("float32", "bfloat16", "float16"), (False, True), (False, True)):
        both = {"HAS_ROW": True, "HAS_COLUMN": True}
        constants = {"SQUARES": squares, "POWER_OF_TWO": vectors, "VECTORS": vectors, **both}
        yield "block_codes", prelude(fp4ref.profiles["mxfp8-e4m3"], dtype, **constants), False
        read = {"SQUARES": squares, "SCALED": True, "VECTORS": vectors}
        yield "block_values", prelude(fp4ref.profiles["mxfp8-e5m2"], out=dtype, **read), False
        columns = {"ACROSS": squares, "VECTORS": vectors}
        yield "column_values", prelude(fp4ref.profiles["mxfp8-e5m2"], out=dtype, **columns), False


def others(target):
    from fp4ref_cuda import paths
    from fp4ref_cuda.plan import prelude

    profiles = fp4ref.profiles
    yield "random_bits", "", False
    yield from (("flag", "", False), ("tensor_raise", "", False))
    yield from (("histories", f"constexpr bool LATEST = {latest};\n", False) for latest in ("false", "true"))
    yield from (("turn", f"constexpr bool TURNED = {turns};\n", False) for turns in ("false", "true"))
    for dtype in ("float16", "float32"):
        yield "quantize", prelude(profiles["nvfp4"], dtype, HAS_ROW=True, HAS_COLUMN=False), True
        yield "quantize", prelude(profiles["mxfp4"], dtype, HAS_ROW=True, HAS_COLUMN=True), True
        for name in ("mxfp8-2d", "mxfp6-e3m2"):
            yield "quantize", prelude(profiles[name], dtype, HAS_ROW=False, HAS_COLUMN=True), False
    for scale_layout, searched in (("tiled_128x4", True), ("linear", False)):
        rows = {"WARPS": paths.row_warps(searched), "SEARCHED": searched}
        yield "rows", prelude(profiles["nvfp4"], "bfloat16", scale_layout, **rows), True
        rows = {"WARPS": paths.row_warps(searched=False), "SEARCHED": False}
        yield "rows", prelude(profiles["mxfp4"], "bfloat16", scale_layout, **rows), True
        rows = {"WARPS": paths.block_warps(target), "SEARCHED": searched}
        yield "row_blocks", prelude(profiles["nvfp4"], "float16", scale_layout, **rows), True
    fused = "nvfp4-rht", "nvfp4", "nvfp4-2d", "mxfp4"
    ways = (False, "tiled_128x4"), (True, "tiled_128x4"), (False, "linear_padded")
    for name, (grouped, scale_layout) in product(fused, ways):
        teams = {"TEAMS": paths.fused_teams(target, grouped), "GROUPED": grouped, "SEARCHED": name != "mxfp4"}
        both = grouped or name != "nvfp4-2d"
        yield "fused", prelude(profiles[name], "bfloat16", scale_layout, **teams, HAS_COLUMN=both), True
    blocks = paths.bytes_blocks(target)
    for name in ("mxfp8-e4m3", "mxfp8-e5m2", "torchao.mxfp8_e4m3_floor"):
        if name in profiles:
            yield "bytes", prelude(profiles[name], "bfloat16", "tiled_128x4", RESIDENT=blocks), False
    yield "transform", prelude(profiles["nvfp4-rht"], "bfloat16"), False
    yield "fused_amax", prelude(profiles["nvfp4-rht"], "bfloat16", "tiled_128x4"), False
    for kind in (0, 1, 2):
        yield "amax", prelude(profiles["nvfp4-rht"], "bfloat16", KIND=kind, EARLY=not kind), False
    yield "amax_finish", "", False
    for out, inverse in (("bfloat16", False), ("float32", True)):
        yield "dequantize", prelude(profiles["nvfp4-rht"], "bfloat16", out=out, INVERSE=inverse), False
        yield "dequantize", prelude(profiles["mxfp6-e2m3"], "bfloat16", out=out, INVERSE=False), False
    for name in ("nvfp4", "mxfp4", "mxfp8-e4m3"):
        yield "decode", prelude(profiles[name], "bfloat16", "tiled_128x4", "bfloat16"), False
    yield "decode_run", prelude(profiles["mxfp8-e4m3"], "bfloat16", "linear", "bfloat16", LARGE=True), False
    yield "decode_run", prelude(profiles["mxfp8-e5m2"], "bfloat16", "linear", "float16", LARGE=False), False
    for dtype, out, vectors in (("bfloat16", "bfloat16", True), ("float32", "float16", False)):
        steps = {"FACTORS": 4, "READ": 6, "HAS_BIAS": True, "VECTORS": vectors}
        yield "finish_product", prelude(profiles["nvfp4"], dtype, out=out, **steps), False
    yield "product_factor", prelude(profiles["nvfp4"], FACTORS=4, READ=6), False
    for name, dtype in (("mxfp8-e4m3", "bfloat16"), ("mxfp8-e5m2", "float32")):
        yield "tensor_codes", prelude(profiles[name], dtype, VECTORS=True), False
        yield "tensor_values", prelude(profiles[name], dtype, out="bfloat16", SCALED=False, VECTORS=True), False
        yield "tensor_values", prelude(profiles[name], dtype, out=dtype, SCALED=True, VECTORS=True), False
        yield "tensor_scale", prelude(profiles[name], dtype, POWER_OF_TWO=False), False
    yield from blocks_of_bytes()
    yield "self_check", "", True
    yield "reciprocal_check", "", False
    for name in ("vllm.nvfp4_kernel", "flashinfer.nvfp4_kernel", "cutlass.nvfp4_epilogue", "te.rht_fused"):
        yield "quantize", prelude(profiles[name], "bfloat16", HAS_ROW=True, HAS_COLUMN=True), True
    kernel, rows = profiles["vllm.nvfp4_kernel"], {"WARPS": paths.block_warps(target), "SEARCHED": False}
    yield "row_blocks", prelude(kernel, "bfloat16", "linear", **rows), True
    yield "layout", f"{prelude(profiles['nvfp4'], QUARTERS=True)}\nusing Source = fp4ref::layout::tiled_128x4;", False
    yield "layout", f"{prelude(profiles['nvfp4'], QUARTERS=False)}\nusing Source = fp4ref::layout::tiled_8x4;", False


@pytest.fixture(autouse=True)
def folder_of_the_process():
    """A test leaves nothing in the folder that replaces an unusable cache."""
    yield
    if cache._process_folder.cache_info().currsize:
        cache._process_folder().cleanup()
        cache._process_folder.cache_clear()


INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


def machine_code(cubin: bytes) -> bytes:
    """The instructions of a file in ELF, one section after another."""
    (start,), (size, count, named) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<3H", cubin, 58)
    sections = [struct.unpack_from("<I20x2Q", cubin, start + size * i) for i in range(count)]
    names = sections[named][1]
    return b"".join(
        cubin[at : at + length] for name, at, length in sections if cubin.startswith(b".text.", names + name)
    )


def instructions(cases, target, folder: Path) -> list[list[str]]:
    """Names of the machine instructions of some kernels, whose code is disassembled at once: to start takes longest."""
    from fp4ref_cuda import compile as compiling

    with ThreadPoolExecutor(2) as pool:
        cubins = pool.map(lambda case: compiling.compile_cubin(compiling.source(*case), target), cases)
        codes = [machine_code(cubin) for cubin in cubins]
    file, ends = folder / "code", [*accumulate(map(len, codes))]
    file.write_bytes(b"".join(codes))
    machine = target.replace("sm_", "SM")
    command = [disassembler(), "-b", machine, "-ndf", file]  # names need no analysis of the flow of data
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: list[list[str]] = [[] for _ in cases]
    for place, name in INSTRUCTION.findall(text):
        found[bisect_right(ends, int(place, 16))].append(name)
    return found


# Accesses of local memory. MXINT8 takes a few registers too many on sm_100a; columns of MXFP6, which pack sixteen codes
# at once, take more on both.
AROUND_DIVISION = 12  # the place of a tile is a quotient of 64 bits, by a routine that takes registers
BY_MORE_WARPS = 5  # of six or eight blocks on a multiprocessor, which gain more than these cost, as measured
ONCE_A_BOX = 6  # of the 80 registers of three teams on sm_80: words stored before the first box, read once in each
BY_LINE = 8  # of the general kernel with maxima of rows and of columns, on sm_80 alone
SPILLED = {"ComplementCodec": 8, "Format<3, 2, 3, 32, false>": 114}


def in_ci(target: str, part: int) -> list[pytest.MarkDecorator]:
    """Half of the kernels compile in CI for a target without the conversions, the others for one with them."""
    return [pytest.mark.release] * ((target, part) not in {("sm_90", 0), ("sm_90", 2), ("sm_100a", 1), ("sm_100a", 3)})


@compiled
@pytest.mark.heavy  # compiles some twenty-five kernels for each part of a target
@pytest.mark.slow
@pytest.mark.parametrize(
    "target, part", [pytest.param(*each, marks=in_ci(*each)) for each in product(TARGETS, range(4))]
)
@pytest.mark.rule("E2M1-3", "NUM-1")
def test_every_kernel_compiles_stays_in_registers_and_converts_natively_where_it_can(target, part, tmp_path):
    cases = list(kernels(target))[part::4]
    found = instructions([case[:2] for case in cases], target, tmp_path)
    wrong = []
    for (kernel, prelude, encodes), names in zip(cases, found, strict=True):
        wide = "WIDE = true" in prelude  # sums of 700 bits, whose digits are found by their number
        local = 0 if wide else sum(name.startswith(("LDL", "STL")) for name in names)
        native = any("E2M1" in name for name in names)
        allowed = sum(most for codec, most in SPILLED.items() if codec in prelude)
        allowed += AROUND_DIVISION * (kernel == "gemm") + BY_MORE_WARPS * (kernel == "decode")
        allowed += ONCE_A_BOX * (kernel == "fused" and target == "sm_80")
        allowed += BY_LINE * (kernel == "quantize" and target == "sm_80" and "Global::row" in prelude)
        if not names or local > allowed or native != (encodes and target in NATIVE):
            wrong.append(f"{kernel}: {len(names)} instructions, {local} on local memory, native {native}\n{prelude}")
    assert not wrong, "\n".join(wrong)


TEXTS = (
    "m(16,2,*) k(4,2,*): m1 k1 m0 k0 k2 m2",  # of AMD
    "m(*) k(4,*): k0 m0 k1; pad m 4 unspecified",  # words down the rows
    "m(16,*,2) k(4,*): k0 m2 m0 k1 m1; pad m 0x7f",  # gate and up rows side by side
    "m(*) k(8,*): k0^5 |34 k1 m0; base 2; pad k 16 0x7f",
    "m(8,4,*) k(4,*): k0^m1 m0 k1 m1 m2; pad k 0x7f",  # digits turned by the other axis
    "m(2,*) k(*): m0 k0 m1; base 3; table 4,2,0,1,3",
)
TARGETS = ("sm_90", "sm_100a", "sm_80", "sm_120a", "sm_90", "sm_100a")


@compiled
@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("text, target", list(zip(TEXTS, TARGETS, strict=True)))
def test_general_kernels_compile_for_another_layout_and_stay_in_registers(text, target, registered, tmp_path):
    from fp4ref_cuda.plan import prelude
    from fp4ref_numerics.layouts import lower_layout

    form, both, units = Layout("other", text), {"HAS_ROW": True, "HAS_COLUMN": True}, {"QUARTERS": False}
    linear = LAYOUTS["linear"]
    registered(form)
    cases = [
        ("quantize", prelude(fp4ref.NVFP4, "bfloat16", form.name, **both)),
        ("dequantize", prelude(fp4ref.NVFP4, "bfloat16", form.name, INVERSE=False)),
        ("layout", f"{prelude(fp4ref.NVFP4, **units)}\n{lower_layout(form, 'Source')}"),
        ("layout", f"{prelude(fp4ref.NVFP4, scale_layout=form.name, **units)}\n{lower_layout(linear, 'Source')}"),
    ]
    for (kernel, _), names in zip(cases, instructions(cases, target, tmp_path), strict=True):
        assert names, kernel
        divides = any(name.startswith("CALL") for name in names)  # by a size, in a routine that takes registers
        stored = sum(name.startswith(("LDL", "STL")) for name in names)
        assert stored <= (4 if divides and kernel == "layout" else 0), kernel


@compiled
def test_every_file_of_kernels_is_compiled_by_these_tests():
    from fp4ref_cuda import compile as compiling

    assert {name for name, _, _ in kernels("sm_90")} == set(compiling.NAMES)


@compiled
def test_software_conversion_can_be_asked_for():
    from fp4ref_cuda.plan import prelude

    text = "#define FP4_SOFTWARE_E2M1 1\n" + prelude(fp4ref.NVFP4, "bfloat16", HAS_ROW=True, HAS_COLUMN=False)
    from fp4ref_cuda import compile as compiling

    source = "#define FP4_SOFTWARE_E2M1 1\n" + compiling.source("quantize", text)
    assert compiling.compile_cubin(source, "sm_100a")


@compiled
@pytest.mark.rule("NUM-1")
def test_builds_that_flush_or_contract_are_refused(monkeypatch):
    from fp4ref_cuda import compile as compiling
    from fp4ref_cuda.plan import prelude

    assert "--fmad=false" in compiling.options("sm_90")
    monkeypatch.setattr(compiling, "options", lambda target: (f"--gpu-architecture={target}", "--use_fast_math"))
    with pytest.raises(BackendError, match="NUM-1"):
        compiling.compile_cubin(compiling.source("amax", prelude(fp4ref.NVFP4, KIND=0, EARLY=True)), "sm_90")


@compiled
def test_compile_errors_say_what_and_where():
    from fp4ref_cuda import compile as compiling

    with pytest.raises(BackendError, match=r"compile for sm_90.*error"):
        compiling.compile_cubin(compiling.source("quantize", "using S = nothing;"), "sm_90")


@compiled
def test_a_damaged_cache_entry_is_made_again(tmp_path, monkeypatch):
    from fp4ref_cuda import compile as compiling

    monkeypatch.setenv("FP4REF_CACHE_DIR", str(tmp_path))
    first = compiling.cubin("amax_finish", "", "sm_90")
    (entry,) = (tmp_path / "cuda").iterdir()
    whole = entry.read_bytes()
    for damaged in (b"", whole[:100], whole[:-1] + bytes([whole[-1] ^ 1]), b"x" * len(whole)):
        entry.write_bytes(damaged)
        assert compiling.cubin("amax_finish", "", "sm_90") == first
        assert entry.read_bytes() == whole
    monkeypatch.setattr(compiling, "compile_cubin", lambda text, target: pytest.fail("not from the cache"))
    assert compiling.cubin("amax_finish", "", "sm_90") == first


@compiled
def test_a_cache_that_cannot_be_written_costs_no_result(tmp_path, monkeypatch):
    from fp4ref_cuda import compile as compiling

    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("FP4REF_CACHE_DIR", str(blocked))
    assert compiling.cubin("amax_finish", "", "sm_90")


@compiled
def test_a_rehearsal_compiles_at_once_what_would_be_launched_and_is_remembered(tmp_path, monkeypatch):
    from fp4ref_cuda import compile as compiling
    from fp4ref_cuda import launch
    from fp4ref_cuda.buffers import Library

    monkeypatch.setenv("FP4REF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launch, "target", lambda ordinal: "sm_90")
    library, told, times = Library("torch", 0), [], []

    def act():
        times.append(1)
        launch.launch(library, "amax_finish", "", (1,), (0, 0, 0, 0, 0))
        launch.launch(library, "amax_finish", "", (2,), (1, 0, 0, 0, 0))
        launch.launch(library, "amax_finish", "does not compile", (1,), ())

    launch.rehearse(act, told.append)
    assert compiling.is_cached("amax_finish", "", "sm_90")
    assert not compiling.is_cached("amax_finish", "does not compile", "sm_90")
    assert len(told) == 1
    assert told[0].startswith("compiling 2 kernels for the cuda backend, once")
    launch.rehearse(act, told.append)
    assert len(times) == len(told) == 1
    monkeypatch.setenv("FP4REF_CACHE_DIR", "/dev/null")
    launch.rehearse(act, told.append)  # into a folder of this process
    launch.rehearse(act, told.append)
    assert len(times) == len(told) == 2
    assert compiling.is_cached("amax_finish", "", "sm_90")


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """The cache's folder, and a list of the targets for which the compiler, which needs no NVRTC here, was called."""
    from fp4ref_cuda import compile as compiling

    calls = []
    monkeypatch.setenv("FP4REF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "compiler_version", lambda: "1.0")
    monkeypatch.setattr(compiling, "compile_cubin", lambda text, target: calls.append(target) or b"right")
    assert compiling.cubin("amax", "", "sm_90") == b"right"
    return tmp_path / "cache" / "cuda", calls


def planted(entry: Path, content: bytes) -> None:
    """Write an entry that is whole, so that only its owner and mode, or another entry's name, speak against it."""
    from fp4ref_cuda import compile as compiling

    entry.write_bytes(compiling._head(entry.name, content) + content)


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_of_kernels_that_others_may_write_is_not_used(counted, mode):
    from fp4ref_cuda import compile as compiling

    folder, calls = counted
    (entry,) = folder.iterdir()
    planted(entry, b"wrong")
    assert compiling.cubin("amax", "", "sm_90") == b"wrong"  # the bait works where only the user can have put it
    folder.chmod(mode)
    cache._warn.cache_clear()
    with pytest.warns(RuntimeWarning, match=rf"cuda: the cache {folder} is not used: others may write to it"):
        assert compiling.cubin("amax", "", "sm_90") == b"right"
    assert compiling.cubin("amax", "", "sm_90") == b"right"
    assert len(calls) == 2  # the second was kept in a folder of this process
    assert list(folder.iterdir()) == [entry]


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize("how", ["group", "link", "foreign"])
def test_a_kernel_that_another_can_have_written_is_compiled_again(counted, how, tmp_path):
    from fp4ref_cuda import compile as compiling

    folder, calls = counted
    (entry,) = folder.iterdir()
    planted(entry, b"wrong")
    if how == "group":
        entry.chmod(0o660)
    elif how == "link":
        entry.symlink_to(entry.rename(tmp_path / "elsewhere"))
    else:
        planted(folder / "another.cubin", b"wrong")
        (folder / "another.cubin").replace(entry)
    assert compiling.cubin("amax", "", "sm_90") == b"right"
    assert compiling.cubin("amax", "", "sm_90") == b"right"
    assert len(calls) == 2
    assert not entry.is_symlink()
    assert not entry.stat().st_mode & 0o022


@pytest.mark.rule("CNF-5")
def test_a_complete_cache_of_kernels_that_cannot_be_written_is_used(counted, monkeypatch):
    import tempfile

    from fp4ref_cuda import compile as compiling

    folder, calls = counted
    refuse_calls = []

    def refuse(*arguments, **options):
        refuse_calls.append(1)
        raise OSError(30, "Read-only file system")

    folder.chmod(0o555)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert compiling.cubin("amax", "", "sm_90") == b"right"
    assert len(calls) == 1
    assert compiling.cubin("amax", "#define MORE", "sm_90") == b"right"
    assert refuse_calls
    assert len(list(folder.iterdir())) == 1


def test_without_a_device_the_backend_says_so_in_one_line():
    from fp4ref_cuda import BACKEND

    try:
        BACKEND.load()
    except (BackendError, ImportError) as error:
        reason = str(error)
    else:
        pytest.skip("there is a device")
    assert reason
    assert "\n" not in reason


def test_what_the_kernels_cannot_do_has_reasons():
    import fp4ref_cuda
    from fp4ref_cuda import HEIGHTS, NOT_IN_KERNELS, WIDTHS

    def unsupported(spec: fp4ref.Spec) -> list[str]:
        return fp4ref_cuda.unsupported(Call("quantize", spec))

    profiles = fp4ref.profiles.values()
    in_header = {id(spec) for spec in profiles if not fp4ref_numerics.unsupported(Call("quantize", spec))}
    assert not unsupported(fp4ref.NVFP4)
    assert "NUM-5" in unsupported(fp4ref.profiles["jax.nvfp4"])[0]
    assert set(NOT_IN_KERNELS) < set(ARITHMETIC)
    for spec in profiles:
        absent = NOT_IN_KERNELS.get(spec.arithmetic.name) if id(spec) in in_header else None
        too_large = spec.block.rows not in HEIGHTS or spec.block.columns not in WIDTHS
        refused = id(spec) not in in_header or absent or too_large or spec.subnormals == "flush"
        assert bool(unsupported(spec)) == bool(refused)
        assert not absent or unsupported(spec)[0].endswith(absent)
    assert "128x128" in unsupported(fp4ref.NVFP4.replace(block=(128, 128)))[0]


@compiled
@pytest.mark.rule("APX-1")
def test_a_device_whose_reciprocal_differs_is_refused(monkeypatch):
    from types import SimpleNamespace

    from fp4ref_cuda import launch

    library, asked = SimpleNamespace(ordinal=0), []

    def first_difference(of, check, threads):
        asked.append((of, check, threads))
        return 0x3F800007

    monkeypatch.setattr(launch, "target", lambda ordinal: "sm_75")
    monkeypatch.setattr(launch, "_first_difference", first_difference)
    with pytest.raises(BackendError, match=r"cuda: sm_75: rcp.approx.ftz.f32 of float 0x3f800007 differs.*APX-1"):
        launch.require_reciprocal.__wrapped__(library)
    assert asked == [(library, "reciprocal_check", 1 << 23)]


@pytest.mark.parametrize("scale_layout", [form.name for form in STANDARD_LAYOUTS])
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-2d", "mxfp8-e4m3", "mxfp4-2d"])
@pytest.mark.rule("LAY-5", "LAY-8")
def test_tiles_cover_every_scale_and_its_padding(name, scale_layout):
    from fp4ref_cuda import plan

    spec = fp4ref.profiles[name]
    width = spec.block.columns
    for rows, columns in ((1, 1), (128, 64), (130, 70), (5, 300), (300, 5), (257, 129)):
        for dtype, names in product(("bfloat16", "float32"), (("row",), ("row", "column"))):
            down, across = plan.tiles(spec, rows, columns, names, scale_layout, dtype)
            sizes = plan.tile_sizes(spec, names, dtype)
            covered = down * sizes[0], across * sizes[1]
            high, wide = layout(scale_layout).padded_shape(rows, -(-columns // width))
            assert covered[0] >= high
            assert covered[1] >= wide * width
            if "column" not in names:
                continue
            high, wide = layout(scale_layout).padded_shape(columns, -(-rows // width))
            assert covered[1] >= high
            assert covered[0] >= wide * width


@pytest.mark.rule("LAY-8")
def test_members_of_a_group_follow_each_other():
    from fp4ref_cuda import members, plan

    splits = (128, 0, 5, 300)
    made = members.group(fp4ref.NVFP4, splits, 70, ("row", "column"), "tiled_128x4", "bfloat16")
    assert made.table[:, 0].tolist() == [0, 128, 128, 133]
    assert made.table[:, 1].tolist() == list(splits)
    assert made.table[:, 3].tolist() == layout("tiled_128x4").group_offsets((rows, 5) for rows in splits)[:-1]
    assert made.table[:, 4].tolist() == np.cumsum([0, 70 * 64, 0, 70 * 3]).tolist()
    tiles = [plan.tiles(fp4ref.NVFP4, rows, 70, ("row", "column"), "tiled_128x4", "bfloat16") for rows in splits]
    assert made.total_tiles == sum(down * across for down, across in tiles)


def test_why_a_fast_path_is_not_taken():
    from fp4ref_cuda import demands

    for name in ("nvfp4", "nvfp4-2d", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2", "mxfp8-2d"):
        assert not demands.decode_reason(fp4ref.profiles[name], "bfloat16", 64, 0, inverse=False)
    for name, because in (
        ("nvfp4-row-scaled", "row scale"),
        ("mxfp6-e2m3", "neither 8 finite"),
        ("mxint8", "nor 8-bit floats"),
        ("te.fp8_block", "neither"),
    ):
        assert because in demands.decode_reason(fp4ref.profiles[name], "bfloat16", 64, 0, inverse=False)
    assert "float32" in demands.decode_reason(fp4ref.NVFP4, "float32", 64, 0, inverse=False)
    assert "16 bytes" in demands.decode_reason(fp4ref.NVFP4, "bfloat16", 60, 0, inverse=False)
    powers = partial(demands.thresholds_reason, form=demands.MXFP4_FORM)
    assert not powers(fp4ref.MXFP4, "bfloat16", (8, 64), 0)
    assert "not bfloat16" in powers(fp4ref.MXFP4, "float16", (8, 64), 0)
    assert "16 bytes" in powers(fp4ref.MXFP4, "bfloat16", (8, 60), 0)
    assert "1x32" in powers(fp4ref.profiles["mxfp4-2d"], "bfloat16", (8, 64), 0)
    assert "default arithmetic" in powers(fp4ref.NVFP4, "bfloat16", (8, 64), 0)
    blocks = demands.blocks_reason
    assert not blocks(fp4ref.NVFP4, "float16", (8, 64), 0)
    assert "search" in blocks(fp4ref.profiles["nvfp4-4over6"], "float16", (8, 64), 0)
    assert "16-bit" in blocks(fp4ref.NVFP4, "float32", (8, 64), 0)
    reason = demands.thresholds_reason
    assert not reason(fp4ref.NVFP4, "bfloat16", (8, 64), 0)
    assert "not bfloat16" in reason(fp4ref.NVFP4, "float32", (8, 64), 0)
    assert "16 bytes" in reason(fp4ref.NVFP4, "bfloat16", (8, 60), 0)
    assert "16 bytes" in reason(fp4ref.NVFP4, "bfloat16", (8, 64), 2)
    assert "2^31" in reason(fp4ref.NVFP4, "bfloat16", (1 << 31, 8), 0)
    assert "default arithmetic" in reason(fp4ref.NVFP4_FAST, "bfloat16", (8, 64), 0)
    assert "1x16" in reason(fp4ref.NVFP4_2D, "bfloat16", (8, 64), 0)
    assert "16x16" in reason(fp4ref.NVFP4, "bfloat16", (8, 64), 0, demands.SQUARE_FORM)
    fused = demands.fused_reason
    for spec in (fp4ref.NVFP4, fp4ref.NVFP4_RHT, fp4ref.NVFP4_2D, fp4ref.MXFP4):
        assert not fused(spec, "bfloat16", (64, 128), "tiled_128x4", 0)
    assert "mxfp4-2d is not NVFP4" in fused(fp4ref.profiles["mxfp4-2d"], "bfloat16", (64, 128), "tiled_128x4", 0)
    for spec in (fp4ref.NVFP4, fp4ref.NVFP4_RHT, fp4ref.NVFP4_2D):
        assert not fused(spec, "bfloat16", (128, 64), "tiled_128x4", 0)
        assert "multiples of 64" in fused(spec, "bfloat16", (64, 96), "tiled_128x4", 0)
        assert "multiples of 64" in fused(spec, "bfloat16", (48, 128), "tiled_128x4", 0)
        assert "multiples of 64" in fused(spec, "bfloat16", (0, 128), "tiled_128x4", 0)
        assert not fused(spec, "bfloat16", (64, 128), "linear", 0)
        assert "only the general kernels" in fused(spec, "bfloat16", (64, 128), "rocm.gfx950_32x8", 0)
        assert not fused(spec.replace(element=STOCHASTIC_E2M1), "bfloat16", (64, 128), "tiled_128x4", 0)
        assert "address 4" in fused(spec.replace(element=STOCHASTIC_E2M1), "bfloat16", (64, 128), "tiled_128x4", 4)
        assert "2^24" in fused(spec, "bfloat16", (64, 1 << 24), "tiled_128x4", 0)
        assert not fused(spec, "bfloat16", (384, 128), "tiled_128x4", 0, (128, 0, 256))
        assert "192 rows of member 1" in fused(spec, "bfloat16", (384, 128), "tiled_128x4", 0, (128, 192, 64))


@pytest.mark.parametrize(
    "name, size, flag, scale_layout, path",
    [
        ("nvfp4-rht", 128, False, "linear", "rows and hadamard columns, fused"),
        ("nvfp4-rht", 8192, False, "linear_padded", "rows and hadamard columns, fused, scales moved"),
        ("nvfp4-rht", 8192, True, "linear_padded", "rows and hadamard columns, fused"),
        ("nvfp4-rht", 128, False, "rocm.gfx950_32x8", "rows and hadamard columns, fused, scales moved"),
        ("nvfp4-rht", 128, False, "tiled_128x4", "rows and hadamard columns, fused"),
        ("nvfp4-rht", 128, True, "linear", "rows and hadamard columns, fused"),
        ("nvfp4-rht", 128, True, "rocm.gfx950_32x8", "tiles"),
        ("nvfp4-rht", 80, False, "linear", "rows and hadamard columns, apart"),
        ("nvfp4", 8192, False, "linear", "rows and columns by thresholds, scales moved"),
        ("nvfp4", 4096, False, "linear", "rows and columns by thresholds"),
        ("nvfp4", 4096, False, "rocm.gfx950_32x8", "rows and columns by thresholds, scales moved"),
        ("nvfp4", 128, False, "rocm.gfx950_32x8", "tiles"),
        ("mxfp8-e4m3", 4096, False, "linear_padded", "rows and columns of bytes, scales moved"),
        ("mxfp8-e4m3", 4096, True, "linear_padded", "tiles"),
        ("nvfp4-2d", 8192, False, "linear", "rows and columns by thresholds, scales moved"),
        ("mxfp4", 4096, False, "linear", "rows and columns by thresholds, scales moved"),
        ("mxfp4", 4096, True, "linear", "rows and columns by thresholds"),
        ("mxfp4", 1024, False, "linear", "tiles"),
        ("mxfp4-2d", 4096, False, "linear", "tiles"),
    ],
)
def test_scales_are_moved_out_of_tiles_where_that_is_quicker(name, size, flag, scale_layout, path):
    from fp4ref.registry import Call
    from fp4ref_cuda import plan

    call = Call(
        "quantize",
        fp4ref.profiles[name],
        "bfloat16",
        "both",
        layout=LAYOUTS[scale_layout],
        shape=(size, size),
        flag=flag,
    )
    chosen, reason = plan.choose(call, 0, one_amax=False)
    assert chosen == path
    assert bool(reason) == (path not in {"rows and hadamard columns, fused", "rows and columns by thresholds"})


@given(st.integers(1, 1 << 24), st.integers(0, (1 << 31) - 1))
def test_divisions_by_multiplication(divisor, number):
    from fp4ref_cuda import paths

    factor, shift = paths.magic(divisor)
    assert factor < 1 << 32
    assert ((number * factor >> 32) + number) < 1 << 32
    assert ((number * factor >> 32) + number) >> shift == number // divisor
