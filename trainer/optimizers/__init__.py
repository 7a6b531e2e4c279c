"""Optimizers by name: rules, schedules, and groups of parameters with their own rates, from
flags."""
