"""What `outside_records.py` computes, the package computes, and the record says."""

import math
from functools import cache

import numpy as np
import outside_records as outside
import pandas as pd
import pytest

from paraguard_lab.public_records import lent, measures, sources
from paraguard_utils import paths, stores
from paraguard_utils.models import encoder

RECORDED = stores.Store("recorded")
SHARED = paths.ROOT.parent / "shared" / "data" / "public"
needs_sources = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the sources' own files are not there"
)
TRIPLES = sources.read_recorded_decisions("triples")
LENIENT = sources.read_partial_as_answered("triples")
PROMPTS = ["system", "setting", "judge"]


def compare(own, table, *keys):
    """Compare all columns of rows by key with those of a table, to 1e-9."""
    rows = {tuple(row[key] for key in keys): row for row in table.to_dict("records")}
    by_key = {key if isinstance(key, tuple) else (key,): own[key] for key in own}
    assert by_key.keys() == rows.keys()
    for key, row in by_key.items():
        found = {name: rows[key][name] for name in row}
        assert found == pytest.approx(row, rel=1e-9, abs=1e-9, nan_ok=True), key


def compare_with_record(own, name, *keys, source=None, sampled=False):
    """Compare rows by key with those of a recorded table, to its five digits.

    Where they are a sample, the table may have more.
    """
    table = RECORDED.read("tables", name)
    if source is not None:
        table = table[table["source"] == source]
    if sampled:
        table = select_rows(table, own, *keys)
    rounded = {}
    for key, row in own.items():
        rounded[key] = {column: round_off(value) for column, value in row.items()}
    compare(rounded, table, *keys)


def select_rows(table, own, *keys):
    """Return the rows of a table whose keys `own` has."""
    return table[table.set_index([*keys]).index.isin(list(own))]


def compare_to_four_digits(own, name, *keys):
    """Compare rows by key with those of a recorded table.

    Threads and processors decide the last digits of what a model says, and so which of
    five digits is rounded up.
    """
    table = RECORDED.read("tables", name).set_index(list(keys))
    for key, row in own.items():
        found = table.loc[key, list(row)].to_dict()
        assert found == pytest.approx(row, rel=1e-4, abs=1e-5), key


def round_off(value):
    """Return a number as a recorded table writes it."""
    if isinstance(value, bool | np.bool_) or math.isnan(value):
        return value
    return float(f"{value:.5g}")


def chance_of(decisions):
    counts = sources.count_by_prompt(decisions.assign(setting="all tiers"))
    return measures.tabulate_record_chance(counts, "triples")


SAMPLED = pytest.mark.parametrize(
    "every", [4, pytest.param(1, marks=pytest.mark.weekly)], ids=["some", "all"]
)
"""Every fourth system, or in a weekly run all of them."""


@pytest.mark.slow
@SAMPLED
def test_chance_of_counts(every):
    own = outside.chance_of_stability(every)
    counts = select_rows(sources.read_counts("stability"), own, *PROMPTS)
    compare(own, measures.tabulate_record_chance(counts, "stability"), *PROMPTS)
    compare_with_record(
        own, "record_chance", *PROMPTS, source="stability", sampled=every > 1
    )


@pytest.mark.slow
def test_chance_of_triples_and_what_goes_together():
    own = outside.chance_of_triples()
    table = chance_of(TRIPLES)
    compare(own, table, "system")
    compare_with_record(own, "record_chance", "system", source="triples")
    together = {"triples": outside.together(own)}
    compare(together, measures.tabulate_together(table), "source")
    compare_with_record(together, "record_together", "source")


@pytest.mark.slow
def test_chance_with_partial_answers_as_answers():
    own = outside.chance_of_triples(partial=0)
    compare(own, chance_of(LENIENT), "system")
    compare_with_record(own, "record_chance_lenient", "system")


@pytest.mark.slow
def test_chance_of_our_systems():
    own = outside.chance_of_ours()
    counts = sources.count_own_draws(stores.CorpusFiles(RECORDED, "paraguard_mini"))
    compare(own, measures.tabulate_record_chance(counts, "ours"), "system")
    compare_with_record(own, "record_chance", "system", source="ours")


@pytest.mark.slow
def test_forms():
    decisions = sources.read_recorded_decisions("forms")
    own, rates = outside.forms(), outside.form_rates()
    compare(own, measures.tabulate_record_forms(decisions), "system")
    compare_with_record(own, "record_forms", "system")
    compare(rates, measures.tabulate_form_rates(decisions), "system", "form")
    compare_with_record(rates, "record_form_rates", "system", "form")


@pytest.mark.slow
def test_languages():
    decisions = sources.read_recorded_decisions("languages")
    own = outside.languages()
    compare(own, measures.tabulate_languages(decisions), "systems")
    compare_with_record(own, "record_languages", "systems")


@pytest.mark.slow
def test_systems_and_languages_are_as_many_as_is_said():
    asked = sources.read_recorded_decisions("languages")
    about_china = asked[asked["cluster"].str.startswith("china-")]
    in_languages = about_china.groupby("system")["setting"].nunique()
    # One system has no answers in Chinese; it counts in what is said of all systems
    assert in_languages.value_counts().to_dict() == {3: 36, 2: 1}
    assert len(outside.languages()) == 1 + 37


