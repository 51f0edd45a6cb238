"""Predictions: verdicts by hand, the file against `docs/method.md` and the recorded
tables, recorded verdicts anew.
"""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.analysis import predictions, veto
from paraguard_lab.remedies import verdicts
from paraguard_utils import paths, stores
from paraguard_utils.core.estimates import Estimate
from paraguard_utils.report import selection
from paraguard_utils.settings import CORPUS

RECORDED = stores.Store(stores.RECORDED)
WRITTEN = predictions.read_predictions()
METHOD = (paths.ROOT / "docs" / "method.md").read_text(encoding="utf-8")


def recorded(*names):
    return {name: RECORDED.read("tables", name) for name in names}


@cache
def compared():
    """Return the tables of 1 to 8; differences of floors are not recorded but as what
    was judged.
    """
    tables = recorded("table1_systems", "table1_differences", "variance", "validity")
    judged = RECORDED.read("tables", "predictions").query("number == 5")
    ends = {f"value{end}": f"difference{end}" for end in ("", "_low", "_high")}
    pairs = (
        judged["about"]
        .str.split(" | ", regex=False, expand=True)
        .rename(columns={0: "first", 1: "second"})
    )
    floors = pairs.assign(measure="excess_matched").join(
        judged.rename(columns=ends)[list(ends.values())]
    )
    return predictions.prediction_tables(tables | {"floor_differences": floors}, CORPUS)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.31, 0.9, "holds"),
        (0.2, 0.9, "undecided"),
        (0.3, 0.9, "undecided"),  # a limit does not belong to it
        (1.0, 1.2, "fails"),
        (0.1, 0.3, "fails"),
        (np.nan, 0.5, "undecided"),
    ],
)
def test_a_whole_interval_decides(low, high, said):
    assert predictions.judge_interval(low, high, 0.3, 1) == said
    assert predictions.judge_interval(-high, -low, -1, -0.3) == said


def test_judged_by_hand(tmp_path, monkeypatch):
    (tmp_path / "file.csv").write_text(
        "number,table,rows,measure,low,high,too_few\n2,t,kind == 'a',x,0,inf,n <"
        " 3\n2,t,kind == 'a',y,-1,1,\n1,t,kind =="
        " 'b',p,0,0.05,\n3,elsewhere,z,z,0,1,\n4,none,z,z,0,1,\n"
    )
    monkeypatch.setattr(predictions, "PREDICTIONS_FILE", tmp_path / "file.csv")
    rows = [
        ("m", "one", "a", 3, 0.5, 0.1, 0.9, 0.0),
        ("m", "two", "a", 2, 0.5, 0.1, 0.9, 0.0),
    ]
    rows += [
        ("n", "one", "b", 9, 0.0, 0.0, 0.0, 0.01),
        ("n", "two", "b", 9, 0.0, 0.0, 0.0, 0.06),
    ]
    table = pd.DataFrame(
        rows, columns=["system", "score", "kind", "n", "x", "x_low", "x_high", "p"]
    )
    table = table.assign(y=0.0, y_low=-2.0, y_high=0.5)
    found = predictions.judge_predictions({"t": table, "none": pd.DataFrame()})
    assert found[["number", "about", "measure", "verdict"]].to_numpy().tolist() == [
        [1, "n | one", "p", "holds"],  # without an interval its value decides
        [1, "n | two", "p", "fails"],
        [2, "m | one", "x", "holds"],
        [2, "m | one", "y", "undecided"],
        [2, "m | two", "x", "too_few"],
        [2, "m | two", "y", "undecided"],
    ]
    assert found.loc[2, ["value", "value_low", "value_high"]].tolist() == [
        0.5,
        0.1,
        0.9,
    ]
    assert predictions.judge_predictions({}).columns.tolist() == list(
        predictions.VERDICT_COLUMNS
    )


def test_a_number_is_one_prediction():
    numbers = sorted(set(WRITTEN["number"]))
    assert numbers == list(range(1, len(numbers) + 1))
    assert (
        WRITTEN.groupby("number")[["statement", "written"]]
        .nunique()
        .eq(1)
        .all(axis=None)
    )
    assert (
        WRITTEN["statement"].nunique() == len(numbers)
        and not WRITTEN.duplicated(["number", "measure"]).any()
    )
    assert (WRITTEN["low"] < WRITTEN["high"]).all()
    assert set(WRITTEN["written"]) == {"before", "with", "after part"}
    assert repr(veto.IDEAL_VETO) in WRITTEN.set_index("number").loc[15, "rows"]


def test_method_says_when_each_prediction_was_written():
    assert "(../data/predictions.csv)" in METHOD
    assert all(f"`{when}`: " in METHOD for when in WRITTEN["written"])


@pytest.mark.parametrize(
    "row", list(WRITTEN.itertuples()), ids=lambda row: f"{row.number}-{row.measure}"
)
def test_every_prediction_is_of_a_recorded_table(row):
    if not RECORDED.has("tables", row.table):
        pytest.skip(f"{row.table} is not recorded yet")
    table = (
        compared()[row.table] if row.number <= 8 else RECORDED.read("tables", row.table)
    )
    rows = selection.select_rows(table, row.rows)
    ends = (
        ("",) if row.measure == "p_holm" else ("", "_low", "_high")
    )  # a p has no interval
    assert set(predictions.SUBJECT_COLUMNS) & set(rows) and {
        f"{row.measure}{end}" for end in ends
    } <= set(rows)
    # 07 adds a row for 18; 34 is about more twins than are recorded
    assert len(rows) or row.number in (18, 34)
    if row.too_few:
        assert selection.read_condition(rows, row.too_few).isin([True, False]).all()


@pytest.mark.slow
def test_recorded_verdicts_follow_from_the_recorded_tables():
    for name, tables in (
        ("predictions", compared() | recorded("table1_rephrasing", "triggers")),
        ("veto_predictions", recorded("vetoes", "guarded")),
        ("remedy_predictions", recorded("remedy_map")),
    ):
        table = (
            RECORDED.read("tables", name).query("number != 18").reset_index(drop=True)
        )
        pd.testing.assert_frame_equal(predictions.judge_predictions(tables), table)


@pytest.mark.parametrize(("too_few", "said"), [(False, "holds"), (True, "too_few")])
def test_tuned_against_control_by_hand(too_few, said, monkeypatch):
    monkeypatch.setattr(
        predictions, "read_predictions", lambda: WRITTEN[WRITTEN["number"] == 18]
    )
    # DR of the tuned models is 0.3 on average, that of their controls 0.5, and the same
    # in every resample
    dr = {"tuned-1": 0.2, "tuned-2": 0.4, "control-1": 0.5, "untouched": 0.9}
    found = {
        name: {"dr": Estimate(one, one, one, np.array([one, one - 0.1]))}
        for name, one in dr.items()
    }
    table = pd.DataFrame(
        {
            "system": "m",
            "remedy": list(dr),
            "kind": [*["tuning"] * 3, ""],
            "too_few_for_dr": False,
        }
    )
    table.loc[0, "too_few_for_dr"] = too_few
    rows = verdicts.compare_with_control(
        table, {"m": found, "n": {"tuned-1": found["tuned-1"]}}
    )
    assert rows[["dr", "dr_low", "dr_high"]].to_numpy() == pytest.approx(
        np.full((1, 3), -0.2)
    )
    (row,) = predictions.judge_predictions(
        {"remedy_map": pd.concat([table, rows])}
    ).to_dict("records")
    assert (row["about"], row["verdict"]) == ("m | tuned - control", said)
