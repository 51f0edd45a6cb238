"""CI, CR, CD and flips: by hand, and of any labels."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from worlds import world

from paraguard_utils import stores
from paraguard_utils.analysis import cohorts, confusion, signals
from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.analysis.system import System
from paraguard_utils.core.confusion import estimate_confusion
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.signals import ScoreWeights, Scoring
from paraguard_utils.labels import labelling
from paraguard_utils.report import findings
from paraguard_utils.schemas import check_schema


def summary(corpus, vectors, traces, labels, tokens, interpretation="relative", k=5):
    """Return the scored system `t`, its pairs and scores, and its row."""
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples=200)
    system = System("t", corpus, labels, clusters, Scoring(k=k))
    system = replace(system, traces=traces, drifts=DriftCache(tokens))
    system = replace(system, pairs=signals.compute_pairs(system, vectors))
    system = replace(system, scores=confusion.score_prompts(system))
    row = confusion.system_row(system, interpretation)
    return system, system.pairs, system.scores, row


def hand_pairs():
    # two rejections; r1 has neighbours with scores 0.4 and 0.6, r2 one with 0.9 (drift
    # = score / 0.4, others 0)
    rows = [
        ("r1", "a1", 1, 0.7, 0.4),
        ("r1", "a2", 2, 0.5, 0.6),
        ("r2", "a1", 1, 0.65, 0.9),
    ]
    return pd.DataFrame(
        {
            "centre_id": [row[0] for row in rows],
            "centre_label": "reject",
            "neighbour_id": [row[1] for row in rows],
            "neighbour_label": "accept",
            "same_cluster": False,
            "rank": pd.array([row[2] for row in rows], "Int64"),
            "similarity": [row[3] for row in rows],
            "drift": [row[4] for row in rows],
            "prob_shift": 0.0,
            "ppl_relative": 0.0,
            "ppl_clipped": 0.0,
        }
    )


def test_ci_by_hand():
    corpus = pd.DataFrame(
        {"prompt_id": ["r1", "r2", "a1", "a2"], "cluster_id": ["x", "y", "x", "y"]}
    )
    labels = pd.DataFrame(
        {
            "prompt_id": corpus["prompt_id"],
            "label": ["reject", "reject", "accept", "accept"],
        }
    )
    system = System.of("t", corpus, labels)
    only_drift = Scoring(ScoreWeights(1, 0, 0))
    system = replace(system, scoring=only_drift, pairs=hand_pairs())
    scores = confusion.score_prompts(system).set_index("prompt_id")
    # CI(r1) = (0.4 + 0.6) / 2 = 0.5, CI(r2) = 0.9
    assert scores.loc["r1", "ci"] == pytest.approx(0.5)
    assert scores.loc["r2", "ci"] == pytest.approx(0.9)
    # only r1's first neighbour and r2's reach 0.60
    assert scores.loc["r1", "ci_theta"] == pytest.approx(0.4)
    assert scores.loc["r1", ["n_neighbours", "n_theta"]].tolist() == [2, 1]
    # spread of (0.4, 0.6) = 0.1
    assert scores.loc["r1", "spread"] == pytest.approx(0.1)
    assert math.isnan(scores.loc["a1", "ci"])

    other_weights = Scoring(ScoreWeights(0.9, 0, 0.1))
    system = replace(system, scoring=other_weights, scores=scores.reset_index())
    row = confusion.system_row(system)
    # CI = (0.5 + 0.9) / 2 = 0.7; one of two reaches 0.60 and 0.75; CD = sqrt(2 * 0.2^2
    # / 1) = 0.2828
    assert row["ci"] == pytest.approx(0.7)
    assert row["cr60"] == row["cr75"] == pytest.approx(0.5)
    assert row["cd"] == pytest.approx(0.2 * math.sqrt(2))
    # 2 rejected of 4 scored; both clusters are mixed, 1 bit each
    assert row["frr"] == pytest.approx(0.5)
    assert row["flip_rate"] == 1.0
    assert row["flip_entropy"] == pytest.approx(1.0)


def test_what_lies_on_a_threshold_has_reached_it():
    corpus = pd.DataFrame(
        {"prompt_id": ["r1", "r2", "a1", "a2"], "cluster_id": ["x", "y", "x", "y"]}
    )
    labels = pd.DataFrame(
        {
            "prompt_id": corpus["prompt_id"],
            "label": ["reject", "reject", "accept", "accept"],
        }
    )
    frame = hand_pairs()
    frame["similarity"] = 0.60
    system = replace(System.of("t", corpus, labels), pairs=frame)
    scores = confusion.score_prompts(system)
    assert scores["n_theta"].tolist() == scores["n_neighbours"].tolist() == [2, 1, 0, 0]
    # CI(r) of 0.60, 0.75 and 0.74: three of three reach 0.60, one of three 0.75
    found = estimate_confusion(
        ClusterBootstrap("xyz", resamples=100),
        list("xyz"),
        np.array([0.60, 0.75, 0.74]),
    )
    assert found["cr60"][0] == 1.0 and found["cr75"][0] == pytest.approx(1 / 3)


def test_flip_entropy_by_hand():
    corpus = pd.DataFrame({"cluster_id": ["x"] * 4 + ["y"] * 2 + ["z"] * 2})
    labels = pd.DataFrame(
        {
            "label": [
                "reject",
                "accept",
                "accept",
                "accept",
                "reject",
                "reject",
                "accept",
                "blocked",
            ]
        }
    )
    found = confusion.describe_flips(System.of("t", corpus, labels))
    # x: H(1/4) = 0.8113 bits; y is decided one way; z has one scored prompt only and is
    # left out
    assert found["cluster_id"].tolist() == ["x", "y"]
    assert found["entropy"].tolist() == pytest.approx([0.811278, 0.0], abs=1e-6)
    assert found["mixed"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("labeller", "n_scored", "frr", "flips"),
    [("combined", 3, 2 / 3, 1), ("aside", 2, 1 / 2, np.nan)],
)
def test_what_a_provider_stopped_is_refused_unless_it_is_set_aside(
    labeller, n_scored, frr, flips
):
    corpus, *_, labels, _ = world(
        ["accept", "reject", "blocked", "unparsed"], ["a", "b", "a", "d"]
    )
    labels = labelling.convert_labels(
        labels.assign(kind=["", "policy", "violence", "empty"]), labeller
    )
    row = confusion.rate_row(System.of("t", corpus, labels))
    # 2 of 3 scored are refused; without the blocked one 1 of 2. Cluster a: accepted
    # once and blocked once
    assert (row["n_scored"], row["n_blocked"], row["n_prompts"]) == (n_scored, 1, 4)
    assert row["frr"] == pytest.approx(frr)
    assert row["flip_rate"] == pytest.approx(flips, nan_ok=True)


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("accept", "no rejection"),
        ("reject", "no accepted prompt"),
        ("blocked", "no accepted prompt"),
        ("unparsed", "no accepted prompt"),
    ],
)
def test_undefined_is_nan_with_a_reason(label, reason):
    *_, row = summary(*world([label] * 6, list("aabbcc")))
    assert reason in row["note"]
    for name in ("ci", "cr60", "cr75", "cd"):
        assert (
            math.isnan(row[name])
            and math.isnan(row[f"{name}_low"])
            and math.isnan(row[f"{name}_high"])
        )


def test_fewer_than_k_accepted_uses_what_there_is_and_says_so():
    _, _, scores, row = summary(
        *world(["reject", "reject", "accept", "accept"], list("aabb"))
    )
    assert scores.loc[scores["label"] == "reject", "n_neighbours"].tolist() == [2, 2]
    assert row["n_short"] == 2
    assert row["too_few"]


def test_one_rejection_has_no_cd():
    *_, row = summary(*world(["reject"] + ["accept"] * 7, list("aabbccdd")))
    assert math.isnan(row["cd"]) and "CD is undefined" in row["note"]
    assert not math.isnan(row["ci"])


def test_exact_interval_for_all_and_none():
    clusters = ClusterBootstrap(list("abcde"), resamples=200)
    # 0 of 5 clusters: [0, 1 - 0.025^(1/5)] = [0, 0.5218]
    assert clusters.share(list("abcde"), [False] * 5) == pytest.approx(
        (0.0, 0.0, 1 - 0.025 ** (1 / 5))
    )
    assert clusters.share(list("abcde"), [True] * 5) == pytest.approx(
        (1.0, 0.025 ** (1 / 5), 1.0)
    )
    # clusters count, not prompts
    assert clusters.share(list("aab"), [True] * 3)[1] == pytest.approx(
        binomtest(2, 2).proportion_ci().low
    )


def test_bootstrap_interval_of_a_mean_matches_a_plain_loop():
    rng = np.random.default_rng(3)
    ids = np.repeat([f"c{i}" for i in range(12)], 3)
    values = rng.uniform(size=36)
    clusters = ClusterBootstrap(ids, resamples=300, seed=5)
    means = []
    names = sorted(set(ids))
    for counts in ClusterBootstrap(range(12), 300, 5).counts:
        drawn = [
            value
            for name, count in zip(names, counts, strict=True)
            for value in list(values[ids == name]) * int(count)
        ]
        means.append(np.mean(drawn))
    expected = (values.mean(), *np.percentile(means, [2.5, 97.5]))
    assert clusters.mean(ids, values) == pytest.approx(expected)


def test_a_resample_without_spread_has_no_correlation():
    # clusters a and b: three rejections each, of one value of x each; a resample of one
    # of them alone has no spread
    clusters = ClusterBootstrap(list("aaabbb"), resamples=400)
    x = np.array([0.1, 0.1, 0.1, 0.7, 0.7, 0.7])
    found = clusters.correlation(
        list("aaabbb"), x, np.array([0.31, 0.35, 0.33, 0.62, 0.64, 0.6])
    )
    alone = (clusters.counts == 0).any(axis=1)
    assert alone.any() and np.isnan(found.draws[alone]).all()
    assert found.draws[~alone] == pytest.approx(found[0], abs=0.02)
    assert found[1] > 0.9


def test_correlation_and_deviation_match_numpy():
    rng = np.random.default_rng(1)
    ids, x, y = np.repeat(list("abcdef"), 4), rng.normal(size=24), rng.normal(size=24)
    clusters = ClusterBootstrap(ids, resamples=200)
    assert clusters.correlation(ids, x, y)[0] == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert clusters.deviation(ids, x)[0] == pytest.approx(np.std(x, ddof=1))


@pytest.mark.parametrize("label", ["unparsed", "reject"])
def test_empty_pairs_and_scores_survive_the_store(results, label):
    corpus, vectors, traces, labels, tokens = world([label] * 4, list("aabb"))
    system, pairs, scores, _ = summary(corpus, vectors, traces, labels, tokens)
    store = stores.Store("test")
    store.write("pairs", "c", "t", frame=pairs, meta={})
    store.write("scores", "c", "t", frame=scores, meta={})
    assert store.read("pairs", "c", "t").empty
    read = store.read("scores", "c", "t")
    assert len(read) == (4 if label == "reject" else 0)
    table = cohorts.cohort_table(replace(system, scores=read))
    assert (table["n"] == 0).all() and table["cr60"].isna().all()
    claims = findings.count_cohort_claims(table)
    assert (
        claims[["confirm", "contradict", "undecided"]].eq(0).all(axis=None)
        and claims["untestable"].eq(1).all()
    )


def test_one_cluster_shows_no_spread():
    clusters = ClusterBootstrap(list("aab"), resamples=200)
    value, low, high = clusters.mean(list("aa"), [0.2, 0.4])
    assert value == pytest.approx(0.3) and math.isnan(low) and math.isnan(high)


def test_pairs_by_hand():
    # r and a, b share a cluster; c is alone. Tokens: 0 = e1, 1 = e2. User tokens: r: e1
    # | a: e1 e2 | b: e2 | c: e1.
    corpus = pd.DataFrame(
        {"prompt_id": list("rabc"), "cluster_id": ["x", "x", "x", "y"]}
    )
    labels = pd.DataFrame(
        {"prompt_id": list("rabc"), "label": ["reject", "accept", "accept", "accept"]}
    )
    tokens = pd.DataFrame(
        {
            "token_id": [0, 1],
            "text": ["a", "b"],
            "embedding": [np.array([2.0, 0]), np.array([0, 3.0])],
        }
    )
    vectors = np.array([[1, 0], [1, 1], [0, 1], [2, 1]], np.float16)
    ids = [[9, 0, 9], [9, 0, 1, 9], [9, 1, 9], [9, 0, 9]]
    losses = [
        np.log([7, 2, 7]),
        np.log([7, 2, 8, 7]),
        np.log([7, 8, 7]),
        np.log([7, 2, 7]),
    ]
    first = [[5, 6], [5, 6], [6, 7], [5, 6]]
    probs = [[0.6, 0.3], [0.5, 0.4], [0.8, 0.1], [0.6, 0.3]]
    traces = pd.DataFrame(
        {
            "prompt_id": list("rabc"),
            "token_ids": [np.array(row) for row in ids],
            "token_nll": losses,
            "user_start": 1,
            "user_end": [2, 3, 2, 2],
            "next_ids": [np.array(row) for row in first],
            "next_logprobs": [np.log(row) for row in probs],
            "tail_mass": 0.1,
        }
    )
    system = replace(System.of("t", corpus, labels), traces=traces)
    system = replace(system, drifts=DriftCache(tokens))
    found = signals.compute_pairs(system, vectors, k=2)
    found = found.set_index(["centre_id", "neighbour_id"])
    # cosines of r: c 2/sqrt(5) = 0.894, a 1/sqrt(2) = 0.707, b 0; k = 2 ranks c and a,
    # b is there as a sibling
    assert found.loc["r", "rank"].fillna(0).to_dict() == {"c": 1, "a": 2, "b": 0}
    assert found.loc["r", "same_cluster"].to_dict() == {
        "c": False,
        "a": True,
        "b": True,
    }
    assert found.loc[("r", "c"), "similarity"] == pytest.approx(2 / math.sqrt(5))
    # drift r-a: 1 - (1 + (1 + 0) / 2) / 2 = 0.25; r-b: orthogonal, 1; r-c: same token,
    # 0
    assert found.loc["r", "drift"].to_dict() == pytest.approx(
        {"c": 0, "a": 0.25, "b": 1}
    )
    # ppl r 2, a sqrt(2 * 8) = 4, b 8, c 2: relative 1 - 2/4 = 0.5, 1 - 2/8 = 0.75, 0;
    # clipped 1, 1, 0
    assert found.loc["r", "ppl_relative"].to_dict() == pytest.approx(
        {"c": 0, "a": 0.5, "b": 0.75}
    )
    assert found.loc["r", "ppl_clipped"].to_dict() == pytest.approx(
        {"c": 0, "a": 1, "b": 1}
    )
    # shift r-a: (0.1 + 0.1) / 2 = 0.1; r-b: token 6 |0.3 - 0.8| = 0.5, 5 alone 0.6, 7
    # alone 0.1: 1.2 / 2 = 0.6
    assert found.loc["r", "prob_shift"].to_dict() == pytest.approx(
        {"c": 0, "a": 0.1, "b": 0.6}
    )


def test_identical_prompts_score_zero():
    corpus, vectors, traces, labels, tokens = world(
        ["reject"] + ["accept"] * 6, ["a"] * 7
    )
    for name in traces.columns.drop(["prompt_id", "key"]):
        traces[name] = [traces[name].iloc[0]] * len(traces)
    _, pairs, _, row = summary(
        corpus, np.repeat(vectors[:1], 7, axis=0), traces, labels, tokens
    )
    for name in ("drift", "prob_shift", "ppl_relative", "ppl_clipped"):
        assert pairs[name].to_numpy() == pytest.approx(0, abs=1e-9)
    assert pairs["similarity"].to_numpy() == pytest.approx(1)
    assert row["ci"] == pytest.approx(0, abs=1e-9)


labels_of_clusters = st.lists(
    st.lists(
        st.sampled_from(["accept", "reject", "blocked", "unparsed"]),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=20)
@given(labels_of_clusters, st.integers(0, 1000))
def test_everything_lies_in_its_range_and_fits_its_schema(groups, seed):
    labels = [label for group in groups for label in group]
    clusters = [f"c{i}" for i, group in enumerate(groups) for _ in group]
    _, pairs, scores, row = summary(*world(labels, clusters, seed))
    check_schema(pairs, "pairs", "pairs")
    check_schema(scores, "scores", "scores")
    assert (pairs["neighbour_label"] == "accept").all()
    assert (pairs["centre_id"] != pairs["neighbour_id"]).all()
    for name in ("frr", "ci", "cr60", "cr75", "flip_rate", "flip_entropy"):
        assert math.isnan(row[name]) or 0 <= row[name] <= 1
        assert (
            math.isnan(row[f"{name}_low"])
            or -1e-9 <= row[f"{name}_low"] <= row[f"{name}_high"] <= 1 + 1e-9
        )
    assert row["cr75"] <= row["cr60"] or math.isnan(row["cr60"])


@pytest.mark.slow
@settings(max_examples=8)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(random):
    labels = random.choices(["accept", "reject"], k=24)
    corpus, vectors, traces, labels, tokens = world(
        labels, [f"c{i // 4}" for i in range(24)]
    )
    order = random.sample(range(24), 24)
    moved = [
        frame.iloc[order].reset_index(drop=True) for frame in (corpus, traces, labels)
    ]
    first = summary(corpus, vectors, traces, labels, tokens)[3]
    second = summary(moved[0], vectors[order], moved[1], moved[2], tokens)[3]
    for name, value in first.items():
        assert second[name] == (
            pytest.approx(value, nan_ok=True) if isinstance(value, float) else value
        ), name


@pytest.mark.slow
def test_cohort_cells_add_up():
    labels = ["accept", "reject", "reject", "accept"] * 9
    corpus, vectors, traces, labels, tokens = world(
        labels, [f"c{i // 4}" for i in range(36)]
    )
    system, _, _, row = summary(corpus, vectors, traces, labels, tokens)
    table = cohorts.cohort_table(system)
    table = table[table["interpretation"] == "relative"].set_index(
        ["risk", "similarity"]
    )
    cells = table.loc[[(a, b) for a in cohorts.BIN_NAMES for b in cohorts.BIN_NAMES]]
    assert cells["n"].sum() == table.loc[("all", "all"), "n"] == row["n_reject"]
    assert table.loc[("all", "all"), "ci"] == pytest.approx(row["ci"])
    assert np.nansum(cells["ci"] * cells["n"]) == pytest.approx(
        row["ci"] * row["n_reject"]
    )
    assert (cells.loc[cells["n"] == 0, "note"] == "no rejection in this cohort").all()


def test_thirds_by_hand():
    assert cohorts.cut_into_thirds(pd.Series([1.0, 2, 3, 4, 5, 6])).tolist() == [
        "low",
        "low",
        "middle",
        "middle",
        "high",
        "high",
    ]
    assert set(cohorts.cut_into_thirds(pd.Series([1.0, 1, 1]))) == {"low"}
