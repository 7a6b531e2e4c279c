"""Several processes as one run: how they meet, agree, and end together."""
