"""What is known of each record until it is written: references, rows of packed files, sums."""
