"""Links in executed notebooks that work wherever such a notebook is read.

Authors write links, and cells make them, as they work in `notebooks/` (or in
`notebooks/beyond/`). An executed copy is read in `results/STORE/notebooks/`, next to
the tables, the figures and the other notebooks of the same run, so there they are
rewritten.
"""

import os
import re
from pathlib import Path

from paraguard_utils import paths

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def link_from(folder: Path, path: Path) -> str:
    """Return a file as a link from the folder in which a notebook is read.

    A table, figure or notebook of the project becomes the one of the same run, if the
    run has it.
    """
    if not folder.is_relative_to(paths.NOTEBOOKS):
        kind = path.parent.name.replace("beyond", folder.name)
        own = folder.parent / kind / path.name
        path = own if own.is_file() else path
    return Path(os.path.relpath(path, folder)).as_posix()


def rewrite_links(markdown: str, folder: Path) -> str:
    """Rewrite a text's links for the folder in which the notebook will be read.

    Links to files that are not in the project, to other sites and inside the page stay.
    """

    def rewrite(match: re.Match[str]) -> str:
        target = match[0]
        for base in (paths.NOTEBOOKS, paths.NOTEBOOKS / "beyond"):
            path = Path(os.path.normpath(base / target))
            if path.exists():
                return link_from(folder, path)
        return target

    return _LINK.sub(rewrite, markdown)
