"""Proofs: claims about every input of a domain, the programs that decide them, and the records of their runs."""
