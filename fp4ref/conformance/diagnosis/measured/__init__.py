"""Mistakes that are measured in a candidate's bytes instead of being known beforehand."""
