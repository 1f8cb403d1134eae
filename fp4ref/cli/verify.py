"""`fp4ref verify`: the verdict on dumps, on a kernel, or on the installed backends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.catalogue import PROFILES
from fp4ref.cli.common import (
    INTERNAL,
    REFUSED,
    Seconds,
    console,
    force_option,
    given_options,
    load_spec,
    printable,
    progress,
    refuse_options,
    select,
    spec_files,
)
from fp4ref.cli.verify_pages import Pages
from fp4ref.cli.verify_statement import Statement
from fp4ref.cli.verify_text import print_replay, print_report
from fp4ref.errors import FileError, Fp4Error
from fp4ref.files import SUFFIXES, files_of, is_side_file, open_tensors
from fp4ref.spec import SPEC_VERSION

if TYPE_CHECKING:
    from rich.console import Console

    from fp4ref.conformance.reports.view import View
    from fp4ref.conformance.verdict.dump_report import DumpReport
    from fp4ref.conformance.verdict.dumps import DumpRequest

EPILOG = """\b
Examples:
  fp4ref verify
  fp4ref verify dump.npz
  fp4ref verify model.nvfp4.safetensors --input model.safetensors --tensors '*weight'
  fp4ref verify kernel.npz --spec nvfp4 --layout tiled_128x4
  fp4ref verify dump.npz --case row:0:0
  fp4ref verify dump.npz --case row:0:0 --save-case case.npz
  fp4ref verify dump.npz --json
  fp4ref verify dump.npz --junit verify.xml --html verify.html
  fp4ref verify --kernel mykernels.nvfp4:quantize --spec nvfp4
  fp4ref verify --kernel kernel.py:quantize --spec mxfp4 --device cuda --level 2
  fp4ref verify --kernel kernel.py:quantize --spec nvfp4 --device cuda --huge
  fp4ref verify --kernel kernel.py:gemm --spec nvfp4
  fp4ref verify --library ./libmine.so:quantize --signature quantize.toml --spec mxfp4
  fp4ref verify --library ./libmine.so:quantize_nvfp4 --signature flashinfer-nvfp4 --spec nvfp4 --device cuda
  fp4ref verify --signatures
  fp4ref verify dump.npz --statement statement.json
  fp4ref verify --kernel kernel.py:quantize --spec nvfp4 --statement statement.json --subject-version 1.2
  fp4ref gen nvfp4 --level 1 | ./my_kernel | fp4ref verify nvfp4
"""

CALLED_ONLY = frozenset(
    [
        "--device",
        "--direction",
        "--family",
        "--forever",
        "--huge",
        "--level",
        "--repeat",
        "--seed",
        "--start-timeout",
        "--time-limit",
        "--timeout",
        "--weights",
    ]
)  # options of a subject that the command calls
OF_BACKENDS = frozenset(
    ["--backend", "--json", "--junit", "--html", "--force", "--limit", "--no-diagnosis", "--diagnosis-seconds"]
)  # options that apply without PATH


def _list_signatures(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the names and notes of the signatures that are installed."""
    if not wanted:
        return
    from fp4ref.conformance.run.libraries import named, names

    for name in names():
        record = named(name).record
        click.echo(f"{name}: {record['note']}\n  {record['source']}, {record['date']}")
    context.exit()


