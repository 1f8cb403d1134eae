"""Wrong quantizers: stochastic rounding and its random bits."""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
HALVES, Stochastic = (_BASE[name] for name in ("HALVES", "Stochastic"))
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("random-away|element-up")
class AlwaysAway(Stochastic):
    def encode(self, y):
        code = np.searchsorted(HALVES, 2 * np.abs(y).astype(np.float64), side="left")
        return np.where(np.isnan(y), 7, np.minimum(code, 7) + 8 * np.signbit(y)).astype(np.uint8)


@mutant("random-plus-one")
class BitsPlusOne(Stochastic):
    def drawn(self, bits):
        return bits.astype(np.int16) + 1


@mutant("bits-shared-2", says="wrong: 2 elements use the random bits of the first of them;")
class BitsOfPairsShared(Stochastic):
    def drawn(self, bits):
        return np.repeat(bits[:, :, ::2], 2, axis=2)


@mutant("random-half-bit")
class BitsCentred(Stochastic):
    def drawn(self, bits):
        return bits + 0.5


@mutant("bits-reversed-4")
class RandomWordsBigEndian(Stochastic):
    """Four random bytes make a word, and the first element takes the high one."""

    def drawn(self, bits):
        return bits.reshape(*bits.shape[:2], bits.shape[2] // 4, 4)[..., ::-1].reshape(bits.shape)


@mutant("bits-inferred-shift-1-0|bits-of-row")
class BitsOfNextRow(Stochastic):
    def drawn(self, bits):
        return np.roll(bits, -1, axis=0)


@mutant("bits-shared-4")
class OneDrawOfFour(Stochastic):
    def drawn(self, bits):
        return np.repeat(bits[:, :, ::4], 4, axis=2)


@mutant("bits-inferred-4")
class BitsOfFourInAnyOrder(Stochastic):
    def drawn(self, bits):
        return bits.reshape(*bits.shape[:2], bits.shape[2] // 4, 4)[..., [2, 0, 3, 1]].reshape(bits.shape)


@mutant("random-nibble")
class FourRandomBits(Stochastic):
    """Only the high nibble of a byte is used."""

    def drawn(self, bits):
        return bits & 0xF0


@mutant("bits-inverted")
class RandomBitsComplemented(Stochastic):
    def drawn(self, bits):
        return 255 - bits
