"""A record goes out of date with any code on which its claim's replay rests, in every layer."""

from __future__ import annotations

import functools
import gc
import importlib
import re
import shutil
import subprocess
import sys

import pytest

import fp4ref_numerics
from fp4ref.proof import cpp_sources, native, python_sources, records, sources
from fp4ref.proof.catalogue import claims
from fp4ref.proof.claims import ClaimSubject
from fp4ref_cpu import build

QUICK = ("encode-e4m3/golden", "quantize-mxfp4-float16/golden", "dequantize-mxfp4/torch")


@pytest.fixture
def fresh_sources():
    """Read sources anew after a test."""
    yield
    forget()


def in_python():
    return [
        claim.name
        for claim in claims().values()
        if claim.subject in {ClaimSubject.GOLDEN, ClaimSubject.TORCH} and not claim.long
    ]


# What a replay runs


def caches_of_the_project():
    """Return the caches of its functions. Others' may hold what imports alone fill, as those of torch's compiler do."""
    gc.unfreeze()  # what was there when tests were collected is not listed while it is frozen
    caches = [part for part in gc.get_objects() if type(part) is functools._lru_cache_wrapper]
    gc.freeze()
    return [part for part in caches if (part.__module__ or "").partition(".")[0] in python_sources.PACKAGES]


@functools.cache
def of_another_module():
    return object()


def ran_by_covered_code(claim, covered):
    """Return the functions that covered code calls while a claim is decided; tables are made anew."""
    for name in covered:
        if name.partition(".")[0].partition(":")[0] in python_sources.PACKAGES and ":" in name:
            importlib.import_module(name.partition(":")[0])  # what imports compute, definitions of modules cover
    for part in caches_of_the_project():
        if part is not claims:
            part.cache_clear()
    found = set()

    def reference(code, module):
        name = code.co_qualname.split(".<locals>")[0] if sys.version_info >= (3, 11) else code.co_name
        return f"{module}:{'.'.join(name.split('.')[:2])}"

    def called(frame, event, _):
        module, caller = frame.f_globals.get("__name__", ""), frame.f_back
        if event != "call" or caller is None or module.partition(".")[0] not in python_sources.PACKAGES:
            return
        if reference(caller.f_code, caller.f_globals.get("__name__", "")) in covered:
            found.add((module, reference(frame.f_code, module)))

    sys.setprofile(called)
    try:
        assert claim.decide(lambda done: None).witness is None
    finally:
        sys.setprofile(None)
    made = re.compile(r":(<|__create_fn__)")  # expressions of their own, and what a dataclass writes for itself
    harness = python_sources.HARNESS
    return {name for module, name in found if not {module, name} & {*harness} and not made.search(name)}


def test_caches_of_others_are_kept():
    kept, claim = of_another_module(), claims()[QUICK[0]]
    ran_by_covered_code(claim, records.covered(claim.name))
    assert of_another_module() is kept
    assert claims in caches_of_the_project()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older versions do not name the class of a function that runs")
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.release) for name in in_python()],
)
def test_all_that_covered_code_calls_is_covered(name):
    claim, covered = claims()[name], records.covered(name)
    if claim.subject is ClaimSubject.TORCH:
        pytest.importorskip("torch")
    ran = ran_by_covered_code(claim, covered)
    assert ran - covered.keys() == set()
    assert len(ran) > 1


# What a compiler finds in the header: functions that are not used are not compiled


def compiled(text, folder):
    """Return the names of the header's functions that a C++ text uses, from symbols of code that is not optimized."""
    include = folder / "include"
    shutil.copytree(fp4ref_numerics.INCLUDE, include, dirs_exist_ok=True)
    config = include / "fp4ref" / "config.h"
    config.write_text(config.read_text().replace("static inline __attribute__((always_inline))", "static inline"))
    (folder / "text.cpp").write_text(text.replace("@", "text"))
    flags = [flag for flag in build.FLAGS if flag != "-shared"]
    includes = [f"-I{include}", f"-I{build.SOURCES}"]
    line = [*build.compiler(), "-O0", *flags, *includes, "-c", folder / "text.cpp", "-o", folder / "text.o"]
    subprocess.run([*map(str, line)], check=True)
    symbols = subprocess.run(["nm", "-C", str(folder / "text.o")], check=True, capture_output=True, text=True).stdout
    functions = [line[19:] for line in symbols.splitlines() if line[17:18] in "tTwW"]
    return {match[1] for name in functions if (match := re.search(r"^(?:.* )?fp4ref::([\w:]+)$", bare(name)))}


