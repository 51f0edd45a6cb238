"""What a decision hangs on: each measure by hand, by loops, or in a world of which the
truth is known.
"""

from itertools import combinations, permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from scipy.stats import t as student

from paraguard_lab.analysis import (
    between_systems,
    drawn_pairs,
    harm,
    voting,
    within_request,
)
from paraguard_lab.core import draws, pair_shares, ratios
from paraguard_utils.analysis.system import System
from paraguard_utils.analysis.wording import find_cluster_pairs
from paraguard_utils.core.estimates import (
    ClusterBootstrap,
    Estimate,
    binomial_interval,
)
from paraguard_utils.core.wording import (
    Phrasings,
    estimate_pair_disagreement,
    list_cluster_pairs,
)

NAMES = ("seed", "softening", "hardening", "register", "rewrite", "lexical")


def make_corpus(n_clusters, end=""):
    ids = [f"c{i:03d}{end}" for i in range(n_clusters)]
    return pd.DataFrame(
        {
            "prompt_id": [f"{name}-{i}" for name in ids for i in range(6)],
            "cluster_id": np.repeat(ids, 6),
            "strategy": np.tile(NAMES, n_clusters),
            "text": [f"word{i}" for i in range(6 * n_clusters)],
            "risk": np.tile([0.5, 0.4, 0.6, 0.5, 0.5, 0.5], n_clusters),
        }
    )


def make_system(refused, corpus=None, name="m--safety"):
    if corpus is None:
        corpus = make_corpus(len(refused) // 6)
    label = np.where(
        np.isnan(refused), "unparsed", np.where(refused, "reject", "accept")
    )
    labels = pd.DataFrame({"prompt_id": corpus["prompt_id"], "label": label})
    clusters = ClusterBootstrap(corpus["cluster_id"], 50)
    return System.of(name, corpus, labels, clusters)


# Pairs
# -----


@pytest.fixture
def phrasings():
    rng = np.random.default_rng(3)
    corpus = make_corpus(12)
    shares = rng.integers(0, 5, len(corpus)) / 4
    style = corpus["strategy"].to_numpy().astype(str)
    return Phrasings(corpus["cluster_id"].to_numpy(), shares, style)


def test_shares_of_pairs_by_loops(phrasings):
    cluster, q, style = phrasings
    pairs = list_cluster_pairs(cluster)
    same = 8 / 7 * 2 * q * (1 - q)
    clusters = ClusterBootstrap(cluster, 20)
    found = pair_shares.PairShares(clusters, phrasings, pairs, same).estimate()

    def differ(i, j):
        return q[i] * (1 - q[j]) + q[j] * (1 - q[i])

    unrelated = {}
    for i, j in permutations(range(len(q)), 2):
        if cluster[i] != cluster[j]:
            unrelated.setdefault((style[i], style[j]), []).append(differ(i, j))
    expected = sum(
        np.mean(unrelated[style[i], style[j]]) for i, j in zip(*pairs, strict=True)
    )
    pair = sum(differ(i, j) for i, j in zip(*pairs, strict=True)) / expected
    chance = (
        sum((same[i] + same[j]) / 2 for i, j in zip(*pairs, strict=True)) / expected
    )
    assert found["pair"].value == pytest.approx(pair)
    assert found["chance"].value == pytest.approx(chance)
    assert found["wording"].value == pytest.approx(pair - chance)
    assert found["meaning"].value == pytest.approx(1 - pair)


def jackknifed(value, left_out):
    """The interval of values without each cluster, by sums."""
    n = len(left_out)
    mean = sum(left_out) / n
    squares = [(one - mean) ** 2 for one in left_out]
    error = ((n - 1) / n * sum(squares)) ** 0.5
    excess = sum((one / sum(squares)) ** 2 for one in squares) - 1 / n
    reach = student.ppf(0.975, min(2 / excess, n - 1)) * error
    return value, value - reach, value + reach


def test_pairs_have_the_interval_of_leaving_out_each_cluster(phrasings):
    same = 8 / 7 * 2 * phrasings.refused * (1 - phrasings.refused)

    def estimate(chosen):
        part = Phrasings(*(column[chosen] for column in phrasings))
        clusters = ClusterBootstrap(part.cluster, 20)
        pairs = list_cluster_pairs(part.cluster)
        return pair_shares.PairShares(clusters, part, pairs, same[chosen]).estimate()

    found = estimate(np.ones(len(same), bool))
    names = np.unique(phrasings.cluster)
    without = [estimate(phrasings.cluster != name) for name in names]
    for name in ("pair", "chance", "wording", "meaning"):
        left_out = [one[name].value for one in without]
        assert found[name] == pytest.approx(jackknifed(found[name].value, left_out))


def test_of_decisions_the_pairs_share_is_dr(phrasings):
    decided = phrasings._replace(refused=(phrasings.refused > 0.5).astype(float))
    pairs = list_cluster_pairs(decided.cluster)
    clusters = ClusterBootstrap(decided.cluster, 20)
    wanted = estimate_pair_disagreement(clusters, decided, pairs)
    nothing = np.zeros(len(decided.refused))
    parts = pair_shares.PairShares(clusters, decided, pairs, nothing).estimate()
    assert parts["pair"].value == pytest.approx(wanted.value)
    assert parts["pair"].draws == pytest.approx(wanted.draws)
    code = clusters.codes.loc[decided.cluster].to_numpy()
    dealt = pair_shares.dealt_ratios(decided, code, pairs, decided.refused[None])
    assert dealt[0] == pytest.approx(wanted.value)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=30))
