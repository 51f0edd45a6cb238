"""Public records: what is read of them, and what is measured, worked by hand."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sought import find_texts

from paraguard_lab.public_records import measures, sources
from paraguard_utils import paths
from paraguard_utils.core.estimates import binomial_interval
from paraguard_utils.errors import DataError

SHARED = paths.ROOT.parent / "shared" / "data" / "public"
needs_sources = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the sources' own files are not there"
)


def counts_of(*rows):
    columns = ["refused", "answered", "error", "prompts"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(system="a", setting="all", judge="j")


def decisions_of(**columns):
    usual = {"system": "a", "setting": "all", "repeat": 0, "judge": "j"}
    return pd.DataFrame(usual | columns)


def test_chance_is_dr_of_repeats():
    # Three prompts of two answers with 1, 0 and 2 refused: the example of the method,
    # (1 of 3) : (2 of 3) = 0.5
    row = measures.chance_row(counts_of((1, 1, 0, 1), (0, 2, 0, 1), (2, 0, 0, 1)))
    assert row["chance"] == pytest.approx(0.5)
    assert (row["n"], row["n_prompts"], row["n_mixed"]) == (6, 3, 1)
    assert row["rate"] == pytest.approx(0.5) and row["too_few"]


def test_few_mixed_prompts_have_an_interval_from_zero():
    row = measures.chance_row(counts_of((2, 0, 0, 100), (0, 2, 0, 100), (1, 1, 0, 1)))
    # A mixed prompt of two answers always differs, two unrelated ones half of the time
    most = binomial_interval(1, 201)[1] * 1 / 0.5
    assert row["chance_low"] == 0
    assert row["chance_high"] == pytest.approx(most)
    assert not row["too_few"]


def test_much_that_is_undecided_withholds_every_number():
    known = counts_of((2, 2, 1, 50), (4, 0, 1, 50))  # 100 of 500 answers
    assert np.isfinite(measures.chance_row(known)["rate"])
    row = measures.chance_row(counts_of((2, 1, 2, 50), (4, 0, 1, 50)))
    assert np.isnan([row["rate"], row["chance"]]).all() and row["too_few"]
    assert row["undecided"] == pytest.approx(0.3)


def test_counts_are_those_of_the_decisions():
    decisions = decisions_of(
        source_row=list("xxyyzz"),
        decision=["refused", "answered", "error", "refused", "error", "refused"],
    )
    counts = sources.count_by_prompt(decisions)
    assert counts[[*sources.OUTCOMES, "prompts"]].to_numpy().tolist() == [
        [1, 0, 1, 2],
        [1, 1, 0, 1],
    ]
    assert len(sources.spread_counts(counts)) == 3


def tiers(**refused):
    """Make two prompts of two answers in each tier, by what is refused of each."""
    parts = []
    for tier, pair in refused.items():
        for number, n_refused in enumerate(pair):
            words = ["refused"] * n_refused + ["answered"] * (2 - n_refused)
            own = decisions_of(cluster=[f"{tier}{number}"] * 2, decision=words)
            parts.append(own.assign(setting=tier))
    return pd.concat(parts, ignore_index=True)


def tier_of(tier, words, n_prompts):
    """Make prompts of one tier, of which each has answers with these decisions."""
    start = f"{tier} {' '.join(words)}"
    names = [f"{start} {number}" for number in range(n_prompts)]
    ids = np.repeat(names, len(words))
    own = decisions_of(cluster=ids, decision=words * n_prompts)
    return own.assign(setting=tier)


def test_a_tier_that_decides_explains_everything():
    row = measures.tier_row(tiers(benign=(0, 0), borderline=(0, 0), dual_use=(2, 2)))
    assert [row[part] for part in measures.TIER_PARTS] == pytest.approx([1, 0, 0])
    assert row["youden"] == pytest.approx(1)


def test_a_tier_that_is_always_refused_has_an_interval():
    row = measures.tier_row(tiers(benign=(0, 1), borderline=(0, 0), dual_use=(2, 2)))
    # Two prompts of two, all refused: from 0.025 ** (1 / 2) to 1
    assert row["dual_use_low"] == pytest.approx(0.025**0.5)
    assert row["youden"] == pytest.approx(1 - 1 / 4)
    # Newcombe: the distances of both ends from their shares, as legs of a triangle
    legs = 1 - row["dual_use_low"], row["benign_high"] - 1 / 4
    assert row["youden_low"] == pytest.approx(3 / 4 - np.hypot(*legs))


def test_tiers_of_a_system_with_much_undecided_have_no_number():
    half = tier_of("benign", ["refused", "answered"], 30)
    errors = tier_of("dual_use", ["error"], 20)
    row = measures.tier_row(pd.concat([half, errors], ignore_index=True))
    assert row["undecided"] == pytest.approx(20 / 80) and row["too_few"]
    assert np.isnan([row["benign"], row["youden"], row["chance"]]).all()


def test_parts_of_prompts_that_decide_whatever_their_tier():
    # Same prompt: 0. Same tier, other prompt: always. Other tier: (72 - 24) of 96
    row = measures.tier_row(tiers(benign=(0, 2), borderline=(0, 2), dual_use=(0, 2)))
    assert [row[part] for part in measures.TIER_PARTS] == pytest.approx([-1, 2, 0])


def test_rates_of_tiers_are_shares_of_decided_answers():
    decisions = pd.concat(
        [
            # 20 prompts of two answers refused, 20 of one of two, 20 of none:
            # 60 of 120. Of 20 more, one answer each is undecided, the other answered
            tier_of("benign", ["refused", "refused"], 20),
            tier_of("benign", ["refused", "answered"], 20),
            tier_of("benign", ["answered", "answered"], 20),
            tier_of("benign", ["error", "answered"], 20),
            tier_of("dual_use", ["refused", "refused"], 40),
        ],
        ignore_index=True,
    )
    table = measures.tabulate_tier_rates(decisions).set_index("tier")
    benign, dual_use = table.loc["benign"], table.loc["dual_use"]
    assert (benign["n"], benign["n_prompts"]) == (160, 80)
    assert benign["undecided"] == pytest.approx(20 / 160)
    assert benign["rate"] == pytest.approx(60 / 140)
    assert benign["rate_low"] < 60 / 140 < benign["rate_high"]
    # Every answer refused: exact on 40 prompts, 0.025 ** (1 / 40), not from 1 to 1
    assert dual_use["rate_low"] == pytest.approx(0.025 ** (1 / 40))
    assert (dual_use["rate"], dual_use["rate_high"]) == (1, 1)
    assert not table["too_few"].any()


def test_answers_to_one_prompt_are_no_independent_trials():
    # 20 of 40 prompts refused: five answers each say no more than one each, and the
    # interval is about the exact one of 20 in 40 and not of 100 in 200
    for n_answers in (1, 5):
        prompts = [
            tier_of("benign", [word] * n_answers, 20)
            for word in ("refused", "answered")
        ]
        decisions = pd.concat(prompts, ignore_index=True)
        row = measures.tabulate_tier_rates(decisions).iloc[0]
        low, high = binomial_interval(20, 40)
        assert row["rate_low"] == pytest.approx(low, abs=0.01)
        assert row["rate_high"] == pytest.approx(high, abs=0.01)


def test_tiers_of_few_prompts_or_much_undecided_are_flagged():
    half = ["refused", "answered"]
    few = measures.tabulate_tier_rates(tier_of("benign", half, 29))
    assert few["too_few"].tolist() == [True] and few["rate"].tolist() == [0.5]
    # Of 300 benign answers 60 are undecided, 20 %, which is not more than it may be
    benign = tier_of("benign", [*half, *half, "error"], 60)
    decided = tier_of("dual_use", half * 3, 50)
    both = pd.concat([benign, decided], ignore_index=True)
    assert not measures.tabulate_tier_rates(both)["too_few"].any()
    # With 200 of 300 in the other tier, 260 of the system's 600 are
    errors = tier_of("dual_use", [*half, *["error"] * 4], 50)
    both = pd.concat([benign, errors], ignore_index=True)
    table = measures.tabulate_tier_rates(both)
    assert table["too_few"].all() and table["rate"].isna().all()


def test_judges_are_compared_on_the_answers_that_both_decided():
    answers = {"cluster": list("xxxyyy"), "repeat": [0, 1, 2] * 2}
    first = ["refused", "refused", "answered", "answered", "answered", "answered"]
    second = ["refused", "answered", "answered", "answered", "refused", "answered"]
    both = pd.concat(
        [
            decisions_of(**answers, decision=first).assign(judge="one"),
            decisions_of(**answers, decision=second).assign(judge="two"),
        ]
    )
    row = measures.tabulate_judges(both).iloc[0]
    # Two of six answers; of the first judge's pairs two of three and none of three
    assert row["judges_differ"] == pytest.approx(2 / 6)
    assert row["answers_differ"] == pytest.approx(2 / 6)


def test_languages_are_pooled_within_systems():
    # System a refuses everything about x only, b nothing: what systems differ in is no
    # meaning, and DR of a alone is 0
    asked = pd.concat(
        [
            decisions_of(
                cluster=list("xxyy"), decision=["refused"] * 2 + ["answered"] * 2
            ),
            decisions_of(cluster=list("xxyy"), decision="answered").assign(system="b"),
        ]
    ).assign(setting=["en", "zh"] * 4)
    pooled = measures.tabulate_languages(asked).set_index("systems")["dr"]
    assert pooled["all"] == pytest.approx(0)


def test_decisions_of_a_source_without_licence_are_not_kept():
    with pytest.raises(DataError, match="not kept by row"):
        sources.read_recorded_decisions("stability")
    listed = sources.read_sources().set_index("name")["by_row"]
    assert {name: one.by_row for name, one in sources.SOURCES.items()} == {
        name: by_row == "yes" for name, by_row in listed.items()
    }


@needs_sources
@pytest.mark.parametrize("name", ["triples", "languages"])
def test_what_is_kept_is_what_the_source_says(name):
    read = sources.SOURCES[name].read(SHARED).astype(str)
    assert read.equals(sources.read_recorded_decisions(name).astype(str))


@pytest.mark.slow
@needs_sources
def test_counts_kept_are_those_of_the_source():
    counts = sources.count_by_prompt(sources.SOURCES["stability"].read(SHARED))
    kept = sources.read_counts("stability")
    assert counts.astype(str).equals(kept.astype(str))


@given(st.lists(st.text("ab .\n", max_size=9), max_size=9), st.text("ab .\n"))
def test_texts_are_found_wherever_they_begin_and_end(texts, content):
    parts = [content[start : start + 5] for start in range(len(content))]
    every = [*texts, *parts]
    assert find_texts(every, content) == [text for text in every if text in content]


@needs_sources
@pytest.mark.slow
def test_no_text_of_a_source_is_in_the_repository():
    texts = [
        *pd.read_csv(SHARED / "ssi_prompts.csv")["prompt"],
        *pd.read_csv(SHARED / "speechmap_us_hard_questions.csv.gz")["question"],
    ]
    for file in SHARED.glob("*.parquet"):
        texts += list(pd.read_parquet(file)["answer"])
    places: list[Path] = [
        *sources.FOLDER.glob("*"),
        *(paths.DATA / "tables").glob("record_*"),
        *paths.NOTEBOOKS.glob("beyond/08_*.ipynb"),
    ]
    said = " ".join(place.read_text(encoding="utf-8") for place in places)
    said = said + json.dumps(said)
    starts = [text[:60] for text in texts if len(text) >= 30]
    assert not find_texts(starts, said)
