"""Diagnoses that can be told: an exception while one is put into words costs the diagnosis, not the report."""

from __future__ import annotations

import json
from collections.abc import Callable

from fp4ref.conformance.diagnosis.explanations import Diagnosis, report_lines, verdict
from fp4ref.conformance.judge.isolation import DIAGNOSIS, InternalError, attempted


def told(diagnose: Callable[[], Diagnosis | None], errors: list[InternalError]) -> Diagnosis | None:
    """Return a diagnosis that every report can show; if it cannot be made or shown, note that and return None.

    Rules: CNF-10.
    """

    def shown() -> Diagnosis | None:
        found = diagnose()
        if found is not None:
            json.dumps([verdict(found), found.sentence, report_lines(found), found.to_json()], allow_nan=False)
        return found

    return attempted(DIAGNOSIS, shown, errors)
