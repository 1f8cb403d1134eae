"""The record of a certificate: a claim about every input of a domain, and the outcome of a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from enum import StrEnum
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

LINUX_X86 = "Linux on x86-64"
LARGE_POWER = 31  # from which a power of two is written as one
LONG = 60  # letters of a text from which it is no name


class Method(StrEnum):
    """The way in which a claim is decided."""

    EXHAUSTIVE = "exhaustive"  # every input of the domain is computed and compared
    SMT = "smt"  # a solver finds no counterexample
    ARGUMENT = "argument"  # an argument in words reduces the domain to inputs that are all computed


class ClaimSubject(StrEnum):
    """The implementation that a claim is about."""

    GOLDEN = "golden"  # the golden model, on NumPy
    HEADER = "header"  # the shared C++ header, compiled for this machine's processor
    CPU = "cpu"  # the cpu backend, as it was built for this machine
    TORCH = "torch"  # the torch backend, on the CPU
    CUDA = "cuda"  # the cuda backend, on this machine's GPU
    FORMULA = "formula"  # an identity of numbers on which code relies


class Replayed(NamedTuple):
    """The outcome of a replay: how many inputs were computed, and the first one that refutes the claim, in words."""

    computed: int
    witness: str | None = None


Tell = Callable[[float], None]  # takes the part that is done, 0 to 1
Decide = Callable[[Tell], Replayed]


class ProcessorCheck(NamedTuple):
    """A check in a form at which a processor is fast, and why the inputs that it computes decide the claim."""

    decide: Decide
    reduction: str


def in_words(count: int) -> str:
    """Return a count with commas; a large power of two as one.

    >>> in_words(65536), in_words(1 << 32)
    ('65,536', '2^32')
    """
    power = count.bit_length() - 1
    return f"2^{power}" if power >= LARGE_POWER and count == 1 << power else f"{count:,}"


@dataclass(frozen=True, kw_only=True)
class ProofClaim:
    """A claim: what holds for which inputs, of whose code, and the function that decides it.

    size: inputs of the domain. reduction: why fewer inputs, or other ones, decide the claim. rests_on: names of claims
    that the reduction uses. on_processor: the check that a processor runs in place of `decide`, whose form suits a
    device. covers: the definitions that the claim is about, `module:name` in Python, `file.h:name` in
    the shared header; those that they call are found. needs: a library, or LINUX_X86, without which
    it cannot be replayed; torch for one about torch or cuda. long: not replayed unless asked for by name, as is every
    one about cuda.
    """

    name: str
    rules: tuple[str, ...]
    method: Method
    subject: ClaimSubject
    statement: str
    domain: str
    size: int
    decide: Decide
    on_processor: ProcessorCheck | None = None
    covers: tuple[str, ...] = ()
    reduction: str = ""
    rests_on: tuple[str, ...] = ()
    needs: str = ""
    long: bool = False

    def __post_init__(self) -> None:
        if self.subject in {ClaimSubject.TORCH, ClaimSubject.CUDA}:
            object.__setattr__(self, "needs", "torch")
        if self.subject is ClaimSubject.CUDA:
            object.__setattr__(self, "long", True)

    def counted(self, finding: Replayed) -> Replayed:
        """Return a finding, with a witness if the claim states another number of inputs than were computed.

        A claim with a reduction computes at most its inputs, any other one exactly these.
        """
        enough = 0 < finding.computed <= self.size if self.reduction else finding.computed == self.size
        if finding.witness or enough:
            return finding
        most = "at most " if self.reduction else ""
        witness = f"{in_words(finding.computed)} inputs were computed, and the claim states {most}{in_words(self.size)}"
        return finding._replace(witness=witness)

    def decider(self) -> str:
        """Return the reference of the function that decides the claim."""
        function: Any = self.decide
        while isinstance(function, partial):
            function = function.func
        return _reference(function)

    def arguments(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the references of functions that the decider is given, and its long texts and records.

        Short names and numbers are in the claim's own name.
        """
        functions, texts = [], []
        pending: list[Any] = [self.decide]
        for each in pending:
            if isinstance(each, partial):
                pending += [each.func, *each.args, *each.keywords.values()]
            elif isinstance(each, FunctionType):
                functions.append(_reference(each))
            elif (isinstance(each, str) and len(each) > LONG) or hasattr(each, "_fields") or is_dataclass(each):
                texts.append(repr(each))
        return tuple(functions), tuple(texts)

    def for_processor(self) -> ProofClaim:
        """Return the claim as a processor decides it."""
        if self.on_processor is None:
            return self
        return replace(self, **self.on_processor._asdict(), on_processor=None)


def _reference(function: Any) -> str:
    return f"{function.__module__}:{function.__qualname__}"


def formula(
    name: str,
    rules: str | tuple[str, ...],
    decide: Decide,
    statement: str,
    *,
    domain: str,
    size: int,
    covers: tuple[str, ...],
    method: Method = Method.EXHAUSTIVE,
    needs: str = "",
) -> ProofClaim:
    """Return a claim about an identity of numbers."""
    return ProofClaim(
        name=f"{name}/formula",
        rules=(rules,) if isinstance(rules, str) else rules,
        method=method,
        subject=ClaimSubject.FORMULA,
        statement=statement,
        domain=domain,
        size=size,
        decide=decide,
        covers=covers,
        needs=needs,
    )
