"""`fp4ref verify`: four jobs behind one name: dumps, a kernel, a program's answers, the installed backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.cli.common import Seconds, force_option, given_options, paragraph, refuse_options
from fp4ref.cli.options import level_option
from fp4ref.cli.verify_choice import CaseChoice, Choice, DumpChoice, KernelChoice, Reporting
from fp4ref.cli.verify_help import EPILOG, SectionedCommand
from fp4ref.cli.verify_pages import Pages
from fp4ref.cli.verify_sources import is_stream, sources
from fp4ref.cli.verify_statement import Statement

CALLED_ONLY = frozenset(
    [
        "--device",
        "--direction",
        "--exhaustive",
        "--family",
        "--forever",
        "--huge",
        "--level",
        "--repeat",
        "--resume",
        "--seed",
        "--weights",
    ]
)  # options of a subject that the command calls
TIMES = frozenset(["--start-timeout", "--time-limit", "--timeout"])  # of a kernel, and of a program behind a pipe
OF_DUMPS = (
    "profile",
    "dtype",
    "inputs",
    "patterns",
    "amax",
    "backends",
)  # options that neither a stream nor a kernel has
OF_BACKENDS = frozenset(
    [
        "--backend",
        "--diagnosis-seconds",
        "--force",
        "--html",
        "--json",
        "--junit",
        "--limit",
        "--no-diagnosis",
        "--statement",
        "--subject-version",
    ]
)  # options that apply without PATH


def _list_signatures(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the names and notes of the signatures that are installed."""
    if not wanted:
        return
    from fp4ref.conformance.run.libraries import named, names

    for name in names():
        record = named(name).record
        paragraph(f"{name}: {record['note']}")
        paragraph(f"{record['source']}, {record['date']}", 2)
    context.exit()


@click.command(
    "verify",
    cls=SectionedCommand,
    epilog=EPILOG,
    short_help="Check bytes, kernels or backends against the standard.",
)
@click.argument("paths", metavar="[PATH|SPEC|-]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--spec", help="The specification of the bytes, if the dump names none or the wrong one.")
@click.option("--profile", help="Judge by this profile instead of the dump's own specification.")
@click.option(
    "--layout", "scale_layout", help="The layout of the scales: a kernel's, or that of a dump that names none."
)
@click.option(
    "--dtype", type=click.Choice(list(INPUT_DTYPES)), help="The type of x, if the file stores its bits as integers."
)
@click.option("--input", "inputs", type=click.Path(path_type=Path), help="A file with x, if the dump has none.")
@click.option("--tensors", "patterns", multiple=True, metavar="PATTERN", help="Only these names; `*` matches any text.")
@click.option(
    "--amax", type=click.Choice(["computed", "given"]), help="Judge by the amax of x (default), or by the dump's."
)
@click.option("--case", metavar="ID", help="Show every element of one block, TENSOR:row:ROW:BLOCK.")
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
@level_option
@click.option("--huge", is_flag=True, help="Instead of these cases, use inputs past 2^31 bytes and past 2^32 elements.")
@click.option(
    "--exhaustive",
    type=click.Choice(list(INPUT_DTYPES)),
    metavar="DTYPE",
    help="Instead of these cases, use every value of float32, bfloat16 or float16 under every scale byte.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Keep the progress of --exhaustive in this file, and continue from there; a changed kernel is refused.",
)
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
    "--timeout",
    type=Seconds(0, min_open=True),
    default=30.0,
    help="Seconds that a kernel or program may take for a case.",
)
@click.option(
    "--start-timeout",
    type=Seconds(0),
    metavar="SECONDS",
    help="More seconds for the first case, in which a kernel may be compiled. [default: four times --timeout]",
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
@click.option("--packing", metavar="NAME", help="The packing of a kernel's, stream's or dump's data, such as pairs_16.")
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
    help="Look for the cause of wrong bytes for at most S seconds of processor time, about 9 by default; 0 is "
    "--no-diagnosis.",
)
@click.option(
    "--limit", type=click.IntRange(0), default=10, show_default=True, help="The number of mismatches to show."
)
def verify(paths: tuple[Path, ...], **options: Any) -> None:
    """Compare dumps byte by byte with the golden model, or a kernel's bytes on aimed cases.

    PATH is a .safetensors or .npz file, a .json beside raw binaries, a directory of these, or a stream that a program
    made from `fp4ref gen`. SPEC or - reads such a stream from standard input. Without arguments, the installed backends
    are checked. The verdict comes first. Every mismatch has a case ID; --case shows that case alone.

    The decorator @fp4ref.kernel declares what a kernel takes and returns: leading=False for matrices only, empty=False
    if no dimension may be 0, multiple=(1, 16) for whole blocks. A kernel declared with operation="gemm" gets operands,
    and a bias and C if it takes them (GEM-13 to GEM-17). A function of a C library is called by its signature, on the
    CPU or with device pointers (CNF-16).

    Exit status: 0 all bytes are right, 1 some differ, 2 bad input or a required family that was not tried, 3 an
    internal error of fp4ref. If the diagnosis fails, the failure is reported; verdict and status do not change.
    """
    raise SystemExit(_judge(paths, options, _reporting(paths, options)))


