"""Find the mistake that makes a candidate's bytes, and the place where it holds."""
