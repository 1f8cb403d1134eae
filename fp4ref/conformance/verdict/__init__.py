"""Verdicts: one report for each kind of subject, from all comparisons and the diagnosis."""
