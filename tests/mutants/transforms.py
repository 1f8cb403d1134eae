"""Wrong quantizers: the Hadamard transform."""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
F, RHT = (_BASE[name] for name in ("F", "RHT"))
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("hadamard-signs-none")
class NoSigns(RHT):
    signs = np.ones(16, F)


@mutant("hadamard-signs-reversed")
class SignsReversed(RHT):
    signs = RHT.signs[::-1]


@mutant("hadamard-no-quarter")
class NoQuarter(RHT):
    def transform(self, x):
        return self.rounded(self.sums(x.reshape(len(x), x.shape[1] // 16, 16) * self.signs)).reshape(x.shape)


@mutant("hadamard-signs-after")
class SignsAfter(RHT):
    def transform(self, x):
        return self.rounded(self.sums(x.reshape(len(x), x.shape[1] // 16, 16) * F(0.25)) * self.signs).reshape(x.shape)


@mutant("hadamard-fp32")
class NotRounded(RHT):
    def rounded(self, y):
        return y


@mutant("hadamard-missing|profile nvfp4")
class NoTransform(RHT):
    def transform(self, x):
        return x


@mutant("hadamard-signs-after")
class SignsAfterTheTransform(RHT):
    def transform(self, x):
        y = self.sums(x.reshape(len(x), x.shape[1] // 16, 16) * F(0.25)) * self.signs
        return self.rounded(y).reshape(x.shape)


@mutant("hadamard-through-fp16")
class HalfInTheButterfly(RHT):
    def rounded(self, y):
        with np.errstate(over="ignore"):
            return super().rounded(y.astype(np.float16).astype(F))


@mutant("hadamard-sixteenth")
class Sixteenth(RHT):
    def transform(self, x):
        return super().transform(x) * F(0.25)


@mutant("hadamard-signs-inferred")
class OneSignWrong(RHT):
    signs = RHT.signs * np.where(np.arange(16) == 5, F(-1), F(1))


@mutant("hadamard-signs-inferred")
class OtherSigns(RHT):
    signs = np.array([1, -1, 1, 1, -1, 1, -1, 1, 1, 1, -1, -1, 1, -1, 1, 1], F)


@mutant("hadamard-sixteenth")
class NormalisedTwice(RHT):
    @np.errstate(all="ignore")
    def transform(self, x):
        return self.rounded(self.sums(x.reshape(len(x), x.shape[1] // 16, 16) * (self.signs * F(0.0625)))).reshape(
            x.shape
        )


@mutant("hadamard-size-8")
class HadamardOfEight(RHT):
    """One butterfly too few, with its own norm."""

    def transform(self, x):
        groups = x.reshape(len(x), x.shape[1] // 8, 8) * (
            np.tile(self.signs.reshape(2, 8), (x.shape[1] // 16, 1)) * F(8**-0.5)
        )
        for stride in (1, 2, 4):
            z = np.empty_like(groups)
            for i in range(8):
                z[..., i] = (
                    groups[..., i ^ stride] - groups[..., i] if i & stride else groups[..., i] + groups[..., i ^ stride]
                )
            groups = z
        return self.rounded(groups + F(0)).reshape(x.shape)


@mutant("hadamard-inferred-inputs")
class ReversedLanes(RHT):
    def transform(self, x):
        return super().transform(x.reshape(len(x), x.shape[1] // 16, 16)[:, :, ::-1].reshape(x.shape))
