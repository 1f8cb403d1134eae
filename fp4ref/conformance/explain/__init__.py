"""Explanations: each intermediate of an element, and the differences of two specifications with the smallest input."""
