"""A live run beside the record, cell by cell."""

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.report import compare


def compared(old, new):
    columns = ["system", "ci", "ci_low", "ci_high", "n", "p", "note"]
    found = compare.compare_cells(
        pd.DataFrame(old, columns=columns),
        pd.DataFrame(new, columns=columns),
        ["system"],
    )
    return found.set_index(["system", "column"])["share"]


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


def test_differences_by_hand():
    old = pd.DataFrame({"t": ["a", "b"], "x": [0.5, None], "y": ["s", "s"]})
    new = pd.DataFrame({"t": ["a", "b"], "x": [0.50000001, 0.1], "y": ["s", "t"]})
    found = compare.compare_cells(old, new, ["t"])
    found = found[found["share"] > compare.RUN_TOLERANCE]
    assert found[["t", "column"]].to_numpy().tolist() == [["b", "x"], ["b", "y"]]
    assert (compare.compare_cells(old, old, ["t"])["share"] == 0).all()
