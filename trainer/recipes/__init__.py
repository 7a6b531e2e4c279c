"""Ready training runs, one module each: `python -m trainer <recipe>`. Each has a Config and run(config)."""