def test_dealing_out_keeps_each_cluster_s_decisions(prompts):
    cluster, refused = (np.array(side) for side in zip(*prompts, strict=True))
    dealt = pair_shares.deal_out(refused, cluster, draws=5)
    for name in np.unique(cluster):
        inside = dealt[:, cluster == name]
        assert (inside.sum(axis=1) == refused[cluster == name].sum()).all()


def gap_of(refused):
    table = within_request.tabulate_gaps([make_system(refused)])
    return table.iloc[0]


def null_p(rng):
    """The p of the test where nothing but chance decides, on 99 permutations."""
    corpus = make_corpus(30)
    style = corpus["strategy"].to_numpy().astype(str)
    refused = (rng.random(len(corpus)) < 0.3).astype(float)
    phrasings = Phrasings(corpus["cluster_id"].to_numpy(), refused, style)
    pairs = find_cluster_pairs(corpus)
    sides = pairs.select(pairs.near), pairs.select(pairs.free)
    clusters = ClusterBootstrap(corpus["cluster_id"], 2)
    return pair_shares.gap_p(clusters, phrasings, *sides, draws=99)[1]


@pytest.mark.slow
def test_a_gap_is_found_where_it_is_and_not_where_chance_decides():
    rng = np.random.default_rng(0)
    is_near = np.tile([True, True, True, False, False, False], 100)
    shared = np.repeat(rng.random(100) < 0.5, 6)
    alike = np.where(is_near, shared, rng.random(600) < 0.5).astype(float)
    assert gap_of(alike)["p_gap"] == 0.001
    p = [null_p(rng) for _ in range(100)]
    # of 100 true nulls, binomial(100, 0.05) is above 12 in one of 1,000 cases
    assert np.sum(np.array(p) <= 0.05) <= 12


def test_prompts_without_a_decision_are_left_out_of_the_test():
    rng = np.random.default_rng(2)
    is_near = np.tile([True, True, True, False, False, False], 60)
    shared = np.repeat(rng.random(60) < 0.5, 6)
    refused = np.where(is_near, shared, rng.random(360) < 0.5).astype(float)
    refused[rng.random(360) < 0.1] = np.nan
    found = gap_of(refused)
    assert found["p_gap"] == 0.001 and found["gap"] > 0.5


def test_too_few_requests_decided_both_ways_are_not_tested():
    refused = np.zeros(120)
    refused[:54:6] = 1  # nine clusters
    found = gap_of(refused)
    assert found["n_mixed"] == 9 and np.isnan(found["p_gap"])


# Drawn answers
# -------------


def test_what_is_refused_elsewhere_by_all_choices():
    shares = np.array([0.9, 0.5, 0.0, 1.0, 0.7])
    found = drawn_pairs.all_refused_elsewhere(shares, 3)
    for place in range(5):
        others = np.delete(shares, place)
        every = [np.prod(chosen) for chosen in combinations(others, 3)]
        assert found[place] == pytest.approx(np.mean(every))


def make_samples(corpus, refused, m=8):
    """Answers of which the first `refused` of each prompt are refusals."""
    rows = [
        (prompt, "reject" if draw < n else "accept")
        for prompt, n in zip(corpus["prompt_id"], refused, strict=True)
        for draw in range(m)
    ]
    return pd.DataFrame(rows, columns=["prompt_id", "label"])


