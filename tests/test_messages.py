"""Messages about the input of a newcomer: commands and functions name the cause in one line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from commands import GOOD, folder_with, fp4, refused
from fp4ref.arithmetic import ARITHMETIC, TE, Arithmetic, register_arithmetic
from fp4ref.arithmetic_checked import require_float32
from fp4ref.cli import main
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.errors import DomainError, DTypeError, LayoutError, UnknownNameError
from fp4ref.files import write_tensors
from fp4ref.names import meant, near

here = folder_with(GOOD)
WITHOUT = "import sys; sys.modules['{0}'] = None\n"  # as if a package were not installed


# Own arithmetics


@pytest.mark.rule("NUM-1", "SPC-4")
@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"block_scale": lambda amax, g: amax}, DomainError, r"block_scale\(amax, g, k\) raises TypeError"),
        ({"block_scale": lambda amax, g, k: 1 / 0}, DomainError, "ZeroDivisionError: division by zero"),
        ({"block_scale": lambda amax, g, k: amax / np.float64(6)}, DTypeError, "returns float64, need float32"),
        ({"block_scale": lambda amax, g, k: None}, DTypeError, "returns no array"),
        ({"scaled": lambda x, s: x / s}, DomainError, r"scaled\(x, s, g, k\) raises"),
        ({"global_scale": lambda amax, k: amax.astype(np.float16)}, DTypeError, "global_scale.* returns float16"),
        ({"working_scale": lambda t: t}, DomainError, r"working_scale\(t, s\) raises"),
        ({"dequantized": lambda q, s, amax, k: q * s * 1j}, DTypeError, "dequantized.* returns complex64"),
    ],
)
def test_an_arithmetic_of_another_kind_is_refused(changes, kind, said) -> None:
    functions = {"block_scale": TE.block_scale, **changes}
    for make in (
        lambda: register_arithmetic("acme.bad", **functions),
        lambda: fp4ref.register(Arithmetic(**{**vars(TE), **functions, "name": "acme.bad"})),
    ):
        with pytest.raises(kind, match=f"register arithmetic acme.bad: .*{said}.*NUM-1") as caught:
            make()
        assert "\n" not in str(caught.value)
    assert "acme.bad" not in ARITHMETIC


@pytest.mark.rule("NUM-1")
def test_own_arithmetics_are_of_the_kind_that_is_asked_of_others() -> None:
    for arithmetic in ARITHMETIC.values():
        require_float32(arithmetic)


def test_an_arithmetic_that_refuses_other_formats_may_be_registered() -> None:
    def picky(amax, g, k):
        raise DomainError("acme.picky", k.element.name, "e3m2", "SPC-2")

    register_arithmetic("acme.picky", picky)
    ARITHMETIC.forget("acme.picky")


def test_a_file_with_a_bad_arithmetic_is_one_line(here: Path) -> None:
    lines = "import fp4ref\nfp4ref.register_arithmetic('acme.badar', block_scale=lambda amax, g: amax)\n"
    (here / "ar.py").write_text(lines)
    result = fp4("explain", "--values", "1*16", "--spec", "acme.badar", "--import", "ar.py")
    refused(result, "--import: ar.py: DomainError: register arithmetic acme.badar", "[NUM-1]")


# Commands


def test_values_of_which_none_is_left() -> None:
    refused(fp4("explain", "--values", "1*0"), "--values without a value", "[NUM-4]")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("e2m1 --as png -o z.svg", "names svg, --as png"), ("e2m1 --as svg -o z.PNG", "names png, --as svg")],
)
def test_a_suffix_and_a_format_that_contradict_each_other(here: Path, arguments: str, said: str) -> None:
    result = fp4("diagram", *arguments.split())
    assert result.exit_code == 2
    assert said in result.output
    assert not list(here.glob("z.*"))
    assert fp4("diagram", "e2m1", "--as", "svg", "-o", "z.svg").exit_code == 0
    assert fp4("diagram", "e2m1", "--as", "svg", "-o", "z.picture").exit_code == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", ["explain --values 1", "profiles diff nvfp4 mxfp4", "doctor", "profiles"])
def test_no_color_is_obeyed_by_every_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = shlex.split(line)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033[" in CliRunner().invoke(main, arguments, color=True).output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033[" not in CliRunner().invoke(main, arguments, color=True).output


@pytest.mark.rule("NUM-12", "NUM-3")
def test_why_no_tensor_is_quantized(tmp_path: Path) -> None:
    one, two, none = (tmp_path / name for name in ("one.npz", "two.npz", "none.npz"))
    write_tensors(one, [("s", "F32", ())], {}, [np.zeros((), np.float32)])
    refused(fp4("quantize", one, "-o", tmp_path / "q.npz"), "quantize s: a tensor without dimensions", "[NUM-12]")
    write_tensors(two, [("a", "F64", (2,)), ("b", "I64", (2,))], {}, [np.zeros(2), np.zeros(2, np.int64)])
    result = fp4("quantize", two, "-o", tmp_path / "q.npz")
    assert result.exit_code == 2
    assert "skipped a: dtype F64" in result.stderr
    assert "2 tensors, all skipped, need at least one that can be quantized [NUM-3]" in result.stderr
    assert not (tmp_path / "q.npz").exists()
    np.savez(none)
    refused(fp4("quantize", none, "-o", tmp_path / "q.npz"), "no tensor, need at least one")


# Kernels


@pytest.mark.rule("CNF-13")
def test_a_time_limit_does_not_blame_the_kernel(here: Path) -> None:
    result = fp4("verify", "--kernel", "kernels.py:good", "--spec", "nvfp4", "--time-limit", "1e-6")
    assert result.exit_code == 2, result.output
    assert "that the run's time limit left for it, need a longer time limit [CNF-13]" in result.stderr
    assert "imported" not in result.stderr


@pytest.mark.rule("CNF-5")
def test_a_missing_torch_is_not_the_kernels_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from fp4ref.conformance.run import child
    from fp4ref.kernels import Declaration

    monkeypatch.setattr(child.importlib.util, "find_spec", lambda name: None)
    child._require_torch(Declaration())
    with pytest.raises(fp4ref.BackendError, match=r"torch is not installed, need pip install 'fp4ref\[torch\]'"):
        child._require_torch(child.changed(Declaration(), {"device": "cuda"}))


@pytest.mark.parametrize("module", ["fp4ref.strategies", "fp4ref.conformance.families.strategies"])
def test_a_missing_hypothesis_names_the_line_of_pip(module: str) -> None:
    command = [sys.executable, "-c", f"{WITHOUT.format('hypothesis')}import {module}"]
    said = subprocess.run(command, check=False, capture_output=True, text=True).stderr.splitlines()[-1]
    assert said == "ImportError: fp4ref.strategies needs hypothesis: pip install 'fp4ref[hypothesis]'"


# Printed commands


@pytest.mark.heavy
def test_printed_commands_name_what_was_imported(here: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: fp4ref.profiles.forget("acme.e"))
    lines = "import fp4ref\nfp4ref.register(fp4ref.NVFP4.replace(name='acme.e', element_max=4.0), 'a test')\n"
    (here / "my specs.py").write_text(lines)
    result = fp4("profiles", "diff", "nvfp4", "acme.e", "--import", "my specs.py")
    (command, *_) = re.findall(r"fp4ref (explain --spec acme\.e .*)", result.output)
    assert command.endswith("--import 'my specs.py'")
    assert fp4(*shlex.split(command)).exit_code == 0
    assert "--import" not in fp4("profiles", "diff", "nvfp4", "mxfp4").output


# Names that are nearly right


def test_near_names() -> None:
    assert near("NVPF4", ["nvfp4", "mxfp4", "linear"], 1) == ["nvfp4"]
    assert near("acme.X", ["acme.x", "ACME.X", "other"]) == ["acme.x", "ACME.X"]
    assert (meant("wher", ["where", "verify"]), meant("zzz", ["where"])) == (" (did you mean where?)", "")


@pytest.mark.rule("SPC-4", "LAY-59")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("explain --values 1 --spec NVFP4", "a registered one (nvfp4"),
        ("where 0 0 --shape 4x4 --layout tiled128x4", "did you mean tiled_128x4?"),
        ("where 0 0 --shape 4x4 --layout TILED_128X4", "did you mean tiled_128x4?"),
        ("gen --family element-tie nvfp4", "did you mean element-ties?"),
        ("diagram TILED_128x4", "did you mean tiled_128x4?"),
        ("wher 0 0 --shape 4x4", "No such command 'wher' (did you mean where?)"),
        ("quantise x.npz", "No such command 'quantise' (did you mean quantize?)"),
        ("zzzzz", "No such command 'zzzzz'; see fp4ref --help."),
        ("mistakes Encode-Fst", "encode-fast"),
    ],
)
def test_a_name_that_is_nearly_right_gets_a_hint(line: str, said: str) -> None:
    result = fp4(*shlex.split(line))
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


# where


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("9 9 --shape 8x16", "where: element (9, 9) of a tensor of 8 x 16, need row < 8"),
        (
            "0 0 --shape 99999999999999999999x4",
            "where: shape '99999999999999999999x4', need MxK with both at least",
        ),
        ("0 0 --shape 0x4", "where: shape '0x4', need MxK with both at least 1"),
        ("0 0 --shape 4x4 --layout tiles", "where: 'tiles', need one of linear"),
        ("0 0 --shape 4x4 --data-byte 3", "give only one of ROW COLUMN, --data-byte and --scale-byte"),
        ("0 --shape 4x4 --data-byte 3", "give only one of"),
        ("--shape 4x4 --data-byte 3 --scale-byte 1", "give only one of"),
        ("0 --shape 4x4", "give ROW COLUMN, or --data-byte, or --scale-byte"),
    ],
)
def test_where_says_what_it_needs(line: str, said: str) -> None:
    result = fp4("where", *line.split())
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("37 130 --shape 128x256 --layout tiled_128x4", "PACK-1, BLK-1, LAY-3"),
        ("37 130 --shape 128x256 --packing pairs_16", "PACK-8, BLK-1, LAY-1, LAY-3"),
        ("1 2 --shape 64x64 --spec nvfp4-2d --layout linear", "PACK-1, BLK-7, LAY-1"),
        ("--shape 64x64 --data-byte 5 --spec mxfp8-e4m3 --layout tiled_8x4", "PACK-3, BLK-1, LAY-4"),
        ("--shape 64x64 --scale-byte 5 --spec mxfp6-e2m3 --layout linear", "LAY-1, BLK-1"),
    ],
)
def test_where_names_the_rules_of_a_place(line: str, rules: str) -> None:
    assert fp4("where", *line.split()).output.splitlines()[0].endswith(f" [{rules}]")


def test_a_sum_of_one_number_is_not_told_twice() -> None:
    output = fp4("where", "1", "0", "--shape", "4x16", "--layout", "linear").output
    assert "linear byte = 1\n" in output
    assert "= 1 = 1" not in output


# Layouts


@pytest.mark.rule("LAY-7")
def test_a_file_of_several_tensors_is_no_buffer(tmp_path: Path) -> None:
    array, several = tmp_path / "a.npy", tmp_path / "x.npz"
    np.save(array, np.arange(256, dtype=np.uint8).reshape(64, 4))
    np.savez(several, a=np.zeros(4))
    for pair in ((array, several), (several, array)):
        refused(fp4("layouts", "find", *pair), "x.npz", "a file of several tensors", "[LAY-7]")


def test_sizes_that_differ_are_told(tmp_path: Path) -> None:
    array, buffer = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(array, np.arange(256, dtype=np.uint8).reshape(64, 4))
    np.save(buffer, np.arange(40, dtype=np.uint8))
    result = fp4("layouts", "find", array, buffer)
    assert result.exit_code == 1
    assert "the sizes differ: FROM has 256 units, TO 40" in result.output


# The API


@pytest.mark.rule("SPC-11")
def test_a_block_is_two_numbers() -> None:
    for block in (16, (16,), (1, 2, 3), ("1", 16), None, (1.0, 16)):
        with pytest.raises(DomainError, match="spec: block .*, need two integers, rows and columns.*SPC-11"):
            fp4ref.NVFP4.replace(block=block)
    assert fp4ref.NVFP4.replace(block=(1, 32)).block == (1, 32)


@pytest.mark.rule("SPC-4", "SPC-22")
def test_what_is_registered() -> None:
    with pytest.raises(DTypeError, match="a int, need one of Format, Layout, Arithmetic, Spec, .*Repair"):
        fp4ref.register(3)  # type: ignore[type-var]
    with pytest.raises(DomainError, match="mistake 'raises', need a name of the form vendor.name.*SPC-22"):
        MISTAKES.register(type("Named", (), {"name": "raises"})())


@pytest.mark.rule("LAY-7")
def test_a_layout_is_given_by_its_name() -> None:
    own = fp4ref.Layout("acme.unregistered", "m(8,*) k(4,*): m0 k0 k1 m1")
    with pytest.raises(UnknownNameError, match=r"the layout acme.unregistered itself, need its name; .*register"):
        fp4ref.quantize(np.ones((4, 32), np.float32), "nvfp4", scale_layout=own)  # type: ignore[arg-type]


# Small ones


def test_report_takes_spec_like_other_commands(tmp_path: Path) -> None:
    source = tmp_path / "x.npz"
    write_tensors(source, [("x", "F32", (4, 32))], {}, [np.ones((4, 32), np.float32)])
    outputs = [fp4("report", source, option, "nvfp4,mxfp4").output for option in ("--specs", "--spec")]
    assert outputs[0] == outputs[1]
    assert "mxfp4" in outputs[0]


def test_every_exit_status_is_in_the_help() -> None:
    said = " ".join(fp4("--help").output.split())
    assert all(words in said for words in ("1 bytes differ", "3 an internal error", "130 after Ctrl-C", "141 if the"))


def test_doctor_counts_the_profiles_that_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fp4ref.cli import doctor

    loaded: list[bool] = []
    monkeypatch.setattr(doctor, "load_every_extension", lambda: loaded.append(True))
    assert fp4("doctor").exit_code == 0
    assert loaded == [True]


def test_a_list_of_choices_begins_with_one_of() -> None:
    with pytest.raises(DomainError, match="need one of row, column"):
        fp4ref.kernels.Declaration(direction="up")  # type: ignore[arg-type]


# Values


@pytest.mark.rule("SPC-1")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounding": "AWAY"}, "codec: rounding 'AWAY', need one of even, .*away.*stochastic .SPC-1"),
        ({"sign": "none"}, "codec: sign 'none', need one of bit, negative, not-positive, nonzero .SPC-1"),
    ],
)
def test_a_pick_of_a_codec_that_does_not_exist(changes: dict[str, str], said: str) -> None:
    with pytest.raises(DomainError, match=said):
        fp4ref.Codec(format=fp4ref.E2M1, nan=(0, 0), **changes)  # type: ignore[arg-type]


@pytest.mark.rule("LAY-14")
@pytest.mark.parametrize("text", [None, 4, b"m(8,*) k(4,*): m0 k0 k1 m1"])
def test_a_layout_whose_text_is_none(text: object) -> None:
    with pytest.raises(
        LayoutError, match=f"layout a.c: a text of type {type(text).__name__}, need a str.*LAY-14"
    ) as caught:
        fp4ref.Layout("a.c", text)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.rule("SPC-4")
def test_a_source_that_is_blank_is_listed_as_not_stated() -> None:
    form = fp4ref.register(fp4ref.Layout("acme.unstated", "m(8,*) k(4,*): m0 k0 k1 m1"), source=" ")
    assert fp4ref.LAYOUTS.source(form.name) == "not stated"
    fp4ref.LAYOUTS.forget(form.name)
    with pytest.raises(DTypeError, match="register: source of type int, need a str"):
        fp4ref.register(form, source=3)  # type: ignore[arg-type]


@pytest.mark.rule("NUM-1")
def test_the_message_says_how_an_arithmetic_refuses_formats() -> None:
    def only_e8m0(amax, g, k):
        raise ValueError(k.scale.format.name)

    with pytest.raises(DomainError, match="raises ValueError.*an Fp4Error where it does not serve k's formats"):
        register_arithmetic("acme.only", only_e8m0)


# Sentences about one tensor, and about none that is quantized


def test_one_tensor_is_counted_as_one(here: Path) -> None:
    np.savez(here / "one.npz", x=np.ones((2, 16), np.float32))
    assert fp4("quantize", "one.npz", "-o", "q.npz").output.startswith("q.npz: 1 tensor, 32 elements")
    assert fp4("dequantize", "q.npz", "-o", "y.npz").output.startswith("y.npz: 1 tensor, row")


def test_a_file_in_high_precision_is_told_to_be_so(here: Path) -> None:
    write_tensors(here / "high.safetensors", [("w", "F32", (2, 16))], {}, [np.ones((2, 16), np.float32)])
    assert "high.safetensors: not quantized; 1 tensor, " in " ".join(fp4("lint", "high.safetensors").output.split())


def test_theorems_of_a_file_that_is_missing(here: Path) -> None:
    refused(fp4("theorems", "missing.safetensors", "--spec", "mxfp4"), "no such file or directory", "[FIL-1]")


# An interrupt before there is a command


@pytest.mark.parametrize("start", [["-m", "fp4ref"], [str(Path(sys.executable).parent / "fp4ref")]])
def test_an_interrupt_during_the_first_imports(tmp_path: Path, start: list[str]) -> None:
    """NumPy is replaced by a module that interrupts the process which imports it."""
    (tmp_path / "numpy.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    run = subprocess.run(
        [sys.executable, *start, "--version"], env=environment, capture_output=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, b"", b"")


def test_a_program_that_imports_the_package_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    run = subprocess.run(
        [sys.executable, "-c", "import fp4ref"], env=environment, capture_output=True, timeout=60, check=False
    )
    assert run.returncode != 0
    assert b"KeyboardInterrupt" in run.stderr
