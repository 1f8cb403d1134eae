"""Where the vectors come from: worked examples, aimed inputs with an oracle, and recordings of others."""
