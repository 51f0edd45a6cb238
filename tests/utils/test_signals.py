from unittest import mock

import numpy as np
import pandas as pd
import pytest
import worlds
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paraguard_utils.analysis import signals
from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.core.signals import (
    ScoreWeights,
    drift,
    ppl_clipped,
    ppl_relative,
    prob_shifts,
)
from paraguard_utils.core.vectors import find_nearest, normalize_rows
from paraguard_utils.errors import SettingsError


def test_drift_by_hand():
    # a = (e1, e2), b = (e1): mean_i max_j cos = (1 + 0) / 2 = 0.5; mean_j max_i cos =
    # 1; 1 - (0.5 + 1) / 2 = 0.25
    a, b = np.eye(2), np.array([[1.0, 0.0]])
    assert drift(a, b) == pytest.approx(0.25)
    assert drift(b, a) == pytest.approx(0.25)


def test_drift_of_opposite_vectors_is_clipped_to_one():
    # cos = -1 both ways: 1 - (-1) = 2, clipped to 1
    assert drift(np.array([[1.0, 0.0]]), np.array([[-1.0, 0.0]])) == 1.0


def prob_shift(ids_a, probs_a, tail_a, ids_b, probs_b, tail_b):
    """The package's ProbShift between two distributions."""
    with np.errstate(divide="ignore"):
        logprobs = [np.log(probs_a), np.log(probs_b)]
    return prob_shifts(
        [ids_a, ids_b],
        logprobs,
        np.array([tail_a, tail_b]),
        np.array([0]),
        np.array([1]),
    )[0]


def test_prob_shift_by_hand():
    # shared token 7: |0.5 - 0.3| = 0.2; only in a (8): 0.3; only in b (9): 0.4; tails
    # |0.2 - 0.3| = 0.1 half of 0.2 + 0.3 + 0.4 + 0.1 = 0.5
    value = prob_shift(
        np.array([7, 8]),
        np.array([0.5, 0.3]),
        0.2,
        np.array([9, 7]),
        np.array([0.4, 0.3]),
        0.3,
    )
    assert value == pytest.approx(0.5)


def test_prob_shift_of_disjoint_certain_answers_is_one():
    assert (
        prob_shift(
            np.array([1]), np.array([1.0]), 0.0, np.array([2]), np.array([1.0]), 0.0
        )
        == 1.0
    )


@given(hnp.arrays(np.float64, (2, 12), elements=st.floats(0.01, 1)), st.integers(3, 9))
def test_prob_shift_keeps_its_stated_bound(weights, top):
    full = weights / weights.sum(axis=1, keepdims=True)
    kept = [np.argsort(-row, kind="stable")[:top] for row in full]
    tails = [1 - row[ids].sum() for row, ids in zip(full, kept, strict=True)]
    value = prob_shift(
        kept[0], full[0][kept[0]], tails[0], kept[1], full[1][kept[1]], tails[1]
    )
    truth = np.abs(full[0] - full[1]).sum() / 2
    assert abs(value - truth) <= max(tails) + 1e-12


def test_perplexity_by_hand():
    # only the user's tokens count: exp((ln 2 + ln 8) / 2) = exp(ln 4) = 4
    traces = pd.DataFrame(
        {
            "token_nll": [np.array([np.nan, np.log(2), np.log(8), np.nan])],
            "user_start": [1],
            "user_end": [3],
        }
    )
    assert signals.trace_perplexity(traces)[0] == pytest.approx(4.0)


def test_ppl_contrasts_by_hand():
    # relative: 1 - 10 / 40 = 0.75; clipped: min(1, 0.4) = 0.4 and min(1, 30) = 1
    assert ppl_relative(10.0, 40.0) == pytest.approx(0.75)
    assert ppl_clipped(10.0, 10.4) == pytest.approx(0.4)
    assert ppl_clipped(10.0, 40.0) == 1.0


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_ppl_contrasts_are_symmetric_and_in_the_unit_interval(a, b):
    for contrast in (ppl_relative, ppl_clipped):
        assert 0 <= contrast(a, b) <= 1
        assert contrast(a, b) == contrast(b, a)
        assert contrast(a, a) == 0


