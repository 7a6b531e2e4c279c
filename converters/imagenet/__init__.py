"""ImageNet (ILSVRC2012 classification): where its files are, what its records contain."""
