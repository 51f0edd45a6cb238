"""Blind readings of recorded answers and what follows from them, by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from worlds import systems

from paraguard_lab.analysis.label_noise import correct_rates as corrected_table
from paraguard_lab.core import label_noise
from paraguard_lab.core.disagreement import disagreement_parts
from paraguard_lab.labels import annotations, annotators
from paraguard_utils import registry, stores
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import ClusterBootstrap

RECORDED = stores.Store("recorded")


def rows(codes, answers=None, **columns):
    """Make readings of one system: f full refusal, p partial, c compliance, u unclear,
    by both readers of an answer.
    """
    meaning = {
        "f": "full_refusal",
        "p": "partial_refusal",
        "c": "full_compliance",
        "u": "unclear",
    }
    frame = pd.DataFrame(
        {
            "system": "m--none",
            "prompt_id": [f"c{i // 2}-{i % 2}" for i in range(len(codes))],
        }
    )
    for number, reader in enumerate(("first", "second")):
        frame[f"{reader}_refusal"] = [meaning[pair[number]] for pair in codes]
        frame[f"{reader}_answer"] = answers or "poor"
    return frame.assign(response="x", **columns)


def read(monkeypatch, frame):
    monkeypatch.setattr(annotations.stores, "read_file", lambda *_: frame)
    return annotations.read_annotations()


def test_readers_who_differ_on_refusing_are_counted_apart(monkeypatch):
    found = read(monkeypatch, rows(["ff", "fp", "cc", "fc", "uu", "uc"]))
    assert found["reads"].tolist() == [
        "reject",
        "reject",
        "accept",
        "differ",
        "differ",
        "differ",
    ]


def test_an_answer_that_has_changed_since_is_left_out():
    labels = pd.DataFrame(
        {"prompt_id": ["c0-0", "c0-1"], "response": ["x", "y"], "label": "reject"}
    )
    labels = labels.assign(kind="policy", rule="r", p_refusal=0.9, answer="on_topic")
    assert annotations.join_annotations(rows(["ff", "ff"]), {"m--none": labels})[
        "prompt_id"
    ].tolist() == ["c0-0"]


def test_precision_missed_and_usable_by_hand(monkeypatch):
    labels = ["reject"] * 4 + ["accept"] * 4
    both = read(
        monkeypatch,
        rows(
            ["ff", "pf", "cc", "fc", "cc", "cc", "cc", "ff"],
            ["usable"] * 5 + ["poor"] * 3,
            label=labels,
        ),
    )
    row = annotators.compare_with_annotations(both).iloc[0]
    assert (row["n"], row["differ"], row["rejections"], row["acceptances"]) == (
        8,
        1,
        3,
        4,
    )
    # two of three rejections refuse; one of four acceptances does; the first of these
    # four is usable
    assert (row["precision"], row["missed"], row["usable"]) == (2 / 3, 1 / 4, 1 / 4)
    assert row["precision_low"] < 2 / 3 < row["precision_high"] and row["noisy"]


def test_without_rejections_there_is_no_precision_and_no_noise(monkeypatch):
    row = annotators.compare_with_annotations(
        read(monkeypatch, rows(["cc", "cc"], label="accept"))
    ).iloc[0]
    assert np.isnan(row["precision"]) and row["missed"] == 0 and not row["noisy"]


CORPUS = pd.DataFrame(
    {
        "prompt_id": [f"c{i // 2}-{i % 2}" for i in range(8)],
        "cluster_id": [f"c{i // 2}" for i in range(8)],
    }
)


HALF = ["reject", "accept"] * 4


def noise_row(monkeypatch, codes, label, answers=None, labels=HALF):
    """The row of `label_noise.correct_rates` for eight prompts in four clusters, of
    which the first were read.
    """
    both = read(monkeypatch, rows(codes, answers, label=label))
    labelled = {"m--none": CORPUS.assign(label=labels)}
    (row,) = corrected_table(systems(CORPUS, labelled), both).to_dict("records")
    return row


def test_the_corrected_rate_by_hand(monkeypatch):
    row = noise_row(
        monkeypatch,
        ["ff", "cc", "cc", "cc", "cc", "cc", "ff", "ff"],
        HALF,
        ["usable"] * 4 + ["poor"] * 4,
    )
    # two of the four rejections refuse, and one of the four acceptances: three of eight
    assert (row["frr_labelled"], row["frr"]) == (0.5, 3 / 8) and row["noisy"]
    # half are accepted, and two of the four acceptances are usable
    assert row["usable"] == 0.25 and row["usable_low"] < 0.25 < row["usable_high"]
    # each cluster has one of each; of 48 ordered pairs of two clusters 24 are decided
    # differently
    assert row["dr_labelled"] == pytest.approx(1 / (24 / 48))


def test_where_no_read_rejection_refuses_nothing_does(monkeypatch):
    row = noise_row(monkeypatch, ["cc"] * 4, ["reject", "accept"] * 2)
    assert row["frr"] == 0 and row["frr_high"] > 0.1, "two readings prove little"
    assert np.isnan(row["dr"]), (
        "labels that tell nothing of refusals tell nothing of DR"
    )


def test_what_nobody_read_is_not_corrected(monkeypatch):
    row = noise_row(monkeypatch, ["cc", "cc"], "accept")
    assert (
        np.isnan([row["frr"], row["frr_low"], row["dr"]]).all()
        and row["frr_labelled"] == 0.5
    )
    # but where nothing is labelled as accepted, nobody needs to read acceptances
    row = noise_row(
        monkeypatch, ["ff", "ff", "ff", "cc"], "reject", labels=["reject"] * 8
    )
    assert row["frr"] == 3 / 4 and np.isnan(row["dr"]) and np.isnan(row["usable"])


def test_a_system_that_nobody_read_has_no_row(monkeypatch):
    both = read(monkeypatch, rows(["ff", "cc"], label=["reject", "accept"]))
    labels = dict.fromkeys(("other--none", "m--none"), CORPUS.assign(label=HALF))
    table = corrected_table(systems(CORPUS, labels), both)
    assert table["system"].tolist() == ["m--none"]


def test_true_dr_by_hand():
    # 1 - 0.8 is what labels share; three quarters refuse: 0.2 * (3/16) / (1/4 * (1 -
    # 0.5)^2) = 0.6
    assert label_noise.true_dr(0.8, 0.5, 1.0, 0.5) == pytest.approx(0.4)
    assert label_noise.true_dr(0.8, 0.2, 1.0, 0.0) == pytest.approx(0.8), (
        "labels without errors"
    )
    for shares in ((0.3, 0.3), (0.2, 0.4)):
        assert np.isnan(label_noise.true_dr(0.8, 0.5, *shares))
    # 1 + 3 * (0.09 / 10 + 0.09 / 10) / 0.8^2 - 0.25 * 2 * 0.009 / 0.25; the last term
    # is 0 at a true rate of one half
    assert label_noise.dr_inflation(0.5, 0.9, 0.1, (10, 10)) == pytest.approx(
        1 + 0.084375 - 0.018
    )
    assert label_noise.dr_inflation(0.5, 1.0, 0.0, (10, 10)) == 1
    # at a true rate of 0.8 * 0.25 + 0.1 * 0.75 = 0.275, shares' variances 0.16 / 20 and
    # 0.09 / 30: 3 * 0.011 / 0.49 - (0.0625 * 0.008 + 0.5625 * 0.003) / 0.199375 - 2 *
    # 0.45 * (0.25 * 0.008 - 0.75 * 0.003) / (0.199375 * 0.7)
    expected = 1 + 0.033 / 0.49 - 0.0021875 / 0.199375 + 0.9 * 0.00025 / 0.1395625
    assert label_noise.dr_inflation(0.25, 0.8, 0.1, (20, 30)) == pytest.approx(expected)


def test_the_inflation_is_that_of_drawn_shares():
    """Read again and again, small samples show 1 - DR too large by the factor, on
    average.
    """
    rng, n = np.random.default_rng(0), (100, 200)
    shares = [
        rng.binomial(read, share, 40_000) / read
        for read, share in zip(n, (0.8, 0.1), strict=True)
    ]
    t, slope = label_noise.true_rate(0.1, *shares), shares[0] - shares[1]
    true = label_noise.true_rate(0.1, 0.8, 0.1)
    factor = (t * (1 - t) / slope**2).mean() / (true * (1 - true) / 0.7**2)
    assert abs(factor - 1) > 0.01 and label_noise.dr_inflation(
        0.1, 0.8, 0.1, n
    ) == pytest.approx(factor, abs=0.002)


def test_errors_that_hang_on_the_decision_alone_are_undone():
    """In a world whose decisions are known: labels raise DR, and the correction finds
    that of the decisions.
    """
    rng = np.random.default_rng(5)
    n, size = 20_000, 6
    refuses = rng.random((n, size)) < rng.choice([0.05, 0.2, 0.9], n)[:, None]
    labelled = np.where(
        refuses, rng.random((n, size)) < 0.85, rng.random((n, size)) < 0.06
    )
    truth, seen = (
        disagreement_parts(np.full(n, size), one.sum(axis=1))[2]
        for one in (refuses, labelled)
    )
    precision, missed = refuses[labelled].mean(), refuses[~labelled].mean()
    found = label_noise.true_dr(seen, labelled.mean(), precision, missed)
    assert seen > truth + 0.1 and found == pytest.approx(truth, abs=0.01)
    assert label_noise.true_rate(labelled.mean(), precision, missed) == pytest.approx(
        refuses.mean()
    )


def test_annotation_everything_leaves_the_uncertainty_of_clusters():
    rng = np.random.default_rng(3)
    decided = pd.DataFrame(
        {
            "cluster_id": [f"c{i}" for i in range(60)],
            "n": 6,
            "rejected": rng.integers(0, 7, 60),
        }
    )
    clusters = ClusterBootstrap(decided["cluster_id"])
    rejected, accepted = (
        int(decided["rejected"].sum()),
        int((6 - decided["rejected"]).sum()),
    )
    every = label_noise.correct_label_noise(
        clusters, decided, (rejected, rejected), (0, accepted)
    )
    too_few = label_noise.correct_label_noise(clusters, decided, (10, 10), (0, 10))
    own = disagreement.estimate_disagreement(clusters, decided)
    assert every["dr"][0] == pytest.approx(own[0]) and too_few["dr"][
        0
    ] == pytest.approx(own[0])
    widths = {
        name: [found[name][2] - found[name][1] for found in (every, too_few)]
        for name in ("frr", "dr")
    }
    assert all(one < 0.8 * other for one, other in widths.values())


ALIKE = pd.DataFrame(
    {"cluster_id": [f"c{i}" for i in range(10)], "n": 4, "rejected": 1}
)
"""Ten clusters of four, one rejected in each, so that resampling them changes nothing.
"""


def test_corrected_dr_by_hand():
    # labels disagree by 6 of 12 ordered pairs in a cluster and by 2 * 3 / 16 between
    # two: DR is 4/3
    found = label_noise.correct_label_noise(
        ClusterBootstrap(ALIKE["cluster_id"], 50), ALIKE, (8, 10), (1, 10)
    )
    # true rate 0.8 / 4 + 0.1 * 3/4 = 0.275; 1 + 1/3 * 0.275 * 0.725 / (3/16 * 0.7^2),
    # then less its inflation
    plain = 1 / 3 * 0.275 * 0.725 / (3 / 16 * 0.49)
    assert label_noise.true_dr(4 / 3, 0.25, 0.8, 0.1) == pytest.approx(1 + plain)
    assert found["frr"][0] == pytest.approx(0.275)
    assert found["dr"][0] == pytest.approx(
        1 + plain / label_noise.dr_inflation(0.25, 0.8, 0.1, (10, 10))
    )


def test_where_all_is_read_no_share_is_drawn():
    clusters = ClusterBootstrap(ALIKE["cluster_id"], 400)
    every = label_noise.correct_label_noise(clusters, ALIKE, (8, 10), (3, 30))
    for one in every.values():
        assert np.ptp(one.draws) < 1e-9, "all was read, and the clusters are alike"
    # what is drawn is then the correction by the posterior's mean, (hits + 1/2) / (read
    # + 1)
    expected = label_noise.true_dr(4 / 3, 0.25, 8.5 / 11, 3.5 / 31)
    assert every["dr"].draws[0] == pytest.approx(expected)
    # half of all rejections and a third of all acceptances read: shares vary by 1/2 and
    # 2/3 of their posterior
    some = label_noise.correct_label_noise(clusters, ALIKE, (4, 5), (1, 10))[
        "frr"
    ].draws
    spread = [
        stats.beta(4.5, 1.5).var() * (1 - 5 / 10),
        stats.beta(1.5, 9.5).var() * (1 - 10 / 30),
    ]
    assert some.std() == pytest.approx(
        np.sqrt(0.25**2 * spread[0] + 0.75**2 * spread[1]), rel=0.1
    )


def test_readers_who_agree_by_hand(monkeypatch):
    both = read(monkeypatch, rows(["ff", "cc", "fc", "cc"]))
    table = annotators.compare_readers(both).set_index("judged")
    # refuses: 3 of 4 equal; chance (2 * 1 + 2 * 3) / 16 = 0.5; kappa 0.5
    assert table.loc["refuses", ["first", "second", "kappa"]].tolist() == [2, 1, 0.5]


def test_noisy_systems_are_flagged_as_the_table_says(monkeypatch):
    frame = rows(["ff", "cc", "fc", "cc"])
    labels = pd.DataFrame(
        {
            "prompt_id": frame["prompt_id"],
            "response": "x",
            "label": ["reject", "reject", "reject", "accept"],
        }
    )
    monkeypatch.setattr(annotations.stores, "read_file", lambda *_: frame)
    unread = labels.assign(response="y")
    flags = annotations.flag_noisy_systems({"m--none": labels, "other": unread})
    # of the two rejections that the readers agree on, one refuses
    assert flags == {"m--none": "yes", "other": "not read"}


@pytest.mark.slow
def test_recorded_flags_are_those_of_the_comparison():
    labels = {
        name: RECORDED.read("labels", "paraguard_mini", name)
        for name in registry.published_systems("chat").index
    }
    both = annotations.join_annotations(annotations.read_annotations(), labels)
    table = annotators.compare_with_annotations(both).set_index("system")
    flags = annotations.flag_noisy_systems(labels)
    for system, noisy in table["noisy"].items():
        assert flags[system] == ("yes" if noisy else "no")


@pytest.mark.parametrize("name", list(registry.published_systems("chat").index))
def test_recorded_annotations_are_of_recorded_answers(name):
    own = annotations.read_annotations().query("system == @name")
    labels = RECORDED.read("labels", "paraguard_mini", name)
    both = annotations.join_annotations(own, {name: labels})
    counts = both["label"].value_counts()
    whole = labels["label"].value_counts()
    for label in ("reject", "accept"):
        assert counts[label] >= min(50, whole[label]) * 0.85, (
            "most that were read are still the recorded ones"
        )
