"""Floors and permutations: hand-worked cases, and worlds whose truth is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st

from paraguard_lab.analysis import chance, excess
from paraguard_lab.report import findings
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.signals import Scoring


def pairs(*rows):
    """Pairs as (cluster, centre's label, similarity, score)."""
    frame = pd.DataFrame(
        rows, columns=["cluster_id", "centre_label", "similarity", "score"]
    )
    return frame.assign(same_cluster=True, length=0.0)


def test_the_matched_floor_by_hand():
    frame = pairs(
        ("a", "reject", 0.9, 0.3),
        ("a", "reject", 0.9, 0.5),
        ("a", "reject", 0.5, 0.8),
        ("b", "accept", 0.9, 0.2),
        ("b", "accept", 0.5, 0.4),
        ("b", "accept", 0.5, 0.6),
    )
    stratum = (frame["similarity"] < 0.7).to_numpy(int)
    floor, excess, matched = chance.matched_excess(
        ClusterBootstrap(["a", "b"]), frame, stratum, frame["score"].to_numpy()
    )
    # floor: (2 * 0.2 + 1 * (0.4 + 0.6) / 2) / 3 = 0.3; rejected mean (0.3 + 0.5 + 0.8)
    # / 3
    assert (
        floor[0] == pytest.approx(0.3)
        and excess[0] == pytest.approx(1.6 / 3 - 0.3)
        and matched == 1.0
    )


def test_a_stratum_without_accepted_pairs_is_left_out_on_both_sides():
    frame = pairs(
        ("a", "reject", 0.9, 0.3), ("a", "reject", 0.1, 0.9), ("b", "accept", 0.9, 0.2)
    )
    _, excess, matched = chance.matched_excess(
        ClusterBootstrap(["a", "b"]),
        frame,
        np.array([0, 1, 0]),
        frame["score"].to_numpy(),
    )
    assert excess[0] == pytest.approx(0.1) and matched == 0.5


def test_strata_are_bins_of_the_rejected_pairs():
    frame = pairs(
        *(("a", "reject", s, 0.0) for s in (0.1, 0.2, 0.3, 0.4)),
        ("b", "accept", 0.15, 0),
        ("b", "accept", 0.9, 0),
    )
    found = chance.number_strata(frame.assign(same_cluster=True), {"similarity": 2})
    assert found.tolist() == [0, 0, 1, 1, 0, 1]


def test_where_the_contrast_is_one_and_the_same_the_regression_is_the_primary_excess():
    rng = np.random.default_rng(1)
    corpus = pd.DataFrame(
        {
            "prompt_id": [f"p{i}" for i in range(30)],
            "cluster_id": np.repeat(list("abcdef"), 5),
        }
    )
    label = np.where(rng.random(30) < 0.4, "reject", "accept")
    rows = [
        (i, j)
        for i in range(30)
        for j in range(30)
        if i != j and i // 5 == j // 5 and label[j] == "accept"
    ]
    a = np.array(rows)[:, 0]
    frame = pd.DataFrame(
        {
            "centre_id": corpus["prompt_id"][a].to_numpy(),
            "centre_label": label[a],
            "same_cluster": True,
        }
    )
    for name in ("drift", "prob_shift", "ppl_relative", "ppl_clipped"):
        frame[name] = rng.random(len(frame))
    score = signals.score_pairs(frame)
    frame["cluster_id"] = corpus["cluster_id"][a].to_numpy()
    expected = excess.cluster_excess(frame, score).mean()
    clusters = ClusterBootstrap(corpus["cluster_id"])
    found = chance.excess_at_equal_contrast(clusters, frame, score, np.ones(len(frame)))
    assert (
        found[0] == pytest.approx(expected, abs=1e-12)
        and found[1] < found[0] < found[2]
    )


def test_what_the_contrast_explains_is_gone():
    rng = np.random.default_rng(0)
    frame = pairs(
        *(
            (str(i // 12), "reject" if i % 12 < 6 else "accept", 0.5, 0.0)
            for i in range(600)
        )
    )
    contrast = rng.random(600) + (frame["centre_label"] == "reject")
    score = 0.5 * (1 - np.exp(-contrast)) + 0.01 * rng.normal(size=600)
    clusters = ClusterBootstrap(frame["cluster_id"])
    raw = excess.estimate_excess(clusters, frame, score)
    left = chance.excess_at_equal_contrast(clusters, frame, score, contrast)
    assert raw[1] > 0.05 and left[1] < 0 < left[2]


def test_no_mixed_cluster_is_undefined():
    frame = pairs(("a", "reject", 0.5, 0.3), ("b", "accept", 0.5, 0.3))
    clusters = ClusterBootstrap(["a", "b"])
    assert np.isnan(excess.estimate_excess(clusters, frame, frame["score"])[0])
    assert np.isnan(
        chance.excess_at_equal_contrast(clusters, frame, frame["score"], np.ones(2))[0]
    )


CANDIDATES = np.array([[1, 2, 3], [0, 2, 3], [3, 0, 1], [2, 1, 0]])
SCORES = np.array([[0.1, 0.2, 0.3], [0.1, 0.4, 0.5], [0.6, 0.2, 0.4], [0.6, 0.5, 0.3]])[
    ..., None
]


def mean(ci):
    return ci.mean(0)


def permuted(cluster, label, near, scores, k, draws, seed):
    return chance.PermutationCandidates(cluster, label, near, ()).permuted(
        scores[near >= 0], mean, k, seed, draws
    )


def test_permutations_by_hand():
    cluster, label = np.array([0, 0, 1, 1]), np.array([True, False, False, False])
    (value,), null, short = permuted(
        cluster, label, CANDIDATES, SCORES, k=2, draws=200, seed=0
    )
    # 0 is rejected: its two nearest accepted are 1 and 2, mean (0.1 + 0.2) / 2; or 1
    # is: 0 and 2, mean (0.1 + 0.4) / 2
    null = null[:, 0]
    assert (
        value == pytest.approx(0.15)
        and set(null.round(6)) == {0.15, 0.25}
        and short == 0
    )
    assert chance.permutation_p_value(value, null) == 1.0
    assert chance.permutation_p_value(0.25, null) == pytest.approx(
        (1 + (null > 0.2).sum()) / 201
    )
    assert np.isnan(chance.permutation_p_value(np.nan, null))


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.booleans(), min_size=4, max_size=4), st.integers(0, 99))
def test_permutations_stay_inside_clusters(labels, seed):
    """Where all prompts of every cluster share a label shuffling changes nothing."""
    label = np.repeat(labels[:2], 2)
    value, null, _ = permuted(
        np.array([0, 0, 1, 1]), label, CANDIDATES, SCORES, 1, 5, seed
    )
    assert np.array_equal(null, np.tile(value, (5, 1)), equal_nan=True)


def test_where_much_is_rejected_the_search_is_deeper(monkeypatch):
    monkeypatch.setattr(chance, "CANDIDATE_DEPTH", 3)
    rng = np.random.default_rng(0)
    corpus = pd.DataFrame(
        {
            "prompt_id": [f"p{i:02d}" for i in range(40)],
            "cluster_id": np.repeat(range(10), 4),
        }
    )
    labels = pd.DataFrame(
        {"label": ["reject"] * 30 + ["accept"] * 8 + ["unparsed"] * 2}
    )
    system = replace(System.of("m", corpus, labels), scoring=Scoring(k=3))
    found = chance.find_candidates(system, rng.normal(size=(40, 6)))
    # 38 are scored and 8 of them accepted: 3 * 38 / 8 = 14.25, so 15 of any label are
    # looked at
    assert found.near.shape == (38, 15) and found.near.max() == 37


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.booleans(), min_size=36, max_size=36), st.integers(0, 99))
def test_what_permutations_cannot_use_is_left_out(labels, seed):
    """The same draws over the same candidates, with and without those that no draw can
    use.
    """
    rng = np.random.default_rng(seed)
    cluster, label = np.repeat(np.arange(9), 4), np.array(labels)
    near = np.array(
        [rng.permutation(np.delete(np.arange(36), i))[:20] for i in range(36)]
    )
    scores = rng.random((36, 20, 1))
    used = np.where(chance._is_unused(near, cluster, label, 3), -1, near)
    one, other = (
        permuted(cluster, label, kept, scores, 3, 20, seed) for kept in (near, used)
    )
    for before, after in zip(one, other, strict=True):
        assert np.allclose(before, after, equal_nan=True)


