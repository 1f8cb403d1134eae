"""Values that users add: registered by a function, an installed distribution, `--import`, or a kernel's own file."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

import forked
import fp4ref
from fp4ref import DomainError, DTypeError, UnknownNameError, names
from fp4ref.checkpoints.transfer.choice import require_family
from fp4ref.cli import main
from fp4ref.conformance.mistakes import MISTAKES, OWN, Slot, known, register
from fp4ref.formats import FORMATS, Codec, Format

# What CONTRIBUTING shows: a format, a layout, an arithmetic, a specification
MODULE = '''
import fp4ref
from fp4ref.arithmetic import OCP_FLOOR, TE
from fp4ref.formats import CUDA_E8M0, Codec, Format

E2M3 = fp4ref.register(Format("acme.e2m3", 2, 3, bias=1, codes=32), source="OCP MX 1.0")
ROWS = fp4ref.register(fp4ref.Layout("acme.rows", "m(8,*) k(4,*): m0 k0 k1 m1"), source="an example")
fp4ref.register(
    fp4ref.Spec(
        name="acme.mxfp6",
        element=Codec(format=E2M3, nan=(0x1F, 0x1F)),
        scale=CUDA_E8M0,
        block=(1, 32),
        global_scale="none",
        arithmetic=OCP_FLOOR,
    ),
    source="OCP MX 1.0",
)


def divided(amax, g, k):
    """amax * g / 6."""
    return amax * g / 6


DIVIDING = fp4ref.register_arithmetic("acme.divided", divided, TE.scaled, TE.global_scale, dequantized=TE.dequantized)
fp4ref.register(fp4ref.NVFP4.replace(name="acme.nvfp4", arithmetic=DIVIDING), source="an example")
'''


@pytest.fixture
def forgotten():
    """Forget what a test registers."""
    kinds = list(fp4ref.catalogue.KINDS.values())
    before = [(dict(kind._values), dict(kind._sources)) for kind in kinds]
    known = set(names._begun), dict(names._failed)
    yield
    for kind, (values, sources) in zip(kinds, before, strict=True):
        kind._values, kind._sources = values, sources
    names._begun.clear()
    names._failed.clear()
    names._begun.update(known[0])
    names._failed.update(known[1])


@pytest.mark.rule("SPC-4")
@pytest.mark.usefixtures("forgotten")
def test_every_kind_is_registered_by_one_function():
    form = fp4ref.register(Format("vendor.e3m2", 3, 2, bias=3, codes=32), source="a test")
    layout = fp4ref.register(fp4ref.Layout("vendor.rows", "m(8,*) k(4,*): m0 k0 k1 m1"))
    spec = fp4ref.register(fp4ref.NVFP4.replace(name="vendor.nvfp4", element_max=4.0))
    assert (FORMATS["vendor.e3m2"], FORMATS.source("vendor.e3m2")) == (form, "a test")
    assert fp4ref.LAYOUTS["vendor.rows"] is layout
    assert fp4ref.profiles["vendor.nvfp4"] is spec
    assert fp4ref.register(spec) is spec  # the same once more
    six = fp4ref.MXFP4.replace(name="vendor.mxfp6", element=Codec(format=form, nan=(31, 31)))
    assert fp4ref.from_json(six.to_json()) == six
    assert pickle.loads(pickle.dumps(six)) == six


@pytest.mark.rule("SPC-4", "SPC-22")
@pytest.mark.usefixtures("forgotten")
def test_what_cannot_be_registered():
    fp4ref.register(Format("vendor.e3m2", 3, 2, bias=3, codes=32))
    with pytest.raises(DomainError, match=r"register: format vendor.e3m2 twice with other settings, .* \[SPC-21\]"):
        fp4ref.register(Format("vendor.e3m2", 3, 2, bias=2, codes=32))
    with pytest.raises(DomainError, match=r"layout 'rows', need a name of the form vendor.name"):
        fp4ref.register(fp4ref.Layout("rows", "m(8,*) k(4,*): m0 k0 k1 m1"))
    with pytest.raises(DTypeError, match="register: a Codec, need one of Format, Layout, Arithmetic, Spec"):
        fp4ref.register(fp4ref.NVFP4.element)
    other = Codec(format=Format("vendor.unregistered", 2, 3, bias=1, codes=32), nan=(31, 31))
    with pytest.raises(DomainError, match="format vendor.unregistered, need a registered one, to be named"):
        fp4ref.register(fp4ref.MXFP4.replace(name="vendor.mxfp6", element=other))
    with pytest.raises(AttributeError):
        FORMATS["vendor.e3m2"].bias = 2


@pytest.mark.usefixtures("forgotten")
def test_a_module_that_fails_is_named_where_a_name_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("FP4REF_IMPORT", str(tmp_path / "gone.py"))
    with pytest.raises(UnknownNameError, match=r"unknown name 'vendor.x'; .*gone.py: DomainError: .*no file"):
        fp4ref.profiles["vendor.x"]
    with pytest.raises(UnknownNameError, match=r"unknown convention 'acme'; .*gone.py: DomainError"):
        require_family("acme")
    for command in (["where", "--shape", "8x64", "--layout", "acme.x"], ["diagram", "acme.x"]):
        assert "gone.py: DomainError: " in CliRunner().invoke(main, command).output
    failed = CliRunner().invoke(main, ["where", "--import", str(tmp_path / "gone.py")])
    assert failed.exit_code == 2
    assert "--import: no file" in failed.output
    (tmp_path / "bad.py").write_text('import fp4ref\nfp4ref.Layout("a.b", "m(3")\n')
    failed = CliRunner().invoke(main, ["where", "--import", str(tmp_path / "bad.py")])
    assert failed.exit_code == 2
    said = failed.output.strip()
    assert "bad.py: LayoutError: layout a.b: " in said
    assert said.endswith(" [LAY-14]")
    assert said.count("need ") == 1


@pytest.mark.rule("SPC-4")
@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("command, kind", [("layouts", "layout"), ("profiles", "spec")])
def test_a_listing_has_what_was_never_asked_for(command, kind, tmp_path, monkeypatch):
    values = {
        "layout": 'fp4ref.register(fp4ref.Layout("acme.listed", "m(8,*) k(4,*): m0 k0 k1 m1"), source="a test")',
        "spec": 'fp4ref.register(fp4ref.NVFP4.replace(name="acme.listed", element_max=4.0), source="a test")',
    }
    (tmp_path / "acme_listed.py").write_text(f"import fp4ref\n{values[kind]}\n")
    monkeypatch.setenv("FP4REF_IMPORT", os.pathsep.join([str(tmp_path / "acme_listed.py"), str(tmp_path / "gone.py")]))
    told = CliRunner().invoke(main, [command, "--match", "acme.listed"])
    assert told.exit_code == 0
    assert "acme.listed" in told.stdout
    assert "gone.py: DomainError: " in told.stderr


def distribution(folder: Path) -> dict[str, str]:
    """Install a distribution by writing its files, and return the environment that finds it."""
    (folder / "acme_formats.py").write_text(MODULE)
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fp4ref.values]\nacme = acme_formats\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.fixture
def installed(tmp_path):
    """A distribution beside a folder to work in; the value is both folders, and the environment that finds it."""
    folder, work = tmp_path / "installed", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    return folder, work, distribution(folder)


def run(folder: Path, environment: dict[str, str], *arguments: str) -> str:
    """Run a command of this program, which has to succeed."""
    done = forked.run(["fp4ref", *arguments], folder, environment)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.slow  # starts the program a few times
@pytest.mark.rule("SPC-4")
@pytest.mark.parametrize("way", ["installed", "imported"])
def test_values_of_a_distribution_through_the_command_line(way, installed):
    folder, work, environment = installed
    more: list[str] = []
    if way == "imported":
        environment.pop("PYTHONPATH")
        more = ["--import", str(folder / "acme_formats.py")]
    np.savez(work / "x.npz", w=np.random.default_rng(0).standard_normal((9, 64), np.float32))
    for spec in ("acme.mxfp6", "acme.nvfp4") if way == "installed" else ("acme.nvfp4",):
        run(work, environment, "quantize", "x.npz", "-o", "q.npz", "--spec", spec, "--layout", "acme.rows", *more)
        assert f"q.npz: conforms to {spec}" in run(work, environment, "verify", "q.npz", "--input", "x.npz", *more)
        assert "float32" in run(work, environment, "dequantize", "q.npz", "-o", f"{spec}.npz", *more)
        assert f'"name": "{spec}"' in run(work, environment, "profiles", "show", spec, *more)
    assert "acme.rows byte 9" in run(
        work, environment, "where", "1", "17", "--shape", "9x64", "--layout", "acme.rows", *more
    )


CONVENTION = """
from dataclasses import replace
import fp4ref
from fp4ref.checkpoints import CONVENTIONS

