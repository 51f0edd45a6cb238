"""The data card, `data/README.md`, and its twin for machines, `data/croissant.json`
(Croissant 1.1).

The card's prose and what its columns mean are written by hand. Numbers, an example row
of each kind of file and the cluster that is shown are filled in from the files.
`croissant.json` is made from the card, the schemas and the files, so the same files
give the same description. The standard:
https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html.
"""

import csv
import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pandas.api import types

from paraguard_lab.report import numbers
from paraguard_utils import paths, registry, stores
from paraguard_utils.report import tables
from paraguard_utils.schemas import SCHEMAS, Table
from paraguard_utils.settings import CORPUS

CARD_FILE = paths.ROOT / "data" / "README.md"
CROISSANT_FILE = paths.ROOT / "data" / "croissant.json"
RECORD_SETS = {
    name: name
    for name in ("seeds", "candidates", "corpus", "labels", "scores", "traces")
}
RECORD_SETS |= {f"twins_{name}": name for name in ("seeds", "candidates", "corpus")}
"""Sections of the card that become record sets, and the schema of their files; where
there is a file for each system, the system is the first field."""

_PART = re.compile(r"(?m)^(?=###? )")
_ROW = re.compile(r"(?m)^\| `(\w+)` \| (.*?) \|(.*)\|$")


class CardSection(NamedTuple):
    """What the card says of kinds of file, found by globs below `data/`.

    `columns` maps names to what they hold.
    """

    kinds: list[str]
    patterns: list[str]
    about: str
    columns: dict[str, str]

    def files(self) -> list[Path]:
        """Return the files that exist, those of the first published system first."""
        found = [
            path
            for pattern in self.patterns
            for path in sorted(paths.DATA.glob(pattern))
        ]
        return sorted(
            found,
            key=lambda path: path.stem != registry.published_systems("chat").index[0],
        )


def read_card_sections(card: str) -> list[CardSection]:
    """Read what the card (Markdown) says of files: a heading of level three, their
    paths, a table of columns.
    """
    return [_section(part) for part in _PART.split(card) if part.startswith("### ")]


def _section(part: str) -> CardSection:
    """Read a section: its heading, of the third level, names kinds of files.

    Its first paragraph begins with paths.

    TARGET, MODEL and REMEDY stand for any in these. Its table has a row for each
    column: name, what it holds, example.
    """
    heading, _, body = part.removeprefix("### ").partition("\n")
    files, _, about = " ".join(body.strip().partition("\n\n")[0].split()).partition(
        ": "
    )
    patterns = [
        re.sub("TARGET|MODEL|REMEDY", "*", path)
        for path in re.findall("`([^`]+)`", files)
    ]
    return CardSection(
        heading.split(", "),
        patterns,
        about,
        {name: holds for name, holds, _ in _ROW.findall(body)},
    )


def read_first_row(path: Path) -> dict[str, Any]:
    """Return the first row of a CSV, Parquet or JSON-lines file, the first entry of a
    YAML file, or a JSON file.
    """
    if path.suffix == ".parquet":
        return next(pq.ParquetFile(path).iter_batches(batch_size=1)).to_pylist()[0]
    if path.suffix == ".yaml":
        return next(iter(yaml.safe_load(path.read_text(encoding="utf-8")).values()))
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    with path.open(encoding="utf-8", newline="") as file:
        return (
            next(csv.DictReader(file))
            if path.suffix == ".csv"
            else json.loads(next(file))
        )


def fill_card(card: str, found: Table) -> str:
    """Fill the card with what the files say, and with the numbers from
    `numbers.collect_numbers`.
    """
    corpus = stores.Store(stores.RECORDED).read("corpus", CORPUS)
    cluster = (
        corpus[corpus["cluster_id"] == "deception-14"]
        .drop_duplicates("strategy")
        .set_index("strategy")["text"]
    )
    parts = []
    for part in _PART.split(card):
        if part.startswith("## Tables\n"):
            cells = _list_columns()
        elif part.startswith("### ") and (files := _section(part).files()):
            first = read_first_row(files[0])
            cells = {
                name: _brief(first[name])
                for name in _section(part).columns
                if name in first
            }
        else:
            cells = {name: _brief(text, 200) for name, text in cluster.items()}
        rows = (
            f"| `{name}` | {holds} | {cells.get(name, old.strip())} |"
            for name, holds, old in _ROW.findall(part)
        )
        parts.append(_ROW.sub(lambda _, rows=rows: next(rows), part))
    return numbers.fill_numbers("".join(parts), found)


def _list_columns() -> dict[str, str]:
    """Return the columns of every recorded table by its name, `x±` for `x`, `x_low` and
    `x_high`.
    """
    found = {}
    for path in sorted((paths.DATA / "tables").glob("*.csv")):
        names = list(pd.read_csv(path, nrows=0))
        ends = {
            f"{name}{end}"
            for name in names
            for end in ("_low", "_high")
            if f"{name}_low" in names
        }
        listed = [
            f"{name}±" if f"{name}_low" in names else name
            for name in names
            if name not in ends
        ]
        found[
            re.sub("^confused_refusals_.*", "confused_refusals_SYSTEM", path.stem)
        ] = ", ".join(listed)
    return found


def _brief(value: object, longest: int = 60) -> str:
    """Return a value as a cell of a Markdown table, cut to some characters."""
    if isinstance(value, list) and not isinstance(value[0], dict):
        known = [_brief(one) for one in value if one is not None]
        return f"[{', '.join(known[:3])}{', …' if len(known) > 3 else ''}]"
    if isinstance(value, float):
        return f"{value:.5g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return tables.escape_markdown(
        text if len(text) <= longest else f"{text[: longest - 1]}…"
    )


