"""The installed implementations, compared with the standard."""
