"""A second solver for each formula: cvc5 reads the text that z3 writes, and has to give the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fp4ref.errors import BackendError

NAME = "cvc5"
MILLISECONDS = "120000"
INTERRUPTED = "interrupted from keyboard"  # z3's reason


def confirm(solver: Any, answer: Any, logic: str) -> None:
    """Decide the formulas of a solver of z3 anew, and compare.

    Ctrl-C makes z3 answer `unknown`; then KeyboardInterrupt is raised.

    Errors: BackendError without cvc5, and for another answer or none.
    """
    if str(answer) == "unknown" and solver.reason_unknown() == INTERRUPTED:
        raise KeyboardInterrupt
    other = decided(solver.to_smt2().rpartition("(check-sat)")[0], logic)
    if other != str(answer):
        raise BackendError("prove", f"the answer {answer} of z3 and {other} of {NAME}", "two solvers that agree")


def counterexample(logic: str, premise: Sequence[Any], goal: Any, what: str = "") -> Any:
    """Return a model of z3 in which a premise is true and a goal false; None if both solvers say that there is none.

    Errors: BackendError if the premise is never true, or if a solver finds no answer or not that of the other.
    """
    import z3

    for formulas, needed in ((premise, z3.sat), ((*premise, z3.Not(goal)), z3.unsat)):
        solver = z3.SolverFor(logic)
        solver.set("timeout", int(MILLISECONDS))
        solver.add(*formulas)
        answer = solver.check()
        confirm(solver, answer, logic)
        if needed is z3.unsat and answer == z3.sat:
            return solver.model()
        if answer != needed:
            why = "an unmet premise" if needed is z3.sat else "no answer"
            raise BackendError("prove", f"{why} ({answer}){what and f': {what}'}", "a proof")
    return None


def decided(text: str, logic: str) -> str:
    """Return the answer to formulas in SMT-LIB: sat, unsat, or unknown with a reason.

    Errors: BackendError without cvc5.
    """
    try:
        import cvc5
    except ImportError as error:
        raise BackendError("prove", f"no second solver ({error})", "the extra `prove`") from None
    solver = cvc5.Solver(cvc5.TermManager())
    for option, value in (("tlimit-per", MILLISECONDS), ("nl-cov", "true")):
        solver.setOption(option, value)
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, f"(set-logic {logic})\n{text}", "formula")
    while not (command := parser.nextCommand()).isNull():
        command.invoke(solver, parser.getSymbolManager())
    return str(solver.checkSat())
