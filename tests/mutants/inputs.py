"""Wrong quantizers: the values that are read from the tensor."""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
F, MXFP8, NVFP4 = (_BASE[name] for name in ("F", "MXFP8", "NVFP4"))
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("input-flush")
class FlushesInput(NVFP4):
    def read(self, x):
        return np.where(np.abs(x) < np.finfo(F).tiny, np.copysign(F(0), x), x)


@mutant("input-fp16")
class InputHalf(MXFP8):
    def read(self, x):
        return x.astype(np.float16).astype(F)


@mutant("input-fp16")
class InputAsHalf(NVFP4):
    def read(self, x):
        return x.astype(np.float16).astype(F)


def cut(x, chosen):
    """Cut the mantissa of those NaN of which it is chosen."""
    bits = np.ascontiguousarray(x, F).view(np.uint32)
    found = np.isnan(x) & chosen(bits & 0x7FFFFF)
    return np.where(found, bits & 0xFF800000, bits).view(F)


@mutant("input-nan-signalling")
class SignallingNaNAsInfinity(NVFP4):
    """The bit of a quiet NaN is asked for, so that a signalling one is an infinity."""

    def read(self, x):
        return cut(x, lambda mantissa: mantissa < 0x400000)


@mutant("input-nan-payload")
class OnlyOneNaN(NVFP4):
    """NaN is compared with its usual pattern."""

    def read(self, x):
        return cut(x, lambda mantissa: mantissa != 0x400000)
