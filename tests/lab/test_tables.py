"""Tables as a reader sees them, and the counts that 01 shows."""

import re

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from paraguard_lab.report import compare
from paraguard_utils import stores
from paraguard_utils.corpus import gates
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
    assert tables.format_estimate(row, "x", sign="+") == "-0.000 [-0.013, +0.500]", (
        "with a sign, on which side of 0 it lies"
    )
    assert (
        tables.format_estimate(row, "y", 2, "+") == "+0.25 [–]"
        and tables.format_estimate(row, "z") == "–"
    )
    assert tables.format_number(-0.0, 2, "+") == "+0.00"


def test_few_rejections_or_few_mixed_clusters_are_too_few():
    table = pd.DataFrame({"too_few": [False, False, True], "n_mixed": [10, 9, 10]})
    assert tables.too_few_for_excess(table).tolist() == [False, True, True]


JUDGED = pd.DataFrame(
    {
        "generator": ["rules", "rules", "rules", "authored"],
        "strategy": ["lexical", "lexical", "rewrite", "rewrite"],
        "reason": ["", "risk_low", "sibling", ""],
        "similarity": [0.61, 1.0, -0.2, 0.05],
        "content_overlap": [0.0, 0.5, 0.95, 1.0],
        "risk": [0.3, 0.29, 0.5, 0.7],
    }
)


def test_tally_by_hand():
    found = gates.count_fates(JUDGED)
    assert found[
        ["generator", "fate", "lexical", "rewrite", "total"]
    ].to_numpy().tolist() == [
        ["authored", "kept", 0, 1, 1],
        ["rules", "kept", 1, 0, 1],
        ["rules", "risk_low", 1, 0, 1],
        ["rules", "sibling", 0, 1, 1],
    ]
    assert found["share"].round(3).tolist() == [1.0, 0.333, 0.333, 0.333]


def test_completed_by_hand():
    rows = JUDGED.assign(seed_id=["a", "a", "b", "b"])
    found = gates.count_complete_clusters(rows, 4).set_index("generator")
    assert (
        found["complete"].to_dict() == {"rules": 1, "authored": 1}
        and (found["share"] == 0.25).all()
    )
    assert (
        round(found["share_low"]["rules"], 4) == 0.0063
    )  # exact: 1 - (1 - 0.0063)^4 = 0.025


def test_histogram_by_hand():
    found = gates.bin_gate_measures(JUDGED).set_index(["measure", "low"])
    assert (
        found.groupby("measure")[["passes", "stopped"]].sum().to_numpy().tolist()
        == [[3, 1]] * 3
    )
    similarity = found.loc["similarity"]
    # 1.0 falls into the last bin, a negative cosine into the first, 0.05 into the
    # second; "sibling" passes alone
    assert similarity["stopped"].iloc[-1] == 1 and similarity["passes"].iloc[
        :2
    ].tolist() == [1, 1]


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


def test_a_narrow_table_stays_in_its_column():
    lines = tables.to_latex(MARKED[["excess"]], "", "x").splitlines()
    assert lines[0] == r"\begin{table}[t]" and not any(
        "footnotesize" in line for line in lines
    )


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


def compared(old, new):
    columns = ["system", "ci", "ci_low", "ci_high", "n", "p", "note"]
    found = compare.compare_cells(
        pd.DataFrame(old, columns=columns),
        pd.DataFrame(new, columns=columns),
        ["system"],
    )
    return found.set_index(["system", "column"])["share"]


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
    assert lines[-1] == "1 more rows: [mine.csv](../tables/mine.csv)"
    tables.display_table(stores.Store("recorded"), "", frame.head(1))
    assert "csv" not in seen[1]
    tables.display_table(stores.Store("recorded"), "mine", frame)
    assert seen[2].endswith("All columns: [mine.csv](../data/tables/mine.csv)")


def test_interpretations_stand_side_by_side():
    rows = [("t", "relative", 1.0), ("t", "clipped", 2.0), ("u", "relative", 3.0)]
    frame = pd.DataFrame(rows, columns=["system", "interpretation", "ci"])
    frame = frame.assign(
        ci_low=frame["ci"] - 1,
        ci_high=frame["ci"] + 1,
        frr=0.5,
        frr_low=0.4,
        frr_high=0.6,
    )
    found = tables.pivot(frame, ["system"], ["ci", "frr"])
    assert list(found) == [
        "system",
        "CI, relative",
        "CI, clipped",
        "FRR, relative",
        "FRR, clipped",
    ]
    assert found.iloc[0].tolist()[:3] == [
        "t",
        "1.000 [0.000, 2.000]",
        "2.000 [1.000, 3.000]",
    ]
    assert found.iloc[1]["CI, relative"].startswith("3.000") and pd.isna(
        found.iloc[1]["CI, clipped"]
    )


def test_a_difference_is_a_share_of_the_interval():
    share = compared(
        [["a", 0.40, 0.30, 0.50, 30, 0.010, "x"]],
        [["a", 0.42, 0.30, 0.49, 33, 0.011, "y"]],
    )["a"]
    # 0.02 / 0.20 and 0.01 / 0.20 of the interval; without one, 3 / 33 and 0.001 / 0.011
    # of the number
    assert (
        share["ci"] == pytest.approx(0.1)
        and share["ci_high"] == pytest.approx(0.05)
        and share["ci_low"] == 0
    )
    assert share["n"] == pytest.approx(3 / 33) and share["p"] == pytest.approx(1 / 11)
    assert share["note"] == np.inf


def test_only_rows_of_both_runs_are_compared_and_undefined_is_not_a_number():
    nan = np.nan
    old = [
        ["a", nan, nan, nan, 3, nan, "too_few"],
        ["judge", 0.2, 0.1, 0.3, 9, 0.5, ""],
    ]
    share = compared(
        old,
        [["a", nan, nan, nan, 3, 0.5, "too_few"], ["mine", 0.2, 0.1, 0.3, 9, 0.5, ""]],
    )
    assert set(share.index.get_level_values("system")) == {"a"}
    assert share["a"].drop("p").eq(0).all() and share["a", "p"] == np.inf


def test_differences_are_told_with_the_tolerance_and_the_largest():
    rows = [["a", 0.4, 0.3, 0.5, 30, 0.01, "x"], ["b", 0.4, 0.3, 0.5, 30, 0.01, "x"]]
    columns = ["system", "ci", "ci_low", "ci_high", "n", "p", "note"]
    old, new = pd.DataFrame(rows, columns=columns), pd.DataFrame(rows, columns=columns)
    new.loc[0, "ci"], new.loc[1, "ci_low"] = (
        0.4001,
        0.25,
    )  # 0.0001 / 0.2 = 0.05 %, 0.05 / 0.2 = 25 %
    found = compare.describe_differences(
        "t", compare.compare_cells(old, new, ["system"]), ["system"]
    )
    assert found == [
        (
            "t: 1 of 12 numbers differ by more than 1% of the interval's width (of the"
            " number where it has none); largest difference 25.00%"
        ),
        "  b: ci_low 0.3 recorded, 0.25 live",
    ]
    assert compare.describe_differences(
        "t", compare.compare_cells(old, new[:0], ["system"]), ["system"]
    ) == ["t: no row that both runs computed"]


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
