"""Operands of products on trial: cases, and what is added to a product."""