@click.command("verify", epilog=EPILOG, short_help="Check bytes, kernels or backends against the standard.")
@click.argument("paths", metavar="[PATH|SPEC|-]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--spec", "spec_name", help="The specification of the bytes, if the dump names none or the wrong one.")
@click.option("--profile", help="Judge by this profile instead of the dump's own specification.")
@click.option("--layout", "scale_layout", help="The layout of the scales, if the dump does not name it.")
@click.option(
    "--dtype", type=click.Choice(list(INPUT_DTYPES)), help="The type of x, if the file stores its bits as integers."
)
@click.option("--input", "inputs", type=click.Path(path_type=Path), help="A file with x, if the dump has none.")
@click.option("--tensors", "patterns", multiple=True, metavar="PATTERN", help="Only these names; `*` matches any text.")
@click.option(
    "--amax", type=click.Choice(["computed", "given"]), help="Judge by the amax of x (default), or by the dump's."
)
@click.option("--case", "case_id", metavar="ID", help="Show every element of one block, TENSOR:row:ROW:BLOCK.")
@click.option(
    "--kernel", metavar="MODULE:FUNCTION", help="Check this Python function, or one of FILE.py, on aimed cases."
)
@click.option("--library", metavar="LIB:FUNCTION", help="Check this function of a shared library, without a wrapper.")
@click.option(
    "--signature", metavar="NAME|FILE", help="The signature of --library's function: an installed name, or a file."
)
@click.option(
    "--signatures",
    is_flag=True,
    expose_value=False,
    callback=_list_signatures,
    help="List the installed signatures, and exit.",
)
@click.option("--direction", type=click.Choice(["row", "column"]), help="The direction that a kernel quantizes.")
@click.option(
    "--device",
    help="The device of the tensors that a kernel is given; on other devices than cpu they are torch tensors.",
)
@click.option(
    "--level",
    type=click.IntRange(1, 2),
    default=2,
    show_default=True,
    help="1: the cases of a second or two; 2: also large tensors and every bit pattern.",
)
@click.option("--huge", is_flag=True, help="Instead of these cases, use inputs past 2^31 bytes and past 2^32 elements.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Draw other random numbers for a kernel's cases.")
@click.option("--forever", is_flag=True, help="Continue with the next seed until a case fails or you interrupt.")
@click.option("--family", "families", multiple=True, help="Only these families of cases.")
@click.option(
    "--require",
    multiple=True,
    metavar="FAMILIES|all",
    help="Families that must be tried, separated by commas; if one is not, the exit status is 2.",
)
@click.option(
    "--timeout", type=Seconds(0, min_open=True), default=30.0, help="Seconds that a kernel may take for a case."
)
@click.option(
    "--start-timeout",
    type=Seconds(0),
    metavar="SECONDS",
    help="More seconds for a kernel's first case, in which it may be compiled. [default: four times --timeout]",
)
@click.option(
    "--time-limit",
    type=Seconds(0, min_open=True),
    metavar="SECONDS",
    help="Try no further case after this time; the verdict names the cases that were not tried.",
)
@click.option(
    "--repeat",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Run a kernel's cases N more times forwards and N more times backwards, in fresh processes.",
)
@click.option("--weights", type=click.Path(path_type=Path), help="Use the tensors of this model as cases, too.")
@click.option(
    "--nibbles", type=click.Choice(["low", "high"]), help="The nibble that holds element 0 of a kernel or stream."
)
@click.option(
    "--save-case", type=click.Path(path_type=Path), help="Write that block, or the first that differs, to a file."
)
@click.option("--backend", "backends", multiple=True, help="Without PATH: check only this backend.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write a JUnit XML report, too.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write an HTML page with pictures, too.")
@click.option(
    "--statement",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a statement of what was tried and found, too.",
)
@click.option("--subject-version", default="", metavar="TEXT", help="The version of the subject, for the statement.")
@click.option(
    "--known-failures",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="A file of lines KERNEL SPEC CASE REASON, for the statement.",
)
@force_option
@click.option("--no-diagnosis", is_flag=True, help="Compare only; do not look for the cause of wrong bytes.")
@click.option(
    "--diagnosis-seconds",
    type=Seconds(0),
    metavar="S",
    help="Look for the cause of wrong bytes for at most S seconds of processor time; 0 is --no-diagnosis.",
)
@click.option(
    "--limit", type=click.IntRange(0), default=10, show_default=True, help="The number of mismatches to show."
)
def verify(
    paths: tuple[Path, ...],
    spec_name: str | None,
    profile: str | None,
    scale_layout: str | None,
    dtype: str | None,
    inputs: Path | None,
    patterns: tuple[str, ...],
    amax: str | None,
    case_id: str | None,
    kernel: str | None,
    library: str | None,
    signature: str | None,
    direction: str | None,
    device: str | None,
    level: int,
    huge: bool,
    seed: int,
    forever: bool,
    families: tuple[str, ...],
    require: tuple[str, ...],
    timeout: float,
    start_timeout: float | None,
    time_limit: float | None,
    repeat: int,
    weights: Path | None,
    nibbles: str | None,
    save_case: Path | None,
    backends: tuple[str, ...],
    as_json: bool,
    junit: Path | None,
    html: Path | None,
    statement: Path | None,
    subject_version: str,
    known_failures: Path | None,
    force: bool,
    no_diagnosis: bool,
    diagnosis_seconds: float | None,
    limit: int,
) -> None:
    """Compare dumps byte by byte with the golden model, or a kernel's bytes on aimed cases.

    PATH is a .safetensors or .npz file, a .json beside raw binaries, a directory of these, or a stream that a program
    made from `fp4ref gen`. SPEC or - reads such a stream from standard input. Without arguments, the installed backends
    are checked. The verdict comes first. Every mismatch has a case ID; --case shows that case alone.

    A function of a C library is called by its signature, on the CPU or with device pointers (CNF-16). A kernel
    declared with operation="gemm" gets operands, and a bias and C if it takes them (GEM-13 to GEM-17).

    Exit status: 0 all bytes are right, 1 some differ, 2 bad input or a required family that was not tried, 3 an
    internal error of fp4ref. If the diagnosis fails, the failure is reported; verdict and status do not change.
    """
    seconds = 0.0 if no_diagnosis else diagnosis_seconds
    targets = [Path(target.rpartition(":")[0]) for target in (kernel, library) if target]
    others = [Path(path) for path in (inputs, weights, signature) if path]
    sources = tuple(_sources([*paths, *others, *targets], spec_name or profile))
    pages = Pages(junit, html, sources, force)
    pages.require_whole(case_id, save_case)
    stated = Statement.wanted(statement, subject_version, known_failures, pages, one_case=bool(case_id or save_case))
    streamed = [path for path in paths if _is_stream(path)]
    if (library is None) is not (signature is None) or (library and kernel):
        raise click.UsageError("--library needs --signature, and neither goes with --kernel")
    kernel = kernel or library
    given = given_options()
    if kernel is None:
        refuse_options(given & CALLED_ONLY, "for --kernel or --library")
    if kernel is not None or streamed:
        if (kernel is not None and paths) or len(paths) > 1:
            raise click.UsageError("--kernel, --library and a stream take no other PATH")
        if profile or dtype or inputs or patterns or amax or backends:
            raise click.UsageError(
                "--profile, --dtype, --input, --tensors, --amax and --backend are for dumps and backends"
            )
        from fp4ref.cli.verify_choice import Choice
        from fp4ref.cli.verify_kernel import check_kernel, check_stream
        from fp4ref.conformance.run.run_options import RunOptions

        options = RunOptions.starting_now(timeout, start_timeout, time_limit, repeat)
        choice = Choice(
            spec_name,
            scale_layout,
            nibbles,
            case_id,
            save_case,
            as_json,
            limit,
            pages,
            seconds,
            signature,
            direction,
            require,
            stated,
            forever,
            given,
            huge,
        )
        if kernel is None:
            raise SystemExit(check_stream(streamed[0], choice))
        cases = {"level": level, "seed": seed, "families": families or None, "weights": weights}
        raise SystemExit(check_kernel(kernel, choice, device, options, cases))
    refuse_options(given & {"--require", "--nibbles"}, "for --kernel, --library or a stream")
    if not paths:
        refuse_options(given - OF_BACKENDS, f"not without PATH, where only {', '.join(sorted(OF_BACKENDS))} apply")
        raise SystemExit(_check_backends(backends, as_json, pages))
    if backends:
        raise click.UsageError("--backend applies without PATH")
    if spec_name and profile:
        raise click.UsageError("--spec and --profile exclude each other")
    from fp4ref.conformance.diagnosis.dumps import SECONDS
    from fp4ref.conformance.verdict.dumps import DumpRequest

    name = spec_name or profile
    request = partial(
        DumpRequest,
        spec=load_spec(name) if name else None,
        scale_layout=scale_layout,
        dtype=dtype,
        inputs=inputs,
        select=partial(select, patterns=patterns),
        amax=amax,
        keep=max(limit, 16),
        seconds=SECONDS if seconds is None else seconds,
    )
    files = _files(paths)
    pages.require_one(len(files), stated is not None)
    if case_id or save_case:
        if len(files) > 1:
            raise click.UsageError("--case and --save-case take one file")
        raise SystemExit(_case(request(path=files[0]), case_id, save_case, as_json, force=force))
    raise SystemExit(_verify(files, request, as_json, limit, pages, stated))


