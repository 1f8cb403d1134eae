"""Wrong quantizers: the choice between the two candidates of 4over6."""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
BF16, F, FourOverSix = (_BASE[name] for name in ("BF16", "F", "FourOverSix"))
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("search-tie")
class TieTakesFour(FourOverSix):
    def better(self, first, second):
        return second <= first


@mutant("search-mse")
class SquaredErrors(FourOverSix):
    def error(self, q, s, amax, s_enc, x):
        return self.total((q * s[:, :, None] * amax / F(2688) - x) ** 2)


@mutant("search-six|search-missing")
class NeverFour(FourOverSix):
    def better(self, first, second):
        return np.zeros(first.shape, bool)


@mutant("search-value-bf16")
class ErrorBf16(FourOverSix):
    def error(self, q, s, amax, s_enc, x):
        made = (q * s[:, :, None] * amax / F(2688)).astype(BF16).astype(F)
        return self.total(np.abs(made - x))


@mutant("search-max")
class LargestError(FourOverSix):
    """The candidates are compared by their largest error."""

    def total(self, errors):
        return errors.max(axis=-1)
