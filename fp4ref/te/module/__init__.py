"""Modules."""
