from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import fp4ref
import fp4ref_cpu.build
import fp4ref_numerics
from fp4ref.arithmetic import ARITHMETIC, no_global_scale
from fp4ref.cli import main
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.registry import Call
from fp4ref.specs import STANDARD

COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)] or ["c++"]
STRICT = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off"]
INCLUDE = f"-I{fp4ref_numerics.INCLUDE}"
EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "check_block.cpp"
NATIVE = [spec for spec in fp4ref.profiles.values() if not fp4ref_numerics.unsupported(Call("quantize", spec))]


def compiled(compiler: str, source: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True, check=False)


@pytest.fixture
def one_line(tmp_path):
    path = tmp_path / "one.cpp"
    path.write_text("#include <fp4ref/fp4ref.h>\n")
    return path


@pytest.mark.rule("NUM-1")
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "-ffinite-math-only"])
def test_fast_math_is_refused(compiler, flag, one_line):
    run = compiled(compiler, one_line, "-std=c++17", "-fsyntax-only", INCLUDE, flag)
    assert run.returncode
    assert "fast-math" in run.stderr
    assert "NUM-1" in run.stderr


@pytest.mark.rule("NUM-1")
@pytest.mark.skipif("g++" not in COMPILERS, reason="GCC contracts without saying so to the preprocessor")
def test_gcc_must_be_told_not_to_contract(one_line):
    flags = ["-std=c++17", "-fsyntax-only", INCLUDE]
    if "__FMA__" not in compiled("g++", Path("/dev/null"), "-mfma", "-dM", "-E", "-xc++").stdout:
        pytest.skip("a target without -mfma")
    assert "FP4_CONTRACTION_IS_OFF" in compiled("g++", one_line, *flags, "-mfma").stderr
    assert not compiled("g++", one_line, *flags, "-mfma", "-ffp-contract=off", "-DFP4_CONTRACTION_IS_OFF").returncode


def test_each_header_stands_alone_and_includes_no_other_library(tmp_path):
    every = {path.stem for path in (fp4ref_numerics.INCLUDE / "fp4ref").glob("*.h")}
    assert every == {*fp4ref_numerics.HEADERS, "products"}  # whose integers of 128 bits not every compiler has
    for name in fp4ref_numerics.HEADERS:
        text = (fp4ref_numerics.INCLUDE / "fp4ref" / f"{name}.h").read_text()
        included = [line for line in text.splitlines() if line.startswith("#include")]
        assert all(line.startswith("#include <fp4ref/") for line in included)
        path = tmp_path / f"{name}.cpp"
        path.write_text(f"#include <fp4ref/{name}.h>\n")
        for compiler in COMPILERS:
            run = compiled(compiler, path, *STRICT, "-Wno-unused-function", "-fsyntax-only", INCLUDE)
            assert not run.returncode, run.stderr


@pytest.mark.rule("E2M1-6")  # whoever adds a rounding runs this
@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_native_spec_compiles_without_a_warning(compiler, tmp_path):
    names = [fp4ref_numerics.identifier(spec.name) for spec in NATIVE]
    assert len(set(names)) == len(names)
    lines = ["#include <fp4ref/fp4ref.h>", *map(fp4ref_numerics.lower, NATIVE, names)]
    lines += [f'#include "{name}.h"' for name in ("quantize", "dequantize", "relayout")]
    for i, name in enumerate(names):
        types = [f"fp4ref::{kind}" for kind in fp4ref_numerics.INPUT_TYPES]
        lines.append(f"template struct fp4ref_cpu::Loops<{name}, {types[1] if NATIVE[i].hadamard else types[i % 3]}>;")
        lines.append(f"template struct fp4ref_cpu::Values<{name}, {types[i % 3]}, {types[(i + 1) % 3]}>;")
    path = tmp_path / "all.cpp"
    path.write_text("\n".join(lines))
    run = compiled(compiler, path, *STRICT, "-fsyntax-only", INCLUDE, f"-I{fp4ref_cpu.build.SOURCES}")
    assert not run.returncode, run.stderr


def test_a_struct_does_not_depend_on_the_name_of_its_spec():
    for spec in NATIVE:
        assert fp4ref_numerics.lower(spec) == fp4ref_numerics.lower(spec.replace(name="other"))


