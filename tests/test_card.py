"""The data card and its twin for machines: in step with the files, with each other and
with the standards of hubs.
"""

import json
import re
from fnmatch import fnmatch

import numpy as np
import pandas as pd
import pytest
from huggingface_hub import DatasetCard
from recorded import recorded_systems

from paraguard_lab.report import croissant, numbers
from paraguard_utils import paths, registry, stores
from paraguard_utils.schemas import SCHEMAS

TEXT = croissant.CARD_FILE.read_text(encoding="utf-8")
SECTIONS = croissant.read_card_sections(TEXT)
HEADER = DatasetCard(TEXT).data.to_dict()
SYSTEMS = {kind: set(recorded_systems(kind)) for kind in ("chat", "guard", "refusal")}
ITSELF = ("README.md", "LICENSE", "croissant.json")
COUNTED = {
    "labels": ("chat", "guard", "refusal"),
    "scores": ("chat", "guard", "refusal"),
    "traces": ("chat",),
}
"""Kinds with one file a system, and of which systems."""
RECORD_SETS = {
    records["name"]: records
    for records in json.loads(croissant.CROISSANT_FILE.read_text(encoding="utf-8"))[
        "recordSet"
    ]
}


TABLES = re.findall(
    r"(?m)^\| `(\w+)` \|", re.findall(r"(?s)\n## Tables\n(.*?)\n## ", TEXT)[0]
)


def table(path):
    return next(
        (name for name in TABLES if fnmatch(path.stem, name.replace("SYSTEM", "*"))),
        None,
    )


@pytest.mark.slow
def test_what_files_say_is_filled_in():
    known = stores.Store("recorded").read("tables", numbers.NUMBERS_TABLE)
    assert croissant.fill_card(TEXT, known) == TEXT, "run paraguard card"
    assert croissant.CROISSANT_FILE.read_text(
        encoding="utf-8"
    ) == croissant.format_croissant(TEXT), "run paraguard card"


@pytest.mark.slow
def test_filling_in_takes_nothing_from_what_was_filled_in_before():
    known = stores.Store("recorded").read("tables", numbers.NUMBERS_TABLE)
    emptied = re.sub(
        r"(?m)^(\| `\w+` \| .*? \|).*\|$", r"\1 |", TEXT.partition("## Tables")[0]
    )
    emptied = re.sub(r"(<!--=\w[^\n]*?-->).*?(<!--=-->)", r"\1\2", emptied)
    assert croissant.fill_card(emptied, known) == croissant.fill_card(
        TEXT.partition("## Tables")[0], known
    )


@pytest.mark.parametrize(
    "value",
    [["a|b"], [1.0, None, 2.0], [{"role": "user"}], "a\n b", True, 0.123456, "x" * 99],
)
def test_an_example_is_one_cell(value):
    cell = croissant._shorten(value)
    assert not re.findall(r"(?<!\\)\|", cell) and "\n" not in cell and len(cell) < 75


@pytest.mark.slow
def test_every_file_is_described():
    patterns = [pattern for section in SECTIONS for pattern in section.patterns]
    files = [
        path
        for path in paths.DATA.rglob("*")
        if path.is_file() and not path.name.endswith(".meta.json")
    ]
    names = {path.relative_to(paths.DATA).as_posix(): path for path in files}
    strangers = [
        name
        for name, path in names.items()
        if name not in ITSELF
        and not any(fnmatch(name, pattern) for pattern in patterns)
        and not (
            path.parent.name == "tables"
            and (table(path) or path.suffix in (".md", ".tex"))
        )
    ]
    assert strangers == []
    assert [section.kinds for section in SECTIONS if not section.files()] == []


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.kinds[0])
def test_columns_are_those_of_the_schema_and_of_every_file(section):
    for kind in set(section.kinds) & set(SCHEMAS):
        assert list(section.columns) == list(SCHEMAS[kind].columns)
    for path in section.files() if section.columns else []:
        assert list(croissant.read_first_row(path)) == list(section.columns), path


def test_every_schema_has_a_section():
    assert set(SCHEMAS) <= {kind for section in SECTIONS for kind in section.kinds}


def test_tables_are_all_listed_with_their_columns():
    found = list((paths.DATA / "tables").glob("*.csv"))
    assert {table(path) for path in found} == set(TABLES)
    cell = re.findall(r"(?m)^\| `veto_queries` \|.*\| ([^|]*) \|$", TEXT)
    assert cell == ["system, prompts, n_reject, n_reworded, queries, queries_each"]
    cell = re.findall(
        r"(?m)^\| `near_identical_flips` \|.*, ([^|]*) \|$", TEXT
    )  # an estimate, its low and high end
    assert cell == ["flip_pairs±"]


