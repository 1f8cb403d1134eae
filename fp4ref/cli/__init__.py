"""The command line. Every command lives in a module of its own name, which is imported when the command is used."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

import fp4ref
from fp4ref.cli.common import INTERNAL, REFUSED, printable, with_imports
from fp4ref.cli.session import degrade_output, leave_on_signals
from fp4ref.conformance.run.ending import INTERRUPTED, STOPPED
from fp4ref.errors import Fp4Error
from fp4ref.names import meant

COMMANDS = {
    "quantize": "Quantize the tensors of a file, or a checkpoint.",
    "dequantize": "Turn a dump back into a file of tensors.",
    "gen": "Write aimed cases for a program to quantize.",
    "verify": "Check bytes, kernels or backends against the standard.",
    "statement": "Check a statement of what was tried and found.",
    "report": "Compare the error of specifications on the tensors of a file.",
    "lint": "Find what is wrong with a checkpoint.",
    "convert": "Convert or repair a checkpoint.",
    "merge": "Join the shards that several ranks wrote.",
    "manifest": "Write digests of every tensor.",
    "compare": "Compare two checkpoints, manifests or modules.",
    "lossless": "Say whether a cast of a checkpoint is exact.",
    "explain": "Show every intermediate value of one block.",
    "where": "Say where an element and its scale are stored.",
    "diagram": "Draw formats, layouts and pipelines.",
    "explore": "Write the explorer, one HTML file.",
    "profiles": "List the specifications; compare two.",
    "layouts": "List the layouts; compare, find them.",
    "mistakes": "List the mistakes that a diagnosis knows.",
    "rules": "Rules of the standard: text, coverage, check.",
    "prove": "Replay the certificates: what holds for every input.",
    "theorems": "Evaluate theorems on tensors: what a second quantization keeps.",
    "vectors": "Write or check the golden vectors.",
    "header": "Write the numerics as C++ headers.",
    "doctor": "Show what works on this machine, and why the rest does not.",
}

WITHOUT_NAMES = {"rules", "prove", "doctor", "statement"}  # these read none that a user registers

READER_GONE = 128 + 13  # as a shell reports SIGPIPE
TRACEBACK = "FP4REF_TRACEBACK"  # an environment variable; anything but nothing shows where an internal error arose

EPILOG = """\b
Examples:
  fp4ref quantize model.safetensors -o model.nvfp4.safetensors --spec nvfp4
  fp4ref verify dump.npz
  fp4ref verify
  fp4ref COMMAND --help
"""


class Commands(click.Group):
    """A group that imports a command when it is used, and reports every expected failure in one line."""

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run the program: any text can be printed, and TERM and HUP undo what was begun. Rules: CNF-12, FIL-7."""
        degrade_output()
        leave_on_signals()
        return super().main(*args, **settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return names in the order in which a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"fp4ref.cli.{cmd_name}"), cmd_name)
        return command if cmd_name in WITHOUT_NAMES else with_imports(command)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find a command; for an unknown name, say which one is most like it."""
        if args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}{meant(args[0], COMMANDS) or '; see fp4ref --help'}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command and return its result, or leave with the status of what ended it.

        Status: 2 for what was refused, 3 for an internal error, 130 for Ctrl-C, 141 for a reader that left.

        With NO_COLOR in the environment, nothing is coloured, as rich does.

        Rules: CNF-11.
        """
        if os.environ.get("NO_COLOR"):
            ctx.color = False  # for every command below, what click prints is plain
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except Fp4Error as error:
            _fail(str(error))
        except SystemExit as leaving:
            if isinstance(leaving.__context__, BrokenPipeError):  # rich's way to leave
                raise SystemExit(READER_GONE) from None
            raise
        except KeyboardInterrupt:
            _fail(STOPPED, INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered has no reader
                raise SystemExit(READER_GONE) from None
            _fail(f"{error.filename}: {error.strerror}" if error.filename else _unnamed(error))
        except MemoryError as error:
            _fail(f"out of memory ({error})" if str(error) else "out of memory")
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001 - a defect of this program must not look like a verdict
            _fail_internally(error)
        return result


def _unnamed(error: OSError) -> str:
    """Return an error's text; if standard output cannot be written, its name and the reason."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError as again:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered cannot be written
        return f"standard output: {again.strerror}"
    return str(error)


def _fail(message: str, status: int = REFUSED) -> NoReturn:
    click.echo(f"fp4ref: {printable(' '.join(message.split()))}", err=True)
    raise SystemExit(status)


def _fail_internally(error: Exception) -> NoReturn:
    """Leave after an exception that nobody expected, with one line or, if it is asked for, the traceback."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    advice = f"this is a defect of fp4ref, please report it with the output of {TRACEBACK}=1"
    _fail(f"internal error: {said} ({place}); {advice}", INTERNAL)


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        click.echo(f"fp4ref, version {fp4ref.__version__}")
        ctx.exit()


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Make, read and check bytes of NVFP4, MXFP4, MXFP6 and MXFP8.

    Exit status: 0 success, 1 bytes differ, 2 bad input, 3 an internal error of fp4ref; set FP4REF_TRACEBACK=1 to see
    its traceback. 130 after Ctrl-C, 141 if the reader of a pipe left.
    """
