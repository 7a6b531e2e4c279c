"""Metrics: computed on the device over the records that count, exact over hosts and padding."""