fp4ref.register(replace(CONVENTIONS["torchao.mxfp4"], name="acme.mxfp4"), "an example")
"""


@pytest.mark.slow  # starts the program
@pytest.mark.rule("SPC-4", "CNV-1")
def test_a_convention_of_a_distribution_is_made_of_one_of_this_project(installed):
    folder, work, environment = installed
    (folder / "acme_formats.py").write_text(CONVENTION)
    save_file({"a.weight": np.ones((32, 64), np.float32)}, work / "m.safetensors")
    written = run(work, environment, "quantize", "m.safetensors", "-o", "out", "--to", "acme", "--spec", "mxfp4")
    assert "1 acme.mxfp4" in written


MISTAKE = """
import numpy as np
from fp4ref.conformance.mistakes import Slot, known, register

CODES = np.array([0, 1, 3, 2, 4, 5, 6, 7, 8, 9, 11, 10, 12, 13, 14, 15], np.uint8)
exchanged = known(Slot.CODE, "acme.codes-2-3", "codes 2 and 3 are exchanged", code=lambda codes: CODES[codes])
register(exchanged, "an example")
"""
EXCHANGING = """
import fp4ref
import numpy as np

CODES = np.array([0, 1, 3, 2, 4, 5, 6, 7, 8, 9, 11, 10, 12, 13, 14, 15], np.uint8)


