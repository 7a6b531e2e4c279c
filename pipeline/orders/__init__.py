"""Which records a batch contains: pure functions of (seed, position). NumPy only; no I/O, no
hosts."""
