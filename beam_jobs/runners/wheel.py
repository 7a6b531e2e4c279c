"""Builds the wheel of our own packages that the workers of a cluster install, from the code that
runs here.

Without a build backend: a launcher may have neither a backend nor a network, and no backend
rebuilds a wheel from an installed package. The same code produces the same bytes. Depends only on
the standard library."""

import base64
import hashlib
import tomllib
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePath
from typing import Any

from pipeline.errors import InfeedError
from pipeline.packages import packages_of

_NAME = "infeed"
_WHEEL = "Wheel-Version: 1.0\nGenerator: infeed\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# the earliest date in a zip: with real times, the bytes would differ
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def build_wheel(directory: Path, root: Path | None = None) -> Path:
    """Writes the wheel to `directory` and returns its path. Packs this module's checkout, or else
    what pip installed.

    root: of the checkout. Raises InfeedError if the code is neither."""
    root = root or Path(__file__).parents[2]
    version, files = _of_checkout(root) or _of_distribution(root)
    path = directory / f"{_NAME}-{version}-py3-none-any.whl"
    _write(path, f"{_NAME}-{version}.dist-info", files)
    return path


def _of_checkout(root: Path) -> tuple[str, dict[str, bytes]] | None:
    """The version and files; None without a pyproject.toml, or if it is not ours, as may happen in
    site-packages."""
    path = root / "pyproject.toml"
    pyproject = tomllib.loads(path.read_text()) if path.is_file() else {}
    project = pyproject.get("project", {})
    if project.get("name") != _NAME:
        return None
    info = f"{_NAME}-{project['version']}.dist-info"
    packages = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for package in packages
        for path in (root / package).rglob("*")
        if path.is_file() and not _is_cache(path)
    }
    licenses = {
        f"{info}/licenses/{name}": (root / name).read_bytes() for name in project["license-files"]
    }
    metadata = {f"{info}/METADATA": _metadata(project).encode()}
    return project["version"], files | licenses | metadata


def _metadata(project: Mapping[str, Any]) -> str:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {_NAME}",
        f"Version: {project['version']}",
        f"License-Expression: {project['license']}",
        *(f"License-File: {name}" for name in project["license-files"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {requirement}" for requirement in project["dependencies"]),
    ]
    extras = project["optional-dependencies"]
    for extra in extras:  # workers install none of them, but their errors name what is missing
        lines.append(f"Provides-Extra: {extra}")
        for requirement in packages_of([extra], extras):
            lines.append(f"Requires-Dist: {requirement}; extra == '{extra}'")
    return "\n".join(lines) + "\n"


def _of_distribution(root: Path) -> tuple[str, dict[str, bytes]]:
    """The version and files: packages, licenses and metadata, without pip's own records, which
    contain local paths."""
    try:
        installed = distribution(_NAME)
    except PackageNotFoundError:
        raise InfeedError(
            f"no wheel for the workers: {root} is neither a checkout of {_NAME}, nor installed by "
            f"pip. Run from a checkout, or pip install {_NAME}."
        ) from None
    files: dict[str, bytes] = {}
    for path in installed.files or ():
        ours = (
            not path.parts[0].endswith(".dist-info")
            or path.name == "METADATA"
            or "licenses" in path.parts
        )
        if ours and path.parts[0] != ".." and not _is_cache(path):
            files[path.as_posix()] = Path(str(path.locate())).read_bytes()
    return installed.version, files


def _is_cache(path: PurePath) -> bool:
    return "__pycache__" in path.parts or path.name.startswith(".")


def _write(path: Path, info: str, files: Mapping[str, bytes]) -> None:
    files = {**dict(sorted(files.items())), f"{info}/WHEEL": _WHEEL.encode()}
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        record += f"{name},sha256={digest},{len(data)}\n"
    record += f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in {**files, f"{info}/RECORD": record.encode()}.items():
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data)
