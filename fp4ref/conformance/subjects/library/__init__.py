"""Functions of C libraries as subjects: signatures that say how one is called, and the call."""