@pytest.mark.rule("PRO-1")
def test_every_profile_is_native_and_what_is_not_has_a_reason():
    refused = [spec for spec in fp4ref.profiles.values() if spec not in NATIVE]
    by_sum = [spec for spec in refused if spec.four_over_six and spec.four_over_six.total.__name__ == "lanes"]
    by_name = [spec for spec in refused if spec.arithmetic.name in fp4ref_numerics.NOT_IN_HEADER]
    assert (len(refused), len(by_sum), len(by_name)) == (25, 3, 22)
    for arithmetic in ARITHMETIC.values():
        if "." not in arithmetic.name and arithmetic.name not in fp4ref_numerics.NOT_IN_HEADER:  # others have a vendor
            base = fp4ref.MXFP4 if arithmetic.global_scale is no_global_scale else fp4ref.NVFP4
            assert not fp4ref_numerics.unsupported(Call("quantize", base.replace(arithmetic=arithmetic))), arithmetic
    theirs = dataclasses.replace(ARITHMETIC["te"], name="vendor.te")
    (reason,) = fp4ref_numerics.unsupported(Call("quantize", fp4ref.NVFP4.replace(arithmetic=theirs)))
    assert reason == "arithmetic vendor.te is in the golden model only: the header has no struct of that name (PRO-3)"


def test_which_arithmetics_narrow_and_which_take_the_reciprocal():
    by = {spec.arithmetic.name: spec for spec in NATIVE}
    taking = {name for name, spec in by.items() if fp4ref_numerics.takes_reciprocal(spec)}
    assert taking == {"kernel-approx", "kernel-approx-by-amax", "kernel-mxfp8", "cutlass"}
    narrowing = {name for name, spec in by.items() if fp4ref_numerics.narrows(spec)}
    assert {"compressed-tensors", "qwix"} <= narrowing
    assert not narrowing & {"te", "te-python", "jax", "microxcaling-floor", "rceil", "ocp-even"}


def structs(header: str, namespace: str) -> dict[str, str]:
    """The structs of a namespace of a header, and their text."""
    text = (fp4ref_numerics.INCLUDE / "fp4ref" / f"{header}.h").read_text("utf-8")
    body = text.split(f"namespace {namespace} {{", 1)[1].split(f"}}  // namespace {namespace}", 1)[0]
    found = re.finditer(r"^struct (\w+)\b.*?(^};|{};)", body, re.MULTILINE | re.DOTALL)
    return {match[1]: match[0] for match in found}


def with_bases(found: dict[str, str], name: str) -> str:
    """The text of a struct, and of what it is derived from."""
    base = re.match(r"struct \w+ : (\w+)", found[name])
    return found[name] + (with_bases(found, base[1]) if base and base[1] in found else "")


@pytest.mark.rule("APX-1")
def test_the_declared_tables_are_what_the_header_has():
    found = structs("arithmetic", "arithmetic") | structs("engines", "arithmetic")
    ours = {name for name in ARITHMETIC if "." not in name}
    assert ours == fp4ref_numerics.ARITHMETICS | fp4ref_numerics.NOT_IN_HEADER.keys()
    own = {name: with_bases(found, fp4ref_numerics.identifier(name)) for name in fp4ref_numerics.ARITHMETICS}
    assert {name for name, text in own.items() if "In::" in text} == fp4ref_numerics.NARROWING
    using = {name for name, text in own.items() if "approximate_reciprocal(" in text}
    assert using == fp4ref_numerics.BY_RECIPROCAL
    assert structs("block", "difference").keys() == fp4ref_numerics.DIFFERENCES
    assert structs("block", "total").keys() == fp4ref_numerics.TOTALS


@pytest.mark.parametrize("name", ["half-up", "stored-scale-works", "Log2", "te_fast"])
def test_a_helper_of_the_header_is_no_arithmetic(name):
    theirs = dataclasses.replace(ARITHMETIC["te"], name=name)
    assert fp4ref_numerics.unsupported(Call("quantize", fp4ref.NVFP4.replace(arithmetic=theirs)))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_example_compiles_and_runs(compiler, tmp_path):
    """As a user does it: the command writes the headers; one include, nothing to link."""
    result = CliRunner().invoke(main, ["header", "--dir", str(tmp_path / "include")])
    assert result.exit_code == 0, result.output
    binary = tmp_path / "check"
    run = compiled(compiler, EXAMPLE, *STRICT, f"-I{tmp_path / 'include'}", "-o", str(binary))
    assert not run.returncode, run.stderr
    said = subprocess.run([binary], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout
    assert said.stdout == "scale 7e, codes f2 00 28 64 a6 43 65 79: as expected\n"


def test_the_command_writes_every_standard_spec(tmp_path):
    assert CliRunner().invoke(main, ["header", "--dir", str(tmp_path)]).exit_code == 0
    text = (tmp_path / "fp4ref" / "specs.h").read_text()
    for spec in STANDARD:
        assert fp4ref_numerics.lower(spec, fp4ref_numerics.identifier(spec.name)) in text
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["header", "--dir", str(tmp_path / "file")])
    assert result.exit_code == 2


