"""Which charged word makes a system refuse? The exact conditional test by hand, by
enumeration and against scipy.
"""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats.contingency import odds_ratio
from worlds import systems

from paraguard_lab.analysis import triggers
from paraguard_utils.analysis.system import System

NEARLY = {"rel": 1e-4}
"""As near as scipy looks for an odds ratio."""


def test_six_pairs_by_hand():
    one = np.ones(6, int)
    ratio, low, high, p = triggers.conditional_odds_ratio(2 * one, one, one, one)
    # the exposed prompt of every pair is the refused one, and at least so is likely at
    # 2.5 % where chance^6 is
    chance = 0.025 ** (1 / 6)
    assert (
        p == pytest.approx(2 / 2**6)
        and ratio == high == np.inf
        and low == pytest.approx(chance / (1 - chance))
    )
    # never: the other way round
    ratio, low, high, p = triggers.conditional_odds_ratio(2 * one, one, one, 0 * one)
    assert (
        p == pytest.approx(2 / 2**6)
        and ratio == low == 0
        and high == pytest.approx((1 - chance) / chance)
    )


def test_discordant_pairs_by_hand():
    # of eight pairs the exposed prompt is refused in six, the other in two: 6 / 2, with
    # the ends of a share of 6 of 8
    one, both = np.ones(8, int), np.array([1, 1, 1, 0, 1, 1, 0, 1])
    ratio, low, high, p = triggers.conditional_odds_ratio(2 * one, one, one, both)
    ends = stats.binomtest(6, 8).proportion_ci()
    assert ratio == pytest.approx(3) and (low, high) == pytest.approx(
        (ends.low / (1 - ends.low), ends.high / (1 - ends.high))
    )
    # six or more of eight: 28 + 8 + 1 of 256, twice
    assert p == pytest.approx(2 * 37 / 256)
    # as many each way: every outcome is as far off
    assert triggers.conditional_odds_ratio(2 * one, one, one, np.arange(8) % 2)[3] == 1


@pytest.mark.parametrize(
    "table",
    [
        [[6, 2], [1, 7]],
        [[3, 1], [2, 4]],
        [[0, 4], [3, 3]],
        [[5, 0], [2, 6]],
        [[1, 9], [6, 4]],
    ],
)
def test_one_stratum_is_scipys(table):
    (both, exposed_only), (refused_only, neither) = table
    n, exposed, refused = (
        both + exposed_only + refused_only + neither,
        both + exposed_only,
        both + refused_only,
    )
    ratio, low, high, p = triggers.conditional_odds_ratio(
        *(np.array([count]) for count in (n, exposed, refused, both))
    )
    expected = odds_ratio(table, kind="conditional")
    ends = expected.confidence_interval(0.95)
    assert ratio == pytest.approx(expected.statistic, **NEARLY) and (
        low,
        high,
    ) == pytest.approx(tuple(ends), **NEARLY)
    null = stats.hypergeom(n, refused, exposed)
    assert p == pytest.approx(min(1, 2 * min(null.cdf(both), null.sf(both - 1))))


strata = st.lists(
    st.integers(2, 4).flatmap(
        lambda n: st.tuples(
            st.just(n), st.integers(0, n), st.integers(0, n), st.integers(0, 2**31)
        )
    ),
    min_size=1,
    max_size=5,
)


def margins(rows):
    """Turn random strata into ones that can be: the last number chooses among the
    possible counts of both.
    """
    made = []
    for n, exposed, refused, choice in rows:
        least, most = max(0, exposed + refused - n), min(exposed, refused)
        made.append((n, exposed, refused, least + choice % (most - least + 1)))
    return np.array(made).T


@settings(max_examples=40)
@given(strata)
def test_the_test_by_enumeration(rows):
    n, exposed, refused, both = margins(rows)
    # every way to deal a stratum's refusals over its prompts, of which the first are
    # the exposed ones
    ways = [
        [
            sum(one < x for one in dealt)
            for dealt in itertools.combinations(range(size), r)
        ]
        for size, x, r in zip(n, exposed, refused, strict=True)
    ]
    totals = np.array([sum(dealt) for dealt in itertools.product(*ways)])
    observed = both.sum()
    ratio, low, high, p = triggers.conditional_odds_ratio(n, exposed, refused, both)
    assert p == pytest.approx(
        min(1, 2 * min((totals <= observed).mean(), (totals >= observed).mean()))
    )
    if len(set(totals)) == 1:
        assert p == 1 and np.isnan([ratio, low, high]).all()
        return

    def weighted(odds, of):
        return np.average(of, weights=odds ** (totals - totals.min()).astype(float))

    assert low <= ratio <= high
    if 0 < ratio < np.inf:  # then as many are both as are expected
        assert weighted(ratio, totals) == pytest.approx(observed)
    else:
        assert observed == (totals.min() if ratio == 0 else totals.max())
    for end, tail in ((low, totals >= observed), (high, totals <= observed)):
        if 0 < end < np.inf:
            assert weighted(end, tail) == pytest.approx(0.025)


@settings(max_examples=30)
@given(strata)
def test_what_is_not_exposed_has_the_opposite_effect(rows):
    n, exposed, refused, both = margins(rows)
    ratio, low, high, p = triggers.conditional_odds_ratio(n, exposed, refused, both)
    found = triggers.conditional_odds_ratio(n, n - exposed, refused, refused - both)
    assert found[3] == pytest.approx(p)
    with np.errstate(divide="ignore"):
        expected = 1 / np.array([ratio, high, low])
    assert found[:3] == pytest.approx(tuple(expected), **NEARLY, nan_ok=True)
    # strata with one possible outcome change nothing
    more = np.hstack([[n, exposed, refused, both], [[3, 2], [3, 1], [1, 2], [1, 1]]])
    assert triggers.conditional_odds_ratio(*more) == pytest.approx(
        (ratio, low, high, p), nan_ok=True
    )


