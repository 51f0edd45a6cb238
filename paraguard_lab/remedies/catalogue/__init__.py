"""Remedies, one file each.

A module here with `REMEDIES`, a sequence of `contract.Remedy`, is found by itself.
Other distributions add a module of theirs by an entry point of the group
`paraguard.remedies`.
"""

import importlib
import pkgutil
from functools import cache
from types import ModuleType
from typing import get_args

from paraguard_lab.remedies.contract import Remedy, RemedyKind
from paraguard_utils import seams
from paraguard_utils.errors import SettingsError
from paraguard_utils.text import did_you_mean

UNTOUCHED = "untouched"  # name of the system that no remedy was applied to
KIND_ORDER = get_args(RemedyKind)


def _find_modules() -> list[ModuleType]:
    """Return the modules that have remedies: those of this folder, then others'."""
    modules = [
        importlib.import_module(f"{__name__}.{file.name}")
        for file in pkgutil.iter_modules(__path__)
    ]
    for name in seams.find_extensions("remedies"):
        modules.append(seams.load_extension("remedies", name))
    return modules


@cache
def all_remedies() -> dict[str, Remedy]:
    """Return all remedies by name, in the order of their kinds, `KIND_ORDER`.

    Raises SettingsError if two have the same name.
    """
    remedies: list[Remedy] = []
    for module in _find_modules():
        remedies += module.REMEDIES
    by_name: dict[str, Remedy] = {}
    for remedy in sorted(remedies, key=lambda remedy: KIND_ORDER.index(remedy.kind)):
        if remedy.name in by_name:
            raise SettingsError(
                f"two remedies are called {remedy.name!r}; give one of them another"
                " name"
            )
        by_name[remedy.name] = remedy
    return by_name


def remedy_folders() -> list[str]:
    """Return the names that labels are kept under (`Remedy.folder`)."""
    return sorted({remedy.folder for remedy in all_remedies().values()} - {""})


def select_remedies(names: list[str]) -> dict[str, Remedy]:
    """Return the remedies of these names.

    "all" names every one and "cheap" those that are `Remedy.cheap`. Raises
    SettingsError for an unknown name.
    """
    known = all_remedies()
    for name in names:
        if name not in (*known, "all", "cheap"):
            choices = ", ".join(("all", "cheap", *known))
            raise SettingsError(
                f"there is no remedy {name!r}{did_you_mean(name, known)}; there are"
                f" {choices}"
            )
    return {
        name: remedy
        for name, remedy in known.items()
        if name in names or "all" in names or ("cheap" in names and remedy.cheap)
    }