RATES = [*outside.TIERS, "youden"]
ENDS = [f"{name}_{end}" for name in RATES for end in ("low", "high")]


@cache
def tiers(every):
    return outside.tiers(every)


@pytest.mark.slow
@SAMPLED
def test_harm(every):
    own = tiers(every)
    decisions = TRIPLES[TRIPLES["system"].isin(own)]
    compare(own, measures.tabulate_tiers(decisions), "system")
    without = {}
    for system, row in own.items():
        without[system] = {name: row[name] for name in row if name not in ENDS}
    compare_with_record(without, "record_harm", "system", sampled=every > 1)


@pytest.mark.slow
@SAMPLED
def test_recorded_intervals_of_tiers(every):
    own = tiers(every)
    ends = {system: {name: own[system][name] for name in ENDS} for system in own}
    compare_with_record(ends, "record_harm", "system", sampled=every > 1)


@pytest.mark.slow
@pytest.mark.parametrize("partial", [1, pytest.param(0, marks=pytest.mark.weekly)])
def test_rates_of_tiers(partial):
    own = outside.tier_rates(partial)
    decisions = TRIPLES if partial else LENIENT
    table = measures.tabulate_tier_rates(decisions)
    compare(own, table, "system", "tier")
    if partial and RECORDED.has("tables", "record_tiers"):
        compare_with_record(own, "record_tiers", "system", "tier")


@cache
def stability():
    return outside.Stability(SHARED)


@needs_sources
@pytest.mark.slow
def test_counts_are_those_of_the_source():
    kept = sources.spread_counts(sources.read_counts("stability"))
    for key, rows in kept.groupby(PROMPTS):
        counts = rows[["refused", "answered", "error"]].to_numpy().tolist()
        assert sorted(map(tuple, counts)) == sorted(stability().counts(*key))
    assert kept.groupby(PROMPTS).ngroups == len(stability().decided)


@needs_sources
@pytest.mark.slow
def test_judges():
    own = stability().judges()
    keys = ["system", "setting", "first", "second"]
    decisions = sources.SOURCES["stability"].read(SHARED)
    compare(own, measures.tabulate_judges(decisions), *keys)
    compare_with_record(own, "record_judges", *keys)


@needs_sources
@pytest.mark.slow
def test_temperatures():
    own = stability().temperatures()
    decisions = sources.SOURCES["stability"].read(SHARED)
    compare(own, measures.tabulate_temperatures(decisions), "system", "judge")
    compare_with_record(own, "record_temperatures", "system", "judge")


@needs_sources
@pytest.mark.weekly
@pytest.mark.slow
def test_neighbours_and_what_two_systems_refuse():
    vectors = encoder.encode_texts(list(stability().texts.values()))
    decided = stability().decide_by_most()
    own, first_judge = {}, {}
    for (system, judge), decisions in decided.items():
        first_judge.setdefault(system, decisions)
        for pairs, row in outside.neighbour_rows(vectors, decisions).items():
            own[system, judge, pairs] = row
    decisions = sources.SOURCES["stability"].read(SHARED)
    prompts = lent.read_stability_prompts(SHARED)
    keys = ["system", "judge", "pairs"]
    compare(own, lent.tabulate_neighbours(decisions, prompts), *keys)
    compare_with_record(own, "record_neighbours", *keys)

    pairs = RECORDED.read("tables", "record_pairs").set_index(
        ["first", "second", "measure"]
    )
    for systems, row in outside.rate_differences(first_judge, vectors).items():
        found = pairs.loc[(*systems, "rate"), [*row]].to_dict()
        assert found == pytest.approx({name: round_off(row[name]) for name in row})
        both = np.sum([first_judge[one] == 1 for one in systems], axis=0) == 2
        assert pairs.loc[(*systems, "ci_relative"), "n"] == both.sum()
    counted = RECORDED.read("tables", "record_confusion")
    for row in counted.itertuples():
        decisions = first_judge[row.system]
        own = (np.sum(decisions == 1), np.sum(decisions == 0))
        assert (row.n_refused, row.n_answered) == own


@needs_sources
@pytest.mark.weekly
@pytest.mark.slow
def test_confusion_with_lent_tokens():
    prompts = lent.read_stability_prompts(SHARED)
    said = lent.query_lender(prompts)
    first_judge = {}
    for (system, _), decisions in stability().decide_by_most().items():
        first_judge.setdefault(system, decisions)
    vectors = encoder.encode_texts(prompts["text"].tolist())
    systems, pairs = outside.confusion_rows(outside.Lent(*said), vectors, first_judge)
    decisions = sources.SOURCES["stability"].read(SHARED)
    measured = lent.lend_tokens(decisions, prompts, said)
    keys = ["system", "interpretation"]
    compare(systems, lent.tabulate_confusion(measured), *keys)
    compare_to_four_digits(systems, "record_confusion", *keys)
    keys = ["first", "second", "measure"]
    every = lent.tabulate_record_pairs(measured)
    compare(pairs, every[every["measure"] != "rate"], *keys)
    compare_to_four_digits(pairs, "record_pairs", *keys)


