"""`fp4ref prove`: replay the certificates, and say which claims hold for every input."""

from __future__ import annotations

import json
import multiprocessing
import platform
import sys
import time
import traceback
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any

import click

from fp4ref import processors
from fp4ref.cli.common import console
from fp4ref.conformance.run.machine import cuda_devices
from fp4ref.errors import BackendError, UnknownNameError
from fp4ref.proof import native, records, second_solver, turns
from fp4ref.proof.catalogue import claims
from fp4ref.proof.claims import LINUX_X86, ClaimSubject, Method, ProofClaim, Replayed, in_words
from fp4ref.rules import prefix_of

EPILOG = """\b
Examples:
  fp4ref prove                            all but the long ones
  fp4ref prove E2M1-3                     those of one rule; BLK: of one topic
  fp4ref prove encode-e4m3-all/golden     one certificate, also a long one
  fp4ref prove encode-e4m3                that name's of every subject; 'encode-*': of every name like it
  fp4ref prove --subject header --long    those of the C++ header, the long ones too
  fp4ref prove --device cuda              those of the cuda backend, on this machine's GPU
  fp4ref prove --jobs 8                   all but the long ones, eight at once
  fp4ref prove --turn 2 4                 the second quarter of those that take a second or more, and the quick ones
  fp4ref prove --list                     what there is, and what is out of date
  fp4ref prove --missing --long           those whose record is missing or out of date
  fp4ref prove --moved                    renew records whose code only moved, and replay nothing
"""


@click.command("prove", epilog=EPILOG, short_help="Replay the certificates: what holds for every input.")
@click.argument("names", metavar="[ID|PREFIX|CERTIFICATE]...", nargs=-1)
@click.option(
    "--subject",
    type=click.Choice([subject.value for subject in ClaimSubject]),
    help="Only claims about this implementation.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="cuda: only claims about the GPU; cpu: only the others, as without names and --subject.",
)
@click.option("--long", "with_long", is_flag=True, help="Also replay those that take minutes.")
@click.option("--missing", is_flag=True, help="Only those whose record is missing or out of date.")
@click.option(
    "--turn",
    type=(click.IntRange(1), click.IntRange(1)),
    metavar="I N",
    help="Decide only the I-th of N parts of the claims that take a second or more and whose record holds.",
)
@click.option("--list", "only_list", is_flag=True, help="List the certificates and replay none.")
@click.option(
    "--jobs", type=click.IntRange(1), default=1, metavar="N", help="Decide N claims at once, each in a process."
)
@click.option("--record", is_flag=True, help="Write the record of each claim that is proved.")
@click.option(
    "--moved", is_flag=True, help="Renew the records of code that only moved to other modules; replay nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def prove(
    names: tuple[str, ...],
    subject: str | None,
    device: str | None,
    with_long: bool,
    missing: bool,
    turn: tuple[int, int] | None,
    only_list: bool,
    jobs: int,
    record: bool,
    moved: bool,
    as_json: bool,
) -> None:
    """Decide each claim anew: proved, or refuted with a witness.

    A record is out of date if code that it covers has changed since it was written. An interrupted run shows what was
    decided; records that were written are kept, so that --missing goes on. Exit status: 1 if a claim is refuted, else
    0: a claim that cannot be replayed on this machine counts as neither.
    """
    everything = only_list or moved
    if device is None and not (names or subject or everything):
        device = "cpu"
    with_long = with_long or everything or "cuda" in {device, subject}
    chosen = [claim for claim in _chosen(names, subject, with_long) if _on(claim, device)]
    if missing:
        chosen = [claim for claim in chosen if records.holding(claim) is None]
    if turn is not None:
        if turn[0] > turn[1]:
            raise click.BadParameter(f"{turn[0]} of {turn[1]}, need one of {turn[1]} parts", param_hint="--turn")
        chosen = turns.of_turn(chosen, *turn)
    if only_list:
        _list(chosen, as_json)
        return
    if moved:
        count = sum(map(records.renewed, chosen))
        click.echo(f"{count} record{'' if count == 1 else 's'} renewed")
        return
    results: list[dict[str, Any]] = []
    try:
        with closing(_replays(chosen, jobs, record, quiet=as_json)) as replays:
            for result, lines in replays:
                results.append(result)
                if not as_json:
                    click.echo(lines)
    except KeyboardInterrupt:
        _summarize(results, len(chosen) - len(results), as_json)
        raise
    _summarize(results, 0, as_json)
    if any(result["result"] == "refuted" for result in results):
        raise SystemExit(1)


