"""Which records a batch has: pure functions of (seed, position). NumPy alone; no I/O, no hosts."""
