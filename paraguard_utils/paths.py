"""Every directory of the project, found from this file.

So the working directory never matters: papermill runs a notebook in the caller's folder
and nbval in the notebook's own. An installed package has no project around it: there
the inputs that came with it are read, results go to the caller's folder, and there is
no record.
"""

import os
from pathlib import Path

from paraguard_utils.errors import SettingsError

_PACKAGE = Path(__file__).resolve().parent

CHECKOUT = all((_PACKAGE.parent / name).is_dir() for name in ("notebooks", "data"))
"""Whether the package is in a checkout of the project, beside notebooks and record."""

ROOT = _PACKAGE.parent if CHECKOUT else Path.cwd()
DATA = ROOT / "data" if CHECKOUT else _PACKAGE / "_data"
FIGURES = ROOT / "figures"
NOTEBOOKS = ROOT / "notebooks"
BENCHMARKS_FOLDER = ROOT / "benchmarks"
RESULTS = ROOT / "results"


def _find_cache() -> Path:
    """Return where converted weights are kept.

    They take gigabytes, so outside a checkout all folders of a user share them.
    """
    named = os.environ.get("PARAGUARD_CACHE")
    if named:
        return Path(named)
    if CHECKOUT:
        return ROOT / ".cache"
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "paraguard"


CACHE = _find_cache()


def display_path(path: str | Path) -> str:
    """Return `path` relative to the project, if it is inside it.

    Output must not name a machine's folders.
    """
    path = Path(path)
    if path.is_relative_to(ROOT):
        path = path.relative_to(ROOT)
    return path.as_posix()


def resolve_input(name: str | Path) -> Path:
    """Return the path of an input file, or raise SettingsError.

    It is given relative to the caller's folder or to the project.
    """
    for path in (Path(name).expanduser(), ROOT / name):
        if path.is_file():
            return path
    raise SettingsError(
        f"there is no file {name!r}, neither here nor in the project's folder"
    )
