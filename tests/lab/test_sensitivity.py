"""Settings varied one at a time: hand-worked cases, agreement with the usual scores,
and searches of known outcome.
"""

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import worlds
from worlds import world

from paraguard_lab.analysis import excess, sensitivity, tokens
from paraguard_lab.analysis.weight_search import (
    SEARCH_FOLDS,
    pair_separation,
    search_weights,
    weight_grid,
)
from paraguard_lab.report import figures, findings
from paraguard_utils import stores
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.core.confusion import estimate_confusion
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.signals import PAPER_WEIGHTS, ScoreWeights, Scoring, drift
from paraguard_utils.errors import Missing
from paraguard_utils.models import encoder

LABELS = ["accept", "reject", "accept", "accept", "reject", "accept"] * 10
CLUSTERS = np.repeat([f"c{i}" for i in range(10)], 6)


@pytest.fixture(scope="module")
def laid_out():
    made = world(LABELS, CLUSTERS)
    clusters = ClusterBootstrap(made[0]["cluster_id"], resamples=200)
    return *lay_out(made, clusters), clusters


def lay_out(made, clusters):
    """The system of a world with pairs of 20 neighbours, and what settings need."""
    corpus, vectors, traces, labels, tokens = made
    system = worlds.system(corpus, labels, clusters, traces=traces, tokens=tokens)
    pairs = signals.compute_pairs(system, vectors, k=sensitivity.MAX_K)
    frame = sensitivity.prepare_pairs(pairs, corpus, signals.trace_perplexity(traces))
    return replace(system, pairs=pairs), frame


def scored(system, **scoring):
    """The system with scores of its pairs."""
    system = replace(system, scoring=Scoring(**scoring))
    return replace(system, scores=confusion.score_prompts(system))


def test_the_simplex():
    made = weight_grid()
    assert len(made) == 66 == len(set(made.values()))
    assert made["0.4/0.1/0.5"] == PAPER_WEIGHTS and made["1/0/0"] == ScoreWeights(
        1, 0, 0
    )
    assert sensitivity.DEFAULT_CHOICES["weights"] in made


@pytest.mark.parametrize(
    ("k", "weights"),
    [(5, PAPER_WEIGHTS), (3, ScoreWeights(0.2, 0.3, 0.5)), (20, ScoreWeights(0, 0, 1))],
)
def test_a_setting_gives_what_the_usual_scores_give(laid_out, k, weights):
    system, frame, clusters = laid_out
    system = scored(system, weights=weights, k=k)
    scores, expected = system.scores, confusion.estimate_scores(system)
    used = sensitivity.mark_used_pairs(frame, k)
    ci = sensitivity.ci_of_rejections(
        frame, signals.score_pairs(frame, weights).to_numpy(), used
    )
    found = estimate_confusion(clusters, ci.index, ci.to_numpy())
    assert len(ci) == (scores["label"] == "reject").sum()
    for measure, estimate in found.items():
        assert estimate == pytest.approx(expected[measure], abs=1e-12), measure
        assert np.allclose(estimate.draws, expected[measure].draws, equal_nan=True)


@pytest.mark.slow
def test_only_what_moves_the_excess_has_one(laid_out):
    system, frame, clusters = laid_out
    frame = frame.assign(drift_centred=frame["drift"], drift_encoder=frame["drift"])
    found = sensitivity.vary_settings(clusters, {"t": frame})
    expected = excess.estimate_scored(scored(system))
    assert found["weights"]["0.4/0.1/0.5"]["t"]["excess"] == pytest.approx(
        expected["excess"], abs=1e-12
    )
    assert not any(
        "excess" in found[name]["5" if name == "k" else "none"]["t"]
        for name in ("k", "theta")
    )