def _summarize(results: list[dict[str, Any]], left: int, as_json: bool) -> None:
    """Print the results as JSON, or how many there are of each kind, and how many claims an interrupt left."""
    if as_json:
        click.echo(json.dumps(results, indent=1, ensure_ascii=False))
        return
    counts = {word: sum(each["result"] == word for each in results) for word in ("proved", "refuted", "not replayed")}
    counts["not reached"] = left
    click.echo(", ".join(f"{count} {word}" for word, count in counts.items() if count) or "nothing to prove")


def _chosen(names: tuple[str, ...], subject: str | None, with_long: bool) -> list[ProofClaim]:
    """Return the claims with these names, or about these rules or topics.

    A name without a subject stands for every subject, and `*` for any text, as in citations.
    """
    wanted = [name.upper() for name in names]
    unknown = [
        name
        for name in names
        if not any(_named(claim, name) or name.upper() in _words(claim) for claim in claims().values())
    ]
    if unknown:
        raise UnknownNameError(
            "prove", f"no certificate of {', '.join(unknown)}", "an ID, prefix or name of `fp4ref prove --list`"
        )
    return [
        claim
        for claim in claims().values()
        if (subject is None or claim.subject == subject)
        and (
            any(_named(claim, name) and "*" not in name for name in names)
            or (
                (with_long or not claim.long)
                and (not names or _words(claim) & {*wanted} or any(_named(claim, name) for name in names))
            )
        )
    ]


def _named(claim: ProofClaim, name: str) -> bool:
    """Return True if a name, with or without a subject, is a claim's."""
    return fnmatchcase(claim.name if "/" in name else claim.name.rpartition("/")[0], name)


def _on(claim: ProofClaim, device: str | None) -> bool:
    """Return True if a claim is decided on a device; None stands for any."""
    return device is None or (claim.subject is ClaimSubject.CUDA) is (device == "cuda")


def _words(claim: ProofClaim) -> set[str]:
    return {word for rule in claim.rules for word in (rule, prefix_of(rule))}


def _replays(chosen: list[ProofClaim], jobs: int, record: bool, quiet: bool) -> Generator[tuple[dict[str, Any], str]]:
    """Decide claims, here or in processes, and yield the results and lines of each in the order of the claims."""
    if jobs == 1:
        for claim in chosen:
            yield _replay(claim.name, record, quiet)
        return
    with processors.shared(jobs), ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(partial(_replay, record=record, quiet=True), [claim.name for claim in chosen])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _replay(name: str, record: bool, quiet: bool) -> tuple[dict[str, Any], str]:
    """Decide one claim, and return its result and lines; if quiet, without a progress bar."""
    claim, started = claims()[name], time.process_time()
    reason = _missing(claim)
    try:
        finding = Replayed(0) if reason else _decided(claim, quiet)
    except BackendError as error:  # no compiler, or a backend that this machine cannot start
        reason = str(error)
    if reason:
        return {"name": name, "result": "not replayed", "reason": reason}, f"{name}: not replayed: {reason}"
    seconds = time.process_time() - started
    result = "refuted" if finding.witness else "proved"
    if record and not finding.witness:
        records.written(claim, finding, seconds, datetime.now(UTC).date().isoformat(), _tools(claim))
    kept = records.read(claim)
    with processors.uncollected():  # it reads the sources
        changed = records.outdated(claim, kept) if kept else ["no record"]
    counts = f"{in_words(finding.computed)} of {in_words(claim.size)} inputs computed"
    lines = [f"{name}: {result} ({counts}, {seconds:.1f} s)"]
    if finding.witness:
        lines.append(f"  {claim.statement}\n  witness: {finding.witness}")
    elif changed:
        lines.append(f"  its record is out of date: {', '.join(changed)}" if kept else "  it has no record")
    return {
        "name": name,
        "rules": [*claim.rules],
        "result": result,
        "witness": finding.witness,
        "inputs_computed": finding.computed,
        "processor_seconds": round(seconds, 1),
        "changed_since_record": changed,
    }, "\n".join(lines)


