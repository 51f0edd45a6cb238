"""Differences of DR by wording, and DR by shared words: by hand and by loops."""

import numpy as np
import pytest
from test_wording import (
    by_loops,
    ends,
    frames,
    made,
    random_frames,
    rarest_decisions,
    studentized,
)

from paraguard_lab.analysis import shared_wording
from paraguard_lab.core.disagreement import estimate_pair_difference
from paraguard_utils.analysis import wording
from paraguard_utils.core import disagreement


@pytest.mark.slow
def test_intervals_of_differences_by_difference_quotients():
    corpus, labels = random_frames(5, 10)
    system = made((corpus, labels), 12)
    own, near, free = system.clusters, ends(corpus, "near"), ends(corpus, "free")

    def minus(times):
        return by_loops(corpus, labels, free, times) - by_loops(
            corpus, labels, near, times
        )

    found = estimate_pair_difference(own, wording.make_phrasings(system), free, near)
    assert found == pytest.approx(studentized(minus, own.counts), rel=1e-4)
    assert found.draws[0] == pytest.approx(minus(own.counts[0])), (
        "both on the same resample"
    )


def test_differences_by_hand():
    # near-copies: seed and softening are alike in all clusters: 0. Free: lexical r, r,
    # a and register a, r, a are the seed and the lexical of `test_dr_by_hand`: 1/2
    corpus, labels = frames("srorlrga", "srorlrgr", "saoalaga")
    texts = ["a b c d e", "a b c x y", "a b c d z", "p q r s t"] * 3
    corpus = corpus.assign(text=texts)
    own, system = wording.find_cluster_pairs(corpus), made((corpus, labels))
    found = shared_wording.estimate_comparisons(system, own)
    assert found["difference"][0] == pytest.approx(1 / 2)
    # low: the register shares no word with the other three: of nine pairs three differ,
    # which have chances of 4/6 each. High: seed and lexical share four of six words and
    # are always alike; three of seven lie between
    assert (found["dr_low"][0], found["dr_high"][0]) == pytest.approx(
        ((3 / 9) / (4 / 6), 0)
    )
    assert found["low_minus_high"][0] == pytest.approx(1 / 2)
    turned = estimate_pair_difference(
        system.clusters,
        wording.make_phrasings(system),
        ends(corpus, "near"),
        ends(corpus, "free"),
    )
    assert turned[0] == pytest.approx(-1 / 2)


def test_few_prompts_bound_no_difference(monkeypatch):
    corpus, labels = random_frames(5, 10)
    corpus = corpus.assign(text=[f"{i % 3} {i % 4}" for i in range(len(corpus))])
    own, system = wording.find_cluster_pairs(corpus), made((corpus, labels))
    found = shared_wording.estimate_comparisons(system, own)
    assert np.isfinite([found[name] for name in shared_wording.DIFFERENCES]).all()
    rarest = rarest_decisions(labels, own)
    for limit, expected in ((rarest, False), (rarest + 1, True)):
        monkeypatch.setattr(disagreement, "MIN_DECISIONS_EACH", limit)
        row = shared_wording.compare_wordings([system]).iloc[0]
        assert row["too_few"] == expected
        for name, estimate in found.items():
            bounds = estimate[1:]
            if expected and name in shared_wording.DIFFERENCES:
                bounds = (np.nan, np.nan)
            shown = tuple(row[[name, f"{name}_low", f"{name}_high"]])
            assert shown == pytest.approx((estimate[0], *bounds), nan_ok=True), name


@pytest.mark.parametrize("seed", range(2))
def test_names_and_the_sense_of_a_decision_move_no_difference(seed):
    corpus, labels = random_frames(seed, 40)
    corpus = corpus.assign(text=[f"{i % 3} {i % 4}" for i in range(len(corpus))])
    renamed = corpus.assign(cluster_id="other " + corpus["cluster_id"])
    turned = {"accept": "reject", "reject": "accept"}
    swapped = labels.assign(label=labels["label"].map(turned))
    estimates = []
    for one, decided in ((corpus, labels), (renamed, labels), (corpus, swapped)):
        own, system = wording.find_cluster_pairs(one), made((one, decided), 40)
        estimates.append(shared_wording.estimate_comparisons(system, own))
    found, of_names, of_sense = estimates
    for name, one in found.items():
        assert np.isfinite(one).all() and one[1] < one[0] < one[2]
        assert of_names[name] == pytest.approx(one), name
        assert of_sense[name] == pytest.approx(one), name


def test_three_fifths_are_high_and_two_fifths_neither():
    corpus, labels = frames("srla", "sagr", "srwr", "saoa", "srha")
    texts = ["1 2 3 4 5", "1 2 3 4 5", "1 2 3", "3 4 5", "1 2 3 4", "2 3 4 5"]  # 3/5
    texts += ["1 2", "3 4", "1 2 3 4 5 6", "1 2 3 4 5 7"]  # 0, 5/7
    corpus = corpus.assign(text=texts)
    own, system = wording.find_cluster_pairs(corpus), made((corpus, labels))
    found = shared_wording.estimate_comparisons(system, own)
    assert found["dr_high"][0] == by_loops(
        corpus, labels, [side[[0, 2, 4]] for side in own[:2]]
    )
    corpus, labels = frames("srla", "srlr", "sala")
    both = corpus.assign(text=["1 2 3", "2 3 4 5"] * 3)  # 2/5
    own, system = wording.find_cluster_pairs(both), made((both, labels), 9)
    found = shared_wording.estimate_comparisons(system, own)
    assert np.isnan([found["dr_low"][0], found["dr_high"][0]]).all()
