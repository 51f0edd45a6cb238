"""Read what is published: systems, system prompts and guards.

Chat systems are listed in `data/systems.csv`, guards in `data/guards.yaml`, system
prompts in `data/system_prompts.yaml`.
"""

from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from paraguard_utils import paths, stores
from paraguard_utils.errors import SettingsError


def system_prompts() -> dict[str, dict[str, str]]:
    """Return the committed system prompts: name to {role, fallback, reason, text}."""
    return deepcopy(_read_yaml(paths.DATA / "system_prompts.yaml"))


def read_system_prompt(name: str) -> str:
    """Return the text of a committed system prompt, "" for none.

    Raise SettingsError if there is no such system prompt.
    """
    known = system_prompts()
    if name not in known:
        raise SettingsError(
            f"there is no system prompt {name!r}; data/system_prompts.yaml has"
            f" {', '.join(known)}"
        )
    return known[name]["text"]


def guard_entries(section: str) -> dict[str, dict[str, Any]]:
    """Return the guards of a section of `data/guards.yaml`, "panel" or "deployed".

    The entries are by name or pattern.
    """
    return _read_yaml(paths.DATA / "guards.yaml").get(section, {})


def published_systems(*kinds: str) -> pd.DataFrame:
    """Return the published systems of some kinds, indexed by system.

    The kinds are "chat", "guard" and "refusal".
    """
    systems = _read_systems(paths.DATA)
    return systems[systems["kind"].isin(kinds)].set_index("system")


def list_default_models() -> list[str]:
    """Return the models that a live run queries unless others are named."""
    chat = published_systems("chat")
    return list(chat.loc[chat["default"] == "yes", "model"].unique())


def display_titles(names: Iterable[str]) -> list[str]:
    """Return the titles of systems, or of models, for tables and figures.

    What is not published keeps its name.
    """
    titles = {}
    for system in _read_systems(paths.DATA).itertuples():
        model, dashes, _ = system.system.rpartition("--")
        if dashes:
            titles[model] = system.title.partition(",")[0]
        titles[system.system] = system.title
    return [titles.get(name, name) for name in names]


@cache
def _read_systems(data: Path) -> pd.DataFrame:
    """Return the chat systems of `systems.csv` and the guards of `guards.yaml`."""
    chat = stores.read_file(data / "systems.csv", "systems")
    guards = pd.DataFrame.from_dict(guard_entries("panel"), orient="index")
    names = guards.index.to_series()
    guards = guards.assign(
        system=names,
        kind=guards["kind"].where(guards["kind"] == "refusal", "guard"),
        model=guards["model"].fillna(names),
        instruction=None,
        default=guards["default"].map({True: "yes"}).fillna("no"),
    )
    guards = guards[chat.columns].astype(chat.dtypes)
    return pd.concat([chat, guards], ignore_index=True)


@cache
def _read_yaml(path: Path) -> dict[str, dict[str, Any]]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))
