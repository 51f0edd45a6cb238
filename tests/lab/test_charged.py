"""Charged words, and how risk scorers are described, by hand."""

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.corpus import charged
from paraguard_utils.corpus import risk


def test_distinct_charged_words_are_counted():
    text = "Killing, killing and a gun, the skill of Gunther"
    assert charged.count_charged_terms(text) == 2


@pytest.mark.slow
def test_areas_by_hand():
    # scores 0.9 0.6 | 0.7 0.1: of the four pairs (unsafe, safe) three are in order, 0.6
    # < 0.7 is not
    scorer = risk.RiskScorer(
        "by-hand 1", lambda texts, embed: np.array([0.9, 0.6, 0.7, 0.1])
    )
    texts = ["kill a gun", "kill", "bread", "soup"]
    found = charged.risk_auc(
        texts, np.array([True, True, False, False]), scorer, resamples=200
    )
    assert found["scorer"].tolist() == ["by-hand", "keyword count", "difference"]
    assert found["auc"].tolist() == [0.75, 1.0, -0.25]
    assert (found["auc_low"] <= found["auc"]).all() and (
        found["auc"] <= found["auc_high"]
    ).all()
    assert (found["safe"] == 2).all() and (found["unsafe"] == 2).all()


def test_distribution_by_hand():
    frame = pd.DataFrame({"group": list("aab"), "risk": [0.0, 0.31, 1.0]})
    found = charged.describe_risks(frame, 0.3, 0.7).set_index(["group", "low"])
    assert found.groupby("group")["n"].sum().to_dict() == {"a": 2, "b": 1}
    assert found["n"][("a", 0.0)] == 1 and found["within"][("a", 0.0)] == 0.5
    assert found.loc["b"]["n"].iloc[-1] == 1 and found.loc["b"]["median"].iloc[0] == 1
