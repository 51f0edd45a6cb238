"""The data card, and its twin for machines (Croissant 1.1).

They are `data/README.md` and `data/croissant.json`. The card's prose, and what its
columns mean, are written by hand. Numbers, an example row of each kind of file and the
cluster that is shown are filled in from the files. In `croissant.json` all that follows
from the card and the files is replaced: texts, version, checksums. What does not (the
JSON-LD context, creator, licence, and which fields a record has) stays as it stands
there. The standard: https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html.
"""

import csv
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pandas as pd
import pyarrow.parquet as pq
import yaml

from paraguard_lab.report import numbers
from paraguard_utils import paths, registry
from paraguard_utils.report import tables
from paraguard_utils.schemas import Table
from paraguard_utils.settings import CORPUS
from paraguard_utils.stores import RECORDED, CorpusFiles, Store

Node: TypeAlias = dict[str, Any]
"""An object of JSON-LD."""

CARD_FILE = paths.ROOT / "data" / "README.md"
CROISSANT_FILE = paths.ROOT / "data" / "croissant.json"

SHOWN_CLUSTER = "deception-14"

_PLACEHOLDERS = "SYSTEM|MODEL|REMEDY"
"""Words in a path of the card that stand for any name."""

_PART = re.compile(r"(?m)^(?=###? )")
_ROW = re.compile(r"(?m)^\| `(\w+)` \| (.*?) \|(.*)\|$")


class CardSection(NamedTuple):
    """What the card says of kinds of file.

    Attributes
    ----------
    kinds : list of str
        Such as "labels"; several if their files have the same columns.
    patterns : list of str
        Globs below `data/` that find the files.
    about : str
    columns : dict of str to str
        What a column holds, by its name.
    """

    kinds: list[str]
    patterns: list[str]
    about: str
    columns: dict[str, str]

    def files(self) -> list[Path]:
        """Return the files that exist, those of the first published system first."""
        found = []
        for pattern in self.patterns:
            found += sorted(paths.DATA.glob(pattern))
        first_system = registry.published_systems("chat").index[0]
        return sorted(found, key=lambda path: path.stem != first_system)


def read_card_sections(card: str) -> list[CardSection]:
    """Read what the card (Markdown) says of files.

    A section is a heading of level three, paths of files, and a table of columns.
    """
    parts = _PART.split(card)
    return [_read_section(part) for part in parts if part.startswith("### ")]


def _read_section(part: str) -> CardSection:
    """Read a section of the card.

    Its heading, of the third level, names kinds of files. Its first paragraph begins
    with their paths, in which SYSTEM, MODEL and REMEDY stand for any. Its table has a
    row for each column: name, what it holds, example.
    """
    heading, _, body = part.removeprefix("### ").partition("\n")
    first_paragraph = body.strip().partition("\n\n")[0]
    files, _, about = " ".join(first_paragraph.split()).partition(": ")
    patterns = []
    for path in re.findall("`([^`]+)`", files):
        patterns.append(re.sub(_PLACEHOLDERS, "*", path))
    columns = {name: holds for name, holds, _ in _ROW.findall(body)}
    return CardSection(heading.split(", "), patterns, about, columns)


def read_first_row(path: Path) -> dict[str, Any]:
    """Return the first row of a CSV, Parquet or JSON-lines file.

    Of a YAML file it is the first entry, and a JSON file is returned whole.
    """
    if path.suffix == ".parquet":
        batch = next(pq.ParquetFile(path).iter_batches(batch_size=1))
        return batch.to_pylist()[0]
    if path.suffix == ".yaml":
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
        return next(iter(entries.values()))
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            return next(csv.DictReader(file))
        return json.loads(next(file))


def fill_card(card: str, found: Table) -> str:
    """Fill the card with what the files say, and with numbers.

    Parameters
    ----------
    card : str
        Markdown. What it says in places that are filled does not matter.
    found : Table
        From `numbers.collect_numbers`.
    """
    parts = []
    for part in _PART.split(card):
        parts.append(_fill_rows(part, _find_cells(part)))
    return numbers.fill_numbers("".join(parts), found)


def _find_cells(part: str) -> dict[str, str]:
    """Return the last cell of a part's rows, by their first."""
    if part.startswith("## Tables\n"):
        return _list_columns()
    if part.startswith("### "):
        section = _read_section(part)
        files = section.files()
        if files:
            row = read_first_row(files[0])
            shown = [name for name in section.columns if name in row]
            return {name: _shorten(row[name]) for name in shown}
    return _show_cluster()


def _show_cluster() -> dict[str, str]:
    """Return a phrasing of the shown cluster by each strategy."""
    corpus = CorpusFiles(Store(RECORDED), CORPUS).read("corpus")
    cluster = corpus[corpus["cluster_id"] == SHOWN_CLUSTER].drop_duplicates("strategy")
    texts = zip(cluster["strategy"], cluster["text"], strict=True)
    return {strategy: _shorten(text, 200) for strategy, text in texts}


