"""The recipes of infeed by name. Imports nothing: the help of the command lists them."""

__all__ = ["RECIPES", "is_ours"]

NAMES = ("digits", "mnist", "fashion_mnist", "cifar10", "images", "imagenet_resnet50", "char_lm", "byte_lm")
RECIPES = {name: f"trainer.recipes.{name}:Config" for name in NAMES}


def is_ours(recipe: str) -> bool:
    """Whether a recipe, as the command line names it, is one of infeed's. Any other name may be anyone's code."""
    return recipe in RECIPES or recipe in RECIPES.values()
