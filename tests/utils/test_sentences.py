"""Sentences with numbers of a run, and tables beside them."""

import os
from pathlib import Path

import pandas as pd
import pytest

from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError
from paraguard_utils.report import paper, sentences, tables

RATES = pd.DataFrame(
    {
        "name": ["a", "b", "c"],
        "n": [1200, 3, 5],
        "of": [2000, 4, 5],
        "rate": [0.6, 0.755, None],
        "rate_low": [0.5, 0.7, None],
        "rate_high": [0.7, 0.8, None],
        "too_few": [False, False, True],
        "note": ["x", None, "x"],
    }
)
READ = {"rates": RATES}.__getitem__


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ("rates", "3"),
        ("rates[too_few]", "1"),
        ("rates[too_few == True and n > 9]", "0"),
        ("rates.n", "3 to 1,200"),
        ("rates[name == 'a'].n of of", "1,200 of 2,000"),
        ("rates.too_few", "1 of 3"),
        ("rates[not too_few].n > 9", "1 of 2"),
        ("rates.rate:.2f", "0.60 to 0.76"),
        ("rates[n > 9].rate:+.1f", "+0.6"),
        ("rates.1 - rate:.0f %", "24 % to 40 %"),
        ("rates[name == 'a'].rate:.0%", "60%"),
        ("rates[name == 'a'].rate±", "0.600 [0.500, 0.700]"),
        ("rates[name == 'b'].rate±:.1f", "0.8 [0.7, 0.8]"),
        ("rates[name == 'a'].rate±:.0f %", "60 % [50, 70]"),
        ("rates[name == 'a'].rate±:.1f %", "60.0 % [50.0, 70.0]"),
        ("rates[too_few].rate", "–"),
        ("rates[name != 'c'].name", "a to b"),
        ("rates.note", "x to –"),
        ("rates.(n * of).sum() of n.max()", "2,400,037 of 1,200"),
    ],
)
def test_a_mark_shows_what_it_names(mark, text):
    assert sentences.evaluate_mark(mark, READ) == text


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        ("rates[n > 9", "is not TABLE"),
        ("a b", "is not TABLE"),
        ("rates[n > 9999].n", "no row"),
        ("rates[nothing > 1].n", "no column nothing; allowed are columns"),
        ("rates.nothing", "no column nothing"),
        ("rates[name == 'a'].nothing±", "no column nothing"),
        ("rates[name == 'a'].n±", "no column n_low"),
        ("rates.rate±", "shows one row, and 3 are selected"),
        ("rates[name == 'a'].rate±:g", "the format of rate± is one such as"),
        ("rates.rate:d", "the format 'd'"),
        ("rates.rate:>99999999", "the format '>99999999'"),
        ("rates." + "n" * 500, "of at most 500 characters"),
    ],
)
def test_a_mark_that_names_nothing_is_an_error(mark, error):
    with pytest.raises(DataError, match=error):
        sentences.evaluate_mark(mark, READ)


def test_prose_takes_the_papers_numbers_from_the_file():
    marks = {
        "paper[item == 'r.similarity'].written": "-0.03",
        "paper[item == 'cd.mistral-7b.high'].written": "0.040",
        "paper[item == 'cohort.safe'].value:g %": "60 %",
        "paper[item == 'cohort.risky'].value:g %": "27.8 %",
    }

    def read(name):
        return sentences.read_named_table(stores.Store("recorded"), name)

    assert {mark: sentences.evaluate_mark(mark, read) for mark in marks} == marks
    assert "r.similarity" in paper.read_paper_values().index


@pytest.fixture
def shown(monkeypatch):
    """What a notebook shows, as texts."""
    texts = []
    monkeypatch.setattr(
        "IPython.display.display", lambda output: texts.append(output.data)
    )
    return texts


def test_a_run_says_its_own_numbers(results, shown):
    store = stores.Store("mine")
    store.write("tables", "rates", frame=RATES, meta={})
    text = """Rates are {rates[not too_few].rate:.2f} in
        {mine.n} of {rates} systems, and {rates[n >
        9].n} at most; the paper has {paper[item == 'r.similarity'].written}."""
    sentences.show(store, text, mine=RATES.head(1))
    assert " ".join(shown[0].split()) == (
        "Rates are 0.60 to 0.76 in 1,200 of 3 systems, and 1,200 at most; the paper"
        " has -0.03."
    )


def test_a_run_without_a_table_or_a_row_shows_a_dash(results, shown):
    store = stores.Store("mine")
    text = "{absent.n}, {rates[n > 9999].n}, {rates[n > 9999]} and {claims.verdict}"
    sentences.show(store, text, rates=RATES)
    assert shown == ["–, –, 0 and –"]
    with pytest.raises(DataError, match="is not TABLE"):
        sentences.show(store, "{rates[n}")


def test_a_dash_never_hides_a_mistake_in_the_record(shown):
    store = stores.Store("recorded")
    for text in ("{absent.n}", "{rates[n > 9999].n}"):
        with pytest.raises(DataError):
            sentences.show(store, text, rates=RATES)
    assert shown == []


def test_tables_link_to_their_csv(results, shown, monkeypatch):
    frame = pd.DataFrame({"n": [1, 2, 3]})
    live = stores.Store("live")
    tables.display_table(live, "mine", frame, most=2)
    file = live.writes / "tables" / "mine.csv"
    link = Path(os.path.relpath(file, paths.NOTEBOOKS)).as_posix()
    assert shown[0].endswith(f"1 more rows: [mine.csv]({link})")
    monkeypatch.chdir(paths.NOTEBOOKS / "beyond")
    tables.display_table(stores.Store("recorded"), "mine", frame)
    assert shown[1].endswith("All columns: [mine.csv](../../data/tables/mine.csv)")
