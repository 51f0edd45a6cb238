"""Links in notebooks that work wherever the executed notebook is read.

Authors write links as they work in `notebooks/` (or in `notebooks/beyond/`). An
executed copy is read in `results/STORE/notebooks/`, next to the tables, the figures and
the other notebooks of the same run, so there they are rewritten.
"""

import os
import re
from pathlib import Path

from paraguard_utils import paths

FOLDER_VARIABLE = "PARAGUARD_NOTEBOOK_FOLDER"
"""Environment variable of kernels: the folder in which the notebook will be read."""

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def find_folder() -> Path:
    """Return the folder in which the notebook that runs will be read.

    Unless `FOLDER_VARIABLE` says so, it is read where it runs.
    """
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    here = Path.cwd()
    return here if here.is_relative_to(paths.NOTEBOOKS) else paths.NOTEBOOKS


def link_to(path: Path) -> str:
    """Return a file as a link from the notebook that runs.

    A table, figure or notebook of the project becomes the one of the same run, if the
    run has it.
    """
    folder = find_folder()
    if not folder.is_relative_to(paths.NOTEBOOKS):
        kind = path.parent.name.replace("beyond", folder.name)
        own = folder.parent / kind / path.name
        path = own if own.is_file() else path
    return Path(os.path.relpath(path, folder)).as_posix()


def rewrite_links(markdown: str) -> str:
    """Rewrite a text's links for the folder in which the notebook will be read.

    Links to files that are not in the project, to other sites and inside the page stay.
    """

    def rewrite(match: re.Match[str]) -> str:
        target = match[0]
        for base in (paths.NOTEBOOKS, paths.NOTEBOOKS / "beyond"):
            path = Path(os.path.normpath(base / target))
            if path.exists():
                return link_to(path)
        return target

    return _LINK.sub(rewrite, markdown)
