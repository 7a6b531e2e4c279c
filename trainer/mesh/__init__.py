"""Devices: how batches and parameters are split over them, and the names and axes of arrays."""