def _sources(paths: Iterable[Path], spec: str | None) -> Iterator[Path]:
    """Every file that the command may read. Rules: FIL-6."""
    for path in paths:
        yield from _below(path) if path.is_dir() else files_of(path)
    yield from spec_files(spec)


def _below(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.suffix.lower() in SUFFIXES and file.is_file()]


def _is_stream(path: Path) -> bool:
    """Whether an argument means a stream: -, a specification's name that no file has, or a file of results."""
    if str(path) == "-" or (str(path) in PROFILES and not path.exists()):
        if sys.stdin.isatty():
            got = f"{path}: standard input is a terminal"
            raise FileError("verify", got, f"a program's results: fp4ref gen {path} | PROGRAM | fp4ref verify {path}")
        return True
    if path.suffix.lower() in SUFFIXES or not path.is_file():
        return False
    from fp4ref.conformance.run.stream import MAGIC, is_stream

    with path.open("rb") as file:
        return is_stream(file.read(len(MAGIC)))


def _files(paths: Iterable[Path]) -> list[Path]:
    """The files to verify; in a directory, all tensor files below it that hold quantized bytes."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        below = [file for file in _below(path) if file.suffix.lower() != ".json" or is_side_file(file)]
        kept = [file for file in below if _may_be_dump(file)]
        for file in below:
            if file not in kept:
                click.echo(f"skipped {file}: no quantized bytes in it", err=True)
        if not kept:
            raise FileError(f"verify {path}", "a directory without dumps", " or ".join(SUFFIXES), "FIL-3")
        found += kept
    return found


def _may_be_dump(path: Path) -> bool:
    """Whether a file has an entry for quantized data, or cannot be read, which is then reported."""
    try:
        with open_tensors(path) as file:
            return any(name == "data" or name.endswith(".data") for name in file.names)
    except Fp4Error:
        return True


def _verify(
    files: Sequence[Path],
    request: partial[DumpRequest],
    as_json: bool,
    limit: int,
    pages: Pages,
    stated: Statement | None,
) -> int:
    """Print the verdict on every file, after the pages are written; the worst exit status. Rules: CNF-11, CNF-12."""
    out, found = console(), []
    for path in files:
        found.append(_checked(path, request, explained=bool(pages) or as_json, alone=len(files) == 1))
        if not (pages or stated or as_json):
            found[-1].show(out, limit)
    status = max(item.status for item in found)
    if stated is not None and found[0].report is not None:
        stated.write_dump(found[0].report, files[0])
    pages.write([item.view for item in found if item.view is not None])
    if as_json:
        record = {"fp4ref": SPEC_VERSION, "ok": status == 0, "files": [item.record for item in found]}
        click.echo(json.dumps(record, indent=1, allow_nan=False))
    elif pages or stated:
        for item in found:
            item.show(out, limit)
    return status


@dataclass(frozen=True)
class _Checked:
    """A file: its exit status and JSON data, its report, or why there is none, and the view for pages."""

    status: int
    record: dict[str, Any]
    report: DumpReport | None = None
    view: View | None = None

    def show(self, out: Console, limit: int) -> None:
        """Print the report; a reason was printed when it arose."""
        if self.report is not None:
            print_report(out, self.report, limit)


def _checked(path: Path, request: partial[DumpRequest], *, explained: bool, alone: bool) -> _Checked:
    """Verify one file; among several, one that cannot be verified does not end the others. Rules: CNF-10, CNF-11."""
    from fp4ref.conformance.judge.isolation import InternalError
    from fp4ref.conformance.reports.intermediates import with_intermediates
    from fp4ref.conformance.reports.view import of_dump, of_error
    from fp4ref.conformance.verdict.dumps import verify as verify_file

    record: dict[str, Any]
    try:
        with progress(None, "verify") as step:
            report = verify_file(request(path=path), step)
        view = of_dump(report, request(path=path)) if explained else None
    except (Fp4Error, OSError) as error:
        if alone:
            raise
        status, reason, record = REFUSED, str(error), {"path": str(path), "error": str(error)}
    except Exception as error:
        if alone:
            raise
        broken = InternalError.of("verification", error)
        status, reason = INTERNAL, f"{path}: {broken}"
        record = {"path": str(path), "error": reason, "internal_errors": [broken.to_json()]}
    else:
        record = report.to_json()
        if view is not None and not report.ok:
            record = with_intermediates(record, view)
        return _Checked(report.kind.status, record, report, view)
    click.echo(f"fp4ref: {printable(reason)}", err=True)
    return _Checked(status, record, view=of_error(str(path), reason) if explained else None)


def _case(request: DumpRequest, case_id: str | None, save_case: Path | None, as_json: bool, *, force: bool) -> int:
    """Show one block, and save it; whether it differs."""
    from fp4ref.conformance.dumps.cases import parse
    from fp4ref.conformance.verdict.replay import block_of, first_case, replay, save

    case = parse(case_id) if case_id else first_case(request)
    block = block_of(request, case)
    found = replay(block, case)
    if save_case is not None:
        save(save_case, block, case, request.path, force=force)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1, allow_nan=False))
    else:
        out = console()
        print_replay(out, request.path, found)
        if save_case is not None:
            out.print(f"saved; see it again: fp4ref verify {save_case}", markup=False, soft_wrap=True)
    return 0 if found.equal else 1


def _check_backends(backends: tuple[str, ...], as_json: bool, pages: Pages) -> int:
    """Check every installed backend, or the named ones. Rules: CNF-5."""
    from fp4ref.conformance.selfcheck import implementations as selfcheck

    with progress(None, "verify") as step:
        report = selfcheck.run(list(backends) or None, step, note=partial(click.echo, err=True))
    if pages:
        from fp4ref.conformance.reports.view import of_backends

        pages.write([of_backends(report)])
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=1))
    else:
        report.render(console())
    return 0 if report.ok else 1
