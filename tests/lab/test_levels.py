"""What a server tells: traces completed by hand, what is never lent, and recorded
systems as if less were known.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import worlds
from hypothesis import given
from hypothesis import strategies as st
from worlds import world

from paraguard_lab.analysis import predictions, proxies, surrogate
from paraguard_lab.labels import follow_ups
from paraguard_utils import settings, stores
from paraguard_utils.analysis import confusion, pipeline, signals
from paraguard_utils.core.confusion import N_NEIGHBOURS
from paraguard_utils.core.estimates import Estimate
from paraguard_utils.core.signals import PAPER_WEIGHTS, prob_shifts
from paraguard_utils.errors import DataError
from paraguard_utils.models import encoder

NOT_TOLD = {"token_ids": [], "token_nll": [], "user_start": 0, "user_end": 0}


def trace(name, *, nll=(1.0,), first=(0.5, 0.3), tail=0.2):
    """A trace whose user words have these losses and whose first token has these
    probabilities, for ids 7, 8 ...
    """
    with np.errstate(divide="ignore"):
        logprobs = np.log(np.array(first, float))
    return {
        "prompt_id": name,
        "token_ids": np.arange(len(nll) + 2),
        "token_nll": np.array([np.nan, *nll, np.nan]),
        "user_start": 1,
        "user_end": len(nll) + 1,
        "next_ids": np.arange(7, 7 + len(first)),
        "next_logprobs": logprobs,
        "tail_mass": tail,
    }


def shifts(frame, a, b):
    return prob_shifts(
        frame["next_ids"], frame["next_logprobs"], frame["tail_mass"].to_numpy(), a, b
    )


def shift(frame):
    return shifts(frame, np.array([0]), np.array([1]))[0]


OWN = pd.DataFrame(
    [trace("a", nll=[np.log(4)]), trace("b", nll=[np.log(9)], first=[0.1, 0.4, 0.3])]
)
LENT = pd.DataFrame(
    [
        trace("b", nll=[np.log(2)], first=[1.0], tail=0),
        trace("a", nll=[np.log(5)], first=[0.6]),
    ]
)
DRAWS = pd.DataFrame(
    {
        "prompt_id": list("aaaabbbbb"),
        "label": ["reject"] + ["accept"] * 3 + ["reject"] * 4 + ["unparsed"],
    }
)


def test_each_level_by_hand():
    full = surrogate.fill_from_surrogate(OWN, surrogate.LEVEL_FULL, LENT)
    assert signals.trace_perplexity(full) == pytest.approx([4, 9])
    # own: |0.5 - 0.1| + |0.3 - 0.4| + |0 - 0.3| + tails |0.2 - 0.2|, halved: 0.8 / 2
    assert shift(full) == pytest.approx(0.4)
    tokens = surrogate.fill_from_surrogate(OWN, surrogate.LEVEL_ANSWER_TOKENS, LENT)
    assert signals.trace_perplexity(tokens) == pytest.approx([5, 2]), (
        "the surrogate's, in the system's order"
    )
    assert shift(tokens) == pytest.approx(0.4)
    text = surrogate.fill_from_surrogate(OWN, surrogate.LEVEL_TEXT, LENT)
    # the surrogate's: a has 0.6 on token 7 and a tail of 0.2, b has 1 on token 7: (0.4
    # + 0.2) / 2
    assert shift(text) == pytest.approx(0.3) and signals.trace_perplexity(
        text
    ) == pytest.approx([5, 2])
    drawn = surrogate.fill_from_surrogate(OWN, surrogate.LEVEL_TEXT, LENT, DRAWS)
    # a is rejected in 1 of 4 draws, b in 4 of the 4 that can be read: |1/4 - 1|
    assert shift(drawn) == pytest.approx(0.75)
    for made in (full, tokens, text, drawn):
        assert made["prompt_id"].tolist() == ["a", "b"] and made.shape == OWN.shape


def test_fewer_tokens_by_hand():
    cut = surrogate.keep_top_tokens(OWN, 1)
    # a keeps token 7 (0.5), its tail is 0.2 + 0.3; b keeps token 8 (0.4), its tail is
    # 0.2 + 0.1 + 0.3
    assert [ids.tolist() for ids in cut["next_ids"]] == [[7], [8]]
    assert cut["tail_mass"].tolist() == pytest.approx([0.5, 0.6])
    # (0.5 + 0.4 + |0.5 - 0.6|) / 2
    assert shift(
        surrogate.fill_from_surrogate(OWN, surrogate.LEVEL_ANSWER_TOKENS, LENT, top=1)
    ) == pytest.approx(0.5)
    ties = pd.DataFrame([trace("a", first=[0.25, 0.25, 0.5], tail=0)]).assign(
        next_ids=[np.array([9, 3, 5])]
    )
    assert surrogate.keep_top_tokens(ties, 2)["next_ids"][0].tolist() == [
        5,
        3,
    ], "the smaller id of equally likely ones"
    assert (
        surrogate.keep_top_tokens(OWN, 99)["tail_mass"].tolist()
        == OWN["tail_mass"].tolist()
    )


@pytest.mark.slow
@given(
    st.lists(
        st.lists(st.floats(0.01, 1), min_size=1, max_size=8), min_size=2, max_size=2
    ),
    st.integers(1, 8),
)
def test_a_cut_keeps_all_mass_and_the_stated_bound(weights, top):
    whole = pd.DataFrame(
        [
            trace(name, first=np.array(w) / sum(w), tail=0.0)
            for name, w in zip("ab", weights, strict=True)
        ]
    )
    cut = surrogate.keep_top_tokens(whole, top)
    mass = [np.exp(row.next_logprobs).sum() + row.tail_mass for row in cut.itertuples()]
    assert (
        mass == pytest.approx([1, 1])
        and all(map(len, cut["next_ids"]))
        and cut["tail_mass"].between(0, 1).all()
    )
    assert abs(shift(cut) - shift(whole)) <= cut["tail_mass"].max() + 1e-9
    again = surrogate.keep_top_tokens(cut, top)
    assert again["tail_mass"].tolist() == cut["tail_mass"].tolist()


@pytest.mark.slow
@given(
    st.lists(
        st.lists(
            st.sampled_from(["accept", "reject", "unparsed", "blocked"]), max_size=9
        ),
        min_size=2,
        max_size=2,
    )
)
def test_the_shift_of_drawn_answers_is_the_difference_of_their_rates(labels):
    rows = [
        (name, label) for name, own in zip("ab", labels, strict=True) for label in own
    ]
    made = surrogate.first_token_from_samples(
        pd.Series(["a", "b"]), pd.DataFrame(rows, columns=["prompt_id", "label"])
    )
    counts = [
        (own.count("reject"), own.count("accept") + own.count("reject"))
        for own in labels
    ]
    if min(n for _, n in counts) < surrogate.MIN_SCORED_DRAWS:
        assert made["tail_mass"].isna().tolist() == [
            n < surrogate.MIN_SCORED_DRAWS for _, n in counts
        ]
        assert np.isnan(shift(made))
    else:
        rates = [r / n for r, n in counts]
        assert shift(made) == pytest.approx(abs(rates[0] - rates[1]))


def test_what_a_server_did_not_tell_is_not_lent():
    silent = OWN.assign(
        next_ids=[np.empty(0, int), OWN["next_ids"][1]], tail_mass=[1.0, 0.2]
    )
    silent["next_logprobs"] = [np.empty(0), OWN["next_logprobs"][1]]
    made = surrogate.fill_from_surrogate(silent, surrogate.LEVEL_ANSWER_TOKENS, LENT)
    assert signals.has_signals(made).tolist() == [False, True]
    assert np.isnan(shift(made)) and np.isfinite(signals.trace_perplexity(made)).all()
    unread = OWN.assign(
        token_nll=[np.array([np.nan, np.nan, np.nan]), OWN["token_nll"][1]]
    )
    made = surrogate.fill_from_surrogate(unread, surrogate.LEVEL_FULL, LENT)
    assert signals.has_signals(made).tolist() == [False, True]
    assert np.isnan(signals.trace_perplexity(made)).tolist() == [True, False]
    made = surrogate.fill_from_surrogate(OWN, surrogate.LEVEL_TEXT, LENT, DRAWS.head(7))
    assert signals.has_signals(made).tolist() == [True, False] and np.isnan(shift(made))


@pytest.mark.parametrize("level", [surrogate.LEVEL_ANSWER_TOKENS, surrogate.LEVEL_TEXT])
def test_a_served_system_may_know_nothing_of_its_tokens(level):
    served = OWN.assign(**{name: [value] * 2 for name, value in NOT_TOLD.items()})
    made = surrogate.fill_from_surrogate(served, level, LENT)
    pd.testing.assert_frame_equal(
        made, surrogate.fill_from_surrogate(OWN, level, LENT), check_dtype=False
    )
    assert signals.has_signals(made).all()
    assert not signals.has_signals(
        surrogate.fill_from_surrogate(served, surrogate.LEVEL_FULL, LENT)
    ).any()


def test_a_surrogate_must_have_been_asked():
    with pytest.raises(
        DataError, match=r"no trace of b \(1 are missing\); ask it first"
    ):
        surrogate.fill_from_surrogate(
            OWN, surrogate.LEVEL_TEXT, LENT[LENT["prompt_id"] == "a"]
        )
    gone = LENT.assign(token_nll=[LENT["token_nll"][0], np.full(3, np.nan)])
    with pytest.raises(DataError, match="surrogate's trace of a is not complete"):
        surrogate.fill_from_surrogate(OWN, surrogate.LEVEL_ANSWER_TOKENS, gone)
    assert signals.has_signals(
        surrogate.fill_from_surrogate(OWN, surrogate.LEVEL_FULL, gone)
    ).all(), "at this level its losses are not used"


def test_who_lends():
    there = [
        "smollm2-135m-instruct-q4_1--safety",
        "qwen2.5-coder-0.5b-instruct-q4_k_m--safety",
        "mine--none",
    ]
    assert surrogate.find_surrogate("mine--safety", there) == there[0]
    assert surrogate.find_surrogate(there[1], there) == there[0]
    assert surrogate.find_surrogate(there[0], there) == there[1], (
        "no model lends to itself"
    )
    assert surrogate.find_surrogate("mine--none", there) is None, (
        "another system prompt is another question"
    )


LABELS = ["accept", "reject", "accept", "accept", "reject", "accept"] * 10
CLUSTERS = np.repeat([f"c{i}" for i in range(10)], 6)


@pytest.mark.slow
def test_what_is_left_out_is_in_no_pair_and_still_decided():
    corpus, vectors, traces, labels, tokens = world(LABELS, CLUSTERS)
    lost = [1, 2]  # a rejection and an acceptance
    told = traces.copy()
    for row in lost:
        told.at[row, "next_ids"], told.at[row, "next_logprobs"] = (
            np.empty(0, int),
            np.empty(0),
        )
    made = surrogate.fill_from_surrogate(told, surrogate.LEVEL_ANSWER_TOKENS, traces)
    system = worlds.system(corpus, labels, traces=made, tokens=tokens)
    pairs = signals.compute_pairs(system, vectors)
    system = replace(system, pairs=pairs)
    system = replace(system, scores=confusion.score_prompts(system))
    scores = system.scores
    gone = set(corpus["prompt_id"].iloc[lost])
    assert (
        not gone & {*pairs["centre_id"], *pairs["neighbour_id"]}
        and pairs["prob_shift"].notna().all()
    )
    assert set(scores.loc[scores["ci"].isna(), "prompt_id"]) == gone
    known = system.isolation[corpus["prompt_id"].isin(scores["prompt_id"])]
    np.testing.assert_array_equal(scores["isolation"], known)
    assert len(system.rejections) == LABELS.count("reject") - 1


def test_nothing_lent_is_nothing_changed():
    """A system that is its own surrogate scores as ever at `full`, and its ranks agree
    with themselves.
    """
    corpus, vectors, traces, labels, tokens = world(LABELS, CLUSTERS)
    system = worlds.system(corpus, labels, traces=traces, tokens=tokens)
    usual = signals.compute_pairs(system, vectors)
    for level in surrogate.DISCLOSURE_LEVELS:
        made = surrogate.fill_from_surrogate(
            traces, level, traces.sample(frac=1, random_state=1)
        )
        assert signals.has_signals(made).all()
        other = replace(system, traces=made)
        pd.testing.assert_frame_equal(signals.compute_pairs(other, vectors), usual)


def compared(name, ci, lender="s--x", interpretation="relative", told=None, n=30):
    """A system whose measures have these draws, by own signals and as they are told."""

    def estimates(draws):
        draws = np.array(draws, float)
        return dict.fromkeys(
            proxies.SURROGATE_MEASURES, Estimate.percentile(draws.mean(), draws)
        )

    known = estimates(ci)
    rho = Estimate(0.95, 0.91, 0.97, np.array([0.95]))
    found = known if told is None else estimates(told)
    return proxies.SurrogateComparison(
        name,
        lender,
        proxies.ALL_PROMPTS,
        interpretation,
        "full",
        n,
        rho,
        found,
        known,
    )


def test_orders_by_hand():
    # Own: a > b surely, c > a surely, b < c surely. Told: a > b, but c is the lowest,
    # surely.
    own = [compared("m--a", [0.5, 0.6]), compared("m--b", [0.3, 0.4])]
    rows = proxies.surrogate_orders(
        [
            *own,
            compared("n--c", [0.8, 0.9], "t--x", told=[0.1, 0.2]),
            compared("few--c", [0, 1], n=29),
        ]
    )
    row = rows.set_index("measure").loc["ci"]
    counts = ["systems", "pairs", "kept", "sure", "sure_kept", "sure_turned"]
    assert row[counts].tolist() == [3, 3, 1, 3, 1, 2]
    assert rows["rho"].isna().all(), "three systems"
    assert (
        proxies.surrogate_orders(own[:1])["pairs"].eq(0).all()
        and proxies.surrogate_orders([]).empty
    )


def test_ranks_of_eight_systems_by_hand():
    own = [compared(f"m--{i}", [i, i]) for i in range(6)]
    # Told, the last two of eight change places: sum of d^2 is 2, rho = 1 - 6 * 2 / (8 *
    # 63) = 1 - 1 / 42
    own += [
        compared("m--6", [6, 6], told=[7, 7]),
        compared("m--7", [7, 7], told=[6, 6]),
    ]
    row = proxies.surrogate_orders(own).iloc[0]
    assert row[["rho", "rho_low", "rho_high"]].tolist() == pytest.approx(
        [1 - 1 / 42] * 3
    )
    assert row["sure"] == 28 and row["sure_kept"] == 27 and row["sure_turned"] == 1


def test_predictions_are_judged_on_systems_with_enough_rejections():
    table = proxies.surrogate_table(
        [compared("m--a", [1, 2]), compared("m--b", [1, 2], n=29)]
    )
    said = predictions.judge_predictions({"proxies": table})[
        ["number", "about", "verdict"]
    ].values.tolist()
    assert said == [[19, "m--a", "holds"]]
    assert predictions.judge_predictions(
        {"proxies": proxies.surrogate_table([])}
    ).empty, "nobody lends"
    low = table.assign(setting="text", rho_low=0.85, rho_high=0.95)
    assert predictions.judge_predictions({"proxies": low})["verdict"].tolist() == [
        "undecided"
    ]


@pytest.mark.slow
def test_recorded_systems_as_if_less_were_known(recorded_corpus):
    """Sixty clusters of one system: decisions stay, what is own stays, and the table
    says so.
    """
    store, name = stores.Store("recorded"), "qwen2.5-coder-1.5b-instruct-q4_k_m--safety"
    lender = surrogate.find_surrogate(
        name, [name, "smollm2-135m-instruct-q4_1--safety"]
    )
    config = settings.check_settings(
        {"store": "recorded", "corpus": "paraguard_mini", "resamples": 100},
        settings.AnalysisSettings,
    )
    files = stores.CorpusFiles(store, "paraguard_mini")
    scored = pipeline.read_systems(files, [name, lender], config)
    draws = follow_ups.read_samples(files, [name])
    found = proxies.surrogate_table(
        proxies.compare_with_surrogates(files, scored, draws)
    )
    assert len(found) == 18
    rows = found[
        (found["system"] == name) & (found["interpretation"] == "relative")
    ].set_index(["prompts", "setting"])
    assert rows.loc["drawn"].index.tolist() == list(proxies.DISCLOSURE_SETTINGS)
    own = pd.Series(dtype=object)
    for table in ("system_details", "table1_systems"):
        by_system = store.read("tables", table).set_index(["system", "interpretation"])
        own = by_system.loc[(name, "relative")].combine_first(own)
    for measure in proxies.SURROGATE_MEASURES:
        usual = rows.loc["all", measure] - rows.loc["all", f"{measure}_change"]
        assert usual.to_numpy() == pytest.approx(own[measure], rel=1e-4), measure
    assert (rows.loc["all", "n"] == own["n_reject"]).all()
    # The drawn part is what would be scored, had nothing else been asked.
    part = recorded_corpus[recorded_corpus["prompt_id"].isin(draws[name]["prompt_id"])]
    vectors = encoder.stored_vectors(files, part["text"])
    too_few = [
        frame.loc[part.index].reset_index(drop=True)
        for frame in (scored[name].traces, scored[name].labels)
    ]
    lent = scored[lender].traces.loc[part.index].reset_index(drop=True)
    made = surrogate.fill_from_surrogate(
        too_few[0], surrogate.LEVEL_TEXT, lent, draws[name]
    )
    asked = worlds.system(part.reset_index(drop=True), too_few[1], traces=made)
    asked = replace(asked, drifts=scored[lender].drifts)
    pairs = signals.compute_pairs(asked, vectors)
    near = pairs[
        (pairs["centre_label"] == "reject") & signals.is_ranked(pairs, N_NEIGHBOURS)
    ]
    ci = (
        signals.score_pairs(near, PAPER_WEIGHTS)
        .groupby(near["centre_id"])
        .mean()
        .mean()
    )
    assert rows.loc[("drawn", "text, drawn"), "ci"] == pytest.approx(ci)
    rates = draws[name]["label"].eq("reject").groupby(draws[name]["prompt_id"]).mean()
    assert near["prob_shift"].to_numpy() == pytest.approx(
        np.abs(
            rates.loc[near["centre_id"]].to_numpy()
            - rates.loc[near["neighbour_id"]].to_numpy()
        )
    )
