"""Remedies, one file each: a module here with `REMEDIES`, a sequence of
`contract.Remedy`, is found by itself.
"""

import importlib
import pkgutil
from functools import cache
from typing import get_args

from paraguard_lab.remedies.contract import Remedy, RemedyKind
from paraguard_utils.errors import SettingsError
from paraguard_utils.text import did_you_mean

UNTOUCHED = "untouched"  # name of the system that no remedy was applied to
KIND_ORDER = get_args(RemedyKind)


@cache
def all_remedies() -> dict[str, Remedy]:
    """Return all remedies by name, in the order of their kinds, `KIND_ORDER`."""
    modules = [
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
    ]
    every = [remedy for module in modules for remedy in module.REMEDIES]
    found: dict[str, Remedy] = {}
    for remedy in sorted(every, key=lambda remedy: KIND_ORDER.index(remedy.kind)):
        if remedy.name in found:
            raise SettingsError(
                f"two remedies are called {remedy.name!r}; give one of them another"
                " name"
            )
        found[remedy.name] = remedy
    return found


def remedy_folders() -> list[str]:
    """Return the names that labels of what remedies ask are kept under
    (`Remedy.folder`).
    """
    return sorted({remedy.folder for remedy in all_remedies().values()} - {""})


def select_remedies(names: list[str]) -> dict[str, Remedy]:
    """Return the remedies of these names.

    "all" names every one and "cheap" those that are `Remedy.cheap`.

    Raises SettingsError for an unknown name.
    """
    known = all_remedies()
    groups = {
        name: {name, "all"} | ({"cheap"} if remedy.cheap else set())
        for name, remedy in known.items()
    }
    for name in names:
        if name not in (*known, "all", "cheap"):
            there = ", ".join(("all", "cheap", *known))
            raise SettingsError(
                f"there is no remedy {name!r}{did_you_mean(name, known)}; there are"
                f" {there}"
            )
    return {name: remedy for name, remedy in known.items() if groups[name] & set(names)}
