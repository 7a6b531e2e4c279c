"""What `python -m trainer.flops` measures of a device: products, memory, transfers and dispatches, each in limited time.

Clocks are passed in. Nothing here prints; each measurement is a `rows.Row`."""