def kernel(x):
    q = fp4ref.quantize(np.asarray(x), "nvfp4", backend="numpy")
    return CODES[q.row.data & 15] | CODES[q.row.data >> 4] << 4, q.row.scales, q.row.amax
"""


@pytest.mark.slow  # starts the program and a kernel's process
@pytest.mark.rule("SPC-4")
@pytest.mark.parametrize("way", ["installed", "imported"])
def test_a_mistake_of_a_distribution_is_named_by_the_command(way, installed):
    folder, work, environment = installed
    (folder / "acme_formats.py").write_text(MISTAKE)
    (work / "mine.py").write_text(EXCHANGING)
    command = ["fp4ref", "verify", "--kernel", "mine.py:kernel", "--spec", "nvfp4"]
    command += ["--level", "1", "--family", "normal"]
    if way == "imported":
        environment.pop("PYTHONPATH")
        command += ["--import", str(folder / "acme_formats.py")]
    done = forked.run(command, work, environment)
    assert done.returncode == 1, done.stderr
    assert "wrong: codes 2 and 3 are exchanged; " in done.stdout.splitlines()[0]
    done = forked.run(["fp4ref", "mistakes", "acme.codes-2-3", *command[10:]], work, environment)
    assert done.returncode == 0, done.stderr
    assert "\n  codes 2 and 3 are exchanged\n  stage: code\n" in done.stdout
    assert "\n  registered: an example\n" in done.stdout


@pytest.mark.rule("SPC-4")
def test_a_mistake_has_a_name_of_its_own():
    changed = known(Slot.CODE, "acme.none", "nothing", code=lambda codes: codes)
    assert register(changed, "a test") is changed is MISTAKES[-1]
    assert len(MISTAKES) == len([*MISTAKES]) == len(OWN) + 1
    MISTAKES.forget("acme.none")
    assert MISTAKES[:] == OWN
    with pytest.raises(DomainError, match=r"mistake element-away twice.*\[SPC-21\]"):
        register(known(Slot.CODE, "element-away", "nothing"))


KERNEL = """
import fp4ref
import numpy as np

SPEC = fp4ref.register(fp4ref.NVFP4.replace(name="mine.nvfp4", element_max=4.0), "this file")


