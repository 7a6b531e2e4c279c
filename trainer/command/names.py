"""The recipes of infeed by name. Imports nothing: the help of the command lists them."""

__all__ = ["RECIPES"]

NAMES = ("digits", "mnist", "fashion_mnist", "cifar10", "images", "imagenet_resnet50", "char_lm", "byte_lm")
RECIPES = {name: f"trainer.recipes.{name}:Config" for name in NAMES}
