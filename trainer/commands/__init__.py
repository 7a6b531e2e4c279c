"""`python -m trainer` and its parts: finding recipes, flags from their fields, their modes;
predict, report and seen.

Here are infeed's recipes by name. Imports nothing, because the help of the command lists them."""

RECIPES = {
    "digits": "trainer.recipes.small_images:Digits",
    "mnist": "trainer.recipes.small_images:Mnist",
    "fashion_mnist": "trainer.recipes.small_images:FashionMnist",
    "cifar10": "trainer.recipes.small_images:Cifar10",
    "images": "trainer.recipes.images:Config",
    "imagenet_resnet50": "trainer.recipes.imagenet_resnet50:Config",
    "imagenet_vit": "trainer.recipes.imagenet_vit:Config",
    "tabular": "trainer.recipes.tabular:Config",
    "char_lm": "trainer.recipes.language_models:CharLm",
    "byte_lm": "trainer.recipes.language_models:ByteLm",
}


def is_ours(recipe: str) -> bool:
    """Whether a recipe, as the command line names it, is one of infeed's. Any other name may be
    anyone's code."""
    return RECIPES.get(recipe, recipe).startswith("trainer.recipes.")


def name_of(kind: type) -> str:
    """The name of a recipe, such as mnist; of a user's own, that of its module."""
    place = f"{kind.__module__}:{kind.__qualname__}"
    return next(
        (name for name in RECIPES if RECIPES[name] == place), kind.__module__.rpartition(".")[2]
    )
