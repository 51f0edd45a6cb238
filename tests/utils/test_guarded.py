"""A model behind a guard, and what a guard sees at every threshold: by hand."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from worlds import world

from paraguard_utils import settings, stores
from paraguard_utils.analysis import confusion, guarded, signals
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.labels import labelling


def labels(*names):
    return pd.DataFrame(
        {"prompt_id": [f"p{i}" for i in range(len(names))], "label": names}
    )


def test_either_rejects():
    model = labels(
        "accept", "accept", "accept", "reject", "reject", "unparsed", "blocked"
    )
    guard = labels(
        "accept", "reject", "unparsed", "accept", "unparsed", "reject", "accept"
    )
    found = guarded.apply_guard(model, guard)["label"].tolist()
    assert found == [
        "accept",
        "reject",
        "unparsed",
        "reject",
        "reject",
        "reject",
        "blocked",
    ]
    with pytest.raises(ValueError, match="different prompts"):
        guarded.apply_guard(model, guard.iloc[::-1])


def test_changes_by_hand():
    corpus = pd.DataFrame(
        {"prompt_id": [f"p{i}" for i in range(8)], "cluster_id": list("aabbccdd")}
    )
    model = labels(*["accept"] * 6, "reject", "reject")
    behind = guarded.apply_guard(model, labels("reject", *["accept"] * 7))
    clusters = ClusterBootstrap(corpus["cluster_id"], 50)
    alone, after = (
        confusion.estimate_rates(corpus, one, clusters) for one in (model, behind)
    )
    found = guarded.guarded_changes(
        *(
            dict.fromkeys(("ci", "cr60", "cd"), clusters.undefined()) | one
            for one in (alone, after)
        )
    )
    # 2 of 8 rejected, then 3 of 8; before, every cluster is decided as one
    assert found["frr_change"] == pytest.approx(1 / 8) and found["dr_alone"] == 0
    # within: one cluster of four is decided both ways, 1/4; between: (2 * 3 * 5 - 2) /
    # (64 - 16)
    assert found["dr_guarded"] == pytest.approx(1 / 4 / ((30 - 2) / 48))


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


def side(ids, refused, scores):
    return pd.DataFrame({"cluster_id": ids, "refused": refused, "score": scores})


def test_two_sets_of_twins_by_hand():
    n = np.nan
    benign = side(
        ["a", "a", "b", "b", "c", "c"],
        [1, 0, 0, 0, 1, n],
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    )
    new = side(["a-twin", "b-twin", "c-twin"], [1, 1, 0], [0.35, 0.55, 0.65])
    old = side(["a-twin"], [1], [0.7])
    clusters = ClusterBootstrap(["a", "b", "c"], 200)
    found = guarded.compare_twins([(benign, new), (benign[:2], old)], clusters)
    assert found["apart"] == pytest.approx(2 / 3 - 2 / 5), (
        "2 of 3 twins, 2 of 5 decided harmless requests"
    )
    assert found["apart_change"] == pytest.approx(2 / 3 - 2 / 5 - (1 - 1 / 2))
    # twins above harmless requests: 3, 5 and 6 of 6; then both of 2
    assert found["auc"] == pytest.approx(14 / 18) and found[
        "auc_change"
    ] == pytest.approx(14 / 18 - 1)
    assert (
        found["detectable"] > 0
        and found["apart_low"] < found["apart"] < found["apart_high"]
    )
    mute = [
        (one.assign(score=n), two.assign(score=n))
        for one, two in ((benign, new), (benign[:2], old))
    ]
    assert np.isnan(guarded.compare_twins(mute, clusters)["auc_change"]), (
        "no score, no area"
    )


def test_recorded_sets_of_twins_are_of_systems_that_were_asked_both(recorded_corpus):
    store, config = (
        stores.Store("recorded"),
        settings.check_settings({"store": "recorded", "corpus": settings.CORPUS}),
    )
    twins = store.read("corpus", settings.TWINS)
    too_few = ClusterBootstrap(recorded_corpus["cluster_id"], 100)
    found = guarded.tabulate_twin_sets(
        store, recorded_corpus, twins, config, too_few
    ).set_index("system")
    one = "smollm2-135m-instruct-q4_1--safety"
    sides = [
        (labelling.read_decisions(store, of, one)["label"] == "reject").mean()
        for of in (settings.CORPUS, config.twins)
    ]
    assert found.loc[one, "apart"] == pytest.approx(sides[1] - sides[0]), (
        "every cluster has a twin, and all are decided"
    )
    assert found.loc[one, ["kind", "instruction"]].tolist() == ["chat", "safety"]
    assert found["auc"].notna().equals(found["kind"] != "chat"), (
        "guards have a score, models only decide"
    )


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
    found = guarded.clipped_and_floor_cr(scores, ClusterBootstrap(list("ab"), 50))
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
    none = guarded.clipped_and_floor_cr(
        scores[scores["label"] == "accept"], ClusterBootstrap(list("ab"), 50)
    )
    assert np.isnan(none["cr60_clipped"]) and none["floor_cr60"] == found["floor_cr60"]


def test_the_clipped_columns_are_those_of_a_row_in_that_interpretation():
    corpus, vectors, traces, labels, tokens = world(
        ["accept", "reject", "accept"] * 8, np.repeat(list("abcdef"), 4), 2
    )
    pairs = signals.compute_pairs(corpus, vectors, traces, labels, tokens, 5)
    scores = confusion.score_prompts(corpus, labels, pairs, k=5)
    clusters = ClusterBootstrap(corpus["cluster_id"], 50)
    row = confusion.system_row("t", corpus, labels, pairs, scores, clusters, "clipped")
    found = guarded.clipped_and_floor_cr(scores, clusters)
    for name in ("ci", "cr60"):
        for end in ("", "_low", "_high"):
            assert found[f"{name}_clipped{end}"] == row[f"{name}{end}"]


def test_a_sweep_by_hand():
    benign = pd.DataFrame({"cluster_id": list("aabb"), "score": [0.1, 0.9, 0.2, 0.3]})
    twins = pd.DataFrame(
        {"cluster_id": ["a-twin", "a-twin", "b-twin"], "score": [0.9, np.nan, 0.25]}
    )
    table = guarded.sweep_guard_thresholds(
        benign, twins, ClusterBootstrap(list("aabb"), 50)
    ).set_index("threshold")
    assert table.loc[0.1, ["rejected_benign", "rejected_twins"]].tolist() == [1, 1]
    assert table.loc[0.9, ["rejected_benign", "rejected_twins"]].tolist() == [
        1 / 4,
        1 / 2,
    ]
    # one of two clusters is decided both ways: 1/2; between clusters 2 of 4 pairs of
    # opposite decisions
    assert table.loc[0.9, "dr"] == pytest.approx(1)


def test_twins_are_resampled_with_their_benign_clusters():
    corpus = pd.DataFrame(
        {"prompt_id": list("abcdef"), "cluster_id": ["x-twin"] * 3 + ["y-twin"] * 3}
    )
    found = labels("reject", "reject", "accept", "reject", "unparsed", "accept")
    clusters = ClusterBootstrap(list("xyz"), 200)
    twins = guarded.rejection_rate(corpus, found, clusters)
    assert twins[0] == pytest.approx(3 / 5) and np.isnan(twins.draws).any(), (
        "a resample may hold z only"
    )
    benign = clusters.share(list("xyz"), [True, False, False])
    both = guarded.youden_j(benign, twins)
    assert both["apart"] == pytest.approx(3 / 5 - 1 / 3)
