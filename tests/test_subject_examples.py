"""The subject files under docs/examples: one against the library itself, the others against stand-ins."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import fp4ref
from collected import collected
from fp4ref.conformance import families
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import runner
from fp4ref.conformance.subjects.loading import load
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.kernel_report import KernelReport

torch = pytest.importorskip("torch")
SUBJECTS = Path(__file__).parents[1] / "docs" / "examples" / "subjects"
FEW = ("normal", "ragged", "positions", "element-ties", "zero-blocks")


def verified(target, spec, names=FEW, **changes):
    subject = Subject.of(load(str(SUBJECTS / target)), **changes)
    declared = subject.declaration
    cases = families.cases(fp4ref.profiles[spec], 1, (declared.direction,), declared.dtypes, names)
    runs = runner.run(subject, cases)
    judged = (judge(run.case, run.outcome, declared, run.expected) for run in runs)
    report = collected(KernelReport(target, fp4ref.profiles[spec], declared), judged)
    assert report.cases >= 3, report.skipped
    return report


@pytest.mark.rule("CNF-8", "PRO-1")
@pytest.mark.filterwarnings("ignore")  # torchao's own, when it is imported
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("quantize", "torchao.nvfp4_2lvl"),
        ("quantize_swizzled", "torchao.nvfp4_2lvl"),
        ("quantize_one_level", "torchao.nvfp4_1lvl"),
        ("quantize_mxfp8_rceil", "torchao.mxfp8_e4m3_rceil@0.18.0"),
        ("quantize_mxfp4_floor", "torchao.mxfp4_floor@0.18.0"),
    ],
)
def test_torchao(name, spec):
    pytest.importorskip("torchao")
    report = verified(f"torchao_subject.py:{name}", spec)
    assert report.ok, report.headline


def quantized(spec, x, scale_layout="tiled_128x4", direction="row", dtype=None):
    """Bytes of a specification as torch tensors, which the stand-ins return."""
    values = x.to(torch.float32).numpy().astype(fp4ref.arrays.INPUT_DTYPES[str(x.dtype).removeprefix("torch.")])
    q = fp4ref.quantize(values, spec, direction, scale_layout=scale_layout, backend="numpy").direction(direction)[0]
    return torch.from_numpy(q.data), torch.from_numpy(q.scales), torch.from_numpy(np.array(q.amax))


@pytest.fixture
def stand_in(monkeypatch):
    def install(name, **members):
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:count]))
            monkeypatch.setitem(sys.modules, module.__name__, module)
        for key, value in members.items():
            setattr(module, key, value)

    return install


@pytest.mark.rule("CNF-8")
@pytest.mark.parametrize(("name", "scale_layout"), [("quantize", "tiled_128x4"), ("quantize_linear", "linear")])
def test_flashinfer(stand_in, name, scale_layout):
    spec = "flashinfer.nvfp4_kernel"

    def nvfp4_quantize(x, encode_scale, sfLayout, do_shuffle):  # noqa: N803 - its name
        assert encode_scale.dtype == torch.float32
        assert not do_shuffle
        return quantized(spec, x, sfLayout)[:2]

    kinds = SimpleNamespace(layout_128x4="tiled_128x4", layout_linear="linear")
    stand_in("flashinfer", nvfp4_quantize=nvfp4_quantize, SfLayout=kinds)
    report = verified(f"flashinfer_subject.py:{name}", spec, device="cpu")
    assert report.ok, report.headline
    assert report.declaration.scale_layout == scale_layout


@pytest.mark.rule("CNF-8")
def test_vllm(stand_in):
    spec = "vllm.nvfp4_kernel"

    def scaled_fp4_quant(x, encode_scale):
        data, scales, _ = quantized(spec, x)
        return data, scales.view(torch.float8_e4m3fn)

    stand_in("vllm", _custom_ops=SimpleNamespace(scaled_fp4_quant=scaled_fp4_quant))
    report = verified("vllm_subject.py:quantize", spec, device="cpu")
    assert report.ok, report.headline


@pytest.mark.rule("CNF-8")
@pytest.mark.parametrize(
    ("name", "spec", "direction"),
    [
        ("quantize", "nvfp4", "row"),
        ("quantize_column", "nvfp4", "column"),
        ("quantize_2d", "nvfp4-2d", "row"),
        ("quantize_rht", "nvfp4-rht", "column"),
    ],
)
def test_transformer_engine(stand_in, name, spec, direction):
    class NVFP4Quantizer:
        def __init__(self, **settings):
            assert settings["rowwise"]
            assert settings["columnwise"] == (direction == "column")
            assert settings.get("with_2d_quantization", False) == (spec == "nvfp4-2d")
            assert settings.get("with_rht", False) == (spec == "nvfp4-rht")

        def __call__(self, x):
            data, scales, amax = quantized(spec, x, "linear_padded", direction)
            where = f"{direction}wise" if direction == "row" else "columnwise"
            return SimpleNamespace(**{f"_{where}_data": data, f"_{where}_scale_inv": scales, f"_amax_{where}": amax})

    stand_in("transformer_engine.pytorch", NVFP4Quantizer=NVFP4Quantizer)
    report = verified(f"transformer_engine_subject.py:{name}", spec, device="cpu")
    assert report.ok, report.headline
