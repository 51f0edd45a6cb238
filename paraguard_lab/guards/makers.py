"""From a guard's name to its entry, and from its entry to the guard.

An entry has a kind, and each kind a maker (`entries.GuardMaker`), an entry point of
the group `paraguard.guards`. Only a user's function is made here. The kind `deployed`
gets every name that nothing else fits.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from paraguard_lab.functions import load_function
from paraguard_lab.guards.entries import (
    FUNCTION,
    FunctionEntry,
    GuardMaker,
    entry_error,
    parse_guard_entry,
)
from paraguard_utils import paths, registry, seams
from paraguard_utils.errors import SettingsError
from paraguard_utils.guards.contract import Guard, GuardOptions
from paraguard_utils.settings import MAX_NAME
from paraguard_utils.text import did_you_mean

REFUSAL_PREFIX = "refusal:"
"""How the name of a guard begins that is a model's own refusal, `refusal:MODEL`."""

# By field, the kind of an entry that does not say it
_IMPLIED_KINDS = {"model": "deployed", "scores": "scores", "function": "function"}


def find_guard(name: str, options: GuardOptions | None = None) -> Guard:
    """Return a guard by name.

    Packages and packaged weights are looked for when the first text is scored.

    Parameters
    ----------
    name : str
        The first of these that fits: a key of `panel` in `data/guards.yaml`;
        `refusal:MODEL`, a model's own refusal; `module:function`, a function from
        texts to probabilities; a YAML file with one entry; a CSV file of scores
        (prompt_id, score); a hub id or a folder of a guard that people deploy.
    options : GuardOptions, optional
        What the kinds of guards need besides their entries.

    Raises
    ------
    SettingsError
        If there is no such guard, or its entry lacks something or has unknown fields.
    DataError
        If a CSV file cannot be used.

    Examples
    --------
    >>> find_guard("better-profanity").axis
    'toxicity'
    """
    options = options or GuardOptions()
    for published, entry in registry.guard_entries("panel").items():
        own_refusal = REFUSAL_PREFIX + entry.get("model", "")
        if name == published or (entry["kind"], own_refusal) == ("refusal", name):
            return _make(published, entry, options)
    entry = _find_entry(name)
    own_name = name
    if name.endswith((".csv", ".yaml", ".yml")):
        own_name = Path(name).stem
    chosen_name = entry.get("name")
    if chosen_name and isinstance(chosen_name, str):
        # Before anything is loaded, since that may take long
        own_name = _fit_name(chosen_name)
        entry["name"] = own_name
    guard = _make(own_name, entry, options)
    return replace(guard, name=_fit_name(guard.name))


def check_guard_name(name: str) -> None:
    """Raise SettingsError about a name that no guard can have, or a missing file.

    A guard may be of the panel, a model's own refusal, a function, a file, a hub id, or
    a folder. Nothing is loaded, so that a run of hours can begin with this.
    """
    is_published = name in registry.guard_entries("panel")
    if is_published or name.startswith(REFUSAL_PREFIX) or re.fullmatch(FUNCTION, name):
        return
    if name.endswith((".csv", ".yaml", ".yml")):
        paths.resolve_input(name)
        return
    # Behind a colon: another way to use the same weights
    weights = re.sub(r":\w+$", "", name)
    is_hub_id = re.fullmatch(r"(openai/)?[\w.-]+/[\w.-]+", weights)
    if not is_hub_id and not Path(weights).expanduser().is_dir():
        raise unknown_guard(name)


def unknown_guard(name: str) -> SettingsError:
    """Return the error about a name that no guard has."""
    panel = registry.guard_entries("panel")
    return SettingsError(
        f"there is no guard {name!r}{did_you_mean(name, panel)}; there are"
        f" {', '.join(panel)}; your own is module:function, refusal:MODEL, a CSV file"
        " of scores, a YAML file, or the hub id or folder of one that data/guards.yaml"
        " knows"
    )


def _find_entry(name: str) -> dict[str, Any]:
    """Return the entry of a guard that is not of the panel."""
    if name.startswith(REFUSAL_PREFIX):
        model = name.removeprefix(REFUSAL_PREFIX)
        return {"kind": "refusal", "model": model}
    if re.fullmatch(FUNCTION, name):
        return {"function": name}
    if name.endswith((".yaml", ".yml")):
        return _read_entry(name)
    if name.endswith(".csv"):
        return {"scores": name}
    return {"model": name}


def _read_entry(file: str) -> dict[str, Any]:
    """Read a user's YAML file."""
    try:
        text = paths.resolve_input(file).read_text(encoding="utf-8")
        entry = yaml.safe_load(text)
    except RecursionError:
        raise SettingsError(
            f"{file}: its parts are too deep; a guard's file is one entry, names and"
            " values; see docs/usage.md"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(
            f"{file}: it cannot be read as YAML in UTF-8: {reason}; see docs/usage.md"
        ) from None
    if not isinstance(entry, dict):
        raise SettingsError(
            f"{file}: a guard's file is one entry, names and values; see docs/usage.md"
        )
    return entry


def _make(name: str, entry: dict[str, Any], options: GuardOptions) -> Guard:
    """Make a guard with the maker of its kind."""
    implied = [kind for field, kind in _IMPLIED_KINDS.items() if field in entry]
    kind = entry.get("kind") or next(iter(implied), None)
    if kind is None:
        raise entry_error(name, "its entry has neither function, scores nor model")
    if kind == "function":
        return _make_function_guard(name, entry)
    added = list(seams.find_extensions("guards"))
    if kind not in added:
        known = ", ".join(["function", *added])
        raise entry_error(name, f"kind is one of {known}, not {kind!r}")
    make: GuardMaker = seams.load_extension("guards", kind)
    return make(name, entry, options)


def _make_function_guard(name: str, fields: dict[str, Any]) -> Guard:
    """Make a guard of `module:function`, a function from texts to probabilities.

    Unless the entry says another, the version is the digest of the module's file, so
    that changed code scores anew.
    """
    entry = parse_guard_entry(name, fields, FunctionEntry)
    function, digest = load_function(entry.function, "the guard")

    def score(texts: Sequence[str]) -> np.ndarray | Sequence[float]:
        return function(list(texts))

    version = entry.version or digest
    return Guard(name=name, version=version, score=score, **entry.described)


def _fit_name(name: str) -> str:
    """Return a name fit for files.

    Raise SettingsError if it cannot be one, or is that of a published system.
    """
    fitted = re.sub(r"[^\w.-]+", "-", name)
    if not fitted.strip("-.") or len(fitted) > MAX_NAME:
        raise SettingsError(
            f"the name {name[:40]!r}: a guard's has 1 to {MAX_NAME} characters, a"
            " letter or digit in it"
        )
    if (
        fitted in registry.guard_entries("panel")
        or fitted in registry.published_systems("chat").index
    ):
        raise SettingsError(
            f"the name {fitted} is taken by a system of the record; give your guard"
            " another"
        )
    return fitted
