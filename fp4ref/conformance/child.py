"""The process that a kernel runs in: it takes calls from its standard input and answers on its standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import IO, Any

from fp4ref.conformance.calling import call
from fp4ref.conformance.guards import Arrays
from fp4ref.conformance.messages import START, receive, send
from fp4ref.conformance.subject import Job, Outcome, Output, load
from fp4ref.kernels import Declaration, declaration_of


def main() -> None:
    """Load the kernel that the first message names, then serve until the input ends."""
    requests, answers = _own_streams()
    first = receive(requests)
    assert first is not None
    try:
        function, declared = loaded(**first[0])
        Arrays(declared.arrays, declared.device).bytes(1, 0)  # fails where there is no such device
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing a stranger's module may raise anything
        text = f"{type(error).__name__}: {error}" if not hasattr(error, "needed") else str(error)
        send(answers, {"error": " ".join(text.split())})
        return
    send(answers, {"declaration": declared.to_json()})
    while (message := receive(requests)) is not None:
        record, arrays = message
        arguments = {name: arrays.get(name, record["numbers"].get(name)) for name in record["order"]}
        outputs = {
            name: Output(tuple(shape), dtype, arrays.get(f"{START}{name}"))
            for name, (shape, dtype) in record["outputs"].items()
        }
        _answer(answers, call(function, declared, Job(arguments, outputs)))


def loaded(
    target: str, changes: dict[str, Any], library: dict[str, Any] | None
) -> tuple[Callable[..., Any], Declaration]:
    """Return a kernel and its declaration: a Python function, or a function of a C library. Rules: CNF-8, CNF-16."""
    if library is None:
        function = load(target)
        return function, changed(declaration_of(function), changes)
    from fp4ref.conformance.library.binding import bind
    from fp4ref.conformance.library.signature import parse

    signature = parse(library["origin"], library["signature"])
    declared = changed(signature.declaration, changes)
    return bind(target, signature, library["facts"], declared), declared


def changed(declared: Declaration, changes: dict[str, Any]) -> Declaration:
    """A declaration with other settings; another device than the CPU takes torch's arrays."""
    if changes.get("device", "cpu") != "cpu" and "arrays" not in changes:
        changes = {**changes, "arrays": "torch"}
    return replace(declared, **changes) if changes else declared


def _own_streams() -> tuple[IO[bytes], IO[bytes]]:
    """The pipes of this process under other numbers, so that a kernel that prints does no harm."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - not a path of ours
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, answers


def _answer(stream: IO[bytes], outcome: Outcome) -> None:
    finding = None if outcome.finding is None else [outcome.finding.kind.value, outcome.finding.text]
    parts = {} if outcome.data is None else outcome.data._asdict()
    parts |= {} if outcome.values is None else {"values": outcome.values}
    send(stream, {"finding": finding}, {name: part for name, part in parts.items() if part is not None})


if __name__ == "__main__":
    main()