def write_card(found: Table) -> None:
    """Fill the card, with the numbers from `numbers.collect_numbers`, and write its
    twin for machines.
    """
    CARD_FILE.write_text(
        fill_card(CARD_FILE.read_text(encoding="utf-8"), found), encoding="utf-8"
    )
    CROISSANT_FILE.write_text(
        format_croissant(CARD_FILE.read_text(encoding="utf-8")), encoding="utf-8"
    )


_TERMS = """arrayShape citeAs column containedIn equivalentProperty extract field fileObject fileProperty fileSet format
    includes isArray isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace
    samplingRate separator source subField transform"""
_CONTEXT = {
    **{term: f"cr:{term}" for term in _TERMS.split()},
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}
"""The standard's JSON-LD context."""


def format_croissant(markdown: str) -> str:
    """Describe the recorded data as JSON-LD with sorted keys.

    Licence, version and the like are the card's.
    """
    header = yaml.safe_load(markdown.split("---\n")[1])
    version, published = re.findall(
        r"(?m)^\| (\d+\.\d+\.\d+) \| (\d{4}-\d\d-\d\d) \|", markdown
    )[0]
    (summary,) = re.findall(
        r"(?s)## Summary\n\n(.*?)\n\n", numbers.remove_marks(markdown)
    )
    (citation,) = re.findall(r"(?s)```\n(@misc\{paraguard.*?\n\})", markdown)
    by_kind = {
        kind: section
        for section in read_card_sections(markdown)
        for kind in section.kinds
    }
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "citeAs": citation,
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "creator": {"@type": "sc:Organization", "name": "ParaGuard maintainers"},
        "datePublished": published,
        "description": " ".join(summary.split()),
        "distribution": [
            one
            for kind in RECORD_SETS
            for one in _files(kind, by_kind[kind].patterns[0])
        ],
        "inLanguage": header["language"],
        "isLiveDataset": False,
        "keywords": header["tags"],
        "license": {"cc-by-4.0": "https://creativecommons.org/licenses/by/4.0/"}[
            header["license"]
        ],
        "name": CORPUS,
        "recordSet": [_records(kind, by_kind[kind]) for kind in RECORD_SETS],
        "url": (
            "https://arxiv.org/abs/2512.01037v2"
        ),  # the paper's: the data have no page of their own
        "version": version,
    }
    return json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _files(kind: str, pattern: str) -> list[dict[str, Any]]:
    """Return a kind's files with their checksums.

    Where there is one for each system, also their set, which is read.
    """
    form = {
        "encodingFormat": (
            "text/csv" if pattern.endswith(".csv") else "application/x-parquet"
        )
    }
    found: list[dict[str, Any]] = []
    for path in sorted(paths.DATA.glob(pattern)):
        name, content = path.relative_to(paths.DATA).as_posix(), path.read_bytes()
        size = {
            "contentSize": f"{len(content)} B",
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        found.append(
            {
                "@id": name,
                "@type": "cr:FileObject",
                "contentUrl": name,
                "name": path.name,
            }
            | form
            | size
        )
    if "*" in pattern:
        name = f"{kind}-files"
        found.append(
            {"@id": name, "@type": "cr:FileSet", "includes": pattern, "name": name}
            | form
        )
    return found


def _records(kind: str, section: CardSection) -> dict[str, Any]:
    """Return a kind's record set, with a field for each column."""
    pattern, path = section.patterns[0], section.files()[0]
    origin: dict[str, Any] = {"fileObject": {"@id": pattern}}
    fields, key = [], []
    if "*" in pattern:
        origin = {"fileSet": {"@id": f"{kind}-files"}}
        named = {
            "extract": {"fileProperty": "filename"},
            "transform": {"regex": rf"(.+)\{path.suffix}$"},
        }
        about: dict[str, Any] = {
            "dataType": "sc:Text",
            "description": "Which system: the file's name",
        }
        fields.append(_field(kind, "system") | about | {"source": origin | named})
        key.append({"@id": f"{kind}/system"})
    stored = pq.read_schema(path) if path.suffix == ".parquet" else None
    for name, column in SCHEMAS[RECORD_SETS[kind]].columns.items():
        about = _type(column.dtype.type, stored.field(name).type if stored else None)
        about |= {
            "description": section.columns[name],
            "source": origin | {"extract": {"column": name}},
        }
        fields.append(_field(kind, name) | about)
        key += (
            [{"@id": f"{kind}/{name}"}]
            if column.unique and name.endswith("_id")
            else []
        )
    found = {
        "@id": kind,
        "@type": "cr:RecordSet",
        "description": section.about,
        "field": fields,
        "name": kind,
    }
    return found | ({"key": key} if key else {})


def _field(kind: str, name: str) -> dict[str, Any]:
    return {"@id": f"{kind}/{name}", "@type": "cr:Field", "name": name}


def _type(dtype: Any, stored: pa.DataType | None) -> dict[str, Any]:
    """Return a column's type as Croissant names it.

    Only the stored type tells what a list holds.
    """
    if stored is not None and pa.types.is_list(stored):
        return {"arrayShape": "-1", "isArray": True} | _type(
            stored.value_type.to_pandas_dtype(), None
        )
    kinds = {
        "Boolean": types.is_bool_dtype,
        "Integer": types.is_integer_dtype,
        "Float": types.is_float_dtype,
    }
    return {
        "dataType": next(
            (f"sc:{name}" for name, is_one in kinds.items() if is_one(dtype)), "sc:Text"
        )
    }
