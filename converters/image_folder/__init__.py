"""Image folders, one per class, on disk or inside tars and zips."""
