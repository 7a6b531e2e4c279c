"""The idx files of MNIST and its family."""
