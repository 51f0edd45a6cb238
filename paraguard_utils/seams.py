"""Lists that other packages add to by entry points: backends, guards, generators, stops.

A group is `paraguard.NAME` in `[project.entry-points]` of a distribution. Nothing is
imported before it is needed.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


@cache
def find_extensions(group: str) -> dict[str, EntryPoint]:
    """Return what packages added to the list `paraguard.GROUP`, by name."""
    found = entry_points(group=f"paraguard.{group}")
    return {point.name: point for point in sorted(found, key=lambda point: point.name)}


@cache
def load_extension(group: str, name: str) -> Any:
    """Import and return the extension NAME of a list; KeyError if there is none."""
    return find_extensions(group)[name].load()
