"""What a work directory keeps for later runs: checkpoints, warm starts, descriptions of data, and
its owner."""