def bare(name):
    """Return a symbol without arguments, of templates and of calls."""
    depth, kept = 0, ""
    for letter in name.replace("operator()", "operator_call"):
        depth += (letter == "<") - (letter == ">")
        kept += letter if not depth and letter != ">" else ""
    return kept.partition("(")[0]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(c.name, marks=pytest.mark.heavy if c.name == "block/header" else pytest.mark.release)
        for c in claims().values()
        if c.subject is ClaimSubject.HEADER
    ],
)
def test_all_of_the_header_that_a_check_compiles_is_covered(name, monkeypatch, tmp_path):
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    texts = []
    monkeypatch.setattr(native, "sweep", lambda text, *_: texts.append(text) or (0, None))
    claims()[name].decide(lambda done: None)
    used = {function for text in texts for function in compiled(text, tmp_path)}
    assert used - {name.removeprefix("header:") for name in records.covered(name)} == set()
    assert len(used) > 1


# A change in each layer, and certificates that it makes out of date


def stale(before):
    """Return those of some claims whose code has other digests than before."""
    return {name for name, covered in before.items() if records.covered(name) != covered}


def forget():
    """Forget all sources, so that they are read anew."""
    for module in (python_sources, cpp_sources, records):
        for part in vars(module).values():
            if hasattr(part, "cache_clear"):
                part.cache_clear()


def first_by_default(table):
    """Return the keys of a table; all but the first one are heavy, for each reads the sources anew."""
    first, *others = table
    return [first, *(pytest.param(name, marks=pytest.mark.heavy) for name in others)]


PYTHON = {  # module, text, another, certificates that rest on it, and some that do not
    "the definition of rounding": (
        *("fp4ref.formats.codec", "below % 2 == 0, below, above", "below % 2 == 0, above, below"),
        *(("encode-e4m3/golden", "block/golden", "quantize-nvfp4-bfloat16/golden"), ("encode-e4m3/header",)),
    ),
    "a property": (
        *("fp4ref.formats.grids", "return 1 << (self.exponent_bits + self.mantissa_bits) if", "return 8 if"),
        *(("encode-e2m1/golden", "dequantize-mxfp4/golden"), ("hadamard-signs/golden",)),
    ),
    "a constant that a loop fills": (
        *("fp4ref.hadamard", "STRIDES = (1, 2, 4, 8)", "STRIDES = (1, 2, 8, 4)"),
        *(("hadamard-signs/golden",), ("encode-e2m1/golden",)),
    ),
    "the golden model": (
        *("fp4ref.model.quantize", "def largest(", "def largest(*other, "),
        *(("quantize-mxfp4-float32/golden",), ("quantize-mxfp4-float32/torch", "dequantize-mxfp4/golden")),
    ),
    "torch": (
        *("fp4ref_torch.exact", "def rounded_code(", "def rounded_code(*other, "),
        *(("encode-e4m3/torch", "quantize-nvfp4-float32/torch"), ("encode-e4m3/golden",)),
    ),
    "an inherited or named layout": (
        *("fp4ref.layout.registry", "k0 m1 m0 k1 m2", "k0 m0 m1 k1 m2"),
        *(("layout-tiled_128x4/golden", "quantize-mxfp4-float32/golden"), ("layout-tiled_8x4/golden",)),
    ),
}


@pytest.mark.parametrize("change", first_by_default(PYTHON))
def test_a_change_in_python_is_noticed(change, fresh_sources, monkeypatch):
    module, right, wrong, outdated, held = PYTHON[change]
    read = python_sources._source.__wrapped__
    assert right in read(module)
    before = {name: records.covered(name) for name in (*outdated, *held)}
    forget()
    monkeypatch.setattr(
        python_sources, "_source", lambda name: read(name).replace(right, wrong) if name == module else read(name)
    )
    assert stale(before) == {*outdated}


