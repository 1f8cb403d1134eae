"""Golden vectors: inputs with expected bits in JSON files; their sources, their check and their export."""
