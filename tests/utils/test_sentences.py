"""Sentences with numbers of a run, and links in them."""

import pandas as pd
import pytest

from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError
from paraguard_utils.report import links, paper, sentences, tables

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


LINKS = {
    "[x](03_scoring.ipynb#table-1)": "../../../notebooks/03_scoring.ipynb#table-1",
    "[x](beyond/06_validity.ipynb)": "../../../notebooks/beyond/06_validity.ipynb",
    "[x](../03_scoring.ipynb)": "../../../notebooks/03_scoring.ipynb",
    "[x](06_validity.ipynb)": "../../../notebooks/beyond/06_validity.ipynb",
    "[x](../docs/method.md)": "../../../docs/method.md",
    "[x](../../docs/method.md)": "../../../docs/method.md",
    "![x](../figures/shared_wording.png)": "../../../figures/shared_wording.png",
    "[x](../data/tables/wording.csv)": "../../../data/tables/wording.csv",
    "[x](https://arxiv.org/abs/2512.01037v2)": "https://arxiv.org/abs/2512.01037v2",
    "[x](#words)": "#words",
    "[x](no_such_file.md)": "no_such_file.md",
}
"""Links as authors write them, and where they lead from results/mine/notebooks."""


@pytest.mark.parametrize("link", LINKS)
def test_links_work_where_the_executed_notebook_is_read(link, monkeypatch):
    monkeypatch.setenv(links.FOLDER_VARIABLE, str(paths.RESULTS / "mine" / "notebooks"))
    rewritten = links.rewrite_links(link)
    assert rewritten == f"{link.partition('](')[0]}]({LINKS[link]})"


def test_links_lead_to_what_the_run_has_made(results, monkeypatch):
    run = results / "mine"
    for name in ("tables/wording.csv", "notebooks/03_scoring.ipynb"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("")
    text = "[a](../data/tables/wording.csv) [b](../03_scoring.ipynb)"
    monkeypatch.setenv(links.FOLDER_VARIABLE, str(run / "notebooks"))
    assert (
        links.rewrite_links(text) == "[a](../tables/wording.csv) [b](03_scoring.ipynb)"
    )


def test_links_in_notebooks_stay_as_they_are_written(monkeypatch):
    text = "[a](../data/tables/wording.csv) [b](06_validity.ipynb)"
    monkeypatch.setenv(links.FOLDER_VARIABLE, str(paths.NOTEBOOKS))
    assert links.rewrite_links(text) == text.replace("(06", "(beyond/06")
    monkeypatch.delenv(links.FOLDER_VARIABLE)
    monkeypatch.chdir(paths.NOTEBOOKS / "beyond")
    assert links.rewrite_links(text) == text.replace("(../", "(../../")


def test_tables_link_to_their_csv(results, shown, monkeypatch):
    frame = pd.DataFrame({"n": [1, 2, 3]})
    live = stores.Store("live")
    monkeypatch.setenv(links.FOLDER_VARIABLE, str(results / "live" / "notebooks"))
    tables.display_table(live, "mine", frame, most=2)
    assert shown[0].endswith("1 more rows: [mine.csv](../tables/mine.csv)")
    monkeypatch.setenv(links.FOLDER_VARIABLE, str(paths.NOTEBOOKS / "beyond"))
    tables.display_table(stores.Store("recorded"), "mine", frame)
    assert shown[1].endswith("All columns: [mine.csv](../../data/tables/mine.csv)")