def _missing(claim: ProofClaim) -> str:
    """Return the reason why a claim cannot be replayed here; empty if it can."""
    if claim.needs == LINUX_X86:
        here = sys.platform.startswith("linux") and platform.machine() == "x86_64"
        return "" if here else f"it needs {LINUX_X86}"
    for name in ("z3" if claim.method is Method.SMT else "", claim.needs):
        if name and util.find_spec(name) is None:
            return f"{name} is not installed; pip install 'fp4ref[{'torch' if name == 'torch' else 'prove'}]'"
    if claim.subject is ClaimSubject.CUDA:
        devices, reason = cuda_devices()
        return "" if devices else reason or "no CUDA device"
    return ""


def _decided(claim: ProofClaim, quiet: bool) -> Replayed:
    """Decide a claim with a progress bar, on a terminal only; code that raises what no rule asks for refutes it."""
    from rich.progress import Progress

    with Progress(console=console(), transient=True, disable=quiet or not console().is_terminal) as progress:
        task = progress.add_task(claim.name, total=1.0)
        try:
            return claim.counted(claim.decide(lambda done: progress.update(task, completed=done)))
        except BackendError:
            raise
        except Exception as error:  # noqa: BLE001 - the code that a claim is about may raise anything
            last = traceback.extract_tb(error.__traceback__)[-1]
            said = " ".join(f"{type(error).__name__}: {error}".split())
            return Replayed(0, f"it ended with {said} ({Path(last.filename).name}:{last.lineno})")


def _tools(claim: ProofClaim) -> dict[str, str]:
    """Return the versions of what a claim was decided with."""
    tools = {"python": platform.python_version(), "numpy": metadata.version("numpy"), "machine": platform.machine()}
    if claim.subject in {ClaimSubject.HEADER, ClaimSubject.CPU}:
        tools["compiler"] = native.version()
    if claim.subject is ClaimSubject.CUDA:
        tools["device"] = ", ".join(f"{device.name}, {device.capability}" for device in cuda_devices()[0])
    if claim.subject in {ClaimSubject.TORCH, ClaimSubject.CUDA}:
        tools["torch"] = metadata.version("torch")
    if claim.method is Method.SMT:
        tools["z3"] = metadata.version("z3-solver")
    if claim.needs == second_solver.NAME:
        tools[second_solver.NAME] = metadata.version(second_solver.NAME)
    return tools


def _list(chosen: list[ProofClaim], as_json: bool) -> None:
    """Print the claims with the state of their records."""
    rows = [(claim, records.read(claim)) for claim in chosen]
    if as_json:
        click.echo(json.dumps([kept for _, kept in rows if kept], indent=1, ensure_ascii=False))
        return
    for claim, kept in rows:
        state = (
            "no record"
            if kept is None
            else "out of date"
            if records.outdated(claim, kept)
            else f"proved {kept['date']}"
        )
        click.echo(f"{claim.name}  {', '.join(claim.rules)}  {claim.method}{', long' if claim.long else ''}: {state}")
        click.echo(f"  {claim.statement} Domain: {claim.domain}.")
