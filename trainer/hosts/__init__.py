"""Several processes as one run: how they meet, agree, stop and end together."""
