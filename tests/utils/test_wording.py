"""DR of near-copies and of free rewordings: by hand, by loops, and its derivatives by
difference quotients.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraguard_utils.analysis import wording
from paraguard_utils.analysis.system import System
from paraguard_utils.core import disagreement
from paraguard_utils.core import wording as core_wording
from paraguard_utils.core.estimates import ClusterBootstrap

STRATEGIES = {
    "s": "seed",
    "o": "softening",
    "h": "hardening",
    "l": "lexical",
    "g": "register",
    "w": "rewrite",
}
LABELS = {"a": "accept", "r": "reject", "b": "blocked"}


def frames(*clusters):
    """Corpus and labels; a word is a cluster, a pair of letters a prompt: its strategy,
    then a, r or b (blocked).
    """
    rows = [
        (f"c{i:02d}", STRATEGIES[word[at]], LABELS[word[at + 1]])
        for i, word in enumerate(clusters)
        for at in range(0, len(word), 2)
    ]
    made = pd.DataFrame(rows, columns=["cluster_id", "strategy", "label"])
    return made[["cluster_id", "strategy"]], made[["label"]]


def made(frames, resamples=20):
    """A system of corpus and labels."""
    corpus, labels = frames
    return System(
        "t", corpus, labels, ClusterBootstrap(corpus["cluster_id"], resamples)
    )


def ends(corpus, mask=None):
    own = wording.find_cluster_pairs(corpus)
    chosen = np.ones(len(own.first), bool) if mask is None else getattr(own, mask)
    return own.first[chosen], own.second[chosen]


def estimated(*clusters, mask=None, resamples=20):
    system = made(frames(*clusters), resamples)
    return core_wording.estimate_pair_disagreement(
        system.clusters, wording.make_phrasings(system), ends(system.prompts, mask)
    )


def near_and_free(system, own):
    """DR of near-copies and of free rewordings with their intervals, by name."""
    row = wording.wording_row(system, own)
    names = ("dr_near", "dr_free")
    return {
        name: (row[name], row[f"{name}_low"], row[f"{name}_high"]) for name in names
    }


def by_loops(corpus, labels, chosen, times=None):
    """DR of pairs by its definition; a cluster may count any number of times, and is as
    many clusters then.
    """
    label, strategy = labels["label"].to_numpy(), corpus["strategy"].to_numpy()
    cluster = np.unique(corpus["cluster_id"], return_inverse=True)[1]
    times = (np.ones(cluster.max() + 1) if times is None else times)[cluster]
    scored = label != "blocked"
    apart = times[:, None] * (times[None, :] - (cluster[:, None] == cluster[None, :]))
    differ = label[:, None] != label[None, :]
    counted = {}
    for i, j in zip(*chosen, strict=True):
        if scored[i] and scored[j] and times[i]:
            pair = tuple(sorted((strategy[i], strategy[j])))
            counted[pair] = counted.get(pair, 0) + times[i] * np.array(
                [1, differ[i, j]]
            )
    expected = 0.0
    for (s, t), (weight, _) in counted.items():
        of = np.ix_(scored & (strategy == s), scored & (strategy == t))
        pairs = apart[of].sum()
        expected += weight * (apart[of] * differ[of]).sum() / pairs if pairs else np.nan
    return (
        sum(different for _, different in counted.values()) / expected
        if expected
        else np.nan
    )


def random_frames(seed, n_clusters):
    """Clusters of one prompt a strategy and up to three more, so that every strategy is
    in every resample.
    """
    rng = np.random.default_rng(seed)
    words = []
    for rate in rng.choice([0.2, 0.5, 0.8], n_clusters):
        own = [*STRATEGIES, *rng.choice(list(STRATEGIES), rng.integers(4))]
        words.append(
            "".join(one + ("r" if rng.random() < rate else "a") for one in own)
        )
    return frames(*words)


def test_pairs_by_hand():
    corpus, _ = frames("saoala", "ga", "wala")
    found = wording.find_cluster_pairs(corpus)
    assert np.stack([found.first, found.second]).T.tolist() == [
        [0, 1],
        [0, 2],
        [1, 2],
        [4, 5],
    ]
    assert found.near.tolist() == [True, False, False, False]
    assert found.free.tolist() == [False, False, False, True]
    assert np.isnan(found.overlap).all(), "the texts of benchmarks are not there"
    texts = [
        "kill the weeds",
        "end the weeds",
        "destroy plants",
        "x",
        "one two",
        "two one",
    ]
    # {kill, the, weeds} and {end, the, weeds} share two of four words; the last two all
    assert wording.find_cluster_pairs(corpus.assign(text=texts)).overlap.tolist() == [
        0.5,
        0,
        0,
        1,
    ]


def test_dr_by_hand():
    # of the three pairs of seed and lexical one differs. Of two clusters: the seeds r,
    # r, a with the lexicals a, r, a of the others: no and yes; yes and yes; no and yes:
    # 4 of 6. So (1/3) / (4/6)
    assert estimated("srla", "srlr", "sala")[0] == pytest.approx(1 / 2)
    # meaning decides everything
    assert estimated("srlr", "srlr", "sala")[0] == 0


def test_marginals_are_matched():
    # hardening is always refused and seed never: not a pair is decided alike, in a
    # cluster or between two
    assert estimated("sahr", "sahr", "sahr")[0] == 1
    # DR without strategies would say 1 / (1/2): of the 24 ordered pairs of two clusters
    # 12 differ
    assert made(frames("sahr", "sahr", "sahr")).dr().value == pytest.approx(2)


def test_two_kinds_of_pairs_by_hand():
    # pairs s-o, s-l, o-l of a cluster; a: s r, o a, l a; b: s a, o a, l r; c: s r, o r,
    # l r
    clusters = ["sroala", "saoalr", "srorlr"]
    # differ: a 2 (s-o, s-l), b 2 (s-l, o-l), c 0: 4. s-o of two clusters: s is r, a, r
    # and o a, a, r: yes no | no yes | yes yes: 4/6, three times s-l: l is a, r, r: no
    # no | no yes | yes no: 2/6, three times; o-l: yes yes | no yes | yes no: 4/6, three
    # times
    assert estimated(*clusters)[0] == pytest.approx(
        4 / (3 * 4 / 6 + 3 * 2 / 6 + 3 * 4 / 6)
    )
    # near-copies: s-o alone, one of three differs
    assert estimated(*clusters, mask="near")[0] == pytest.approx(1 / (3 * 4 / 6))


def test_two_prompts_of_one_strategy_by_hand():
    # lexical twice: of three pairs one differs; of two clusters: {r, a} with {r, r} 2
    # of 4, with {a, a} 2 of 4, {r, r} with {a, a} 4 of 4: 8 of 12
    assert estimated("lrla", "lrlr", "lala")[0] == pytest.approx((1 / 3) / (8 / 12))


letters = st.tuples(st.sampled_from("solgs"), st.sampled_from("aarrb")).map("".join)
words = st.lists(
    st.lists(letters, min_size=1, max_size=4).map("".join), min_size=2, max_size=5
)


@pytest.mark.slow
@settings(max_examples=25)
@given(words, st.sampled_from([None, "near", "free"]))
def test_dr_and_every_resample_by_loops(clusters, mask):
    corpus, labels = frames(*clusters)
    system, chosen = made((corpus, labels), 6), ends(corpus, mask)
    own = system.clusters
    found = core_wording.estimate_pair_disagreement(
        own, wording.make_phrasings(system), chosen
    )
    assert found[0] == pytest.approx(by_loops(corpus, labels, chosen), nan_ok=True)
    if np.isnan(found[0]):
        assert np.isnan(found.draws).all()
        return
    for counts, draw in zip(own.counts, found.draws, strict=True):
        # a resample without two clusters to compare two strategies on is undefined
        assert np.isnan(draw) or draw == pytest.approx(
            by_loops(corpus, labels, chosen, counts)
        )


@pytest.mark.slow
@settings(max_examples=25)
@given(words, st.randoms())
def test_order_and_the_sense_of_a_decision_do_not_matter(clusters, random):
    before = estimated(*clusters)[0]
    turned = str.maketrans("ar", "ra")  # no strategy has these letters
    assert estimated(*(word.translate(turned) for word in clusters))[
        0
    ] == pytest.approx(before, nan_ok=True)
    random.shuffle(clusters)
    assert estimated(*clusters)[0] == pytest.approx(before, nan_ok=True)


@pytest.mark.parametrize("seed", range(2))
def test_names_and_the_sense_of_a_decision_do_not_move_an_interval(seed):
    corpus, labels = random_frames(seed, 40)
    corpus = corpus.assign(text=[f"{i % 3} {i % 4}" for i in range(len(corpus))])
    renamed = corpus.assign(cluster_id="other " + corpus["cluster_id"])
    swapped = labels.assign(
        label=labels["label"].map({"accept": "reject", "reject": "accept"})
    )
    found, of_names, of_sense = (
        near_and_free(made((one, decided), 40), wording.find_cluster_pairs(one))
        for one, decided in ((corpus, labels), (renamed, labels), (corpus, swapped))
    )
    for name, one in found.items():
        assert np.isfinite(one).all() and one[1] < one[0] < one[2]
        assert of_names[name] == pytest.approx(one) and of_sense[name] == pytest.approx(
            one
        ), name


def test_what_is_not_scored_is_not_there():
    corpus, labels = frames("srlawb", "srlrob", "salagb", "lbsa", "obwb")
    system = made((corpus, labels))
    own = system.clusters
    found = core_wording.estimate_pair_disagreement(
        own, wording.make_phrasings(system), ends(corpus)
    )
    kept = (labels["label"] != "blocked").to_numpy()
    less, of_less = (
        corpus[kept].reset_index(drop=True),
        labels[kept].reset_index(drop=True),
    )
    assert found == pytest.approx(
        tuple(
            core_wording.estimate_pair_disagreement(
                own, wording.make_phrasings(made((less, of_less))), ends(less)
            )
        ),
        nan_ok=True,
    )
    # a seed that stands alone is no pair, but others are compared with it: no, yes and
    # no; (1/3) / (5/9)
    assert found[0] == pytest.approx(3 / 5) and estimated("srla", "srlr", "sala")[
        0
    ] == pytest.approx(1 / 2)


def test_where_nothing_can_differ_there_is_no_dr():
    for clusters in (
        ["sala", "sala"],
        ["srlr", "srlr"],
        ["sr", "la"],
        ["sblb", "sblb"],
        ["srla"],
    ):
        found = estimated(*clusters)
        assert np.isnan(found).all() and np.isnan(found.draws).all()
    never = estimated("srlr", "sala", "sala")
    assert never[0] == 0 and np.isnan(never[1:]).all(), (
        "no cluster is decided both ways: no spread"
    )
    corpus, labels = frames(*["saoahalagawa"] * 4)
    found = near_and_free(made((corpus, labels)), wording.find_cluster_pairs(corpus))
    assert all(np.isnan(one).all() for one in found.values()), (
        "a system that accepts all"
    )


@pytest.mark.parametrize("seed", range(3))
def test_slopes_by_difference_quotients(seed):
    corpus, labels = random_frames(seed, 14)
    system = made((corpus, labels), 2)
    ratio = core_wording.MatchedRatio(
        system.clusters, wording.make_phrasings(system), ends(corpus)
    )
    log_ratio = ratio.log_ratio
    totals, step = ratio.sums.sum(axis=0), 1e-4
    value, slopes = log_ratio(totals[None])
    shifts = np.eye(len(totals)) * step
    numeric = (log_ratio(totals + shifts)[0] - log_ratio(totals - shifts)[0]) / step / 2
    assert np.isfinite(value) and np.abs(slopes).min() < np.abs(slopes).max()
    # what no cluster has never changes
    occurs = totals > 0
    np.testing.assert_allclose(slopes[0, occurs], numeric[occurs], rtol=1e-5, atol=1e-7)


def studentized(statistic, counts):
    """Value and interval of a function of how often each cluster counts, bootstrap-t by
    difference quotients.
    """
    k, step = counts.shape[1], 1e-4

    def with_error(times):
        pulls = [
            (statistic(times + shift) - statistic(times - shift)) / step / 2
            for shift in np.eye(k) * step
        ]
        return statistic(times), np.sqrt(
            times @ np.square(pulls) - (times @ pulls) ** 2 / k
        )

    value, error = with_error(np.ones(k))
    again = np.array([with_error(times) for times in counts])
    low, high = np.percentile((again[:, 0] - value) / again[:, 1], [2.5, 97.5])
    return value, value - high * error, value - low * error


@pytest.mark.slow
def test_intervals_by_difference_quotients():
    corpus, labels = random_frames(5, 10)
    system = made((corpus, labels), 12)
    own = system.clusters
    expected = np.exp(
        studentized(
            lambda times: np.log(by_loops(corpus, labels, ends(corpus), times)),
            own.counts,
        )
    )
    assert core_wording.estimate_pair_disagreement(
        own, wording.make_phrasings(system), ends(corpus)
    ) == pytest.approx(tuple(expected), rel=1e-4)


def test_near_and_free_by_hand():
    # near-copies: seed and softening are alike in all clusters: 0. Free: lexical r, r,
    # a and register a, r, a are the seed and the lexical of `test_dr_by_hand`: 1/2
    corpus, labels = frames("srorlrga", "srorlrgr", "saoalaga")
    own = wording.find_cluster_pairs(corpus)
    found = near_and_free(made((corpus, labels)), own)
    assert (found["dr_near"][0], found["dr_free"][0]) == pytest.approx((0, 1 / 2))


def test_a_row_says_whether_few_are_refused_or_answered(monkeypatch):
    corpus, labels = random_frames(5, 10)
    own, system = wording.find_cluster_pairs(corpus), made((corpus, labels))
    found = near_and_free(system, own)
    # a prompt counts once, in however many pairs, and as the second of one too
    rarest = rarest_decisions(labels, own)
    for limit, expected in ((rarest, False), (rarest + 1, True)):
        monkeypatch.setattr(disagreement, "MIN_DECISIONS_EACH", limit)
        row = wording.wording_row(system, own)
        assert row["too_few"] is expected
        assert (row["n_near"], row["n_free"]) == (own.near.sum(), own.free.sum())
        assert (row["dr_near_low"], row["dr_free_high"]) == (
            found["dr_near"][1],
            found["dr_free"][2],
        )


def rarest_decisions(labels, own):
    """The fewest refusals or answers among the prompts of near or of free pairs."""
    rarest = []
    for mask in (own.near, own.free):
        in_a_pair = sorted({*own.first[mask], *own.second[mask]})
        label = labels["label"].to_numpy()[in_a_pair].tolist()
        rarest.append(min(label.count("reject"), label.count("accept")))
    return min(rarest)


def test_the_curve_by_hand(monkeypatch):
    corpus, labels = frames("srla", "sagr", "srwr", "saoa", "srha")
    texts = {
        "1 2 3 4 5": "1 2 3 4 5",  # 1: in the last bin
        "1 2 3": "3 4 5",  # 1/5: an edge belongs to the bin above it
        "1 2 3 4": "2 3 4 5",  # 3/5
        "1 2": "3 4",  # 0
        "1 2 3 4 5 6": "1 2 3 4 5 7",  # 5/7
    }
    corpus = corpus.assign(text=[text for pair in texts.items() for text in pair])
    own, system = wording.find_cluster_pairs(corpus), made((corpus, labels))
    curve = wording.overlap_curve(system, own)
    assert curve["overlap"].tolist() == [0, 0.2, 0.6, 0.8] and curve["n"].tolist() == [
        1,
        1,
        2,
        1,
    ]
    third = curve.iloc[2]
    assert third["dr"] == pytest.approx(
        by_loops(corpus, labels, (own.first[[2, 4]], own.second[[2, 4]]))
    )
    assert curve["too_few"].all() and set(curve["system"]) == {"t"}


def test_an_overlap_of_two_fifths_begins_a_bin():
    corpus, labels = frames("srla", "srlr", "sala")
    both = corpus.assign(text=["1 2 3", "2 3 4 5"] * 3)  # 2/5
    own = wording.find_cluster_pairs(both)
    assert own.overlap.tolist() == [0.4] * 3
    system = made((both, labels), 9)
    assert wording.overlap_curve(system, own)["overlap"].tolist() == [0.4]


def test_tables_have_a_row_a_system():
    corpus, labels = random_frames(2, 8)
    corpus = corpus.assign(text=[f"{i % 3} {i % 4}" for i in range(len(corpus))])
    swapped = labels.assign(
        label=labels["label"].map({"accept": "reject", "reject": "accept"})
    )
    groups = ClusterBootstrap(corpus["cluster_id"], 9)
    systems = [
        System("one", corpus, labels, groups),
        System("two", corpus, swapped, groups),
    ]
    table, curves = wording.wording_tables(systems)
    assert table["system"].tolist() == ["one", "two"]
    one, two = (
        own.drop(columns="system").reset_index(drop=True)
        for _, own in curves.groupby("system")
    )
    pd.testing.assert_frame_equal(one, two)
    assert one["n"].sum() == len(wording.find_cluster_pairs(corpus).first)
