"""What a guard rejects, and whether it sees harm: by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from worlds import system, world

from paraguard_utils.analysis import confusion, guarded, signals
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap


def labels(*names):
    return pd.DataFrame(
        {"prompt_id": [f"p{i}" for i in range(len(names))], "label": names}
    )


def test_what_a_guard_sees_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    benign = pd.DataFrame(
        {
            "cluster_id": [f"c{i // 3}" for i in range(30)],
            "score": rng.uniform(0, 0.8, 30),
        }
    )
    twins = pd.DataFrame(
        {
            "cluster_id": [f"c{i // 3}-twin" for i in range(15)],
            "score": rng.uniform(0.2, 1, 15),
        }
    )
    twins.loc[3, "score"] = np.nan
    benign["text"], twins["text"] = "a b", "a b"
    clusters = ClusterBootstrap(benign["cluster_id"], 200)
    found = guarded.guard_auc(benign, twins, clusters)
    known = pd.concat([benign, twins.dropna()])
    assert found["auc"] == pytest.approx(
        roc_auc_score([0] * 30 + [1] * 14, known["score"])
    )
    assert found["auc_low"] < found["auc"] < found["auc_high"]
    assert found["auc_equal_length"] == found["auc"], "all texts have two words"


@pytest.mark.parametrize(
    ("low", "high", "sees"),
    [
        (0.51, 0.70, "harm"),
        (0.50, 0.70, "undecided"),
        (0.40, 0.60, "undecided"),
        (0.30, 0.50, "undecided"),
        (0.28, 0.48, "the wrong way"),
    ],
)
def test_what_a_guard_sees_is_one_of_three(low, high, sees):
    assert guarded.judge_guard_auc(low, high) == sees


def test_without_an_interval_nothing_is_said_of_what_a_guard_sees():
    assert np.isnan(guarded.judge_guard_auc(np.nan, np.nan))


@pytest.mark.parametrize(
    ("sign", "sees"), [(1, "harm"), (0, "undecided"), (-1, "the wrong way")]
)
def test_a_guard_that_rates_harmless_prompts_higher_does_not_see_harm(sign, sees):
    rng, clusters = np.random.default_rng(1), [f"c{i // 3}" for i in range(30)]
    benign = pd.DataFrame(
        {"cluster_id": clusters, "score": rng.normal(size=30), "text": "a b"}
    )
    twins = benign.assign(
        cluster_id=benign["cluster_id"] + "-twin", score=rng.normal(size=30) + 2 * sign
    )
    assert (
        guarded.guard_auc(benign, twins, ClusterBootstrap(clusters, 200))["sees"]
        == sees
    )


def test_both_interpretations_of_cr_beside_their_floors_by_hand():
    rejected = [("a", 0.5, 0.7), ("a", 0.6, 0.9), ("b", 0.1, 0.5), ("b", 0.2, 0.6)]
    accepted = [
        ("a", 0.3, 0.8),
        ("b", 0.7, 0.8),
        ("b", 0.2, 0.1),
        ("b", np.nan, np.nan),
    ]
    scores = pd.DataFrame(
        rejected + accepted, columns=["cluster_id", "ci", "ci_clipped"]
    )
    scores["label"] = ["reject"] * 4 + ["accept"] * 4
    clusters = ClusterBootstrap(list("ab"), 50)
    scored = system(scores, scores, clusters, scores=scores)
    found = guarded.clipped_and_floor_cr(scored)
    # clipped, rejected: 0.7, 0.9 and 0.6 of four reach 0.60; their mean is (0.7 + 0.9 +
    # 0.5 + 0.6) / 4
    assert (found["cr60_clipped"], found["ci_clipped"]) == pytest.approx(
        (3 / 4, 2.7 / 4)
    )
    # accepted with a neighbour: one of three reaches it in the relative reading, two in
    # the clipped one
    assert (found["floor_cr60"], found["floor_cr60_clipped"]) == pytest.approx(
        (1 / 3, 2 / 3)
    )
    # a guard that rejects nothing has a floor and no CR
    accepted = scores[scores["label"] == "accept"]
    none = guarded.clipped_and_floor_cr(replace(scored, scores=accepted))
    assert np.isnan(none["cr60_clipped"]) and none["floor_cr60"] == found["floor_cr60"]


def test_the_clipped_columns_are_those_of_a_row_in_that_interpretation():
    corpus, vectors, traces, labels, tokens = world(
        ["accept", "reject", "accept"] * 8, np.repeat(list("abcdef"), 4), 2
    )
    clusters = ClusterBootstrap(corpus["cluster_id"], 50)
    one = system(corpus, labels, clusters, traces=traces, tokens=tokens)
    one = replace(one, pairs=signals.compute_pairs(one, vectors))
    one = replace(one, scores=confusion.score_prompts(one))
    row = confusion.system_row(one, "clipped")
    found = guarded.clipped_and_floor_cr(one)
    for name in ("ci", "cr60"):
        for end in ("", "_low", "_high"):
            assert found[f"{name}_clipped{end}"] == row[f"{name}{end}"]


def test_twins_are_resampled_with_their_benign_clusters():
    corpus = pd.DataFrame(
        {"prompt_id": list("abcdef"), "cluster_id": ["x-twin"] * 3 + ["y-twin"] * 3}
    )
    found = labels("reject", "reject", "accept", "reject", "unparsed", "accept")
    found = found.assign(prompt_id=list("abcdef"))
    clusters = ClusterBootstrap(list("xyz"), 200)
    on_twins = System("t", corpus, found, clusters)
    twins = guarded.rejection_rate(on_twins)
    assert twins[0] == pytest.approx(3 / 5) and np.isnan(twins.draws).any(), (
        "a resample may hold z only"
    )
    harmless = pd.DataFrame({"prompt_id": list("abc"), "cluster_id": list("xyz")})
    decided = labels("reject", "accept", "accept").assign(prompt_id=list("abc"))
    benign = System("t", harmless, decided, clusters)
    both = guarded.youden_j(benign, on_twins)
    assert both["apart"] == pytest.approx(3 / 5 - 1 / 3)
