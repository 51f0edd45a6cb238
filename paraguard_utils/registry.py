"""Read what is published: systems, system prompts and guards.

Chat systems are listed in `data/systems.csv`, guards in `data/guards.yaml`, system
prompts in `data/system_prompts.yaml`.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from paraguard_utils import paths, stores
from paraguard_utils.errors import SettingsError
from paraguard_utils.text import did_you_mean

FUNCTION = (  # a guard that is a user's function: `module:function`
    r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
)
REFUSAL_PREFIX = (  # how a guard begins that is a model's own refusal: `refusal:MODEL`
    "refusal:"
)


def system_prompts() -> dict[str, dict[str, str]]:
    """Return the committed system prompts: name to {role, fallback, reason, text}."""
    return {
        name: dict(entry)
        for name, entry in _read_yaml(paths.DATA / "system_prompts.yaml").items()
    }  # the caller's own


def read_system_prompt(name: str) -> str:
    """Return the text of a committed system prompt, "" for none.

    Raise SettingsError where there is no such system prompt.
    """
    known = system_prompts()
    if name not in known:
        raise SettingsError(
            f"there is no system prompt {name!r}; data/system_prompts.yaml has"
            f" {', '.join(known)}"
        )
    return known[name]["text"]


def list_other_wordings() -> list[str]:
    """Return the system prompts that say in other words what a system prompt says: `safety-2` says
    what `safety` does.
    """
    return [
        name
        for name in system_prompts()
        if name.partition("-")[0] in system_prompts() and "-" in name
    ]


def system_prompt_text_of(system: str) -> str:
    """Return the text of a chat system's system prompt, "" for none."""
    return read_system_prompt(system.rpartition("--")[2])


def guard_entries(section: str) -> dict[str, dict[str, Any]]:
    """Return the guards of a section of `data/guards.yaml`, "panel" or "deployed": name
    or pattern to its entry.
    """
    return _read_yaml(paths.DATA / "guards.yaml").get(section, {})


def may_be_guard(name: str) -> bool:
    """Return whether a name can be a guard's: of the panel, a file that is there, a
    function, a hub id, a folder.
    """
    if (
        name in guard_entries("panel")
        or is_refusal(name)
        or re.fullmatch(FUNCTION, name)
    ):
        return True
    if name.endswith((".csv", ".yaml", ".yml")):
        return paths.resolve_input(name).is_file()
    weights = re.sub(
        r":\w+$", "", name
    )  # behind a colon, another reading of the same weights
    return (
        bool(re.fullmatch(r"(openai/)?[\w.-]+/[\w.-]+", weights))
        or Path(weights).expanduser().is_dir()
    )


def is_refusal(name: str) -> bool:
    """Return whether a guard is a model's own refusal, which is read from traces
    (`guards.refusal`).
    """
    return (
        name.startswith(REFUSAL_PREFIX)
        or guard_entries("panel").get(name, {}).get("kind") == "refusal"
    )


def unknown_guard(name: str) -> str:
    """Return the error about a name that no guard has."""
    return (
        f"there is no guard {name!r}{did_you_mean(name, guard_entries('panel'))}; there"
        f" are {', '.join(guard_entries('panel'))}; your own is module:function,"
        " refusal:MODEL, a CSV file of scores, a YAML file, or the hub id or folder of"
        " one that data/guards.yaml knows"
    )


def published_systems(*kinds: str) -> pd.DataFrame:
    """Return the published systems of these kinds, "chat", "guard" or "refusal", as a
    frame indexed by system.
    """
    return (
        _systems(paths.DATA).query("kind in @kinds").set_index("system")
    )


def default_systems() -> pd.DataFrame:
    """Return the published chat systems that a live run asks unless others are named,
    as `published_systems` does.
    """
    return published_systems("chat").query("default == 'yes'")


def list_default_models() -> list[str]:
    """Return the model names of `default_systems`."""
    return list(default_systems()["model"].unique())


def list_optional_models() -> list[str]:
    """Return the names of the published models that are asked on request only."""
    return list(published_systems("chat").query("default == 'no'")["model"].unique())


def display_titles(names: Iterable[str]) -> list[str]:
    """Return the titles of systems, or of models, for tables and figures.

    What is not published keeps its name.
    """
    known = _systems(paths.DATA).set_index("system")["title"]
    models = {
        name.rpartition("--")[0]: title.partition(",")[0]
        for name, title in known.items()
        if "--" in name
    }
    return [known.get(name, models.get(name, name)) for name in names]


@cache  # tables and figures need titles again and again
def _systems(data: Path) -> pd.DataFrame:
    """Return the chat systems of `systems.csv` and the guards of `guards.yaml`."""
    chat = stores.read_file(data / "systems.csv", "systems")
    guards = []
    for name, entry in guard_entries("panel").items():
        guards.append(
            {
                "system": name,
                "kind": "refusal" if entry["kind"] == "refusal" else "guard",
                "model": entry.get("model", name),
                "instruction": None,
                "default": "yes" if entry.get("default") else "no",
                "title": entry.get("title", name),
            }
        )
    listed = pd.DataFrame(guards, columns=chat.columns).astype(chat.dtypes)
    return pd.concat([chat, listed], ignore_index=True)


@cache
def _read_yaml(path: Path) -> dict[str, dict[str, Any]]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))
