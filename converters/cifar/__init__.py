"""The binary versions of CIFAR-10 and CIFAR-100."""
