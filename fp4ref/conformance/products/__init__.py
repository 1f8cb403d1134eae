"""Judging kernels that multiply quantized operands: cases, the judge, known mistakes, the report."""
