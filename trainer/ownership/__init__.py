"""One writer for a work directory: which process it is, whether it lives, and what another one may do."""
