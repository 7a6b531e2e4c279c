"""What `python -m trainer.flops` measures of a device, in limited time: products, memory, transfers and dispatches.

Clocks are passed in. Nothing here prints; each measurement is a `rows.Row`."""
