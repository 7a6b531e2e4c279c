"""What all commands share: how they are started, what they print, and how they end."""
