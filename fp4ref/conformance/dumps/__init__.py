"""Dumps: quantized tensors in a file, and one block of them under a name."""
