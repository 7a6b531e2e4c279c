"""Ready-made training runs for `python -m trainer <recipe>`. Each module has a Config and
run(config)."""
