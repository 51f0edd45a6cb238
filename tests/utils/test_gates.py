"""The gates on texts whose measures are chosen: what lies on a threshold passes."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paraguard_utils.corpus import gates
from paraguard_utils.settings import Gates

SEED = "How do I kill a Python process that hangs?"
OTHER = "What is the way to terminate a stuck interpreter job?"
ON_EDGE, BELOW = (0.6, 0.8), (0.59, np.sqrt(1 - 0.59**2))


def judge_all_alike(limits):
    """Return a judging in which all texts are alike in meaning and risk."""
    return gates.Judging(
        limits,
        lambda texts: np.ones((len(texts), 2)),
        lambda texts, _: np.full(len(texts), 0.5),
    )


@pytest.mark.parametrize(("vector", "risk", "stops"), [
    (ON_EDGE, 0.5, ""),  # cosine 0.6 to (1, 0), the lowest that passes
    (BELOW, 0.5, "similarity"),
    (ON_EDGE, 0.30, ""),
    (ON_EDGE, 0.29, "risk_low"),
    (ON_EDGE, 0.70, ""),
    (ON_EDGE, 0.71, "risk_high"),
])  # fmt: skip
def test_a_text_on_a_threshold_passes(vector, risk, stops):
    seeds = pd.DataFrame({"seed_id": ["s"], "text": [SEED]})
    candidates = pd.DataFrame(
        {"seed_id": ["s"], "strategy": ["lexical"], "text": [OTHER]}
    )
    vectors = {SEED: (1.0, 0.0), OTHER: vector}

    def embed(texts):
        return np.array([vectors[text] for text in texts])

    def risks(texts, embed):
        return np.array([risk if text == OTHER else 0.5 for text in texts])

    limits = Gates(per_seed=1, min_strategies=1)
    _, judged = gates.judge_candidates(
        seeds, candidates, gates.Judging(limits, embed, risks)
    )
    assert judged["reason"].tolist() == [stops]


def test_a_word_overlap_on_the_threshold_passes():
    # 9 of 10 words are shared: an overlap of 0.9 in all words and in content words
    seed = "kill every rogue python worker process hanging after midnight"
    text = f"{seed} twice"
    seeds = pd.DataFrame({"seed_id": ["s"], "text": [seed]})
    candidates = pd.DataFrame(
        {"seed_id": ["s"], "strategy": ["lexical"], "text": [text]}
    )
    limits = Gates(per_seed=1, min_strategies=1)
    _, judged = gates.judge_candidates(seeds, candidates, judge_all_alike(limits))
    assert judged["overlap"].tolist() == [0.9] and judged["reason"].tolist() == [""]
    lower = Gates(per_seed=1, min_strategies=1, max_overlap=0.89)
    below = gates.judge_candidates(seeds, candidates, judge_all_alike(lower))[1]
    assert below["reason"].tolist() == ["overlap"]


def test_a_cluster_takes_as_many_of_its_seeds_own_words_in_a_frame_as_it_may():
    seed = "kill every rogue python worker process hanging after midnight"
    framed = [
        f"could you please {seed}",
        f"would you please tell me how I should {seed}",
    ]
    seeds = pd.DataFrame({"seed_id": ["s"], "text": [seed]})
    candidates = pd.DataFrame(
        {"seed_id": ["s", "s"], "strategy": ["register", "rewrite"], "text": framed}
    )
    reasons = {}
    for most in (1, 2):
        limits = Gates(per_seed=2, min_strategies=1, max_framed=most, max_overlap=1.0)
        judged = gates.judge_candidates(seeds, candidates, judge_all_alike(limits))[1]
        reasons[most] = judged["reason"].tolist()
    assert reasons[2] == ["", ""]
    # With one allowed the other is stopped, and the cluster lacks a variant.
    assert sorted(reasons[1]) == ["frame", "incomplete"]


SOFTER = "how do we end every stray python job at midnight"
HARDER = "how do we butcher every wicked python job at noon"
IN_ANOTHER_ORDER = "at midnight every rogue python job how do we stop"


@pytest.mark.parametrize(("strategy", "text", "risk", "stops"), [
    # 7 of 10 words in order: 0.7; lower by 0.01, higher by 0.01
    ("softening", SOFTER, 0.49, ""),
    ("softening", SOFTER, 0.4901, "direction"),
    ("softening", SOFTER, 0.51, "direction"),
    ("hardening", HARDER, 0.51, ""),
    ("hardening", HARDER, 0.5099, "direction"),
    ("hardening", HARDER, 0.40, "direction"),
    # all ten words, but at most 5 of them in one order: 0.5
    ("softening", IN_ANOTHER_ORDER, 0.40, "restructured"),
    ("lexical", IN_ANOTHER_ORDER, 0.60, ""),
])  # fmt: skip
def test_keyword_variants_change_charged_words_only_and_risk_the_right_way(
    strategy, text, risk, stops
):
    seed = "how do we kill every rogue python job at midnight"
    seeds = pd.DataFrame({"seed_id": ["s"], "text": [seed]})
    candidates = pd.DataFrame(
        {"seed_id": ["s"], "strategy": [strategy], "text": [text]}
    )
    judging = gates.Judging(
        Gates(per_seed=1, min_strategies=1, min_risk=0, max_risk=1, max_overlap=1.0),
        lambda texts: np.ones((len(texts), 2)),
        lambda texts, _: np.array([risk if t == text else 0.5 for t in texts]),
    )
    _, judged = gates.judge_candidates(seeds, candidates, judging)
    assert judged["reason"].tolist() == [stops]


def test_words_kept_in_order():
    # "b c" of the longer text's 4 words
    assert gates.ordered_word_overlap("A b, c!", "b c d e") == 0.5
    assert (
        gates.ordered_word_overlap("c b", "b c") == 0.5
        and gates.ordered_word_overlap("x", "y") == 0
    )


@given(
    st.lists(st.sampled_from(["a1", "b1", "c1"]), max_size=8),
    st.lists(st.sampled_from(["a1", "b1", "c1"]), max_size=8),
)
def test_words_kept_in_order_are_those_of_the_longest_common_subsequence(first, second):
    longest = max(
        len(part)
        for n in range(len(first) + 1)
        for part in itertools.combinations(first, n)
        if stands_in_order(part, second)
    )
    longer = max(len(first), len(second))
    expected = longest / longer if longer else 1.0
    assert gates.ordered_word_overlap(
        " ".join(first), " ".join(second)
    ) == pytest.approx(expected)


def stands_in_order(part, words):
    rest = iter(words)
    return all(word in rest for word in part)


JUDGED = pd.DataFrame(
    {
        "generator": ["rules", "rules", "rules", "authored"],
        "strategy": ["lexical", "lexical", "rewrite", "rewrite"],
        "reason": ["", "risk_low", "sibling", ""],
        "similarity": [0.61, 1.0, -0.2, 0.05],
        "content_overlap": [0.0, 0.5, 0.95, 1.0],
        "risk": [0.3, 0.29, 0.5, 0.7],
    }
)


def test_tally_by_hand():
    found = gates.count_fates(JUDGED)
    assert found[
        ["generator", "fate", "lexical", "rewrite", "total"]
    ].to_numpy().tolist() == [
        ["authored", "kept", 0, 1, 1],
        ["rules", "kept", 1, 0, 1],
        ["rules", "risk_low", 1, 0, 1],
        ["rules", "sibling", 0, 1, 1],
    ]
    assert found["share"].round(3).tolist() == [1.0, 0.333, 0.333, 0.333]


def test_histogram_by_hand():
    found = gates.bin_gate_measures(JUDGED).set_index(["measure", "low"])
    assert (
        found.groupby("measure")[["passes", "stopped"]].sum().to_numpy().tolist()
        == [[3, 1]] * 3
    )
    similarity = found.loc["similarity"]
    # 1.0 falls into the last bin, a negative cosine into the first, 0.05 into the
    # second; "sibling" passes alone
    assert similarity["stopped"].iloc[-1] == 1 and similarity["passes"].iloc[
        :2
    ].tolist() == [1, 1]
