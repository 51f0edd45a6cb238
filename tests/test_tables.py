"""Tables as a reader sees them, and the counts that 01 shows."""

import numpy as np
import pandas as pd

from paraguard_utils import gates, tables


def test_rounded_joins_estimates_with_their_intervals():
    frame = pd.DataFrame(
        {"name": ["a", "b"], "n": [3, 4], "x": [0.12345, np.nan], "x_low": [0.1, np.nan], "x_high": [0.2, np.nan]}
    ).assign(risk_low=[1, 2], y=1 / 3)
    found = tables.rounded(frame)
    assert found.to_dict("list") == {
        "name": ["a", "b"],
        "n": [3, 4],
        "x": ["0.123 [0.100, 0.200]", "–"],
        "risk_low": [1, 2],  # a count of its own, with no estimate "risk" beside it
        "y": [0.333, 0.333],
    }


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
    found = gates.tally(JUDGED)
    assert found[["generator", "fate", "lexical", "rewrite", "total"]].to_numpy().tolist() == [
        ["authored", "kept", 0, 1, 1],
        ["rules", "kept", 1, 0, 1],
        ["rules", "risk_low", 1, 0, 1],
        ["rules", "sibling", 0, 1, 1],
    ]
    assert found["share"].round(3).tolist() == [1.0, 0.333, 0.333, 0.333]


def test_completed_by_hand():
    rows = JUDGED.assign(seed_id=["a", "a", "b", "b"])
    found = gates.completed(rows, 4).set_index("generator")
    assert found["complete"].to_dict() == {"rules": 1, "authored": 1} and (found["share"] == 0.25).all()
    assert round(found["share_low"]["rules"], 4) == 0.0063  # exact: 1 - (1 - 0.0063)^4 = 0.025


def test_histogram_by_hand():
    found = gates.histogram(JUDGED).set_index(["measure", "low"])
    assert found.groupby("measure")[["passes", "stopped"]].sum().to_numpy().tolist() == [[3, 1]] * 3
    similarity = found.loc["similarity"]
    # 1.0 falls into the last bin, a negative cosine into the first, 0.05 into the second; "sibling" passes alone
    assert similarity["stopped"].iloc[-1] == 1 and similarity["passes"].iloc[:2].tolist() == [1, 1]
