"""Checkpoints: files of quantized models, the conventions in which they are stored, and a linter for them."""

from fp4ref.checkpoints.configuration import Configuration, Written
from fp4ref.checkpoints.consumers import CONSUMERS, Consumer
from fp4ref.checkpoints.convention import CONVENTIONS, Convention, Direction, ScaleWay, StoredRole
from fp4ref.checkpoints.declarations import CheckpointDeclaration
from fp4ref.checkpoints.findings import CODES, LintFinding
from fp4ref.checkpoints.lint import LintReport, lint

__all__ = [
    "CODES",
    "CONSUMERS",
    "CONVENTIONS",
    "CheckpointDeclaration",
    "Configuration",
    "Consumer",
    "Convention",
    "Direction",
    "LintFinding",
    "LintReport",
    "ScaleWay",
    "StoredRole",
    "Written",
    "lint",
]
