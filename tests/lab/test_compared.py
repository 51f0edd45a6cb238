"""What rules and models write for the same seeds, counted by hand."""

import numpy as np
import pandas as pd

from paraguard_lab.corpus import compared
from paraguard_utils.core.strategies import STRATEGIES


def test_candidates_that_pass_alone_are_counted_by_generator_and_strategy():
    reasons = {"a": ["", "surplus", "intent", "risk_low"], "b": ["", ""]}
    rows = pd.DataFrame(
        [
            {
                "generator": name,
                "seed_id": f"{name}{i // 2}",
                "strategy": "lexical" if i < 3 else "rewrite",
                "reason": why,
            }
            for name, found in reasons.items()
            for i, why in enumerate(found)
        ]
    )
    found = compared.count_passing(rows).set_index(["generator", "strategy"])
    assert len(found) == 2 * (len(STRATEGIES) + 1), "and all of them"
    assert found.loc[("a", "all"), ["written", "passing", "share"]].tolist() == [
        4,
        2,
        0.5,
    ]
    assert found.loc[("a", "lexical"), ["written", "passing"]].tolist() == [3, 2]
    assert found.loc[("a", "rewrite"), ["written", "passing", "share"]].tolist() == [
        1,
        0,
        0,
    ]
    assert (
        np.isnan(found.loc[("a", "softening"), "share"])
        and found.loc[("b", "all"), "share"] == 1
    )
    assert found.loc[("a", "all"), ["share_low", "share_high"]].tolist() == [
        0,
        1,
    ], "over seeds, not over candidates"


def test_completed_by_hand():
    rows = pd.DataFrame(
        {
            "generator": ["rules", "rules", "rules", "authored"],
            "seed_id": ["a", "a", "b", "b"],
            "reason": ["", "risk_low", "sibling", ""],
        }
    )
    found = compared.count_complete_clusters(rows, 4).set_index("generator")
    assert (
        found["complete"].to_dict() == {"rules": 1, "authored": 1}
        and (found["share"] == 0.25).all()
    )
    assert (
        round(found["share_low"]["rules"], 4) == 0.0063
    )  # exact: 1 - (1 - 0.0063)^4 = 0.025
