"""What is published: the targets of `data/targets.csv` and the wrappers of `data/wrappers.yaml`."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pandas as pd
import yaml

from paraguard_utils import paths, stores


def wrappers() -> dict[str, dict[str, str]]:
    """Return the committed wrappers: name to {role, fallback, reason, text}."""
    return yaml.safe_load((paths.DATA / "wrappers.yaml").read_text(encoding="utf-8"))


def wrapper_text(target: str) -> str:
    """Return the text of a chat target's wrapper, "" for none."""
    return wrappers()[target.rpartition("--")[2]]["text"]


def published(kind: str) -> pd.DataFrame:
    """Return the published targets of a kind, "chat" or "guard", as a frame indexed by target."""
    frame = _targets(paths.DATA / "targets.csv")
    return frame[frame["kind"] == kind].set_index("target")


def by_default() -> pd.DataFrame:
    """Return the published chat targets that a live run asks without being told, as `published` does."""
    return published("chat").query("default == 'yes'")


def default_models() -> list[str]:
    """Return the model names of `by_default`."""
    return list(by_default()["model"].unique())


def optional_models() -> list[str]:
    """Return the names of the published models that are asked on request only."""
    return list(published("chat").query("default == 'no'")["model"].unique())


def titles(names: Iterable[str]) -> list[str]:
    """Return how targets are called in tables and figures; one that is not published keeps its name."""
    known = _targets(paths.DATA / "targets.csv").set_index("target")["title"]
    return [known.get(name, name) for name in names]


@cache
def _targets(path: Path) -> pd.DataFrame:
    """Read a list of targets, once: tables and figures ask for titles again and again."""
    return stores.read(path, "targets")