def _fill_rows(part: str, cells: Mapping[str, str]) -> str:
    """Write the last cell of each row of a part.

    `cells` are by the name in the row's first cell; a row without one stays.
    """

    def fill(row: re.Match[str]) -> str:
        name, holds, before = row.groups()
        return f"| `{name}` | {holds} | {cells.get(name, before.strip())} |"

    return _ROW.sub(fill, part)


def _list_columns() -> dict[str, str]:
    """Return the columns of every recorded table by its name.

    `x±` stands for the columns `x`, `x_low` and `x_high`.
    """
    found = {}
    for path in sorted((paths.DATA / "tables").glob("*.csv")):
        columns = list(pd.read_csv(path, nrows=0))
        ends = set()
        shown = []
        for name in columns:
            if f"{name}_low" in columns:
                ends |= {f"{name}_low", f"{name}_high"}
                shown.append(f"{name}±")
            elif name not in ends:
                shown.append(name)
        table = re.sub("^confused_refusals_.*", "confused_refusals_SYSTEM", path.stem)
        found[table] = ", ".join(shown)
    return found


def _shorten(value: object, most: int = 60) -> str:
    """Return a value as a cell of a Markdown table, cut to `most` characters.

    Of a list the first three are shown.
    """
    if isinstance(value, list) and not isinstance(value[0], dict):
        items = [_shorten(item) for item in value if item is not None]
        rest = ", …" if len(items) > 3 else ""
        return f"[{', '.join(items[:3])}{rest}]"
    if isinstance(value, float):
        return f"{value:.5g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    if len(text) > most:
        text = f"{text[: most - 1]}…"
    return tables.escape_markdown(text)


def write_card(found: Table) -> None:
    """Fill the card and write its twin for machines.

    `found` is from `numbers.collect_numbers`.
    """
    card = fill_card(CARD_FILE.read_text(encoding="utf-8"), found)
    CARD_FILE.write_text(card, encoding="utf-8")
    CROISSANT_FILE.write_text(format_croissant(card), encoding="utf-8")


def format_croissant(card: str) -> str:
    """Describe the recorded data as JSON-LD with sorted keys.

    What does not follow from the card (Markdown) and the files is taken from
    `CROISSANT_FILE` as it stands.
    """
    header = yaml.safe_load(card.split("---\n")[1])
    text = numbers.remove_marks(card)
    (summary,) = re.findall(r"(?s)## Summary\n\n(.*?)\n\n", text)
    (citation,) = re.findall(r"(?s)```\n(@misc\{paraguard.*?\n\})", card)
    releases = re.findall(r"(?m)^\| (\d+\.\d+\.\d+) \| (\d{4}-\d\d-\d\d) \|", card)
    version, published = releases[0]
    sections: dict[str, CardSection] = {}
    for section in read_card_sections(card):
        sections |= dict.fromkeys(section.kinds, section)
    described = json.loads(CROISSANT_FILE.read_text(encoding="utf-8"))
    files = []
    for record_set in described["recordSet"]:
        kind = record_set["name"]
        section = sections[kind]
        files += _describe_files(kind, section.patterns[0])
        record_set["description"] = section.about
        for field in record_set["field"]:
            # The system, which is a file's name, is no column.
            if field["name"] in section.columns:
                field["description"] = section.columns[field["name"]]
    described |= {
        "citeAs": citation,
        "datePublished": published,
        "description": " ".join(summary.split()),
        "distribution": files,
        "inLanguage": header["language"],
        "keywords": header["tags"],
        "version": version,
    }
    text = json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False)
    return f"{text}\n"


def _describe_files(kind: str, pattern: str) -> list[Node]:
    """Describe a kind's files with their checksums.

    Parameters
    ----------
    kind : str
    pattern : str
        A path below `data/`, or a glob: if there is a file for each system, their set,
        which is read, is described too.
    """
    encoding = "text/csv" if pattern.endswith(".csv") else "application/x-parquet"
    files: list[Node] = []
    for path in sorted(paths.DATA.glob(pattern)):
        name = path.relative_to(paths.DATA).as_posix()
        content = path.read_bytes()
        file = {
            "@id": name,
            "@type": "cr:FileObject",
            "contentUrl": name,
            "name": path.name,
            "encodingFormat": encoding,
            "contentSize": f"{len(content)} B",
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        files.append(file)
    if "*" in pattern:
        name = f"{kind}-files"
        file_set = {
            "@id": name,
            "@type": "cr:FileSet",
            "includes": pattern,
            "name": name,
            "encodingFormat": encoding,
        }
        files.append(file_set)
    return files
