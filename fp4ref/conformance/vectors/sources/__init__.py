"""Sources of the vectors: worked examples, aimed inputs with an oracle, and recordings of other implementations."""
