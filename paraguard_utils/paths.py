"""Every directory of the project, found from this file, so that the working directory
never matters.

papermill runs a notebook in the caller's folder and nbval in the notebook's own. An
installed package has no project around it: there the inputs that came with it are read,
results go to the caller's folder, and there is no record.
"""

import os
from pathlib import Path

from paraguard_utils.errors import SettingsError

_PACKAGE = Path(__file__).resolve().parent

CHECKOUT = all((_PACKAGE.parent / name).is_dir() for name in ("notebooks", "data"))
"""Whether the package lies in a checkout of the project, beside the notebooks and the
record.
"""

ROOT = _PACKAGE.parent if CHECKOUT else Path.cwd()
DATA = ROOT / "data" if CHECKOUT else _PACKAGE / "_data"
FIGURES = ROOT / "figures"
NOTEBOOKS = ROOT / "notebooks"
BENCHMARKS_FOLDER = ROOT / "benchmarks"
RESULTS = ROOT / "results"


def _cache() -> Path:
    """Return where converted weights are kept: gigabytes, so outside a checkout once
    for all folders of a user.
    """
    if named := os.environ.get("PARAGUARD_CACHE"):
        return Path(named)
    if CHECKOUT:
        return ROOT / ".cache"
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paraguard"
    )


CACHE = _cache()


def display_path(path: str | Path) -> str:
    """Return `path` relative to the project where it lies inside it: output must not
    name a machine's folders.
    """
    path = Path(path)
    return (
        path.relative_to(ROOT).as_posix()
        if path.is_relative_to(ROOT)
        else path.as_posix()
    )


def resolve_input(name: str | Path) -> Path:
    """Return the path of an input file given relative to the caller's folder or the
    project, or raise SettingsError.
    """
    for path in (Path(name).expanduser(), ROOT / name):
        if path.is_file():
            return path
    raise SettingsError(
        f"there is no file {name!r}, neither here nor in the project's folder"
    )
