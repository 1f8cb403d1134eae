"""A slow second opinion on every byte, in exact rationals; it shares no code with the golden model."""
