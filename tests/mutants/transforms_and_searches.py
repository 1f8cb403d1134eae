"""Wrong Hadamard transforms, and wrong choices of 4over6.

No kernel knows the library of mistakes. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_PARTS = runpy.run_path(str(Path(__file__).with_name("parts.py")))
BFLOAT16, F, in_type = (_PARTS[name] for name in ("BFLOAT16", "F", "in_type"))
MUTANTS, mutant = _PARTS["mutants"]()
_KERNELS = runpy.run_path(str(Path(__file__).with_name("kernels.py")))
F, FourOverSix, RHT, value = (_KERNELS[name] for name in ("F", "FourOverSix", "RHT", "value"))
_PLACES = runpy.run_path(str(Path(__file__).with_name("places.py")))
ALL, RHT, Somewhere = (_PLACES[name] for name in ("ALL", "RHT", "Somewhere"))
CORRECT = ()


@mutant("search-from-byte", says="1.5 times the first candidate's scale after it was rounded to its byte")
class SecondFromTheStoredFirst(FourOverSix):
    def tried(self, t):
        return t, value(self.scale_byte(t)) * F(1.5)


@mutant("hadamard-signs-after", says="signs are applied after the sums", dtypes=BFLOAT16)
class SignsLast(RHT):
    def transform(self, x):
        groups = x.reshape(len(x), x.shape[1] // 16, 16) * F(0.25)
        return self.rounded(self.sums(groups) * self.signs + F(0)).reshape(x.shape)


@mutant("hadamard-turned-8", says="the butterfly of stride 8 subtracts the other way round", dtypes=BFLOAT16)
class LastDifferencesTurned(RHT):
    def sums(self, groups):
        found = super().sums(groups)
        return np.concatenate([found[..., :8], F(0) - found[..., 8:]], axis=-1)


@mutant("hadamard-turned-2", says="the butterfly of stride 2 subtracts the other way round", dtypes=BFLOAT16)
class SecondDifferencesTurned(RHT):
    def sums(self, groups):
        y = groups
        for stride in (1, 2, 4, 8):
            i = np.arange(16)
            low, high = y[..., i & ~stride], y[..., i | stride]
            y = np.where(i & stride, high - low if stride == 2 else low - high, low + high)
        return y + F(0)


@mutant("search-own", says=r"\(amax / 4\) \* S_enc, not 1.5 times the first", release=True)
class SecondScaleOfItsOwn(FourOverSix):
    def block_amax(self, blocks):
        self.maxima = super().block_amax(blocks)
        return self.maxima

    def global_scale(self, amax):
        self.s_enc = super().global_scale(amax)
        return self.s_enc

    def tried(self, t):
        return t, self.maxima / F(4) * self.s_enc


@mutant("hadamard-signed-zeros", says="a sum of zeros keeps the sign -0", dtypes=BFLOAT16, release=True)
class TransformKeepsMinusZero(RHT):
    def sums(self, groups):
        for stride in (1, 2, 4, 8):
            other = groups[..., np.arange(16) ^ stride]
            groups = np.where(np.arange(16) & stride, other - groups, groups + other)
        return groups


@mutant(
    "hadamard-elements-fp32",
    says="made of results that are not rounded to bfloat16, maxima of",
    dtypes=BFLOAT16,
    release=True,
)
class ElementsOfTheUnrounded(RHT):
    def rounded(self, y):
        return y

    def amax(self, x):
        return super().amax(super().rounded(x))

    def block_amax(self, blocks):
        return super().block_amax(super().rounded(blocks))


@mutant("search-without-3", says="4over6 errors miss element 3", release=True)
class FourOverSixMissesOneError(FourOverSix):
    def total(self, errors):
        return super().total(np.where(np.arange(16) == 3, F(0), errors))


@mutant("search-of-2", says="4over6: 2 neighbouring blocks choose together", release=True)
class BlocksChooseInPairs(FourOverSix):
    def better(self, first, second):
        left = np.arange(first.shape[1]) // 2 * 2
        right = np.minimum(left + 1, first.shape[1] - 1)
        one = right > left
        return second[:, left] + one * second[:, right] < first[:, left] + one * first[:, right]


@mutant("search-errors-signed", says="errors with their signs, so that they cancel")
class ErrorsCancel(FourOverSix):
    def error(self, q, s, amax, s_enc, x):
        return np.abs(self.total(q * s[:, :, None] * amax / F(2688) - x))


@mutant("search-errors-above", says="counts only errors of values that are too large")
class OnlyErrorsAbove(FourOverSix):
    def error(self, q, s, amax, s_enc, x):
        wrong = q * s[:, :, None] * amax / F(2688) - x
        return self.total(np.where(wrong > 0, wrong, F(0)))


@mutant(
    "",
    says="transform.*(missing|not applied|skipped|without|no ).*block % 2 == 1|block % 2 == 1",
    dtypes=BFLOAT16,
    release=True,
)
class TransformSkippedInOddGroups(RHT):
    def transform(self, x):
        y = super().transform(x).reshape(len(x), x.shape[1] // 16, 16).copy()
        y[:, 1::2] = x.reshape(y.shape)[:, 1::2]
        return y.reshape(x.shape)


@mutant("", says="always keeps the first candidate.*in bfloat16 only", dtypes=ALL, multiple=(16, 16), release=True)
class NeverFourInBfloat16(Somewhere):
    right = FourOverSix

    class Wrong(FourOverSix):
        def better(self, first, second):
            return np.zeros_like(second, np.bool_)

    inside = in_type("bfloat16")


@mutant("", says="scaled units", release=True)
class ErrorsInUnitsOfTheScale(FourOverSix):
    """The errors are those of scaled elements: what they are divided by is forgotten."""

    def error(self, q, s, amax, s_enc, x):
        scale = s[:, :, None] * amax / F(2688)
        return self.total(np.abs(q - np.divide(x, scale, where=scale != 0, out=np.zeros_like(q))))


@mutant(
    "hadamard-without-4", says="the butterfly of stride 4 is left out", dtypes=BFLOAT16, multiple=(1, 16), release=True
)
class TransformWithoutOneStride(RHT):
    def sums(self, groups):
        y = groups
        for stride in (1, 2, 8):
            i = np.arange(16)
            y = np.where(i & stride, y[..., i ^ stride] - y, y + y[..., i ^ stride])
        return (y + F(0)).astype(F)


@mutant("search-", says="4|second")
class AlwaysFour(FourOverSix):
    def better(self, first, second):
        return np.ones_like(second, np.bool_)


@mutant("search-", says="candidate.*in bfloat16 only", dtypes=ALL)
class ScaleOfTheOtherInBfloat16(FourOverSix):
    def better(self, first, second):
        self.second = second < first
        return self.second

    def place(self, scales):
        return super().place(scales)

    def __call__(self, x, dtype):
        data, scales, amax = super().__call__(x, dtype)
        if dtype.name != "bfloat16":
            return data, scales, amax
        s_enc = self.global_scale(self.amax(x))
        t = self.block_amax(self.blocks(x)) / F(6) * s_enc
        return data, self.place(np.where(self.second, self.scale_byte(t), self.scale_byte(t * F(1.5)))), amax


@mutant("hadamard-", says="transform is not applied, where block % 2 == 1", dtypes=BFLOAT16, release=True)
class TransformOfEvenGroupsOnly(RHT):
    def transform(self, x):
        return np.where(np.arange(x.shape[1]) // 16 % 2 == 1, x, super().transform(x))