def test_theta_gives_what_the_theta_columns_give(laid_out):
    system, frame, clusters = laid_out
    close = scored(system, theta=0.3).rejections.dropna(subset="ci_theta")
    expected = clusters.mean(close["cluster_id"], close["ci_theta"])
    used = sensitivity.mark_used_pairs(frame, theta=0.3)
    ci = sensitivity.ci_of_rejections(
        frame, signals.score_pairs(frame).to_numpy(), used
    )
    found = clusters.mean(ci.index, ci)
    assert found == pytest.approx(expected, abs=1e-12)


def small():
    """One cluster x of a rejected r and accepted a, b, and an accepted c elsewhere."""
    corpus = pd.DataFrame({"prompt_id": list("rabc"), "cluster_id": list("xxxy")})
    rows = [
        ("r", "reject", "c", False, 1, 0.9, 0.8),
        ("r", "reject", "b", True, 2, 0.7, 0.4),
        ("r", "reject", "a", True, None, 0.5, 0.2),
        ("a", "accept", "b", True, 1, 0.6, 0.1),
    ]
    names = [
        "centre_id",
        "centre_label",
        "neighbour_id",
        "same_cluster",
        "rank",
        "similarity",
        "drift",
    ]
    frame = pd.DataFrame(rows, columns=names).astype({"rank": "Int64"})
    frame = frame.assign(prob_shift=0.0, ppl_relative=0.0, ppl_clipped=0.0)
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples=50)
    return (
        sensitivity.prepare_pairs(frame, corpus, np.array([2.0, 4.0, 8.0, 3.0])),
        clusters,
    )


def test_neighbours_by_hand():
    frame, clusters = small()
    drift = frame["drift"].to_numpy()

    def ci(**setting):
        used = sensitivity.mark_used_pairs(frame, **setting)
        ci = sensitivity.ci_of_rejections(frame, drift, used)
        return clusters.mean(ci.index, ci).value

    assert ci() == pytest.approx(0.6)  # ranked: c and b, (0.8 + 0.4) / 2
    assert ci(k=1) == pytest.approx(0.8) and ci(theta=0.8) == pytest.approx(0.8)
    assert ci(scope="own cluster") == pytest.approx(0.3)  # b and a, (0.4 + 0.2) / 2
    assert ci(k=1, scope="own cluster") == pytest.approx(0.4)  # b is the nearer one
    assert np.isnan(ci(theta=0.95))


def test_minmax_by_hand():
    frame, _ = small()
    # Ranked pairs have drifts 0.8, 0.4, 0.1: 0.4 becomes (0.4 - 0.1) / 0.7; the
    # unranked 0.2 is scaled the same way.
    assert frame["drift_minmax"].tolist() == pytest.approx([1, 3 / 7, 1 / 7, 0])
    # Differences of perplexity: |2 - 3|, |2 - 8|, |2 - 4|, |4 - 8| = 1, 6, 2, 4; ranked
    # ones span 1 to 6.
    assert frame["ppl_minmax"].tolist() == pytest.approx([0, 1, 0.2, 0.6])
    assert (frame["prob_shift_minmax"] == 0).all(), "a signal without spread"


def test_separation_by_hand():
    frame, _ = small()
    # In x: rejected-accepted drifts 0.4 and 0.2, accepted-accepted 0.1. All lie higher;
    # ProbShift is 0 everywhere.
    frame = frame[frame["same_cluster"]].copy()
    auc = pair_separation(
        frame,
        {"drift": ScoreWeights(1, 0, 0), "shift": ScoreWeights(0, 1, 0)},
        "relative",
    )
    assert auc.index.tolist() == ["x"] and auc.to_numpy().tolist() == [[1.0, 0.5]]
    frame.loc[3, "drift"] = 0.3
    auc = pair_separation(frame, {"drift": ScoreWeights(1, 0, 0)}, "relative")
    assert auc.to_numpy().tolist() == [[0.5]]


