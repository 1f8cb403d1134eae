"""The statement that `fp4ref verify --statement` writes, and the facts of the machine that stand beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fp4ref.cli.verify_pages import Pages
from fp4ref.errors import FileError
from fp4ref.files import kinds
from fp4ref.files.targets import require_target, write_bytes

if TYPE_CHECKING:
    from fp4ref.conformance.selfcheck.report import SelfCheckReport
    from fp4ref.conformance.verdict.dump_report import DumpReport
    from fp4ref.conformance.verdict.kernel_report import KernelReport
    from fp4ref.conformance.verdict.products import ProductReport
    from fp4ref.conformance.verdict.statement import NamedSubject
    from fp4ref.conformance.verdict.stochastic import StochasticReport
    from fp4ref.conformance.verdict.sweep_report import SweepReport
    from fp4ref.kernels import Declaration


@dataclass(frozen=True)
class Statement:
    """A statement that is wanted.

    path: where. version: of the subject, as its author states it. known: a file of known failures, in the form of
    `fp4ref.testing`. subject: what is on trial. sources: files that the command reads. force: replace files of another
    kind.
    """

    path: Path
    version: str = ""
    known: Path | None = None
    subject: NamedSubject | None = None
    sources: tuple[Path, ...] = ()
    force: bool = False

    @classmethod
    def wanted(
        cls, path: Path | None, version: str, known: Path | None, pages: Pages, *, one_case: bool
    ) -> Statement | None:
        """Return the statement that options ask for, or None; refuse single cases and a path that cannot be written.

        Rules: FIL-6.
        """
        if path is None:
            if version or known:
                raise click.UsageError("--subject-version and --known-failures need --statement")
            return None
        if one_case:
            raise click.UsageError("--statement is for whole reports, not for --case and --save-case")
        others = [each for each in (known, pages.junit, pages.html) if each is not None]
        if path.absolute() in [each.absolute() for each in others]:
            raise FileError("verify", f"{path} for --statement and another file", "two files", "FIL-4")
        sources = (*pages.sources, *others)
        require_target(path, kinds.STATEMENT, sources, force=pages.force)
        return cls(path, version, known, None, sources, pages.force)

    def require_no_known_failures(self) -> None:
        """Refuse a file of known failures for a subject whose cases such a file does not name."""
        if self.known is not None:
            raise click.UsageError("--known-failures is for kernels")

    def about(self, kind: str, target: str, signature: Mapping[str, Any] | None = None) -> Statement:
        """Return the statement on a subject. target: as the user named it."""
        from fp4ref.conformance.verdict.statement import NamedSubject

        name = target.replace("\\", "/").rpartition("/")[2]
        return replace(self, subject=NamedSubject(kind, name, self.version, signature=signature))

    def write_kernel(self, report: KernelReport) -> None:
        """Write the statement on a kernel, a library or a stream."""
        from fp4ref.conformance.verdict.statement import of_kernel

        self._with_known(of_kernel, report, report.failing, report.spec.name)

    def write_product(self, report: ProductReport) -> None:
        """Write the statement on a GEMM."""
        from fp4ref.conformance.verdict.statement import of_product

        self._with_known(of_product, report, report.failing, report.spec.name)

    def write_drawing(self, report: StochasticReport, declared: Declaration) -> None:
        """Write the statement on a kernel that draws its own random bits."""
        from fp4ref.conformance.verdict.statement import of_drawing

        assert self.subject is not None
        place = Path(report.subject.rpartition(":")[0])
        found = of_drawing(report, declared, self.subject)
        self._write(found, report.headline, [place] if place.is_file() else [])

    def write_sweep(self, report: SweepReport) -> None:
        """Write the statement on a kernel that was given every value of a type."""
        assert self.subject is not None
        self.require_no_known_failures()
        place = Path(report.subject.rpartition(":")[0])
        self._write(report.statement(self.subject), report.headline, [place] if place.is_file() else [])

    def write_backends(self, report: SelfCheckReport) -> None:
        """Write the statement on the installed backends."""
        from fp4ref.conformance.selfcheck.statement import of_backends
        from fp4ref.conformance.verdict.statement import NamedSubject

        subject = NamedSubject("backends", ", ".join(report.subjects), self.version)
        self._write(of_backends(report, subject), report.headline, [], {"unavailable": report.unavailable})

    def write_dump(self, report: DumpReport, path: Path) -> None:
        """Write the statement on a dump."""
        from fp4ref.conformance.verdict.statement import NamedSubject, of_dump, sha256_of

        subject = NamedSubject("dump", path.name, self.version, sha256_of(path))
        self._write(of_dump(report, subject), report.headline, [path])

    def _with_known(self, found: Callable[..., Any], report: Any, failing: Iterable[str], spec: str) -> None:
        assert self.subject is not None
        known: dict[str, str] = {}
        if self.known is not None:
            from fp4ref.conformance.verdict.expected import read_expected_failures

            name = self.subject.name.rpartition(":")[2]
            lines = read_expected_failures(self.known)
            matching = {*lines.of(name, spec), *lines.of(report.subject, spec)}
            known = {case: line.reason for case in failing for line in matching if line.matches(case)}
        place = Path(report.subject.rpartition(":")[0])
        self._write(found(report, self.subject, known), report.headline, [place] if place.is_file() else [])

    def _write(
        self, found: Mapping[str, Any], headline: str, files: list[Path], more: Mapping[str, Any] | None = None
    ) -> None:
        from fp4ref.conformance.verdict.statement import statement

        record = statement(found, {"headline": headline, **_machine(files), **(more or {})})
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write_bytes(self.path, text.encode(), kinds.STATEMENT, self.sources, force=self.force)
        click.echo(f"wrote {self.path}, {record['digest']}", err=True)


def _machine(files: list[Path]) -> dict[str, Any]:
    """Return facts of the machine, of the moment, and of the subject's files. Rules: CNF-63."""
    import platform

    from fp4ref.conformance.run import machine
    from fp4ref.conformance.verdict.statement import sha256_of

    devices, reason = machine.cuda_devices()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "processor": machine.processor(),
        "versions": {"python": platform.python_version()}
        | {name: machine.installed(name) for name in (*machine.REQUIRED, *machine.OPTIONAL)},
        "compilers": machine.compilers(),
        "devices": [f"{device.name}, {device.capability}" for device in devices] or reason,
        "files": {path.name: sha256_of(path) for path in files},
    }
