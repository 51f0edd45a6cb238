"""Every directory of the project, found from this file, so that the working directory never matters.

papermill runs a notebook in the caller's folder and nbval in the notebook's own.
"""

import os
from pathlib import Path

from paraguard_utils.errors import SettingsError

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"
FIGURES = ROOT / "figures"
NOTEBOOKS = ROOT / "notebooks"
RESULTS = ROOT / "results"
CACHE = Path(os.environ.get("PARAGUARD_CACHE", ROOT / ".cache"))


def shown(path):
    """Return `path` relative to the project where it lies inside it: output must not name a machine's folders.

    Parameters
    ----------
    path : Path

    Returns
    -------
    str
    """
    path = Path(path)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def input_file(name):
    """Return the path of an input file given relative to the caller's folder or to the project.

    Raises
    ------
    SettingsError
        There is no such file.
    """
    for path in (Path(name).expanduser(), ROOT / name):
        if path.is_file():
            return path
    raise SettingsError(f"there is no file {name!r}, neither here nor in the project's folder")
