import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paraguard_utils import signals
from paraguard_utils.encoder import unit
from paraguard_utils.errors import SettingsError


def test_drift_by_hand():
    # a = (e1, e2), b = (e1): mean_i max_j cos = (1 + 0) / 2 = 0.5; mean_j max_i cos = 1; 1 - (0.5 + 1) / 2 = 0.25
    a, b = np.eye(2), np.array([[1.0, 0.0]])
    assert signals.drift(a, b) == pytest.approx(0.25)
    assert signals.drift(b, a) == pytest.approx(0.25)


def test_drift_of_opposite_vectors_is_clipped_to_one():
    # cos = -1 both ways: 1 - (-1) = 2, clipped to 1
    assert signals.drift(np.array([[1.0, 0.0]]), np.array([[-1.0, 0.0]])) == 1.0


def test_prob_shift_by_hand():
    # shared token 7: |0.5 - 0.3| = 0.2; only in a (8): 0.3; only in b (9): 0.4; tails |0.2 - 0.3| = 0.1
    # half of 0.2 + 0.3 + 0.4 + 0.1 = 0.5
    value = signals.prob_shift(np.array([7, 8]), np.array([0.5, 0.3]), 0.2, np.array([9, 7]), np.array([0.4, 0.3]), 0.3)
    assert value == pytest.approx(0.5)


def test_prob_shift_of_disjoint_certain_answers_is_one():
    assert signals.prob_shift(np.array([1]), np.array([1.0]), 0.0, np.array([2]), np.array([1.0]), 0.0) == 1.0


@given(hnp.arrays(np.float64, (2, 12), elements=st.floats(0.01, 1)), st.integers(3, 9))
def test_prob_shift_keeps_its_stated_bound(weights, top):
    full = weights / weights.sum(axis=1, keepdims=True)
    kept = [np.argsort(-row, kind="stable")[:top] for row in full]
    tails = [1 - row[ids].sum() for row, ids in zip(full, kept, strict=True)]
    value = signals.prob_shift(kept[0], full[0][kept[0]], tails[0], kept[1], full[1][kept[1]], tails[1])
    truth = np.abs(full[0] - full[1]).sum() / 2
    assert abs(value - truth) <= max(tails) + 1e-12


def test_perplexity_by_hand():
    # only the user's tokens count: exp((ln 2 + ln 8) / 2) = exp(ln 4) = 4
    traces = pd.DataFrame(
        {"token_nll": [np.array([np.nan, np.log(2), np.log(8), np.nan])], "user_start": [1], "user_end": [3]}
    )
    assert signals.perplexity(traces)[0] == pytest.approx(4.0)


def test_ppl_contrasts_by_hand():
    # relative: 1 - 10 / 40 = 0.75; clipped: min(1, 0.4) = 0.4 and min(1, 30) = 1
    assert signals.ppl_relative(10.0, 40.0) == pytest.approx(0.75)
    assert signals.ppl_clipped(10.0, 10.4) == pytest.approx(0.4)
    assert signals.ppl_clipped(10.0, 40.0) == 1.0


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_ppl_contrasts_are_symmetric_and_in_the_unit_interval(a, b):
    for contrast in (signals.ppl_relative, signals.ppl_clipped):
        assert 0 <= contrast(a, b) <= 1
        assert contrast(a, b) == contrast(b, a)
        assert contrast(a, a) == 0


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.just(4)), elements=st.floats(0.1, 5)))
def test_drift_of_a_text_with_itself_is_zero(vectors):
    assert signals.drift(unit(vectors), unit(vectors)) == pytest.approx(0, abs=1e-12)


def test_score_by_hand():
    # 0.4 * 0.5 + 0.1 * 1 + 0.5 * 0.2 = 0.4; with the clipped contrast 0.4 * 0.5 + 0.1 + 0.5 * 0.8 = 0.7
    frame = pd.DataFrame({"drift": [0.5], "prob_shift": [1.0], "ppl_relative": [0.2], "ppl_clipped": [0.8]})
    assert signals.score(frame)[0] == pytest.approx(0.4)
    assert signals.score(frame, reading="clipped")[0] == pytest.approx(0.7)
    # without ProbShift: (0.4 * 0.5 + 0.5 * 0.2) / 0.9 = 1 / 3
    assert signals.score(frame, signals.PAPER_WEIGHTS.without_prob_shift())[0] == pytest.approx(1 / 3)


def test_weights_must_sum_to_one():
    with pytest.raises(SettingsError, match="sum to 1"):
        signals.Weights(0.5, 0.5, 0.5)


def test_nearest_breaks_ties_by_prompt_id():
    vectors = np.array([[1, 0], [0, 1], [0, 1], [0, 1]], float)
    ids = np.array(["r", "c", "a", "b"])
    found = signals.nearest(vectors, ids, np.array([0]), np.array([1, 2, 3]), k=2)
    assert ids[found["neighbour"]].tolist() == ["a", "b"]
    assert found["rank"].tolist() == [1, 2]


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(8, 60), st.just(5)), elements=st.floats(-1, 1)).filter(
        lambda v: (np.linalg.norm(v, axis=1) > 0.1).all()
    ),
    st.integers(1, 6),
)
def test_nearest_agrees_with_brute_force(vectors, k):
    ids = np.array([f"p{i:03d}" for i in range(len(vectors))])
    centres, pool = np.arange(len(vectors)), np.arange(0, len(vectors), 2)
    found = signals.nearest(vectors, ids, centres, pool, k)
    units = unit(vectors)
    for centre in centres:
        others = [j for j in pool if j != centre]
        cosines = {j: float(np.einsum("i,i->", units[centre], units[j])) for j in others}
        best = sorted(others, key=lambda j: (-round(cosines[j], 12), ids[j]))[:k]
        own = found[found["centre"] == centre]
        assert own["similarity"].to_numpy() == pytest.approx([cosines[j] for j in best], abs=1e-9)
        if len({round(value, 9) for value in cosines.values()}) == len(cosines):
            assert own["neighbour"].tolist() == best
