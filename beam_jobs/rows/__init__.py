"""What a conversion shuffles and adds up: references, rows of packed files, sums."""
