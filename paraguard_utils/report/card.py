"""The data card, `data/README.md`: what it says of each file, and what is filled in from the files themselves.

What columns mean, and all prose, is written there; numbers, an example row of each kind of file and the cluster that is
shown are filled in, so that none of them is typed.
"""

import csv
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import yaml

from paraguard_utils import paths, registry, stores
from paraguard_utils.report import numbers, tables
from paraguard_utils.schemas import Table
from paraguard_utils.settings import CORPUS

CARD = paths.ROOT / "data" / "README.md"
CARD_CLUSTER = "deception-14"
"""The cluster that is shown."""

LONGEST = 60
"""Characters of an example."""

_PART = re.compile(r"(?m)^(?=###? )")
_ROW = re.compile(r"(?m)^\| `(\w+)` \| (.*?) \|(.*)\|$")


class Section(NamedTuple):
    """What the card says of one kind of file, or of several with the same columns."""

    kinds: list[str]
    patterns: list[str]
    """Globs below `data/`."""

    about: str
    columns: dict[str, str]
    """Column to what it holds."""

    def files(self) -> list[Path]:
        """Return the files that are there, those of the first published target first."""
        found = [path for pattern in self.patterns for path in sorted(paths.DATA.glob(pattern))]
        return sorted(found, key=lambda path: path.stem != registry.published("chat").index[0])


def sections(card: str) -> list[Section]:
    """Read what the card says of files.

    A heading of the third level names kinds of files. The paragraph below begins with their paths, in which TARGET,
    MODEL and REMEDY stand for any; their table has a row for each column: name, what it holds, example.

    Parameters
    ----------
    card : str
        Markdown.

    Returns
    -------
    list of Section
    """
    return [_section(part) for part in _PART.split(card) if part.startswith("### ")]


def _section(part: str) -> Section:
    heading, _, body = part.removeprefix("### ").partition("\n")
    files, _, about = " ".join(body.strip().partition("\n\n")[0].split()).partition(": ")
    patterns = [re.sub("TARGET|MODEL|REMEDY", "*", path) for path in re.findall("`([^`]+)`", files)]
    return Section(heading.split(", "), patterns, about, {name: holds for name, holds, _ in _ROW.findall(body)})


def first_row(path: Path) -> dict[str, Any]:
    """Return the first row of a CSV, Parquet or JSON-lines file, the first entry of a YAML file, or a JSON file."""
    if path.suffix == ".parquet":
        return next(pq.ParquetFile(path).iter_batches(batch_size=1)).to_pylist()[0]
    if path.suffix == ".yaml":
        return next(iter(yaml.safe_load(path.read_text(encoding="utf-8")).values()))
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.DictReader(file)) if path.suffix == ".csv" else json.loads(next(file))


def filled(card: str, found: Table) -> str:
    """Fill in what files say.

    Parameters
    ----------
    card : str
        Markdown.
    found : DataFrame
        From `numbers.collect`.

    Returns
    -------
    str
    """
    corpus = stores.Store(stores.RECORDED).read("corpus", CORPUS)
    cluster = (
        corpus[corpus["cluster_id"] == CARD_CLUSTER].drop_duplicates("strategy").set_index("strategy")["text"].to_dict()
    )
    parts = []
    for part in _PART.split(card):
        files = _section(part).files()[:1] if part.startswith("### ") else []
        parts.append(_ROW.sub(_with(first_row(files[0])) if files else _with(cluster, 200), part))
    return numbers.filled("".join(parts), found)


def _with(row: Mapping[str, Any], longest: int = LONGEST) -> Callable[[re.Match[str]], str]:
    """Return what puts a row's values into the last cells of a table; without a value, a cell stays as it is."""

    def line(match: re.Match[str]) -> str:
        name, holds, example = match.groups()
        return f"| `{name}` | {holds} | {_brief(row[name], longest) if name in row else example.strip()} |"

    return line


def _brief(value: object, longest: int = LONGEST) -> str:
    """Return a value as a cell of a Markdown table shows it."""
    if isinstance(value, list) and not isinstance(value[0], dict):
        known = [_brief(one) for one in value if one is not None]
        return f"[{', '.join(known[:3])}{', …' if len(known) > 3 else ''}]"
    if isinstance(value, float):
        return f"{value:.5g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return tables.escaped(text if len(text) <= longest else f"{text[: longest - 1]}…")


def write_card(found: Table) -> None:
    """Fill the card.

    Parameters
    ----------
    found : DataFrame
        From `numbers.collect`.
    """
    CARD.write_text(filled(CARD.read_text(encoding="utf-8"), found), encoding="utf-8")
