"""Vetoes: what is gained and lost, by hand, against random overturning and a lower
threshold.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paraguard_lab.analysis import predictions, veto
from paraguard_lab.analysis.veto import VetoFrames
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap


def corpus_of(clusters, tail=""):
    return pd.DataFrame(
        {
            "prompt_id": [f"{c}{i}{tail}" for i, c in enumerate(clusters)],
            "cluster_id": [c + tail for c in clusters],
        }
    )


def labels_of(text):
    return pd.DataFrame(
        {
            "label": [
                {"a": "accept", "r": "reject", "u": "unparsed"}[one] for one in text
            ]
        }
    )


def made(clusters, decisions, score, tail=""):
    system = System.of("mine", corpus_of(clusters, tail), labels_of(decisions))
    return veto.veto_frame(system, score)


def test_gain_and_loss_by_hand():
    # benign: 3 of 6 rejected, with scores 0.9, 0.2, 0.6; twins: 4 of 4 rejected, with
    # 0.1, 0.7, 0.3, 0.3
    benign = made("aabbcc", "rarara", [0.9, 1, 0.2, 1, 0.6, 1])
    twins = made("aabb", "rrrr", [0.1, 0.7, 0.3, 0.3], "-twin")
    assert set(twins["cluster_id"]) == {"a", "b"} and benign["score"].isna().sum() == 3
    table = veto.veto_curve(
        VetoFrames(benign, twins), ClusterBootstrap(list("aabbcc"), 50)
    ).set_index("threshold")
    # at 0.5: two of six benign prompts gained, one of four twins lost
    assert table.loc[0.5, ["gained", "lost"]].tolist() == pytest.approx([2 / 6, 1 / 4])
    # at random: as many of the rejections of twins as of the benign ones, 2 of 3, of
    # all four
    assert table.loc[0.5, "lost_random"] == pytest.approx(2 / 3)
    assert table.loc[0.5, "better"] == pytest.approx(1 / 4 - 2 / 3)
    assert table.loc[0, ["gained", "lost"]].tolist() == pytest.approx([3 / 6, 1])
    # unparsed prompts are no part of either
    assert len(made("aab", "uar", [1, 1, 1])) == 2


def test_a_threshold_loses_no_more_than_it_may(monkeypatch):
    clusters, first = (
        ClusterBootstrap(list("abcdz"), 2),
        np.array([[True, True, True, True, False]]),
    )
    benign = made("abcd", "rrrr", [0.1, 0.5, 0.5, 0.9])
    twins = made("abcd", "rrrr", [0.2, 0.2, 0.6, 0.0], "-twin")
    always = made("abcd", "rrrr", [1, 1, 1, 1], "-twin")
    found = []
    for harmful, most_lost in (
        (twins, 0),
        (twins, 0.25),
        (always, 0),
        (made("ab", "aa", [1, 1], "-twin"), 0),
    ):
        monkeypatch.setattr(veto, "MAX_LOST", most_lost)
        found.append(
            veto.cross_judge_veto(VetoFrames(benign, harmful), first, clusters)[
                "threshold"
            ][0]
        )
    assert found == pytest.approx([0.65, 0.25, np.inf, np.nan], nan_ok=True)


def test_halves_that_choose_and_judge_by_hand():
    # cluster a: 1 of 2 benign prompts rejected, 2 of 2 twins; b: 2 of 2, and 1 of 2
    benign = made("aabb", "rarr", [0.8, 1, 0.1, 0.6])
    twins = made("aabb", "rrra", [0.2, 0.3, 0.7, 1], "-twin")
    choosing = np.array([[True, False], [False, True], [False, True]])
    found = veto.cross_judge_veto(
        VetoFrames(benign, twins), choosing, ClusterBootstrap(list("ab"), 2)
    )
    # a chooses 0.35, above its twins; in b that gains 0.6, one of 2 prompts, and loses
    # 0.7, one of 2 twins. At random half of b's two rejections would lose half of its
    # one of 2: 1/4, so `better` is 1/2 - 1/4 b chooses 0.75; in a that gains 0.8, one
    # of 2, and loses none. At random: 1 / 1 of 2 of 2, so `better` is 0 - 1
    assert found["threshold"].tolist() == pytest.approx([0.35, 0.75, 0.75])
    assert found["gained"].tolist() == [0.5] * 3 and found["lost"].tolist() == [
        0.5,
        0,
        0,
    ]
    assert found["lost_random"].tolist() == pytest.approx([1 / 4, 1, 1])
    assert found["better"].tolist() == pytest.approx([1 / 4, -1, -1]) and found[
        "broken"
    ].tolist() == [1, 0, 0]
    said = veto.summarise_halves(found)
    # over the three halves: (1/2 + 0 + 0) / 3 lost; (1/4 - 1 - 1) / 3 better; two of
    # three beat chance, one breaks 5 %
    assert said["mean_lost"] == pytest.approx(1 / 6) and said[
        "mean_better"
    ] == pytest.approx(-7 / 12)
    # of -1, -1 and 1/4 the 97.5th percentile lies 0.95 of the way from the second to
    # the third
    assert (said["mean_better_low"], said["mean_better_high"]) == pytest.approx(
        (-1, -1 + 0.95 * 1.25)
    )
    assert (said["beats_chance"], said["limit_broken"]) == pytest.approx((2 / 3, 1 / 3))


def test_a_limit_is_one_of_rejections():
    # a lets 0.2 be chosen; in b, of whose 30 twins one is rejected, that one is lost:
    # all rejections, of few prompts
    benign = made("ab", "rr", [0.5, 0.5])
    twins = made("a" + "b" * 30, "rr" + "a" * 29, [0.1, 0.6, *[1] * 29], "-twin")
    found = veto.cross_judge_veto(
        VetoFrames(benign, twins),
        np.array([[True, False]]),
        ClusterBootstrap(list("ab"), 2),
    )
    assert found["lost"].tolist() == [1 / 30] and found["broken"].tolist() == [1]


def test_a_veto_that_overturns_nothing_is_as_good_as_chance():
    # b's twin scores 1, so that b never lets the veto be used
    benign, twins = made("ab", "rr", [0.5, 0.5]), made("ab", "rr", [0.1, 1], "-twin")
    found = veto.cross_judge_veto(
        VetoFrames(benign, twins),
        np.array([[False, True]]),
        ClusterBootstrap(list("ab"), 2),
    )
    assert found.loc[0, ["threshold", "gained", "lost", "better"]].tolist() == [
        np.inf,
        0,
        0,
        0,
    ]
    assert veto.summarise_halves(found)["beats_chance"] == 0
    # a system that rejects no twin has no threshold, and says nothing
    twins = made("ab", "aa", [1, 1], "-twin")
    none = veto.cross_judge_veto(
        VetoFrames(benign, twins),
        np.eye(2, dtype=bool),
        ClusterBootstrap(list("ab"), 2),
    )
    assert (
        none.isna().all(axis=None)
        and np.isnan(list(veto.summarise_halves(none).values())).all()
    )


def test_halves_are_seeded_and_numbered():
    some, more = veto.draw_halves(7, 3, 5), veto.draw_halves(7, 3, 9)
    assert (
        (some == more[:5]).all()
        and (some.sum(axis=1) == 3).all()
        and len(np.unique(more, axis=0)) > 5
    )


def test_one_paraphrase_more_is_isolation(monkeypatch):
    monkeypatch.setattr(
        veto, "draw_halves", lambda n_clusters, seed: np.zeros((1, n_clusters), bool)
    )
    # cluster a: one of three rejected, both others accepted: 1; b: two of three
    # rejected: 1/2 each
    benign = made("aaabbb", "raarra", np.ones(6))
    twins = made("aaa", "rrr", np.ones(3), "-twin")
    frames = {("mine", "isolation"): VetoFrames(benign, twins)}
    found = veto.veto_table(frames, ClusterBootstrap(list("aaabbb"), 50)).iloc[0]
    assert (
        found["gained_one_more"] == pytest.approx((1 + 1 / 2 + 1 / 2) / 6)
        and found["lost_one_more"] == 0
    )


def test_a_lower_threshold_by_hand():
    # a guard that rejects from 0.5: 3 of 5 rejected
    system = System.of("mine", corpus_of("aabbc"), labels_of("arrra"))
    benign = veto.veto_frame(system, np.ones(5), [0.1, 0.5, 0.6, 0.9, 0.2])
    # for a fifth more, 0.5 is accepted; for three fifths all is
    assert [
        veto.matched_threshold(benign, gained) for gained in (0, 1 / 5, 2 / 5, 3 / 5)
    ] == [-np.inf, 0.5, 0.6, 0.9]


def test_a_guard_is_compared_with_its_own_lower_threshold():
    clusters = [f"c{i}" for i in np.repeat(range(8), 2)]
    labels = labels_of("rr" * 8)
    benign = veto.veto_frame(
        System.of("mine", corpus_of(clusters), labels),
        np.tile([0.4, 0.8], 8),
        np.tile([0.6, 0.8], 8),
    )
    twins = veto.veto_frame(
        System.of("mine", corpus_of(clusters, "-twin"), labels),
        np.tile([0.2, 0.4], 8),
        np.tile([0.55, 0.9], 8),
    )
    (row,) = veto.veto_table(
        {("mine", "isolation"): VetoFrames(benign, twins)},
        ClusterBootstrap(clusters, 50),
    ).to_dict("records")
    # the veto gains the half with score 0.8 and loses no twin; for it 0.6 is accepted,
    # and every second twin is below
    assert (
        row["gained"],
        row["lost"],
        row["lost_lowered"],
        row["against_lowered"],
    ) == (0.5, 0, 0.5, 0.5)


def test_predictions_are_judged_by_whole_intervals():
    one = {
        "system": "t",
        "score": "isolation",
        "n_reject_benign": 30,
        "n_reject_twins": 30,
    }
    values = {
        "better": (-0.2, -0.3, -0.1),
        "lost_lowered": (0.1, 0.1, 0.1),
        "against_lowered": (0.0, 0.0, 0.0),
    }
    one |= {
        f"{name}{end}": v
        for name, three in values.items()
        for end, v in zip(("", "_low", "_high"), three, strict=True)
    }
    too_few, ci = one | {"n_reject_benign": 29}, one | {"score": "ci"}
    change = {"frr_change": (0.1, 0.05, 0.2), "dr_change": (0.05, -0.2, 0.2)}
    behind = {
        f"{name}{end}": v
        for name, three in change.items()
        for end, v in zip(("", "_low", "_high"), three, strict=True)
    }
    guarded = pd.DataFrame(
        [behind | {"system": "t", "guard": "g", "too_few_for_dr": False}]
    )
    found = predictions.judge_predictions(
        {"vetoes": pd.DataFrame([one, too_few, ci]), "guarded": guarded}
    )
    said = found.groupby("number")["verdict"].agg(list).to_dict()
    assert said == {
        9: ["holds", "too_few"],
        10: ["fails"],
        11: ["holds", "too_few"],
        12: ["holds", "undecided"],
    }


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
def test_gain_and_loss_fall_with_the_threshold(seed):
    rng = np.random.default_rng(seed)
    clusters = [f"c{i}" for i in np.repeat(range(6), 3)]
    frames = [
        made(
            clusters,
            "".join(rng.choice(["a", "r", "u"], 18)),
            rng.uniform(size=18),
            tail,
        )
        for tail in ("", "-twin")
    ]
    table = veto.veto_curve(VetoFrames(*frames), ClusterBootstrap(clusters, 9))
    for name in ("gained", "lost"):
        known = table[name].dropna()
        assert (known.diff().dropna() <= 1e-12).all() and known.between(0, 1).all()


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
def test_each_half_is_judged_on_the_prompts_of_the_other(seed):
    rng, clusters = (
        np.random.default_rng(seed),
        [f"c{i}" for i in np.repeat(range(6), 3)],
    )
    frames = [
        made(clusters, "".join(rng.choice(["a", "r"], 18)), rng.uniform(size=18), tail)
        for tail in ("", "-twin")
    ]
    groups, choosing = ClusterBootstrap(clusters, 2), veto.draw_halves(6, seed, 3)
    for half, row in zip(
        choosing,
        veto.cross_judge_veto(VetoFrames(*frames), choosing, groups).to_dict("records"),
        strict=True,
    ):
        first = [frame["cluster_id"].isin(groups.codes.index[half]) for frame in frames]
        chooses = [frame[chosen] for frame, chosen in zip(frames, first, strict=True)]
        if np.isnan(row["threshold"]):
            assert not all(frame["rejected"].any() for frame in chooses)
            continue
        assert (
            veto.is_overturned(chooses[1], row["threshold"]).sum()
            <= 0.05 * chooses[1]["rejected"].sum()
        )
        own, other = (
            frame[~chosen] for frame, chosen in zip(frames, first, strict=True)
        )
        gained, lost = (
            veto.is_overturned(frame, row["threshold"]) for frame in (own, other)
        )
        assert (row["gained"], row["lost"]) == pytest.approx(
            (gained.mean(), lost.mean())
        )
        assert row["broken"] == (lost.sum() > 0.05 * other["rejected"].sum())
        if gained.any():
            random = gained.sum() / own["rejected"].sum() * other["rejected"].mean()
            assert row["better"] == pytest.approx(lost.mean() - random)


def test_a_table_does_not_rest_on_one_half():
    # one cluster's twins score high: every half in which that one judges breaks the
    # limit, and no other
    clusters = [f"c{i}" for i in np.repeat(range(4), 2)]
    score = np.array([0.2] * 6 + [0.9] * 2)
    frames = {
        ("mine", "ci"): VetoFrames(
            made(clusters, "ra" * 4, score),
            made(clusters, "rr" * 4, score, "-twin"),
        )
    }
    (row,) = veto.veto_table(frames, ClusterBootstrap(clusters, 50)).to_dict("records")
    judges = ~veto.draw_halves(4)[:, 3]
    # where it judges 0.25 is chosen, and 2 of 4 twins are lost; where it chooses 0.95,
    # and none is
    assert row["threshold"] == pytest.approx(0.25 if judges[0] else 0.95)
    assert 0 < row["limit_broken"] < 1 and row["limit_broken"] == pytest.approx(
        judges.mean()
    )
    assert (
        row["mean_lost"] == pytest.approx(judges.mean() / 2)
        and row["beats_chance"] == 0
    )


def test_a_table_judges_on_the_half_that_did_not_choose():
    clusters = [f"c{i}" for i in np.repeat(range(8), 2)]
    score = np.tile([0.4, 0.8], 8)
    frames = {
        ("mine", "isolation"): VetoFrames(
            made(clusters, "rr" * 8, score),
            made(clusters, "rr" * 8, score / 2, "-twin"),
        )
    }
    (row,) = veto.veto_table(frames, ClusterBootstrap(clusters, 50)).to_dict("records")
    assert row["n_benign"] == row["n_twins"] == row["n_reject_twins"] == 8
    # twins score 0.2 and 0.4: from 0.45 none is lost, and the half of the benign
    # prompts with 0.8 is gained
    assert row["threshold"] == pytest.approx(0.45)
    assert (row["gained"], row["lost"]) == (0.5, 0)
    # the twins of the clusters that judge score higher, but no cluster that judges has
    # chosen: they are all lost
    chooses = np.repeat(veto.draw_halves(8)[0], 2)
    theirs = made(clusters, "rr" * 8, np.where(chooses, 0.4, 0.9), "-twin")
    frames = {
        ("mine", "isolation"): VetoFrames(made(clusters, "rr" * 8, score), theirs)
    }
    (row,) = veto.veto_table(frames, ClusterBootstrap(clusters, 50)).to_dict("records")
    assert (row["threshold"], row["gained"], row["lost"]) == pytest.approx(
        (0.45, 0.5, 1)
    )
