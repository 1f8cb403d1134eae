"""Claims about judges themselves: a thread that flushes subnormals is refused, and cases are the same every time."""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from inspect import isfunction
from itertools import product
from typing import Any

import numpy as np

from fp4ref import arithmetic, arithmetic_engines, arithmetic_peers, arithmetic_peers_mx, arithmetic_xla
from fp4ref.catalogue import resolve
from fp4ref.conformance.families import FAMILIES, cases
from fp4ref.errors import Fp4Error
from fp4ref.proof.claims import LINUX_X86, ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.quantized import DIRECTIONS

FTZ, DAZ = 0x8000, 0x0040  # of the control register of x86-64
REGISTER = 7  # its word in the floating-point environment of the C library
FAMILIES_IN = "fp4ref.conformance.families"
MODULES = ("shapes", "ties", "ranges", "structures", "witnesses", "places", "encoded", "exhaustive")
STATES = tuple(product((False, True), repeat=2))  # operands, results
SPECS = ("nvfp4-sr", "nvfp4-rht", "mxfp8-e4m3")
SEEDS = (0, 1)
FEW = ("normal", "element-ties", "random-bits", "outlier")  # families of which another process makes the cases


def flushing(tell: Tell) -> Replayed:
    """Set the thread's control register to each state, and ask the probe and the judges."""
    from fp4ref.conformance.run import machine
    from fp4ref.conformance.selfcheck import implementations
    from fp4ref.conformance.verdict import dumps

    judges: dict[str, Callable[[], Any]] = {
        "the check": lambda: machine.require_no_flush("prove"),
        "verify of a dump": lambda: dumps.verify(dumps.DumpRequest(path="no such file")),
        "verify of backends": lambda: implementations.run(["no such backend"]),
    }
    count = 0
    for flush in STATES:
        with _control(*flush):
            found = {name: _refusal(judge) for name, judge in judges.items()}
            probed = tuple(machine.flush_probe())
        count += len(judges)
        if probed != flush:
            return Replayed(count, f"the probe says {probed} of operands and results, needs {flush}")
        for name, rule in found.items():
            if (rule == "CNF-4") is not any(flush):
                return Replayed(count, f"operands, results flushed {flush}: {name} ends with {rule or 'no error'}")
        tell(count / len(STATES) / len(judges))
    return Replayed(count)


def _refusal(judge: Callable[[], Any]) -> str:
    """Return the rule of the error with which a call ends, empty without one."""
    try:
        judge()
    except Fp4Error as error:
        return error.rule or ""
    return ""


@contextmanager
def _control(operands: bool, results: bool) -> Iterator[None]:
    """Let this thread flush subnormal operands, results, or both."""
    library, usual, other = ctypes.CDLL(None), (ctypes.c_uint32 * 16)(), (ctypes.c_uint32 * 16)()
    library.fegetenv(usual)
    library.fegetenv(other)
    other[REGISTER] |= DAZ * operands | FTZ * results
    library.fesetenv(other)
    try:
        yield
    finally:
        library.fesetenv(usual)


def made(seed: int, names: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield the family, the name and a digest of all inputs of each case of some families, of all specifications."""
    for spec in SPECS:
        for case in cases(resolve(spec), directions=DIRECTIONS, families=names, seed=seed):
            digest = blake2b(f"{case.family} {case.x.dtype} {case.x.shape} {case.direction}".encode())
            parts = case.encoded or ()
            for part in (case.x, case.amax, case.random_bits, *parts):
                digest.update(b"-" if part is None else np.ascontiguousarray(part).tobytes())
            yield case.family, f"{spec} {case.id}", digest.hexdigest()


def determined(tell: Tell) -> Replayed:
    """Make all cases; again each family alone, the last one first, under other global states; and in a new process."""
    names, count = tuple(FAMILIES), 0
    for seed in SEEDS:
        first = [*made(seed, names)]
        wanted = {name: digest for _, name, digest in first}
        count += len(SPECS) * len(names)
        if len(wanted) != len(first):
            return Replayed(count, f"seed {seed}: {len(first)} cases have {len(wanted)} names")
        for place, family in enumerate(reversed(names)):
            np.random.seed(place)  # noqa: NPY002 - the global state on which nothing may depend
            random.seed(place)
            again = {name: digest for _, name, digest in made(seed, (family,))}
            mine = {name: digest for its, name, digest in first if its == family}
            for name in mine.keys() | again.keys():
                if mine.get(name) != again.get(name):
                    return Replayed(count, f"seed {seed}: {name} is another case when its family is alone")
        tell((seed + 0.5) / len(SEEDS))
        code = "import json; from fp4ref.proof.judging import made\n"
        code += f"for one in made({seed}, {FEW}): print(json.dumps(one[1:]))"
        line = [sys.executable, "-c", code]
        other = os.environ | {"PYTHONHASHSEED": "7"}
        run = subprocess.run(line, capture_output=True, encoding="utf-8", check=True, env=other)  # noqa: S603
        for text in run.stdout.splitlines():
            name, digest = json.loads(text)
            if wanted.get(name) != digest:
                return Replayed(count, f"seed {seed}: {name} is another case in a new process")
    return Replayed(count)


def _arithmetics() -> tuple[str, ...]:
    """Return the functions of all arithmetics: a family searches for blocks that tell them apart."""
    modules = (arithmetic, arithmetic_engines, arithmetic_peers, arithmetic_peers_mx, arithmetic_xla)
    return tuple(
        f"{module.__name__}:{name}"
        for module in modules
        for name, part in vars(module).items()
        if isfunction(part) and part.__module__ == module.__name__
    )


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about judges."""
    yield ProofClaim(
        name="flushing-refused/golden",
        rules=("CNF-4",),
        method=Method.EXHAUSTIVE,
        subject=ClaimSubject.GOLDEN,
        statement="A judge refuses a thread that flushes subnormal operands, results, or both, and no other thread.",
        domain="four states of the processor's control register, three judges",
        size=3 * len(STATES),
        decide=flushing,
        covers=("fp4ref.conformance.run.machine:require_no_flush",),
        needs=LINUX_X86,
    )
    yield ProofClaim(
        name="cases-determined/golden",
        rules=("CNF-7", "CNF-21"),
        method=Method.ARGUMENT,
        subject=ClaimSubject.GOLDEN,
        statement="A case has a name of its own and the same inputs in every run, also if its family runs alone.",
        domain="the cases of level 1 of each family for each of three specifications, in both directions, of two seeds",
        size=len(SPECS) * len(FAMILIES) * len(SEEDS),
        decide=determined,
        covers=(
            "fp4ref.conformance.families:cases",
            *(f"{FAMILIES_IN}.{name}:FAMILIES" for name in MODULES),
            *_arithmetics(),
        ),
        reduction="a case could depend on cases made before it, on random numbers of the process, or on hashes; the "
        "order of families, the states of both generators and the seed of hashes are each changed",
    )
