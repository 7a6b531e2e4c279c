"""The on-device loop: which steps a dispatch makes, its programs, their feeder, and the look at what came out."""
