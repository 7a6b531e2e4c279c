"""What each call of the Trainer does, one module a call."""
