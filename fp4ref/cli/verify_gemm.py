"""`fp4ref verify` of a kernel that multiplies quantized operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fp4ref.cli.common import console, print_lines, refuse_options, table
from fp4ref.cli.verify_again import SEEDED, see_again
from fp4ref.cli.verify_choice import KernelChoice
from fp4ref.cli.verify_statement import Statement
from fp4ref.conformance.families.products.cases import FAMILIES
from fp4ref.conformance.judge.coverage import required
from fp4ref.conformance.mistakes.said import plural
from fp4ref.conformance.reports.gemm import of_gemm
from fp4ref.conformance.run import recent
from fp4ref.conformance.run.ending import status
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.product_runs import check
from fp4ref.conformance.verdict.products import ProductReport
from fp4ref.errors import DomainError
from fp4ref.names import meant
from fp4ref.spec import Spec

IGNORED = frozenset({"--save-case", "--level", "--weights", "--direction"})


def check_gemm(
    subject: Subject,
    spec: Spec,
    choice: KernelChoice,
    options: RunOptions,
    chosen: tuple[str, ...] | None,
    step: Callable[[str], None],
) -> int:
    """Run a GEMM on aimed and random operands, and print the report; return the exit status.

    Rules: CNF-2, CNF-21, CNF-48, GEM-13.
    """
    refuse_options(choice.given & IGNORED, "not for a gemm")
    unknown = [name for name in chosen or () if name not in FAMILIES]
    if unknown:
        raise DomainError(
            "verify",
            f"family {unknown[0]!r} of gemm",
            f"one of {', '.join(FAMILIES)}{meant(unknown[0], FAMILIES)}",
            "CNF-7",
        )
    needed = required(choice.require, FAMILIES)
    report = check(
        subject,
        spec,
        chosen,
        options,
        step,
        choice.case,
        first=[] if choice.statement or choice.case else recent.recall(choice.target, spec),
        seconds=choice.seconds,
        required=needed,
        seed=choice.cases.seed,
        forever=choice.forever,
    )
    if choice.case is None:
        recent.remember(choice.target, spec, report.failing)
    if choice.case is not None and not (report.judgements or report.findings or report.skipped or report.unchecked):
        raise DomainError("verify", f"no case {choice.case!r}", "the ID of a case, as a report prints it", "CNF-2")
    state = Statement.write_product if report.cut is None else None
    choice.deliver(report, partial(_print, report, choice), of_gemm, state)
    return status(report.status, report.cut)


def _print(report: ProductReport, choice: KernelChoice) -> None:
    out, limit = console(), choice.limit
    print_lines(out, [f"{report.subject}: {report.headline}"], "bold")
    print_lines(out, report.coverage.lines)
    print_lines(out, [str(error) for error in report.errors])
    print_lines(out, [f"{finding.kind} {case.id}: {finding.text}" for case, finding in report.findings[:limit]])
    families = report.families()
    failing = [name for name, cell in families.items() if cell.passed < cell.total]
    if failing:
        print_lines(out, ["", "families that fail"], "bold")
        cells = [(name, f"{families[name].passed}/{families[name].total}", FAMILIES[name].reason) for name in failing]
        first, *rest = table(("family", ">passed", "~reason"), cells, out.width)
        print_lines(out, [first], "dim")
        print_lines(out, rest)
        print_lines(out, ["", *report.mismatches(limit)])
    whole = [name for name in families if name not in failing]
    rules = [f"{rule} {cell.passed}/{cell.total}" for rule, cell in sorted(report.rules().items())]
    print_lines(out, ["", f"families that pass: {', '.join(whole) or 'none'}", f"rules: {', '.join(rules) or 'none'}"])
    print_lines(
        out,
        [f"{plural(count, '1 case does', 'cases do')} not apply: {reason}" for reason, count in report.skipped.items()],
    )
    if choice.given & SEEDED and report.failing:
        out.print(see_again("--case", report.failing[0]), markup=False, soft_wrap=True)