def test_the_header_is_one_that_hubs_read():
    assert HEADER["license"] == "cc-by-4.0" and "CC-BY-4.0" in (
        paths.DATA / "LICENSE"
    ).read_text(encoding="utf-8")
    assert HEADER["size_categories"] == ["1K<n<10K"] and HEADER["source_datasets"] == [
        "original"
    ]
    assert {*HEADER["annotations_creators"], *HEADER["language_creators"]} <= {
        "machine-generated",
        "expert-generated",
    }
    configs = {
        config["config_name"]: config["data_files"] for config in HEADER["configs"]
    }
    assert tuple(sorted(configs)) == tuple(sorted(RECORD_SETS))
    for kind, files in configs.items():
        splits = [file["split"] for file in files] if kind in COUNTED else []
        assert len(set(splits)) == len(splits) and all(
            re.fullmatch(r"\w+", split) for split in splits
        )
        named = {file["path"] for file in files} if kind in COUNTED else {files}
        (section,) = [section for section in SECTIONS if kind in section.kinds]
        there = {
            path.relative_to(paths.DATA).as_posix()
            for path in paths.DATA.glob(section.patterns[0])
        }
        assert named == there


def test_every_published_system_has_its_base_rate():
    marks = numbers.read_number_marks()
    said = {marks[name] for name in numbers.NUMBER_PLACE.findall(TEXT)}
    for name in SYSTEMS["chat"]:
        rows = f"setting == 'combined' and system == '{name}'"
        assert f"sensitivity[{rows}].frr±" in said
    for name in SYSTEMS["guard"]:
        assert f"table3_guards[system == '{name}'].frr±" in said


def test_decided_disagreements_are_those_of_the_interpretations():
    interpretations = pd.read_csv(
        paths.DATA / "seeds" / "topical_readings.csv", index_col="seed_id"
    )
    seeds = stores.read_file(
        paths.DATA / "seeds" / "paraguard_mini.csv", "seeds"
    ).set_index("seed_id")
    differ = interpretations.index[
        interpretations["first"] != interpretations["second"]
    ]
    yes, word = re.findall(
        r"rest: (.*?) are topical, (.*?)\s+are\s+not\.", " ".join(TEXT.split())
    )[0]
    assert set(re.findall("`([^`]+)`", yes)) == set(
        differ[seeds.loc[differ, "topical"] == "yes"]
    )
    assert set(re.findall("`([^`]+)`", word)) == set(
        differ[seeds.loc[differ, "topical"] == "word only"]
    )


@pytest.fixture(scope="module")
def dataset():
    import mlcroissant  # imports torch

    return mlcroissant.Dataset(croissant.CROISSANT_FILE)


@pytest.mark.slow
def test_croissant_is_valid(dataset):
    issues = dataset.metadata.ctx.issues
    assert not issues.errors and not issues.warnings
    metadata = dataset.metadata.to_json()
    assert metadata["conformsTo"] == "http://mlcommons.org/croissant/1.1"
    assert metadata["license"] == "https://creativecommons.org/licenses/by/4.0/"
    assert f"| {metadata['version']} | {metadata['datePublished'][:10]} |" in TEXT
    assert "<!--" not in croissant.CROISSANT_FILE.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", sorted(RECORD_SETS))
def test_croissant_has_a_field_for_every_column(kind):
    schema = SCHEMAS[kind.removeprefix("twins_")]
    named = [field["name"] for field in RECORD_SETS[kind]["field"]]
    assert named == ["system"] * (kind in COUNTED) + list(schema.columns)
    assert {field["@id"] for field in RECORD_SETS[kind]["field"]} == {
        f"{kind}/{name}" for name in named
    }


def told(value):
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(RECORD_SETS) - set(COUNTED)))
def test_croissant_loads_what_the_project_reads(dataset, kind):
    (section,) = [section for section in SECTIONS if kind in section.kinds]
    frame = stores.read_file(section.files()[0], kind.removeprefix("twins_"))
    records = [
        {name.partition("/")[2]: told(value) for name, value in row.items()}
        for row in dataset.records(kind)
    ]
    pd.testing.assert_frame_equal(
        pd.DataFrame(records)[list(frame)], frame, check_dtype=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "labels",
        *(pytest.param(one, marks=pytest.mark.weekly) for one in ("scores", "traces")),
    ],
)
def test_croissant_loads_every_system(dataset, kind):
    store, found = stores.Store("recorded"), {}
    for row in dataset.records(kind):
        found.setdefault(told(row[f"{kind}/system"]), []).append(row)
    assert set(found) == set.union(*(SYSTEMS[one] for one in COUNTED[kind]))
    name = registry.published_systems("chat").index[0]
    frame = store.read(kind, "paraguard_mini", name)
    assert [told(row[f"{kind}/prompt_id"]) for row in found[name]] == frame[
        "prompt_id"
    ].tolist()
    column, expected = list(frame)[-1], frame.iloc[-1, -1]
    got = told(found[name][-1][f"{kind}/{column}"])
    assert got == expected or np.isclose(got, expected)
    if kind == "traces":
        for column in ("token_ids", "token_nll", "next_ids", "next_logprobs"):
            np.testing.assert_allclose(
                found[name][-1][f"traces/{column}"], frame[column].iloc[-1]
            )


def test_a_file_that_changes_changes_its_checksum(tmp_path, monkeypatch):
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "x.csv").write_text("a\n1\n")
    monkeypatch.setattr(paths, "DATA", tmp_path)
    first = croissant._describe_files("seeds", "seeds/x.csv")
    (tmp_path / "seeds" / "x.csv").write_text("a\n2\n")
    second = croissant._describe_files("seeds", "seeds/x.csv")
    assert (
        first[0]["sha256"] != second[0]["sha256"]
        and first[0]["contentSize"] == second[0]["contentSize"] == "4 B"
    )