@pytest.mark.parametrize("number", outside.RULES)
def test_predictions_by_their_own_rules(number):
    judged = RECORDED.read("tables", "record_predictions")
    verdicts = judged.loc[judged["number"] == number, "verdict"]
    assert outside.judge(number) == verdicts.value_counts().to_dict()


def test_lent_tokens_by_hand():
    # Two prompts: tokens x and y, and x alone; losses 0 and ln 4, and 0
    tokens = {"token_id": [1, 2], "embedding": [[2.0, 0.0], [0.0, 3.0]]}
    traces = {
        "token_ids": [[0, 1, 2], [0, 1]],
        "user_start": [1, 1],
        "user_end": [3, 2],
        "token_nll": [[np.nan, 0, np.log(4)], [np.nan, 0]],
        "next_ids": [[5, 6], [6, 7]],
        "next_logprobs": np.log([[0.5, 0.25], [0.5, 0.25]]).tolist(),
        "tail_mass": [0.25, 0.25],
    }
    own = outside.Lent(pd.DataFrame(traces), pd.DataFrame(tokens))
    # Nearest counterparts: of x and y 1 and 0, of x alone 1: 1 - (1/2 + 1)/2
    assert own.drift(0, 1) == pytest.approx(0.25)
    # (1/2 + 1/4 + 1/4)/2
    assert own.shift(0, 1) == pytest.approx(0.5)
    # Perplexities exp(ln 4 / 2) = 2 and 1: contrasts 1/2, and 1 cut at 1
    scores = {"relative": 0.1 + 0.05 + 0.25, "clipped": 0.1 + 0.05 + 0.5}
    assert own.scores(0, 1) == pytest.approx(scores)
    # CI 0.5, 0.7 and 0.9 in three groups
    row = outside.confusion_row({0: 0.5, 2: 0.7, 3: 0.9}, np.array([0, 1, 1, 3]))
    found = [row[name] for name in ("ci", "cr60", "cr75", "cd")]
    assert found == pytest.approx([0.7, 2 / 3, 1 / 3, 0.2])


def test_outside_by_hand():
    # Of one trial in four none hits with probability (1 - x)^4, two or more with ...
    assert outside.beta_share(0.3, 1, 4) == pytest.approx(1 - 0.7**4)
    assert outside.beta_share(0.3, 2, 3) == pytest.approx(1 - 0.7**4 - 4 * 0.3 * 0.7**3)
    assert outside.exact(0, 40) == pytest.approx((0, 1 - 0.025 ** (1 / 40)))
    assert outside.exact(40, 40) == pytest.approx((0.025 ** (1 / 40), 1))
    # Three prompts of two answers with 1, 0 and 2 refused: (1 of 3) : (2 of 3)
    counts = [(1, 1, 0), (0, 2, 0), (2, 0, 0)]
    assert outside.dr_of(counts) == pytest.approx(1 / 2)
    row = outside.chance_row([*counts, (1, 0, 1)])
    assert (row["n"], row["n_prompts"], row["n_mixed"]) == (8, 3, 1)
    assert (row["undecided"], row["rate"]) == pytest.approx((1 / 8, 4 / 7))
    # The error of a mean of 0, 0, 1 and 1, from each one's distance to it: 1/4
    rows = np.array([[0, 1], [1, 1]], float)
    counts = np.array([[2.0, 2.0]])
    value, error = outside.value_and_error(counts, counts @ rows, rows, outside.rate)
    assert (value, error) == (pytest.approx(0.5), pytest.approx(0.25))
    # Equal ranks are shared: 1, 2.5, 2.5
    assert outside.mean_ranks([1, 5, 5]).tolist() == [1, 2.5, 2.5]
    # Two judges, two prompts of two answers: they differ on one of four, and the
    # first judge's answers to one of two prompts differ
    first = {"p": {"1": 1, "2": 0}, "q": {"1": 0, "2": 0}}
    second = {"p": {"1": 1, "2": 0}, "q": {"1": 1, "2": 0}}
    judges = outside.judges_row(first, second)
    assert (judges["judges_differ"], judges["answers_differ"]) == (1 / 4, 1 / 2)
    # Leaders 0 and 2: 1 is near 0, 3 near both, and joins the first
    close = np.zeros((4, 4), bool)
    for i, j in ((0, 1), (0, 3), (2, 3)):
        close[i, j] = close[j, i] = True
    assert outside.lead_groups(close).tolist() == [0, 0, 2, 0]
    # Neighbours decided otherwise: of 0 one of two, of 1 none, of 2 all, of 3 one of
    # two, on average 1/2. Of the three pairs apart two are: (0, 2), (1, 2), not (1, 3)
    refused = np.array([True, True, False, True])
    assert outside.neighbour_dr(close, refused) == pytest.approx(
        (1 + 0.5) / 4 / (2 / 3)
    )
