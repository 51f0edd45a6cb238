"""A model behind a guard, and guards at every threshold: by hand."""

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.analysis import guarded
from paraguard_utils import settings, stores
from paraguard_utils.analysis.system import System
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
    alone, after = (System("t", corpus, one, clusters) for one in (model, behind))
    found = guarded.guarded_changes(alone, after)
    # 2 of 8 rejected, then 3 of 8; before, every cluster is decided as one
    assert found["frr_change"] == pytest.approx(1 / 8) and found["dr_alone"] == 0
    # within: one cluster of four is decided both ways, 1/4; between: (2 * 3 * 5 - 2) /
    # (64 - 16)
    assert found["dr_guarded"] == pytest.approx(1 / 4 / ((30 - 2) / 48))


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


@pytest.mark.slow
def test_recorded_sets_of_twins_are_of_systems_that_were_asked_both(recorded_corpus):
    store, config = stores.Store("recorded"), settings.TwinOptions()
    files = stores.CorpusFiles(store, settings.CORPUS)
    twins = store.read("corpus", settings.TWINS)
    too_few = ClusterBootstrap(recorded_corpus["cluster_id"], 100)
    found = guarded.tabulate_twin_sets(files, twins, config, too_few)
    found = found.set_index("system")
    one = "smollm2-135m-instruct-q4_1--safety"
    sides = [
        (labelling.read_decisions(files.other(of), one)["label"] == "reject").mean()
        for of in (settings.CORPUS, config.twins)
    ]
    assert found.loc[one, "apart"] == pytest.approx(sides[1] - sides[0]), (
        "every cluster has a twin, and all are decided"
    )
    assert found.loc[one, ["kind", "instruction"]].tolist() == ["chat", "safety"]
    assert found["auc"].notna().equals(found["kind"] != "chat"), (
        "guards have a score, models only decide"
    )


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