SUMS = r"""
#include <cstdio>
#include <fp4ref/fp4ref.h>
#include <fp4ref/hadamard.h>

int main()
{
    const float values[8] = {0.0f, -0.0f, 0.0f, -0.0f, 1.0f, -1.0f, 3.0f, -0x1p-9f};
    unsigned long long state = 1;
    for (int turn = 0; turn < 1000000; ++turn) {
        float plain[16][1], kept[16];
        for (int i = 0; i < 16; ++i) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            plain[i][0] = kept[i] = values[state >> 61];
        }
        fp4ref::hadamard<0xd7e8>(plain);
        fp4ref::unscaled_hadamard<0xd7e8>(kept);
        for (int i = 0; i < 16; ++i)
            if (fp4ref::bits_of(fp4ref::bfloat16::narrow(kept[i] * 0.25f)) != fp4ref::bits_of(plain[i][0])) return 1;
    }
}
"""


@pytest.mark.rule("HAD-2", "HAD-3")
def test_sums_that_are_zero_have_no_sign_in_the_larger_transform_either(tmp_path):
    source, binary = tmp_path / "sums.cpp", tmp_path / "sums"
    source.write_text(SUMS)
    run = compiled(COMPILERS[0], source, "-std=c++17", "-O2", "-ffp-contract=off", INCLUDE, "-o", str(binary))
    assert not run.returncode, run.stderr
    assert subprocess.run([binary], check=False).returncode == 0


DRAWN = r"""
#include <fp4ref/fp4ref.h>
#include <fp4ref/drawn.h>

using Element = Specification::Element;

int main()
{
    const float factors[3] = {1.0f, 0.0371f, 1e6f};
    for (float factor : factors)
        for (unsigned first = 0; first < 65536; first += 8)
            for (unsigned byte = 0; byte < 256; ++byte) {
                unsigned pairs[4], codes = 0;
                bool finite = true;
                for (unsigned e = 0; e < 8; ++e) {
                    const float y = fp4ref::bfloat16::widen(first + e) * factor;
                    pairs[e % 4] = e < 4 ? first + e : pairs[e % 4] | (first + e) << 16;
                    finite = finite && fp4ref::is_finite(y);
                    codes |= Element::encode(y, byte ^ e) << 4 * e;
                }
                const unsigned low = byte * 0x01010101u ^ 0x03020100u, high = byte * 0x01010101u ^ 0x07060504u;
                if (finite && fp4ref::drawn::packed_codes(pairs, low, high, factor) != codes) return 1;
            }
    for (unsigned place = 0; place < 1u << 20; ++place)  // around every power of two and every step of a random byte
        for (unsigned byte = 0; byte < 256; byte += 1 + place % 5) {
            const unsigned bits = (96u << 23) + (place >> 5 << 14) + (place & 31u) - 16u;
            const float y = fp4ref::float_of(bits);
            const unsigned index = fp4ref::drawn::index(y, fp4ref::drawn::part_of_step(byte, 0)) - fp4ref::drawn::BASE;
            if (index != Element::encode(y, byte)) return 1;
        }
}
"""


@pytest.mark.slow
@pytest.mark.rule("SR-2", "SR-3", "PACK-1")
def test_eight_codes_by_random_bytes_are_those_of_the_codec(tmp_path):
    """All finite bfloat16 and all bytes; and the neighbours of what a sum may round to."""
    source, binary = tmp_path / "drawn.cpp", tmp_path / "drawn"
    spec = fp4ref.NVFP4.replace(element=STOCHASTIC_E2M1)
    source.write_text(f"#include <fp4ref/fp4ref.h>\n{fp4ref_numerics.lower(spec)}\n{DRAWN}")
    run = compiled(COMPILERS[0], source, "-std=c++17", "-O2", "-ffp-contract=off", INCLUDE, "-o", str(binary))
    assert not run.returncode, run.stderr
    assert subprocess.run([binary], check=False).returncode == 0


@pytest.mark.heavy  # nvcc takes a second
def test_cuda_example_compiles_for_a_device(tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here")
    source = EXAMPLE.with_name("check_kernel.cu")
    assert CliRunner().invoke(main, ["header", "--dir", str(tmp_path / "include")]).exit_code == 0
    flags = [
        "-std=c++17",
        "--fmad=false",
        "-Werror",
        "all-warnings",
        f"-I{tmp_path / 'include'}",
        "-o",
        str(tmp_path / "a"),
    ]
    run = compiled("nvcc", source, *flags)
    assert run.returncode == 0, run.stderr