def planted(signal, strength, seed=0):
    """Return own-cluster pairs of 60 clusters in which rejected pairs have more of one
    signal.
    """
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(60), 8)
    rejected = np.tile([True, False], 240)
    frame = pd.DataFrame(
        rng.random((480, 3)), columns=["drift", "prob_shift", "ppl_relative"]
    )
    frame[signal] = (frame[signal] + strength * rejected) / (1 + strength)
    label = np.where(rejected, "reject", "accept")
    return frame.assign(
        ppl_clipped=frame["ppl_relative"], cluster_id=cluster, centre_label=label
    )


def test_the_search_finds_the_signal_that_separates():
    clusters = ClusterBootstrap(range(60), resamples=500)
    found = search_weights(clusters, {"t": planted("prob_shift", 1.0)})
    row = found.set_index(["system", "interpretation", "prob_shift"]).loc[
        ("t", "relative", "with")
    ]
    best = weight_grid()[row["best"]]
    assert best.prob_shift >= 0.5 and row["auc_held_out"] > 0.9 and row["gain_low"] > 0
    assert (
        sum(int(part.split("(")[1][0]) for part in row["chosen"].split("; "))
        == SEARCH_FOLDS
    )
    without = found.set_index(["system", "interpretation", "prob_shift"]).loc[
        ("t", "relative", "without")
    ]
    assert (
        weight_grid()[without["best"]].prob_shift == 0 and without["auc_held_out"] < 0.6
    )
    assert (
        len(found) == 2 * 2 * 2
        and (found["auc_best"] >= found["auc_held_out"] - 1e-12).all()
    )


@pytest.mark.slow
def test_held_out_chance_is_chance():
    clusters = ClusterBootstrap(range(60), resamples=500)
    rows = [
        search_weights(clusters, {"t": planted("drift", 0.0, seed)}).iloc[0]
        for seed in range(8)
    ]
    assert np.mean([row["auc_best"] for row in rows]) > 0.51, (
        "what is chosen and judged on the same clusters"
    )
    assert abs(np.mean([row["auc_held_out"] for row in rows]) - 0.5) < 0.02


def test_too_few_clusters_to_search():
    frame, clusters = small()
    found = search_weights(clusters, {"t": frame[frame["same_cluster"]]})
    assert (
        found["gain"].isna().all()
        and found["too_few"].all()
        and (found["best"] == "").all()
    )


