"""What is installed."""

from importlib.metadata import PackageNotFoundError, version


def version_of(package: str) -> str:
    """The version of an installed package; "" if it is not installed, as where we run from a
    checkout."""

    try:
        return version(package)
    except PackageNotFoundError:
        return ""
