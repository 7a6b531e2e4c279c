"""Images stored as raw pixels in large files: the idx files of MNIST and its family, and CIFAR's
binary versions."""
