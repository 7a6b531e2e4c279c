"""One writer per work directory: which process it is, whether it is alive, and when another one may take over."""