def test_nothing_at_all_is_no_effect():
    ratio, low, high, p = triggers.conditional_odds_ratio(*[np.array([], int)] * 4)
    assert np.isnan([ratio, low, high]).all() and p == 1


# From a corpus


STRATEGIES = {"s": "seed", "o": "softening", "h": "hardening", "l": "lexical"}
LABELS = {"a": "accept", "r": "reject", "b": "blocked"}


def frames(*clusters):
    """Corpus, labels and exposure: a word is a cluster, three letters a prompt:
    strategy, decision, x where exposed.
    """
    rows = [
        (f"c{i:02d}", STRATEGIES[word[at]], LABELS[word[at + 1]], word[at + 2] == "x")
        for i, word in enumerate(clusters)
        for at in range(0, len(word), 3)
    ]
    made = pd.DataFrame(rows, columns=["cluster_id", "strategy", "label", "exposed"])
    return made[["cluster_id", "strategy"]], made[["label"]], made["exposed"].to_numpy()


def test_what_can_be_tested_by_hand(monkeypatch):
    monkeypatch.setattr(triggers, "MIN_VARIED_CLUSTERS", 2)
    corpus, _, _ = frames(*["sa-ha-la-"] * 3)
    # rows of three prompts a cluster: seed, hardening and a free rewording
    terms = {
        "twice": [1, 0, 0, 0, 1, 0, 0, 0, 0],
        "once": [0, 0, 0, 0, 0, 0, 1, 0, 0],
        "always": [1, 1, 0] * 3,
        "free": [0, 0, 1] * 3,
    }
    terms = {name: np.array(one, bool) for name, one in terms.items()}
    families = {
        "twice": "violence",
        "once": "violence",
        "always": "drugs",
        "free": "drugs",
        "unseen": "empty",
    }
    found = triggers.find_exposures(corpus, terms, families)
    # once varies in one cluster only, always and free in none; the family drugs is
    # always there
    assert {name: kind for name, (kind, _) in found.items()} == {
        "twice": "term",
        "violence": "family",
    }
    assert found["violence"][1].tolist() == [
        True,
        False,
        False,
        False,
        True,
        False,
        True,
        False,
        False,
    ]
    monkeypatch.setattr(triggers, "MIN_VARIED_CLUSTERS", 3)
    assert list(triggers.find_exposures(corpus, terms, families)) == ["violence"]


@pytest.mark.slow
def test_a_table_by_hand():
    # eight clusters of an exposed seed and another: six refuse the exposed one, one the
    # other, one both.
    clusters = ["srxoa-"] * 6 + ["saxor-", "srxor-"]
    # free rewordings, unscored prompts and a cluster in which all are exposed do not
    # count
    corpus, labels, exposed = frames(*(word + "laxhb-" for word in clusters), "srxoax")
    none = ("family", np.zeros(len(exposed), bool))
    tested = {"word": ("term", exposed), "none": none}
    table = triggers.trigger_table(System.of("m--safety", corpus, labels), tested)
    assert table["term"].tolist() == ["word", "none"] and table["kind"].tolist() == [
        "term",
        "family",
    ]
    row = table.iloc[0]
    # seven clusters have both decisions; of these six against one
    assert row["n_clusters"] == 7 and row["odds_ratio"] == pytest.approx(6)
    # six of seven or more: 7 + 1 of 128, twice; two rows, of which the other has a p of
    # 1
    assert row["p"] == pytest.approx(2 * 8 / 128) and row["p_holm"] == pytest.approx(
        4 * 8 / 128
    )
    # of the eight clusters with both exposures: 7 exposed ones refused, and 2 others
    assert (row["frr_exposed"], row["frr_unexposed"]) == (7 / 8, 2 / 8)
    assert (row["system"], row["instruction"], row["trigger"]) == (
        "m--safety",
        "safety",
        False,
    )
    other = table.iloc[1]
    assert (other["n_clusters"], other["p"], other["p_holm"]) == (0, 1, 1) and np.isnan(
        other["odds_ratio"]
    )
    assert table["leads"].tolist() == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(("others", "trigger"), [(5, True), (6, False)])
def test_a_trigger_stands_against_all_that_was_tested(others, trigger):
    # eight pairs, always the exposed one: 2 / 2^8 = 0.0078, which is a trigger among
    # six, 0.047, but not among seven
    corpus, labels, exposed = frames(*["srxoa-"] * 8)
    nothing = ("term", np.zeros(16, bool))
    tested = {f"other{i}": nothing for i in range(others)} | {"word": ("term", exposed)}
    row = triggers.trigger_table(System.of("m--safety", corpus, labels), tested).iloc[0]
    assert row["term"] == "word" and row["p_holm"] == pytest.approx(
        (others + 1) * 2 / 2**8
    )
    assert row["trigger"] == trigger and math.isinf(row["odds_ratio"])


@pytest.mark.slow
def test_systems_are_adjusted_on_their_own():
    corpus, labels, exposed = frames(*["srxoa-"] * 8)
    labels = {
        "m--none": labels,
        "m--safety": labels,
        "guard": labels.assign(label="accept"),
    }
    table = triggers.stack_trigger_tables(
        systems(corpus, labels), {"word": ("term", exposed)}
    )
    assert (
        table["p_holm"].tolist()
        == table["p"].tolist()
        == pytest.approx([2 / 2**8, 2 / 2**8, 1])
    )
    assert table["leads"].all() and table["instruction"].tolist()[:2] == [
        "none",
        "safety",
    ]
    assert (table["frr_exposed"] - table["frr_unexposed"]).tolist() == [1, 1, 0]
