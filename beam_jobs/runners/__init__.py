"""Where a conversion runs: one class for each of Beam's runners that has a short name."""