def _reporting(paths: tuple[Path, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `Reporting` from several options; refuse targets that may not be written. Rules: FIL-6."""
    targets = [Path(options[name].rpartition(":")[0]) for name in ("kernel", "library") if options[name]]
    others = [Path(options[name]) for name in ("inputs", "weights", "signature") if options[name]]
    read = tuple(sources([*paths, *others, *targets], options["spec"] or options["profile"]))
    pages = Pages(options["junit"], options["html"], read, options["force"])
    pages.require_whole(options["case"], options["save_case"])
    one_case = bool(options["case"] or options["save_case"])
    version, known = options["subject_version"], options["known_failures"]
    return {
        "pages": pages,
        "seconds": 0.0 if options["no_diagnosis"] else options["diagnosis_seconds"],
        "statement": Statement.wanted(options["statement"], version, known, pages, one_case=one_case),
        "given": given_options(),
    }


def _judge(paths: tuple[Path, ...], options: Mapping[str, Any], reporting: dict[str, Any]) -> int:
    """Do the job that arguments and options call for; return the exit status."""
    given, target = reporting["given"], options["kernel"] or options["library"]
    streamed = [path for path in paths if is_stream(path)]
    if (options["library"] is None) is not (options["signature"] is None) or (options["library"] and options["kernel"]):
        raise click.UsageError("--library needs --signature, and neither goes with --kernel")
    if target is None:
        refuse_options(given & CALLED_ONLY, "for --kernel or --library")
        if not streamed:
            refuse_options(given & TIMES, "for --kernel, --library or a stream")
    if target is not None or streamed:
        if (target is not None and paths) or len(paths) > 1:
            raise click.UsageError("--kernel, --library and a stream take no other PATH")
        if any(options[name] for name in OF_DUMPS):
            raise click.UsageError(
                "--profile, --dtype, --input, --tensors, --amax and --backend are for dumps and backends"
            )
        return _run(streamed, target, options, reporting)
    refuse_options(given & {"--require", "--nibbles"}, "for --kernel, --library or a stream")
    if not paths:
        from fp4ref.cli.verify_backends import check_backends

        refuse_options(given - OF_BACKENDS, f"not without PATH, where only {', '.join(sorted(OF_BACKENDS))} apply")
        return check_backends(options["backends"], Reporting.of(options, **reporting))
    if options["backends"]:
        raise click.UsageError("--backend applies without PATH")
    if options["spec"] and options["profile"]:
        raise click.UsageError("--spec and --profile exclude each other")
    from fp4ref.cli.verify_dump import check_dumps

    return check_dumps(paths, DumpChoice.of(options, **reporting))


def _run(streamed: list[Path], target: str | None, options: Mapping[str, Any], reporting: dict[str, Any]) -> int:
    """Judge a stream, or a kernel that is called."""
    from fp4ref.conformance.run.ending import SIGNALS
    from fp4ref.conformance.run.run_options import RunOptions

    times = (options[name] for name in ("timeout", "start_timeout", "time_limit", "repeat"))
    ends = SIGNALS if options["case"] is None else ()  # of one case there is nothing to report before its end
    limits = replace(RunOptions.starting_now(*times), ends=ends)
    if target is None:
        from fp4ref.cli.verify_stream import check_stream

        return check_stream(streamed[0], Choice.of(options, **reporting), limits)
    from fp4ref.cli.verify_kernel import check_kernel

    cases = CaseChoice.of(options)
    return check_kernel(KernelChoice.of(options, **reporting, target=target, cases=cases), limits)
