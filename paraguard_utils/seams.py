"""Lists that other packages add to by entry points: backends, guards, risks and more.

A group is `paraguard.NAME` in `[project.entry-points]` of a distribution. Nothing is
imported before it is needed. A user's own function needs no entry point: it is named
`module:function`.
"""

from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Any

from paraguard_utils.errors import SettingsError


@cache
def find_extensions(group: str) -> dict[str, EntryPoint]:
    """Return what packages added to the list `paraguard.GROUP`, by name, sorted.

    `importlib.metadata.entry_points` would read one distribution of a name only: in a
    checkout, what an earlier build has left there, rather than what is installed.
    """
    found = {}
    for distribution in distributions():
        for point in distribution.entry_points.select(group=f"paraguard.{group}"):
            found[point.name] = point
    return dict(sorted(found.items()))


@cache
def load_extension(group: str, name: str) -> Any:
    """Import and return the extension NAME of a list.

    Raise SettingsError if no installed package has it, as after an update of a checkout
    that was not installed again.
    """
    found = find_extensions(group)
    if name not in found:
        raise SettingsError(
            f"no installed package adds {name!r} to the list paraguard.{group}; install"
            " this version again (in a checkout: make setup)"
        )
    return found[name].load()
