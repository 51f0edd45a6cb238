"""Tables of two runs are compared cell by cell."""

import pandas as pd

from paraguard_lab.report import compare


def test_differences_by_hand():
    old = pd.DataFrame({"t": ["a", "b"], "x": [0.5, None], "y": ["s", "s"]})
    new = pd.DataFrame({"t": ["a", "b"], "x": [0.50000001, 0.1], "y": ["s", "t"]})
    found = compare.compare_cells(old, new, ["t"])
    found = found[found["share"] > compare.RUN_TOLERANCE]
    assert found[["t", "column"]].to_numpy().tolist() == [["b", "x"], ["b", "y"]]
    assert (compare.compare_cells(old, old, ["t"])["share"] == 0).all()
