"""Tables as a reader sees them, and the counts that 01 shows."""

import re

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from paraguard_utils import stores
from paraguard_utils.report import tables
from paraguard_utils.text import replace_control


def test_rounded_joins_estimates_with_their_intervals():
    frame = pd.DataFrame(
        {
            "name": ["a", "b"],
            "n": [3, 4],
            "x": [0.12345, np.nan],
            "x_low": [0.1, np.nan],
            "x_high": [0.2, np.nan],
        }
    ).assign(risk_low=[1, 2], y=1 / 3)
    found = tables.format_frame(frame)
    assert found.to_dict("list") == {
        "name": ["a", "b"],
        "n": [3, 4],
        "x": ["0.123 [0.100, 0.200]", "–"],
        "risk_low": [1, 2],  # a count of its own, with no estimate "risk" beside it
        "y": [0.333, 0.333],
    }


def test_an_estimate_by_hand():
    row = {
        "x": -0.0004,
        "x_low": -0.0126,
        "x_high": 0.5,
        "y": 0.25,
        "y_low": np.nan,
        "y_high": np.nan,
    }
    row |= {"z": np.nan, "z_low": np.nan, "z_high": np.nan}
    assert tables.format_estimate(row, "x") == "0.000 [-0.013, 0.500]", "no minus zero"
    assert tables.format_estimate(row, "x", 2) == "0.00 [-0.01, 0.50]"
    assert tables.format_estimate(row, "y", 2) == "0.25 [–]"
    assert tables.format_estimate(row, "z") == "–"
    assert tables.format_number(-0.0, 2) == "0.00" == tables.format_number(0, 2)


MARKED = pd.DataFrame(
    {
        "system": ["a_b", "c"],
        "text": ["50 % & #1 ~ ^ \\ {x} $y$", "[not an option] |*bold*|\n<b>`–"],
        "frr": ["0.100 [–]", "–"],
        "excess": ["-0.100 [-0.200, +0.050]", "0.300 [0.200, 0.400]"],
        "too_few": [True, False],
        "p": [0.5, np.nan],
        "note": [None, np.nan],
    }
)


def test_latex_by_hand():
    lines = tables.to_latex(MARKED, "5 % of _all_", "mine").splitlines()
    assert lines == [
        r"\begin{table*}[t]",
        r"\centering",
        r"\footnotesize\setlength{\tabcolsep}{3pt}",
        r"\caption{5 \% of \_all\_}",
        r"\label{tab:mine}",
        r"\begin{tabular}{llrrlrl}",
        r"\toprule",
        r"system & text & FRR & excess & too few & p & note \\",
        r"\midrule",
        r"a\_b & 50 \% \& \#1 \textasciitilde{} \textasciicircum{} \textbackslash{}"
        r" \{x\} \$y\$ & 0.100 [--] & "
        r"$-$0.100 [$-$0.200, +0.050] & yes & 0.500 & -- \\",
        r"c & {[}not an option] \textbar{}*bold*\textbar{}"
        r" \textless{}b\textgreater{}`-- & -- & "
        r"0.300 [0.200, 0.400] & no & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]


def test_markdown_by_hand():
    lines = tables.to_markdown(MARKED[["text", "excess"]], "5 % of _all_").splitlines()
    assert lines[:2] == [r"5 % of \_all\_", ""]
    cells = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines[2:]
    ]
    assert cells[0] == ["text", "excess"]
    assert cells[1][0].startswith(":-") and cells[1][1].endswith("-:")
    assert cells[2:] == [
        [r"50 % \& \#1 \~ ^ \\ \{x\} \$y\$", "-0.100 [-0.200, +0.050]"],
        [r"\[not an option\] \|\*bold\*\| \<b\>\`–", "0.300 [0.200, 0.400]"],
    ]


