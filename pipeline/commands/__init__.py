"""The commands of infeed that look at shards, the command `infeed` itself, and what all commands
share."""
