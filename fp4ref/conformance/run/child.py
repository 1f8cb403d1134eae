"""The process that a kernel runs in: it takes calls from its standard input and answers on its standard output."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import IO, Any

from fp4ref.conformance.run import huge_call, sweep_call
from fp4ref.conformance.run.huge_trial import HugeTrial
from fp4ref.conformance.run.messages import receive, send
from fp4ref.conformance.run.sweep_trial import Sweep
from fp4ref.conformance.subjects.calling import Caller
from fp4ref.conformance.subjects.guards import Arrays
from fp4ref.conformance.subjects.loading import load
from fp4ref.errors import BackendError, Fp4Error
from fp4ref.kernels import Declaration, declaration_of

TORCH = "pip install 'fp4ref[torch]'"


def main() -> None:
    """Load the kernel that the first message names, then serve until the input ends.

    Every answer has the number of its request.
    """
    requests, answers = _own_streams()
    first = receive(requests)
    if first is None:
        return
    number = {"number": first.pop("number")}
    try:
        function, declared = loaded(**first)
        _require_torch(declared)
        Arrays(declared.arrays, declared.device).bytes(1, 0)  # fails where there is no such device
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing a stranger's module may raise anything
        send(answers, number | {"error": _parts(error)})
        return
    send(answers, number | {"declaration": declared.to_json()})
    caller = Caller(function, declared)
    while (message := receive(requests)) is not None:
        number = {"number": message.pop("number")}
        trial = message.pop("trial", None)
        if isinstance(trial, HugeTrial):
            found = huge_call.attempt(function, declared, trial)
        elif isinstance(trial, Sweep):
            found = sweep_call.attempt(function, declared, trial)
        else:
            found = {"outcomes": caller.outcomes(**message)}
        send(answers, found | number)


def loaded(
    target: str, changes: dict[str, Any], library: dict[str, Any] | None
) -> tuple[Callable[..., Any], Declaration]:
    """Return a kernel and its declaration: a Python function, or a function of a C library. Rules: CNF-8, CNF-16."""
    if library is None:
        function = load(target)
        return function, changed(declaration_of(function), changes)
    from fp4ref.conformance.subjects.library.binding import bind
    from fp4ref.conformance.subjects.library.signature import parse

    signature = parse(library["origin"], library["signature"])
    declared = changed(signature.declaration, changes)
    return bind(target, signature, library["facts"], declared), declared


def changed(declared: Declaration, changes: dict[str, Any]) -> Declaration:
    """Return a declaration with other settings; another device than the CPU takes torch's arrays."""
    if changes.get("device", "cpu") != "cpu" and "arrays" not in changes:
        changes = {**changes, "arrays": "torch"}
    return replace(declared, **changes) if changes else declared


def _require_torch(declared: Declaration) -> None:
    """Say that torch is missing before it is imported: the kernel is not to blame. Rules: CNF-5."""
    if declared.arrays == "torch" and importlib.util.find_spec("torch") is None:
        got = f"arrays of torch on the device {declared.device}, but torch is not installed"
        raise BackendError("kernel", got, TORCH, "CNF-5")


def _parts(error: BaseException) -> list[str]:
    """Return an Fp4Error's value, its need and its rule; for other errors, type and text in one."""
    if isinstance(error, Fp4Error):
        return [error.got, error.needed, error.rule]
    return [" ".join(f"{type(error).__name__}: {error}".split())]


def _own_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Return the pipes of this process under other numbers, so that a kernel that prints does no harm."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - not a path of ours
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, answers
