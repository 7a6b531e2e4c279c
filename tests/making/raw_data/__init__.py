"""Raw data in small, of every kind that a converter reads, and what converts it by the real command."""
