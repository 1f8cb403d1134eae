"""Theorems about bytes: whether they can be moved to another format exactly, and what a second quantization keeps."""