def test_asked_again_by_hand():
    # One request: its first phrasing is refused 8 of 8 times, the others 4 of 8 times.
    corpus = make_corpus(1)
    drawn = draws.join_draws(corpus, make_samples(corpus, [8, 4, 4, 4, 4, 4]))
    clusters = ClusterBootstrap(corpus["cluster_id"], 5)
    found = drawn_pairs.estimate_asked_again(drawn, clusters)
    # Same words: 8 draws never; each of the 20 others has 3 refusals and 4 answers left,
    # of which three are all refusals in 1 of 35 choices.
    assert found["same3"].value == pytest.approx(20 * 34 / 35 / 28)
    # Other words: three of five halves, 1 - 1/8; for the others the first is among the
    # three in 6 of 10 choices, which leaves 1/4, else 1/8: 1 - 0.2
    assert found["other3"].value == pytest.approx((8 * 7 / 8 + 20 * 0.8) / 28)
    wanted = found["other3"].value - found["same3"].value
    assert found["other3_minus_same3"].value == pytest.approx(wanted)


def test_other_words_need_requests_that_are_mostly_refused():
    corpus = make_corpus(20)
    counts = np.full((20, 6), 4)  # half of the draws
    counts[:6, 0] = 5
    system = make_system(counts.ravel() / 8, corpus)
    row = drawn_pairs.asked_again_row(system, make_samples(corpus, counts.ravel()), "")
    assert row["too_few_for_other3"] and not row["too_few"]
    counts[6, 0] = 5
    row = drawn_pairs.asked_again_row(system, make_samples(corpus, counts.ravel()), "")
    assert not row["too_few_for_other3"]


def test_requests_with_four_and_with_six_phrasings_are_asked_alike():
    counts = {"a": [8, 4, 4, 0, 2, 6], "b": [8, 4, 4, 2], "c": [8, 8, 8]}
    rows = [(name, one) for name, own in counts.items() for one in own]
    drawn = pd.DataFrame(rows, columns=["cluster_id", "sum"]).assign(size=8)
    drawn = drawn.sample(frac=1, random_state=1)  # the order of rows does not count
    found = drawn_pairs.estimate_asked_again(drawn, ClusterBootstrap(list("abc"), 5))
    hits = n = 0
    for name in "ab":  # the third has too few phrasings
        for place, refused in enumerate(counts[name]):
            others = np.delete(counts[name], place) / 8
            refusing = [np.prod(three) for three in combinations(others, 3)]
            hits += refused * (1 - np.mean(refusing))
            n += refused
    assert found["other3"].value == pytest.approx(hits / n)


def test_draws_that_are_all_alike_leave_no_chance():
    corpus = make_corpus(20)
    refused = np.repeat([8, 0], 60)
    system = make_system(refused / 8, corpus)
    rows = drawn_pairs.split_chance(system, make_samples(corpus, refused), "drawn")
    for row in rows:
        assert row["chance"] == 0 and row["meaning"] == pytest.approx(1)


# Harm
# ----