def test_what_a_notebook_shows_by_hand(results, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "IPython.display.display", lambda shown: seen.append(shown.data)
    )
    frame = pd.DataFrame(
        {
            "measure": ["dr", "frr", "x"],
            "text": ["<b>|", "y " * 300, "z"],
            "a": ["0.5 [-0.1, 0.9]"] * 3,
        }
    )
    tables.display_table(stores.Store("live"), "mine", frame, most=2)
    lines = seen[0].splitlines()
    assert lines[0].split("|")[1].strip() == "measure" and len(lines) == 2 + 2 + 2
    assert (
        lines[2].split("|")[1].strip() == "DR" and "0.5<br>[-0.1,&nbsp;0.9]" in lines[2]
    )
    assert r"\<b\>\|" in lines[2] and "…" in lines[3] and len(lines[3]) < 500
    assert lines[-1].startswith("1 more rows: [mine.csv](")
    assert lines[-1].endswith("/live/tables/mine.csv)")
    tables.display_table(stores.Store("recorded"), "", frame.head(1))
    assert "csv" not in seen[1]
    tables.display_table(stores.Store("recorded"), "mine", frame)
    assert seen[2].endswith("All columns: [mine.csv](../data/tables/mine.csv)")


@pytest.mark.slow
@given(st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_markdown_shows_every_text_as_it_is(texts):
    frame = pd.DataFrame({"first": texts, "second": "x"})
    page = BeautifulSoup(
        MarkdownIt("gfm-like", {"linkify": False}).render(
            tables.to_markdown(frame, "all")
        ),
        "html.parser",
    )
    cells = [row.find_all("td")[0] for row in page.find_all("tr")[1:]]
    assert [cell.get_text() for cell in cells] == [
        replace_control(" ".join(text.split())) for text in texts
    ]
    assert not any(cell.find_all(True) for cell in cells)


@pytest.mark.slow
@given(st.text(alphabet='ab[*\\{}$&%#_^~|<>\n" –', max_size=12))
def test_latex_cells_hold_no_bare_markup(text):
    row = (
        tables.to_latex(pd.DataFrame({"first": [text], "second": [1]}), "", "x")
        .split("\\midrule\n")[1]
        .split("\n")[0]
    )
    body = row.removesuffix(r" & 1 \\")
    assert body[:1] not in ("[", "*")
    for command in (
        "textbackslash",
        "textasciitilde",
        "textasciicircum",
        "textless",
        "textgreater",
        "textbar",
    ):
        body = body.replace(f"\\{command}{{}}", "")
    body = body.replace("{[}", "[").replace("{*}", "*")
    assert not re.search(r"(?<!\\)[&%$#_{}]|[~^<>|]|\\[^&%$#_{}]|\\$", body), body


def test_published_tables_are_the_same_bytes_and_keep_every_column(results):
    store = stores.Store("live")
    frame = pd.DataFrame({"n_reject": [1], "refused": [2]})  # both are headed "refused"
    found = []
    for _ in range(2):
        assert tables.publish_table(store, "mine", frame, "two") is None
        found.append(
            [
                (results / "live/tables" / f"mine.{suffix}").read_bytes()
                for suffix in ("tex", "md")
            ]
        )
    assert found[0] == found[1]
    assert b"refused & refused" in found[0][0] and b"1 & 2" in found[0][0]
    assert sorted(path.name for path in (results / "live/tables").iterdir()) == [
        "mine.md",
        "mine.tex",
    ]


def test_published_systems_carry_their_titles_and_a_table_may_be_empty():
    frame = pd.DataFrame(
        {
            "system": ["smollm2-135m-instruct-q4_1--safety", "my_model--safety"],
            "ci": ["–", "–"],
        }
    )
    text = tables.to_markdown(frame, "")
    assert "SmolLM2-135M, safety instruction" in text and r"my\_model--safety" in text
    assert r"\midrule" in tables.to_latex(
        frame[:0], "none", "x"
    ) and "| system" in tables.to_markdown(frame[:0], "none")