@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(1, 6), st.just(4)), elements=st.floats(0.1, 5)
    )
)
def test_drift_of_a_text_with_itself_is_zero(vectors):
    assert drift(normalize_rows(vectors), normalize_rows(vectors)) == pytest.approx(
        0, abs=1e-12
    )


def test_score_by_hand():
    # 0.4 * 0.5 + 0.1 * 1 + 0.5 * 0.2 = 0.4; with the clipped contrast 0.4 * 0.5 + 0.1 +
    # 0.5 * 0.8 = 0.7
    frame = pd.DataFrame(
        {
            "drift": [0.5],
            "prob_shift": [1.0],
            "ppl_relative": [0.2],
            "ppl_clipped": [0.8],
        }
    )
    assert signals.score_pairs(frame)[0] == pytest.approx(0.4)
    assert signals.score_pairs(frame, interpretation="clipped")[0] == pytest.approx(0.7)


def test_weights_must_sum_to_one():
    with pytest.raises(SettingsError, match="sum to 1"):
        ScoreWeights(0.5, 0.5, 0.5)


def test_nearest_breaks_ties_by_prompt_id():
    vectors = np.array([[1, 0], [0, 1], [0, 1], [0, 1]], float)
    ids = np.array(["r", "c", "a", "b"])
    found = find_nearest(vectors, ids, np.array([0]), np.array([1, 2, 3]), k=2)
    assert ids[found["neighbour"]].tolist() == ["a", "b"]
    assert found["rank"].tolist() == [1, 2]


@pytest.mark.slow
@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(8, 60), st.just(5)), elements=st.floats(-1, 1)
    ).filter(lambda v: (np.linalg.norm(v, axis=1) > 0.1).all()),
    st.integers(1, 6),
)
def test_nearest_agrees_with_brute_force(vectors, k):
    ids = np.array([f"p{i:03d}" for i in range(len(vectors))])
    centres, pool = np.arange(len(vectors)), np.arange(0, len(vectors), 2)
    found = find_nearest(vectors, ids, centres, pool, k)
    units = normalize_rows(vectors)
    for centre in centres:
        others = [j for j in pool if j != centre]
        cosines = {
            j: float(np.einsum("i,i->", units[centre], units[j])) for j in others
        }
        best = sorted(others, key=lambda j: (-round(cosines[j], 12), ids[j]))[:k]
        own = found[found["centre"] == centre]
        assert own["similarity"].to_numpy() == pytest.approx(
            [cosines[j] for j in best], abs=1e-9
        )
        if len({round(value, 9) for value in cosines.values()}) == len(cosines):
            assert own["neighbour"].tolist() == best


@pytest.mark.parametrize("pool", [[], [0]])
def test_nearest_finds_nothing_in_a_pool_without_others(pool):
    found = find_nearest(
        np.eye(2), np.array(["a", "b"]), np.array([0]), np.array(pool, int), k=2
    )
    assert found.empty
    assert found.columns.tolist() == ["centre", "neighbour", "similarity", "rank"]


