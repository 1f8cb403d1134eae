"""The text of the standard, held against the code: its generated parts, formulas and examples."""
