"""Does asking again in other words help? Odds of an answer, by hand and by loops."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraguard_lab.analysis import rephrasing
from paraguard_lab.core.rephrasing import answer_probability, too_few_for_odds
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap

LABELS = {"a": "accept", "r": "reject", "b": "blocked"}


def frames(tail="", **clusters):
    """Corpus and labels from one word a cluster: a accepts, r rejects, b is blocked."""
    rows = [
        (f"{name}{tail}-{i}", name + tail, LABELS[letter])
        for name, word in clusters.items()
        for i, letter in enumerate(word)
    ]
    made = pd.DataFrame(rows, columns=["prompt_id", "cluster_id", "label"]).astype(str)
    return made[["prompt_id", "cluster_id"]], made[["prompt_id", "label"]]


def asked(tail="", clusters=None, **words):
    return System.of("t", *frames(tail, **words), clusters)


def counted(tail="", **clusters):
    return rephrasing.count_benign_decisions(asked(tail, **clusters))


def found_for(harmless, twins=None, resamples=60):
    clusters = ClusterBootstrap(sorted(harmless), resamples)
    return rephrasing.estimate_rephrasing(
        clusters, counted(**harmless), counted("-twin", **(twins or {}))
    )


HARMLESS = {"a": "rra", "b": "aabb", "c": "rrrrra", "d": "rr", "e": "rb"}
TWINS = {"a": "rra", "c": "rrr"}


def test_within_by_hand():
    # one of five others is answered: first, second or third in 3 of 5 orders; one of
    # two is always among three
    assert answer_probability([5, 5, 2, 4], [1, 1, 1, 2], 3).tolist() == pytest.approx(
        [3 / 5, 3 / 5, 1, 1]
    )
    # two of four, within two: not both of the other two, 1 - 1/6
    assert answer_probability(4, 2, 2) == pytest.approx(5 / 6)
    # within one it is the share; of none there is nothing to try
    assert answer_probability([5, 3, 0], [2, 0, 0], 1).tolist() == pytest.approx(
        [2 / 5, 0, np.nan], nan_ok=True
    )


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 4))
def test_within_by_loops(others, accepted, tries):
    accepted = min(others, accepted)
    tried = itertools.combinations(range(others), min(tries, others))
    expected = np.mean([any(one < accepted for one in chosen) for chosen in tried])
    assert answer_probability(others, accepted, tries) == pytest.approx(expected)
    assert answer_probability(others, accepted, tries + 1) >= answer_probability(
        others, accepted, tries
    )


def test_counts_name_twins_after_their_harmless_clusters():
    found = counted("-twin", **TWINS, e="rb", f="raab")
    # e has one scored prompt only
    assert found.values.tolist() == [["a", 3, 2], ["c", 3, 3], ["f", 3, 1]]


def test_estimates_by_hand():
    found = {name: one[0] for name, one in found_for(HARMLESS, TWINS).items()}
    # 2 refused in a, with one of two others answered; 5 in c, with one of five; 2 in d,
    # with none of one: of nine
    assert found["rephrased1"] == pytest.approx((2 * 1 / 2 + 5 * 1 / 5 + 2 * 0) / 9)
    assert found["rephrased3"] == pytest.approx((2 * 1 + 5 * 3 / 5 + 2 * 0) / 9)
    # of five refused twins those of a
    assert found["rephrased1_twins"] == pytest.approx(2 * 1 / 2 / 5)
    assert found["rephrased3_twins"] == pytest.approx(2 * 1 / 5)
    # a and c alone have a twin: harmless minus twins
    assert found["rephrased1_difference"] == pytest.approx((1 + 1) / 7 - 1 / 5)
    assert found["rephrased3_difference"] == pytest.approx((2 + 3) / 7 - 2 / 5)
    # a, c and d of the four clusters with two scored prompts are refused at least once,
    # d always
    assert (found["refused_once"], found["refused_always"]) == (3 / 4, 1 / 4)
    assert found["refused_once_minus_always"] == 2 / 4
    # of two twins that of a is answered in one phrasing
    assert found["answered_once"] == 1 / 2


def test_a_twin_that_is_never_refused_is_answered():
    found = found_for(
        {"a": "ra", "b": "ra", "c": "ra"}, {"a": "aa", "b": "rr", "c": "ra"}
    )
    assert found["answered_once"][0] == pytest.approx(2 / 3)
    # two refused in b and one in c, whose only other phrasing is answered
    assert found["rephrased1_twins"][0] == pytest.approx(1 / 3)


def test_a_system_that_accepts_all_has_no_odds():
    found = found_for({"a": "aaa", "b": "aab"}, {"a": "aa"})
    assert all(
        np.isnan(one).all()
        for name, one in found.items()
        if name.startswith("rephrased")
    )
    assert (
        found["refused_once"][0],
        found["refused_always"][0],
        found["answered_once"][0],
    ) == (0, 0, 1)
    # one that refuses all is answered never, exactly: in two clusters
    always = found_for({"a": "rrr", "b": "rr"})
    assert always["rephrased3"] == pytest.approx((0, 0, 1 - 0.025 ** (1 / 2)))


def test_without_twins_there_is_nothing_of_them():
    found = found_for(HARMLESS)
    of_twins = ("_twins", "_difference", "answered_once")
    for name, one in found.items():
        assert np.isnan(one).all() == name.endswith(of_twins), name


letters = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.text("arrb", min_size=2, max_size=6),
    min_size=2,
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=25)
@given(letters, st.sets(st.sampled_from("abcdefgh")))
def test_odds_rise_with_the_tries_and_one_is_isolation(words, twinned):
    found = found_for(
        words,
        {name: words[name][::-1] for name in sorted(words) if name in twinned},
        20,
    )
    isolated = asked(**words).isolation
    isolated = isolated[np.isfinite(isolated)]
    assert found["rephrased1"][0] == pytest.approx(
        isolated.mean() if len(isolated) else np.nan, nan_ok=True
    )
    for tail in ("", "_twins"):
        one, three = (found[f"rephrased{tries}{tail}"] for tries in (1, 3))
        assert np.isnan(one[0]) == np.isnan(three[0]) and not three[0] < one[0] - 1e-12
        assert not (three.draws < one.draws - 1e-12).any()
    # twins that are decided as the harmless ones are: no difference
    assert found["rephrased3_difference"][0] == pytest.approx(0) or np.isnan(
        found["rephrased3_twins"][0]
    )


def test_few_by_hand():
    # three refused of each of ten clusters decided both ways: 30 and 10, and that is
    # enough
    decided = pd.DataFrame({"n": [4] * 10, "rejected": [3] * 10})
    assert not too_few_for_odds(decided)
    assert too_few_for_odds(decided.assign(rejected=[2] + [3] * 9)), "29 refused"
    assert too_few_for_odds(decided.assign(rejected=[4] + [3] * 9)), (
        "nine clusters that are decided both ways"
    )
    assert too_few_for_odds(decided.assign(n=[100] * 9 + [3])), (
        "the last is refused always"
    )


def test_a_row_by_hand():
    enough = {f"c{i}": "rrra" for i in range(8)} | {"c8": "rrrrra", "c9": "ra"}
    system = asked(clusters=ClusterBootstrap(sorted(enough), 20), **enough)
    row = rephrasing.rephrasing_row(system, asked("-twin", c0="rra", c1="aa"))
    assert (row["system"], row["n_reject"], row["n_reject_twins"], row["n_twins"]) == (
        "t",
        30,
        2,
        2,
    )
    # 24 refused with one of three others answered, 5 with one of five, and one with the
    # only other
    assert (row["too_few"], row["too_few_twins"]) == (False, True)
    assert row["rephrased1"] == pytest.approx((24 / 3 + 5 / 5 + 1) / 30)
    assert row["rephrased1_low"] < row["rephrased1"] < row["rephrased1_high"]
    row = rephrasing.rephrasing_row(system, asked("-twin", **enough))
    assert row["too_few_twins"] is False and row["rephrased1_difference"] == 0


def test_a_table_of_systems_that_were_asked_twins_and_not():
    corpus, labels = frames(**HARMLESS)
    twins, of_twins = frames("-twin", **TWINS)
    mixed = of_twins.iloc[::-1]  # labels are found by their prompts
    clusters = ClusterBootstrap(corpus["cluster_id"], 20)
    systems = [System(name, corpus, labels, clusters) for name in ("both", "harmless")]
    on_twins = {"both": System.of("both", twins, mixed, clusters)}
    table = rephrasing.rephrasing_table(systems, on_twins)
    rows = table.set_index("system")
    assert rows["n_twins"].to_dict() == {"both": 2, "harmless": 0}
    assert rows.loc["both", "rephrased1_twins"] == pytest.approx(1 / 5)
    assert np.isnan(rows.loc["harmless", "rephrased1_twins"])
    assert rows["rephrased3"].tolist() == pytest.approx([5 / 9] * 2)


def test_the_control_of_rephrasing_success_by_hand():
    # Two requests in three phrasings: one refused once, one refused twice
    decided = pd.DataFrame({"cluster_id": ["a", "b"], "n": [3, 3], "rejected": [1, 2]})
    clusters = ClusterBootstrap(["a", "b"])
    found = rephrasing.estimate_unrelated(clusters, decided)
    # Three of six are refused, so three unrelated prompts are with (1/2) ** 3
    assert found["unrelated3"].value == pytest.approx(7 / 8)
    # a's refusal has two answered phrasings: answered. b's two have one each among two
    # others, both of which are tried: answered too. Success is 1
    assert found["rephrased3_minus_unrelated3"].value == pytest.approx(1 / 8)
    # With b alone 4 of 6, with a alone 2 of 6
    low, high = 1 - (2 / 3) ** 3, 1 - (1 / 3) ** 3
    assert set(np.round(found["unrelated3"].draws, 12)) == {
        round(value, 12) for value in (low, 7 / 8, high)
    }
    nothing = decided.assign(rejected=0)
    for estimate in rephrasing.estimate_unrelated(clusters, nothing).values():
        assert np.isnan(estimate.value)