NATIVE = {
    "a method behind a template's parameter": (
        *("codec.h", "unsigned index(", "unsigned index(int, "),
        *(
            ("encode-e4m3/header", "quantize-mxfp8-e4m3-float32/cpu", "quantize-mxfp8-e4m3-float32/cuda"),
            ("over-6/header",),
        ),
    ),
    "an arithmetic": (
        *("arithmetic.h", "a * (g * SIXTH)", "a * g * SIXTH"),
        *(
            ("block-scale/header", "quantize-nvfp4-float32/cpu", "quantize-nvfp4-float32/cuda"),
            ("encode-e4m3/header", "quantize-mxfp4-float32/cpu"),
        ),
    ),
    "a macro": (
        *("config.h", "#define FP4_API static inline", "#define FP4_API inline"),
        *(("over-6/header", "thresholds/header", "dequantize-nvfp4/cuda"), ("encode-e4m3/golden",)),
    ),
    "loops of the cpu backend, included": (
        *("fp4ref_cpu/csrc/walk.h", "#pragma once", "#pragma once\nint other;"),
        *(("quantize-nvfp4-float32/cpu",), ("quantize-nvfp4-float32/cuda", "block/header")),
    ),
    "text of a kernel": (
        *("fp4ref_cuda/kernels/rows.cu", "#include", "// rows\nint other;\n#include"),
        *(("quantize-nvfp4-bfloat16/cuda",), ("dequantize-nvfp4/cuda", "quantize-nvfp4-bfloat16/cpu")),
    ),
    "text that kernels include": (
        *("fp4ref_cuda/kernels/common.cuh", "#pragma once", "#pragma once\nint other;"),
        *(("quantize-mxfp4-float32/cuda", "dequantize-mxfp4/cuda"), ("quantize-mxfp4-float32/cpu",)),
    ),
}


@pytest.mark.parametrize("change", first_by_default(NATIVE))
def test_a_change_in_native_code_is_noticed(change, fresh_sources, monkeypatch, tmp_path):
    file, right, wrong, outdated, held = NATIVE[change]
    original = cpp_sources._file(file) if "/" in file else cpp_sources.folder() / file
    text = original.read_text()
    assert right in text
    before = {name: records.covered(name) for name in (*outdated, *held)}
    forget()
    if "/" in file:
        (tmp_path / "changed").write_text(text.replace(right, wrong, 1))
        read = cpp_sources._file
        monkeypatch.setattr(cpp_sources, "_file", lambda name: tmp_path / "changed" if name == file else read(name))
    else:
        shutil.copytree(cpp_sources.folder(), tmp_path / "fp4ref")
        (tmp_path / "fp4ref" / file).write_text(text.replace(right, wrong, 1))
        monkeypatch.setattr(cpp_sources, "folder", lambda: tmp_path / "fp4ref")
    assert stale(before) == {*outdated}


@pytest.mark.heavy
def test_another_lowered_text_is_noticed(fresh_sources, monkeypatch):
    right = fp4ref_numerics.lower
    outdated = {"quantize-mxfp4-float32/cpu", "quantize-mxfp4-float32/cuda"}
    before = {name: records.covered(name) for name in (*outdated, "quantize-nvfp4-float32/cpu")}
    forget()
    monkeypatch.setattr(fp4ref_numerics, "lower", lambda spec: right(spec).replace("columns = 32", "columns = 16"))
    assert stale(before) == outdated


def test_methods_of_covered_classes_count(fresh_sources, monkeypatch):
    text = """
class Base:
    def __init__(self):
        self.value = 1
    def inherited(self):
        return 2
class Derived(Base):
    def own(self):
        return LIMIT
    def unused(self):
        return 3
TABLE = {}
LIMIT: int = 4
LIMIT += 1
if True:
    LOW, HIGH = 1, 2
for one in (1, 2):
    TABLE[one] = LOW
def start(thing: Derived):
    return thing.own() + thing.inherited() + TABLE[1]
"""
    forget()
    monkeypatch.setattr(python_sources, "_source", lambda module: text)
    found = python_sources.texts(("fp4ref.none:start",))
    names = {name.partition(":")[2] for name in found}
    assert names == {
        *("start", "Derived", "Derived.own", "Base", "Base.__init__", "Base.inherited"),
        *("TABLE", "LIMIT", "LOW", "HIGH", "one"),
    }
    assert found["fp4ref.none:LIMIT"] == "LIMIT: int = 4\nLIMIT += 1"
    assert "TABLE[one] = LOW" in found["fp4ref.none:TABLE"]
    assert sources.total({"a": "1"}) != sources.total({"a": "2"})


def test_claims_about_torch_and_a_gpu_need_torch():
    for claim in claims().values():
        on_gpu = claim.subject is ClaimSubject.CUDA
        assert not (on_gpu or claim.subject is ClaimSubject.TORCH) or claim.needs == "torch", claim.name
        assert claim.long or not on_gpu, claim.name