@pytest.mark.slow
def test_tables_and_sentences(laid_out):
    _, frame, clusters = laid_out
    frame = frame.assign(drift_centred=frame["drift"], drift_encoder=1 - frame["drift"])
    found = sensitivity.vary_settings(
        clusters, {"a--x": frame, "b--x": frame.assign(drift=frame["drift"] / 2)}
    )
    table, orders = (
        sensitivity.sensitivity_table(found),
        sensitivity.sensitivity_orders(found),
    )
    assert table.groupby("dimension")["setting"].nunique().to_dict() == {
        "weights": 66, "k": 20, "theta": 8, "scaling": 3, "drift space": 3, "neighbours": 2, "tau": 21,
    }  # fmt: skip
    usual = table[
        [
            row.setting == sensitivity.DEFAULT_CHOICES[row.dimension]
            for row in table.itertuples()
        ]
    ]
    assert (
        usual[usual["dimension"] != "tau"].groupby("system")["ci"].nunique().eq(1).all()
    ), "one default everywhere"
    # b's Drift is half of a's, so a's CI is higher wherever Drift has weight.
    higher = orders[
        (orders["dimension"] == "weights") & (orders["measure"] == "ci")
    ].set_index("setting")["higher"]
    assert higher["1/0/0"] == 1.0 and higher["0/0/1"] == 0.5
    told = findings.summarize_ranges(table.assign(n=30)).set_index("dimension")
    assert len(told) == 6 and findings.summarize_ranges(table).empty
    assert (
        told.loc["k", "settings"] == 20
        and told.loc["k", "lowest"] <= told.loc["k", "highest"]
    )
    assert pd.isna(told.loc["k", "always"]) or "of 2" in told.loc["weights", "always"]
    counts = sensitivity.count_sure_orders(orders, table.assign(n=30)).set_index(
        ["dimension", "measure"]
    )
    assert counts.loc[("k", "ci")].tolist() == [20, 1, 1, 1, 0]
    assert counts.loc[("weights", "ci"), ["always", "sometimes"]].tolist() == [
        0,
        1,
    ], "no order at 0/0/1"
    assert (
        table.loc[table["dimension"].isin(sensitivity.NEIGHBOUR_DIMENSIONS), "excess"]
        .isna()
        .all()
    )
    too_few = table.assign(n=table["system"].map({"a--x": 29, "b--x": 30}))
    assert sensitivity.count_sure_orders(orders, too_few).empty, (
        "one system has no order"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "labels", [["accept"] * 60, ["reject"] * 60, ["reject"] + ["accept"] * 59]
)
def test_one_system_with_hardly_anything_to_score(labels):
    made = world(labels, CLUSTERS)
    clusters = ClusterBootstrap(made[0]["cluster_id"], resamples=50)
    _, frame = lay_out(made, clusters)
    found = sensitivity.vary_settings(
        clusters, {"t--x": frame.assign(drift_centred=0.5, drift_encoder=0.5)}
    )
    values, orders = (
        sensitivity.sensitivity_table(found),
        sensitivity.sensitivity_orders(found),
    )
    assert len(values) == 123 and orders.empty
    some = "reject" in labels and "accept" in labels
    assert len(findings.summarize_ranges(values.assign(n=30))) == (6 if some else 0)
    searched = search_weights(clusters, {"t--x": frame[frame["same_cluster"]]})
    assert searched["gain"].isna().all()
    by_k = values[values["dimension"] == "k"]
    for figure in (
        figures.plot_weight_simplex(values[values["dimension"] == "weights"]),
        figures.plot_against_k(by_k),
        figures.plot_against_k(by_k.head(0)),
        figures.plot_settings(values[values["dimension"] == "scaling"]),
    ):
        figure.savefig(io.BytesIO())


@pytest.mark.slow
def test_drift_in_the_encoders_space(results):
    store = stores.Store("mine")
    files = stores.CorpusFiles(store, "c")
    texts = [
        "how do I kill a process",
        "how can I end a process",
        "what is the capital of France",
    ]
    first, second = [texts[0]] * 3, texts
    found = sensitivity.encoder_drifts(files, first, second)
    own = tokens.encode_tokens(texts)
    # "how do i kill a process" is six words of the encoder's vocabulary, its two marks
    # are left out.
    assert own[0].shape == (6, encoder.ENCODER_DIMENSIONS)
    assert found == pytest.approx(
        [0, drift(own[0], own[1]), drift(own[0], own[2])], abs=1e-6
    )
    assert found[0] < found[1] < found[2]
    again = sensitivity.encoder_drifts(files, second, first)
    assert again.tolist() == found.tolist(), "kept, and symmetric"
    recorded = stores.Store("recorded").read(
        "drifts", "paraguard_mini", encoder.ENCODER_NAME
    )
    texts = (
        stores.Store("recorded")
        .read("corpus", "paraguard_mini")["text"]
        .iloc[:2]
        .tolist()
    )
    assert encoder.hash_text(texts[0]) in set(recorded["first_hash"]) | set(
        recorded["second_hash"]
    )
    sensitivity.encoder_drifts(files.other("paraguard_mini"), texts[:1], texts[1:])
    kept = store.read("drifts", "paraguard_mini", encoder.ENCODER_NAME)
    assert len(kept) == len(recorded), (
        "a live store holds the recorded ones too, so that record keeps them"
    )
    with pytest.raises(
        Missing,
        match=(
            r"3 pairs of c have no recorded Drift .* run 06_validity with a live store"
        ),
    ):
        recorded = stores.CorpusFiles(stores.Store("recorded"), "c")
        sensitivity.encoder_drifts(recorded, first, second)
