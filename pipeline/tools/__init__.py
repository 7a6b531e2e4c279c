"""What the commands verify, describe and index are made of, and what every command prints and exits with."""
