"""The wheel of our own packages that the workers of a cluster install: put together from the code that runs here.

Neither a build backend nor a package index is asked, so a launcher needs none; the same code gives the same bytes.
Needs the standard library alone."""

import base64
import hashlib
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from pipeline.shards.errors import InfeedError

__all__ = ["build_wheel"]

_NAME = "infeed"
_WHEEL = "Wheel-Version: 1.0\nGenerator: infeed\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip knows: a time would make other bytes of the same code


def build_wheel(directory: Path, root: Path | None = None) -> Path:
    """The path of the wheel in `directory`: of the checkout that holds this module, else of what pip has installed.

    root: of the checkout. Raises InfeedError when the code is neither."""
    root = root or Path(__file__).parents[1]
    project = _project(root)
    version, files = _of_checkout(root, project) if project else _of_distribution(_installed(root))
    path = directory / f"{_NAME}-{version}-py3-none-any.whl"
    _write(path, f"{_NAME}-{version}.dist-info", files)
    return path


def _project(root: Path) -> Mapping[str, Any] | None:
    """pyproject.toml, if it is ours: beside an installed package may lie another's."""
    path = root / "pyproject.toml"
    found = tomllib.loads(path.read_text()) if path.is_file() else {}
    return found if found.get("project", {}).get("name") == _NAME else None


def _of_checkout(root: Path, pyproject: Mapping[str, Any]) -> tuple[str, dict[str, bytes]]:
    project = pyproject["project"]
    info = f"{_NAME}-{project['version']}.dist-info"
    packages = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    found = (path for package in packages for path in (root / package).rglob("*") if path.is_file())
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in found if not _is_cache(path.parts)}
    licenses = {f"{info}/licenses/{name}": (root / name).read_bytes() for name in project["license-files"]}
    return project["version"], {**files, **licenses, f"{info}/METADATA": _metadata(project).encode()}


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
    return "\n".join(lines) + "\n"


def _installed(root: Path) -> Distribution:
    try:
        return distribution(_NAME)
    except PackageNotFoundError:
        raise InfeedError(
            f"no wheel for the workers: {root} is neither a checkout of {_NAME}, nor what pip has installed. Run from "
            f"a checkout, or pip install {_NAME}."
        ) from None


def _of_distribution(installed: Distribution) -> tuple[str, dict[str, bytes]]:
    """Its packages, licenses and metadata. Not what pip noted of the installation: that names paths of this machine."""
    files: dict[str, bytes] = {}
    for path in installed.files or ():
        ours = not path.parts[0].endswith(".dist-info") or path.name == "METADATA" or "licenses" in path.parts
        if ours and path.parts[0] != ".." and not _is_cache(path.parts):
            files[path.as_posix()] = Path(str(path.locate())).read_bytes()
    return installed.version, files


def _is_cache(parts: Iterable[str]) -> bool:
    *_, name = parts
    return "__pycache__" in parts or name.startswith(".")


def _write(path: Path, info: str, files: Mapping[str, bytes]) -> None:
    files = {**dict(sorted(files.items())), f"{info}/WHEEL": _WHEEL.encode()}
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    record.append(f"{info}/RECORD,,")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in {**files, f"{info}/RECORD": ("\n".join(record) + "\n").encode()}.items():
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            wheel.writestr(entry, data)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