def test_without_an_accepted_prompt_nothing_is_looked_for():
    corpus = pd.DataFrame(
        {
            "prompt_id": [f"p{i}" for i in range(30)],
            "cluster_id": np.repeat(range(5), 6),
        }
    )
    labels = pd.DataFrame({"label": ["reject"] * 30})
    system = System.of("m", corpus, labels)
    vectors = np.random.default_rng(0).normal(size=(30, 6))
    found = chance.find_candidates(system, vectors)
    assert found.near.shape == (30, 0) and len(found.pairs[0]) == 0
    value, null, short = found.permuted(np.zeros((0, 1)), mean, k=5, seed=0, draws=3)
    assert np.isnan(value).all() and np.isnan(null).all() and short == 1.0


def test_rejections_short_of_neighbours_are_counted():
    cluster, label = np.array([0, 0, 1, 1]), np.array([True, True, True, False])
    candidates = np.array([[1, -1], [0, -1], [3, -1], [2, -1]])
    (value,), null, short = permuted(
        cluster, label, candidates, SCORES[:, :2], k=1, draws=50, seed=0
    )
    # 0 and 1 have no accepted candidate in any permutation; of 2 and 3 one is rejected
    # and finds the other: 0.6
    assert value == 0.6 and set(null[:, 0]) == {0.6} and short == pytest.approx(2 / 3)


CASES = {
    "mixed": ["accept", "reject", "accept"] * 20,
    "all accepted": ["accept"] * 60,
    "all rejected": ["reject"] * 60,
    "one accepted": ["accept"] + ["reject"] * 59,
    "nothing scored": ["unparsed"] * 60,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_chance_of_any_labels(case):
    made = worlds.world(CASES[case], np.repeat([f"c{i}" for i in range(10)], 6))
    clusters = ClusterBootstrap(made[0]["cluster_id"], resamples=100)
    system = worlds.scored(made, clusters)
    table, curve, found = chance.compare_with_chance(system, made[1])
    usual = table[table["interpretation"] == "relative"].iloc[0]
    np.testing.assert_equal(
        list(found["excess_matched"]),
        [usual[f"excess_matched{x}"] for x in ("", "_low", "_high")],
    )
    scores = system.scores
    row = confusion.system_row(system)
    table = table.merge(pd.DataFrame([row]), on=["system", "interpretation"])
    assert len(curve) == 2 * len(chance.CURVE_TAUS)
    if case == "mixed":
        rejected = scores.loc[scores["label"] == "reject", "ci"]
        shares = curve[curve["interpretation"] == "relative"].set_index("tau")["cr"]
        assert (
            shares[0.5] == pytest.approx((rejected >= 0.5).mean())
            and shares[0.0] == 1.0
        )
        assert (
            0 < table["p"][0] <= 1
            and table["excess_matched_low"][0] < table["excess_matched_high"][0]
        )
    else:
        assert table["excess_matched"].isna().all()
    assert findings.judge_excess(table) == ["too few refusals to estimate"] * len(table)