def kernel(x):
    q = fp4ref.quantize(np.asarray(x), SPEC, backend="numpy")
    return q.row.data, q.row.scales
"""


@pytest.mark.slow  # starts the program and a kernel's process
@pytest.mark.rule("SPC-4")
def test_a_kernels_file_registers_what_it_is_checked_against(tmp_path):
    (tmp_path / "mine.py").write_text(KERNEL)
    arguments = ["verify", "--kernel", "mine.py:kernel", "--spec", "mine.nvfp4", "--family", "normal"]
    assert "mine.py:kernel: conforms to mine.nvfp4" in run(tmp_path, dict(os.environ), *arguments)


KERNEL_WITH_A_LAYOUT = """
import numpy as np
import fp4ref

fp4ref.register(fp4ref.Layout("mine.turned", "m(16,*) k(2,*): k0 m0 m1 k1"), "a test")


@fp4ref.kernel(inputs=("x",), outputs=("data", "scales", "amax"), scale_layout="mine.turned")
def kernel(x):
    return fp4ref.quantize(np.asarray(x), "nvfp4", scale_layout="mine.turned", backend="numpy").row
"""


@pytest.mark.slow  # starts the program and a kernel's process
@pytest.mark.rule("SPC-4", "LAY-7")
def test_a_kernels_file_registers_the_layout_that_it_declares(tmp_path):
    (tmp_path / "mine.py").write_text(KERNEL_WITH_A_LAYOUT)
    arguments = ["verify", "--kernel", "mine.py:kernel", "--spec", "nvfp4", "--family", "normal"]
    assert "mine.py:kernel: conforms to nvfp4" in run(tmp_path, dict(os.environ), *arguments)


TE_MODULE = '''
import numpy as np
import torch

import fp4ref
from fp4ref import te
from fp4ref.te.recipe import NVFP4BlockScaling

RECIPE = NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True)
# Blocks of these values are exact in NVFP4, and so are sums of their products in float32.
DRAWN = np.random.default_rng(0).choice(np.float32([-6, -3, 0, 3, 6]), (3, 32, 64))
X, WEIGHT, GRAD = DRAWN[0], DRAWN[1][:, :32], DRAWN[2][:, :32]


class GatedLinear(te.Linear):
    """The half of an input where the other half is positive, and a linear layer."""

    def forward(self, inp, **options):
        gate, value = inp.chunk(2, dim=-1)
        return super().forward(torch.where(gate > 0, value, 0), **options)


def module():
    layer = GatedLinear(32, 32, bias=False, params_dtype=torch.bfloat16, device="cpu")
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(WEIGHT))
    x = torch.from_numpy(X).bfloat16().requires_grad_()
    with te.autocast(enabled=True, recipe=RECIPE):
        y = layer(x)
    y.backward(torch.from_numpy(GRAD).bfloat16())
    weight = layer.quantizer("weight")(layer.weight.detach())
    return {"y": y.detach(), "dx": x.grad, "dw": layer.weight.grad, "weight": weight}


def by_hand():
    gate, value = X[:, :32] > 0, X[:, 32:]
    inner = np.where(gate, value, 0)
    found = {"y": inner @ WEIGHT.T, "dw": GRAD.T @ inner}
    found["dx"] = np.concatenate([np.zeros_like(value), np.where(gate, GRAD @ WEIGHT, 0)], axis=1)
    exact = {name: torch.from_numpy(each).bfloat16() for name, each in found.items()}
    return {**exact, "weight": fp4ref.quantize(WEIGHT, "nvfp4-2d")}
'''


@pytest.mark.slow  # starts the program, which imports torch
@pytest.mark.rule("TEM-1", "CNV-16")
def test_a_te_module_of_a_distribution_has_the_bits_of_a_computation_by_hand(tmp_path):
    pytest.importorskip("torch")
    environment = distribution(tmp_path)
    (tmp_path / "acme_te.py").write_text(TE_MODULE)
    told = run(tmp_path, environment, "compare", "acme_te:module", "acme_te:by_hand")
    assert told == "4 tensors, 0 differ: the same bytes\n"
