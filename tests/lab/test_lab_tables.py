"""Tables that only notebooks beyond the paper show."""

import pandas as pd

from paraguard_lab.report import tables


def test_few_rejections_or_few_mixed_clusters_are_too_few():
    table = pd.DataFrame({"too_few": [False, False, True], "n_mixed": [10, 9, 10]})
    assert tables.too_few_for_excess(table).tolist() == [False, True, True]


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
