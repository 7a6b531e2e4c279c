"""Pages: one HTML file each, which needs no network and no script."""
