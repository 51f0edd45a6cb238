"""The excess inside clusters, by hand."""

from dataclasses import replace

import pandas as pd
import pytest

from paraguard_lab.analysis import excess
from paraguard_utils.analysis.system import System
from paraguard_utils.core.signals import PAPER_WEIGHTS, ScoreWeights


def excess_in_drift(corpus, frame):
    labels = pd.DataFrame({"label": ["unparsed"] * len(corpus)})
    system = replace(System.of("t", corpus, labels), pairs=frame)
    own = excess.select_own_pairs(system)
    return excess.cluster_excess(own, own["drift"]).tolist()


def test_weights_without_prob_shift():
    # 0.4 / 0.9 and 0.5 / 0.9
    weights = excess.without_prob_shift(PAPER_WEIGHTS)
    assert (weights.drift, weights.prob_shift, weights.ppl) == (
        pytest.approx(4 / 9),
        0,
        pytest.approx(5 / 9),
    )
    assert excess.without_prob_shift(ScoreWeights(0, 1, 0)) is None


def test_excess_by_hand():
    corpus = pd.DataFrame({"prompt_id": ["r", "a", "b"], "cluster_id": ["x"] * 3})
    frame = pd.DataFrame(
        {
            "centre_id": ["r", "r", "a", "b"],
            "centre_label": ["reject", "reject", "accept", "accept"],
            "same_cluster": True,
            "drift": [0.6, 0.8, 0.3, 0.3],
            "prob_shift": 0.0,
            "ppl_relative": 0.0,
        }
    )
    # (0.6 + 0.8) / 2 - 0.3 = 0.4
    assert excess_in_drift(corpus, frame) == pytest.approx([0.4])
    # Without a second accepted prompt nothing is compared, nor outside the cluster
    assert excess_in_drift(corpus, frame.head(2)) == []
    assert excess_in_drift(corpus, frame.assign(same_cluster=False)) == []