def asked(prompts, seed):
    """Traces and tokens of prompts given by their own words' ids and the first tokens
    their answers may begin with.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for words, first in prompts:
        *top, tail = rng.dirichlet(np.ones(len(first) + 1))
        rows.append(
            {
                "token_ids": np.array(
                    [99, *words, 99], np.int32
                ),  # a template's tokens have no vector here
                "token_nll": rng.uniform(0, 5, len(words) + 2).astype(np.float32),
                "user_start": 1,
                "user_end": len(words) + 1,
                "next_ids": np.array(first, np.int32),
                "next_logprobs": np.log(np.array(top)).astype(np.float32),
                "tail_mass": tail,
            }
        )
    ids = rng.permutation(10)
    vectors = list(rng.normal(size=(10, 3)).astype(np.float16))
    return pd.DataFrame(rows), pd.DataFrame(
        {"token_id": ids, "text": ids.astype(str), "embedding": vectors}
    )


def total_variation(first, second):
    """Half the sum of differences over all tokens and the two tails, in plain loops."""
    (ids_a, probs_a, tail_a), (ids_b, probs_b, tail_b) = first, second
    a, b = (
        dict(zip(ids_a, probs_a, strict=True)),
        dict(zip(ids_b, probs_b, strict=True)),
    )
    shared = sum(abs(a.get(token, 0.0) - b.get(token, 0.0)) for token in {*a, *b})
    return min(1.0, (shared + abs(tail_a - tail_b)) / 2)


def one_by_one(traces, tokens, a, b):
    """The signals of each pair from the definitions, in plain loops."""
    vector = {
        row.token_id: normalize_rows(row.embedding[None])[0]
        for row in tokens.itertuples()
    }
    found = []
    for i, j in zip(a, b, strict=True):
        ends = [traces.loc[i], traces.loc[j]]
        own = [
            np.stack([vector[token] for token in end["token_ids"][1:-1]])
            for end in ends
        ]
        first = [
            (
                end["next_ids"],
                np.exp(end["next_logprobs"].astype(float)),
                end["tail_mass"],
            )
            for end in ends
        ]
        ppl = [np.exp(end["token_nll"][1:-1].astype(float).mean()) for end in ends]
        contrasts = ppl_relative(*ppl), ppl_clipped(*ppl)
        found.append((drift(*own), total_variation(*first), *contrasts))
    return np.array(found).reshape(-1, 4)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 9), min_size=1, max_size=5),
            st.lists(st.integers(0, 9), max_size=4, unique=True),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 1000),
    st.integers(1, 8),
)
@example([([0], [])], 0, 1)  # one token, nothing known about the answer but its tail
@example(
    [([0], [1, 2]), ([0], [2, 1])], 0, 1
)  # the same word and the same first tokens
@example([([0, 1], [1, 2]), ([2], [3, 4])], 0, 1)  # nothing in common
def test_signals_of_many_pairs_are_those_of_each_pair(prompts, seed, batch):
    traces, tokens = asked(prompts, seed)
    a, b = np.divmod(np.arange(len(prompts) ** 2), len(prompts))
    with mock.patch("paraguard_utils.core.vectors.BLOCK_ROWS", batch):
        found = signals.compute_signals(traces, DriftCache(tokens), a, b)
    np.testing.assert_allclose(
        found.to_numpy(), one_by_one(traces, tokens, a, b), rtol=0, atol=1e-12
    )
    assert found["prob_shift"][a == b].eq(0).all()


@pytest.mark.parametrize("m", [0, 1])
def test_signals_of_one_pair_and_of_none(m):
    traces, tokens = asked([([0, 1], [1, 2]), ([1], [2, 3])], seed=1)
    a, b = np.array([1])[:m], np.array([0])[:m]
    found = signals.compute_signals(traces, DriftCache(tokens), a, b)
    np.testing.assert_allclose(
        found.to_numpy(), one_by_one(traces, tokens, a, b), rtol=0, atol=1e-12
    )
    assert found.columns.tolist() == [
        "drift",
        "prob_shift",
        "ppl_relative",
        "ppl_clipped",
    ]
    assert found.dtypes.eq(float).all()


def test_a_word_without_a_vector_is_an_error():
    traces, tokens = asked([([0], [1]), ([1], [1])], seed=1)
    with pytest.raises(KeyError):
        known = tokens[tokens["token_id"] != 1]
        DriftCache(known)(traces, np.array([0]), np.array([0]))


def test_drift_is_computed_once_a_pair(monkeypatch):
    _, _, traces, _, tokens = worlds.world(["accept"] * 8, list("aabbccdd"))
    computed, plain = [], DriftCache._compare
    monkeypatch.setattr(
        DriftCache,
        "_compare",
        lambda own, a, others: computed.extend(others) or plain(own, a, others),
    )
    drifts = DriftCache(tokens)
    first = drifts(traces, np.array([0, 1, 2]), np.array([2, 3, 0]))
    again = drifts(traces, np.array([1, 4, 0]), np.array([3, 5, 2]))
    assert (
        len(computed) == 3
        and (first[[1, 0]] == again[[0, 2]]).all()
        and first[0] == first[2]
    )
    fresh = DriftCache(tokens)(traces, np.array([5, 2]), np.array([4, 0]))
    np.testing.assert_allclose(fresh, again[1:], rtol=0, atol=1e-12)
