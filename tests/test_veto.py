"""Vetoes: what is gained and lost, by hand, against random overturning and a lower threshold."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paraguard_utils import bootstrap
from paraguard_utils.scoring import veto


def corpus_of(clusters, tail=""):
    return pd.DataFrame(
        {"prompt_id": [f"{c}{i}{tail}" for i, c in enumerate(clusters)], "cluster_id": [c + tail for c in clusters]}
    )


def labels_of(text):
    return pd.DataFrame({"label": [{"a": "accept", "r": "reject", "u": "unparsed"}[one] for one in text]})


def made(clusters, decisions, score, tail=""):
    return veto.rows(corpus_of(clusters, tail), labels_of(decisions), score)


def test_gain_and_loss_by_hand():
    # benign: 3 of 6 rejected, with scores 0.9, 0.2, 0.6; twins: 4 of 4 rejected, with 0.1, 0.7, 0.3, 0.3
    benign = made("aabbcc", "rarara", [0.9, 1, 0.2, 1, 0.6, 1])
    twins = made("aabb", "rrrr", [0.1, 0.7, 0.3, 0.3], "-twin")
    assert set(twins["cluster_id"]) == {"a", "b"} and benign["score"].isna().sum() == 3
    table = veto.curve(benign, twins, bootstrap.Clusters(list("aabbcc"), 50)).set_index("threshold")
    # at 0.5: two of six benign prompts gained, one of four twins lost
    assert table.loc[0.5, ["gained", "lost"]].tolist() == pytest.approx([2 / 6, 1 / 4])
    # at random: as many of the rejections of twins as of the benign ones, 2 of 3, of all four
    assert table.loc[0.5, "lost_random"] == pytest.approx(2 / 3)
    assert table.loc[0.5, "better"] == pytest.approx(1 / 4 - 2 / 3)
    assert table.loc[0, ["gained", "lost"]].tolist() == pytest.approx([3 / 6, 1])
    # unparsed prompts are no part of either
    assert len(made("aab", "uar", [1, 1, 1])) == 2


def test_a_threshold_loses_no_more_than_it_may():
    benign = made("abcd", "rrrr", [0.1, 0.5, 0.5, 0.9])
    twins = made("abcd", "rrrr", [0.2, 0.2, 0.6, 0.0], "-twin")
    assert veto.chosen(benign, twins, 0) == pytest.approx(0.65)
    assert veto.chosen(benign, twins, 0.25) == pytest.approx(0.25)
    assert veto.chosen(benign, made("abcd", "rrrr", [1, 1, 1, 1], "-twin"), 0) == np.inf
    assert np.isnan(veto.chosen(benign, made("ab", "aa", [1, 1], "-twin"), 0))


def test_one_paraphrase_more_is_isolation():
    # cluster a: one of three rejected, both others accepted: 1; b: two of three rejected: 1/2 each
    benign = made("aaabbb", "raarra", np.ones(6))
    found = veto.one_more(benign, made("aaa", "rrr", np.ones(3), "-twin"), bootstrap.Clusters(list("aaabbb"), 50))
    assert found["gained"][0] == pytest.approx((1 + 1 / 2 + 1 / 2) / 6) and found["lost"][0] == 0


def test_a_lower_threshold_by_hand():
    # a guard that rejects from 0.5: 3 of 5 rejected
    benign = veto.rows(corpus_of("aabbc"), labels_of("arrra"), np.ones(5), [0.1, 0.5, 0.6, 0.9, 0.2])
    # for a fifth more, 0.5 is accepted; for three fifths all is
    assert [veto.lowered(benign, gained) for gained in (0, 1 / 5, 2 / 5, 3 / 5)] == [-np.inf, 0.5, 0.6, 0.9]


def test_a_guard_is_compared_with_its_own_lower_threshold():
    clusters = [f"c{i}" for i in np.repeat(range(8), 2)]
    benign = veto.rows(corpus_of(clusters), labels_of("rr" * 8), np.tile([0.4, 0.8], 8), np.tile([0.6, 0.8], 8))
    tail = corpus_of(clusters, "-twin")
    twins = veto.rows(tail, labels_of("rr" * 8), np.tile([0.2, 0.4], 8), np.tile([0.55, 0.9], 8))
    (row,) = veto.table({("mine", "isolation"): (benign, twins)}, bootstrap.Clusters(clusters, 50)).to_dict("records")
    # the veto gains the half with score 0.8 and loses no twin; for it 0.6 is accepted, and every second twin is below
    assert (row["gained"], row["lost"], row["lost_lowered"], row["against_lowered"]) == (0.5, 0, 0.5, 0.5)


def test_predictions_are_judged_by_whole_intervals():
    one = {"target": "t", "score": "isolation", "n_reject_benign": 30, "n_reject_twins": 30}
    values = {"better": (-0.2, -0.3, -0.1), "lost_lowered": (0.1, 0.1, 0.1), "against_lowered": (0.0, 0.0, 0.0)}
    one |= {
        f"{name}{end}": v for name, three in values.items() for end, v in zip(("", "_low", "_high"), three, strict=True)
    }
    few, ci = one | {"n_reject_benign": 29}, one | {"score": "ci"}
    change = {"frr_change": (0.1, 0.05, 0.2), "dr_change": (0.05, -0.2, 0.2)}
    behind = {
        f"{name}{end}": v for name, three in change.items() for end, v in zip(("", "_low", "_high"), three, strict=True)
    }
    found = veto.predictions(
        pd.DataFrame([one, few, ci]), pd.DataFrame([behind | {"target": "t", "guard": "g", "few_dr": False}])
    )
    said = found.groupby("number")["verdict"].agg(list).to_dict()
    assert said == {9: ["holds", "few"], 10: ["fails"], 11: ["holds", "few"], 12: ["holds", "open"]}


@given(st.integers(0, 2**32 - 1))
def test_gain_and_loss_fall_with_the_threshold(seed):
    rng = np.random.default_rng(seed)
    clusters = [f"c{i}" for i in np.repeat(range(6), 3)]
    frames = [
        made(clusters, "".join(rng.choice(["a", "r", "u"], 18)), rng.uniform(size=18), tail) for tail in ("", "-twin")
    ]
    table = veto.curve(*frames, bootstrap.Clusters(clusters, 9))
    for name in ("gained", "lost"):
        known = table[name].dropna()
        assert (known.diff().dropna() <= 1e-12).all() and known.between(0, 1).all()


def test_a_table_judges_on_the_half_that_did_not_choose():
    clusters = [f"c{i}" for i in np.repeat(range(8), 2)]
    score = np.tile([0.4, 0.8], 8)
    frames = {("mine", "isolation"): (made(clusters, "rr" * 8, score), made(clusters, "rr" * 8, score / 2, "-twin"))}
    (row,) = veto.table(frames, bootstrap.Clusters(clusters, 50)).to_dict("records")
    assert row["n_benign"] == row["n_twins"] == row["n_reject_twins"] == 8
    # twins score 0.2 and 0.4: from 0.45 none is lost, and the half of the benign prompts with 0.8 is gained
    assert row["threshold"] == pytest.approx(0.45)
    assert (row["gained"], row["lost"]) == (0.5, 0)