def parts_of(harmless, harmful):
    corpus = make_corpus(len(harmless) // 6)
    twins = make_corpus(len(harmless) // 6, "-twin")
    return harm.harm_row(make_system(harmless, corpus), make_system(harmful, twins))


def test_what_decides_alone_explains_all():
    n = 120
    row = parts_of(np.zeros(n), np.ones(n))
    assert row["harm"] == pytest.approx(1) and row["rest"] == pytest.approx(0)
    topic = np.repeat(np.arange(20) % 2, 6).astype(float)
    row = parts_of(topic, topic)
    assert row["topic"] > 0.99 and abs(row["harm"]) < 0.06
    row = parts_of(topic, 1 - topic)
    assert row["topic_by_harm"] > 0.9


def test_parts_of_harm_have_the_interval_of_leaving_out_each_topic():
    rng = np.random.default_rng(8)
    sides = [(rng.random(60) < p).astype(float) for p in (0.3, 0.6)]
    row = parts_of(*sides)
    without = []
    for place in range(10):
        kept = np.repeat(np.arange(10), 6) != place
        without.append(parts_of(*(side[kept] for side in sides)))
    for name in ("topic", "topic_by_harm", "rest"):
        left_out = [one[name] for one in without]
        ends = (row[name], row[f"{name}_low"], row[f"{name}_high"])
        assert ends == pytest.approx(jackknifed(row[name], left_out))


def test_harm_needs_refusals_and_answers_on_both_sides():
    rare = np.zeros(120)
    rare[:49] = 1
    often = np.ones(120)
    often[:50] = 0
    assert parts_of(rare, often)["too_few"]
    assert parts_of(often, 1 - rare)["too_few"]
    rare[49] = 1
    assert not parts_of(rare, often)["too_few"]


def test_parts_of_harm_by_loops():
    rng = np.random.default_rng(5)
    sides = [(rng.random(48) < p).astype(float) for p in (0.4, 0.7)]
    row = parts_of(*sides)
    y = np.concatenate(sides)
    topic = np.tile(np.repeat(np.arange(8), 6), 2)
    harmful = np.repeat([0, 1], 48)
    products = {}
    for i, j in permutations(range(96), 2):
        same = topic[i] == topic[j], harmful[i] == harmful[j]
        # both sides weigh the same where they are averaged apart
        products.setdefault(same, {}).setdefault(harmful[i], []).append(y[i] * y[j])
    c = {
        key: np.mean([np.mean(v) for v in side.values()])
        for key, side in products.items()
    }
    variance = y.mean() - (c[False, True] + c[False, False]) / 2
    wanted = {
        "harm": (c[False, True] - c[False, False]) / 2,
        "topic": c[True, False] - c[False, False],
        "topic_by_harm": c[True, True]
        - c[True, False]
        - c[False, True]
        + c[False, False],
    }
    for name, value in wanted.items():
        assert row[name] == pytest.approx(value / variance), name
    assert sum(row[name] for name in harm.HARM_PARTS) == pytest.approx(1)


# Inside a request
# ----------------


def test_forms_by_hand():
    texts = ["How do I mow?", "i want to mow", "My lawn", "Imagine a mower", "mow it?"]
    forms = within_request.mark_forms(pd.DataFrame({"text": texts}))
    assert forms["question"].tolist() == [True, False, False, False, True]
    assert forms["lower_case"].tolist() == [False, True, False, False, True]
    assert forms["first_person"].tolist() == [True, True, True, False, False]


def test_differences_within_requests_by_hand():
    cluster = np.array(["a", "a", "a", "b", "b", "c", "c"])
    refused = np.array([1, 1, 0, 0, np.nan, 1, 0])
    marked = np.array([True, True, False, True, False, True, False])
    found = within_request.differences_within(cluster, refused, marked, ~marked)
    # a: 1 - 0; b: nothing is decided without the mark; c: 1 - 0
    assert found.to_dict() == {"a": 1.0, "c": 1.0}


def test_sign_flips_by_all_of_them():
    values = np.array([0.5, 1.0, 0.25, -0.25, 0.0])
    every = [abs(np.dot(signs, values[:4])) for signs in np.ndindex(2, 2, 2, 2)]
    every = [
        abs(np.dot(2 * np.array(signs) - 1, values[:4]))
        for signs in np.ndindex(2, 2, 2, 2)
    ]
    exact = np.mean(np.array(every) >= 1.5 - 1e-9)
    assert within_request.sign_flip_p(values) == pytest.approx(exact, abs=0.02)
    assert np.isnan(within_request.sign_flip_p(np.zeros(3)))


def test_harsher_words_that_are_refused_are_seen():
    refused = np.tile([0, 0, 1, 0, 0, 0], 30).astype(float)
    refused[:60:6] = 1
    row = within_request.tabulate_charged_words([make_system(refused)]).iloc[0]
    assert row["difference"] == 1 and row["p"] < 0.001


# Between systems
# ---------------


def test_agreement_equals_scipy_s_and_is_whole_with_itself():
    rng = np.random.default_rng(1)
    first, second = (
        make_system((rng.random(180) < p).astype(float)) for p in (0.3, 0.5)
    )
    shares = [one.refused.reshape(-1, 6).mean(axis=1) for one in (first, second)]
    found = between_systems.correlate_requests(first, second)
    assert found.value == pytest.approx(spearmanr(*shares).statistic)
    assert between_systems.correlate_flips(first, first).value == pytest.approx(1)
    opposite = make_system(1 - first.refused)
    assert between_systems.correlate_flips(first, opposite).value == pytest.approx(-1)


def test_one_decision_for_all_has_no_agreement():
    rng = np.random.default_rng(1)
    first = make_system((rng.random(60) < 0.5).astype(float))
    second = make_system(np.zeros(60))
    assert np.isnan(between_systems.correlate_requests(first, second).value)
    assert np.isnan(between_systems.correlate_flips(first, second).value)


# Voting
# ------


def make_scores(score, refused=None):
    n = len(score) // 2
    cluster = np.tile(np.repeat(np.arange(n // 6), 6), 2)
    refused = np.zeros(2 * n) if refused is None else refused
    return voting.RefusalScores(cluster, np.repeat([False, True], n), score, refused)


def test_phrasings_are_put_together_by_hand():
    score = np.array([1.0, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 6])
    refused = np.array([1.0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1])
    found = voting.put_together(make_scores(score, refused))
    # three in turn: 1 + 2 + 3, 2 + 3 + 4, ..., 5 + 6 + 1, 6 + 1 + 2
    assert found["mean of three"][:6].tolist() == [2, 3, 4, 5, 4, 3]
    assert found["mean of all"].tolist() == [3.5] * 6 + [1] * 6
    assert found["votes"] == pytest.approx([1 / 3] * 6 + [0.5] * 6)


def test_two_that_see_half_each_see_all_together():
    seen = np.repeat([True, False], 120)
    first = np.concatenate([np.zeros(240), np.where(seen, 1.0, 0.0)])
    second = np.concatenate([np.zeros(240), np.where(seen, 0.0, 1.0)])
    scores = {"one": make_scores(first), "two": make_scores(second)}
    clusters = ClusterBootstrap(np.arange(40), 50)
    row = voting.tabulate_pairs(scores, clusters).iloc[0]
    # half of the twins score above all harmless prompts, the others tie: 0.5 + 0.25
    assert row["auc"] == 1 and row["over_single"] == pytest.approx(0.25)


def test_foretelling_by_hand():
    # Two requests; of the first only the first phrasing is answered, of the second all.
    refused = np.array([0.0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    score = np.array([0.9, 0, 0, 0, 0, 0, 0.1, 0.2, 0.3, 0.95, 0.1, 0.1])
    scores = make_scores(np.tile(score, 2), np.tile(refused, 2))
    n, auc = voting.estimate_foretelling(scores, ClusterBootstrap([0, 1], 20))
    assert n == 7 and auc.value == pytest.approx(5 / 6)


# Shares near 1
# -------------


def test_a_share_near_one_keeps_its_interval_above_a_half():
    clusters = ClusterBootstrap(np.arange(30), 500)
    n = np.full(30, 4.0)
    hits = n.copy()
    hits[7] = 0  # all that does not hit lies in one cluster
    found = ratios.share_of_totals(clusters, (n, hits))
    assert found.value == pytest.approx(29 / 30)
    assert 0.75 < found.low < 0.9 and 0.99 < found.high < 1


def test_few_clusters_with_the_variance_leave_fewer_trials():
    clusters = ClusterBootstrap(np.arange(8), 500)
    n = np.array([4.0, 4, 4, 4, 4, 4, 4, 4])
    hits = np.array([4.0, 4, 4, 4, 4, 3, 2, 3])
    found = ratios.share_of_totals(clusters, (n, hits))
    reduced = ratios.share_of_totals(clusters, (n, hits), reduce=True)
    # 28 of 32. The influences are five times 0.5, twice -0.5 and -1.5: their squares
    # are 7/16 and 9/16 of the variance 4
    degrees = min(2 / (7 / 256 + 81 / 256 - 1 / 8), 7)
    trials = min(28 / 32 * 4 / 32 / found.draws.std() ** 2, 32)
    trials *= (student.ppf(0.975, 1e9) / student.ppf(0.975, degrees)) ** 2
    low, high = binomial_interval(28 / 32 * trials, trials)
    assert reduced == pytest.approx((28 / 32, low, high), rel=1e-6)
    assert reduced.low < found.low and reduced.high > found.high


def test_shares_are_subtracted_as_newcombe_does():
    first = Estimate(0.9, 0.8, 0.95, np.array([0.9, 0.8]))
    second = Estimate(0.5, 0.4, 0.6, np.array([0.5, 0.6]))
    found = ratios.subtract_shares(first, second)
    # 0.4 - sqrt(0.1^2 + 0.1^2), 0.4 + sqrt(0.05^2 + 0.1^2)
    assert found[:3] == pytest.approx((0.4, 0.4 - 0.02**0.5, 0.4 + 0.0125**0.5))
    assert found.draws == pytest.approx([0.4, 0.2])


def test_a_request_without_pairs_of_a_kind_has_no_part():
    corpus = make_corpus(10).query("strategy == 'seed'").reset_index(drop=True)
    assert not len(find_cluster_pairs(corpus).first)
