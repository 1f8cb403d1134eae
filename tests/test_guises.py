"""Correct kernels in ten guises, none of which is called wrong."""

import numpy as np
import pytest

import fp4ref
from collected import collected
from fp4ref.catalogue import PROFILES
from fp4ref.conformance import families
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import runner
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.kernels import Declaration

FAMILIES = ["normal", "positions", "layout", "ragged", "nan", "minus-zero", "zero-blocks", "element-ties", "overflow"]
GUISES = {
    "plain": ("nvfp4", {}),
    "high nibble first": ("nvfp4", {"nibble_order": "high"}),
    "tiled": ("nvfp4", {"scale_layout": "tiled_128x4"}),
    "small tiles": ("nvfp4", {"scale_layout": "tiled_8x4"}),
    "padded": ("mxfp4", {"scale_layout": "linear_padded"}),
    "buffers": ("nvfp4", {"out_buffers": True, "alignment": 1}),
    "column": ("nvfp4-2d", {"direction": "column"}),
    "transposed": ("mxfp8-e4m3", {"transposed": True}),
    "given amax": ("nvfp4", {"inputs": ("x", "amax"), "outputs": ("data", "scales")}),
    "torch": ("nvfp4", {"arrays": "torch", "scale_layout": "tiled_128x4"}),
}


def kernel_of(name, declared):
    spec = PROFILES[name]

    def kernel(x, amax=None, out=None):
        array = x if declared.arrays == "numpy" or x.dtype.itemsize == 4 else x.float()
        array = np.asarray(array)
        q = fp4ref.quantize(
            array, spec, declared.direction, scale_layout=declared.scale_layout, amax=amax, backend="numpy"
        )
        found = q.direction(declared.direction)[0]
        data = found.data << 4 | found.data >> 4 if declared.nibble_order == "high" else found.data
        parts = {"data": data, "scales": np.asarray(found.scales), "amax": found.amax}
        made = [parts[part] for part in declared.outputs if parts[part] is not None]
        if declared.transposed:
            made = [np.ascontiguousarray(part.T) for part in made]
        if out is not None:
            for buffer, part in zip(out, made, strict=True):
                buffer[...] = part
            return None
        return tuple(declared_arrays(part, declared) for part in made)

    return kernel


def declared_arrays(part, declared):
    if declared.arrays == "numpy":
        return part
    return pytest.importorskip("torch").from_numpy(np.array(part))


@pytest.mark.sampled(4)
@pytest.mark.slow  # ten kernels on many cases
@pytest.mark.rule("CNF-1", "CNF-8")
@pytest.mark.parametrize("guise", GUISES)
def test_a_correct_kernel_conforms_in_every_guise(guise):
    name, changes = GUISES[guise]
    if changes.get("arrays") == "torch":
        pytest.importorskip("torch")
    declared = Declaration(dtypes=("float32",), **changes)
    subject = Subject(guise, declared, kernel_of(name, declared))
    cases = families.cases(PROFILES[name], directions=(declared.direction,), dtypes=("float32",), families=FAMILIES)
    runs = runner.run(subject, [case for case in cases if case.x.size <= 1 << 13])
    judged = (judge(run.case, run.outcome, declared, run.expected) for run in runs)
    report = collected(KernelReport(guise, PROFILES[name], declared), judged)
    assert report.ok, report.headline
    assert report.compared > 10
