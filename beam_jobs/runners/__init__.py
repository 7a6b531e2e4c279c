"""Where a conversion runs: what each of Beam's runners needs of the launcher."""
