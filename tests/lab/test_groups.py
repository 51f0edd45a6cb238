"""Groups of prompts: refusals and flips by strategy, category and topic."""

import math
from dataclasses import replace

import numpy as np
import pytest
from cohorted import asked, pairs_of
from hypothesis import given, settings
from hypothesis import strategies as st

from paraguard_lab.analysis import groups
from paraguard_lab.report import figures


def test_flips_by_hand():
    decisions = {
        "a": ("accept", "reject", "accept"),
        "b": ("reject", "accept", "reject"),
        "c": ("accept", "reject", "accept"),
        "d": ("unparsed", "reject", "accept"),
    }
    rows = [
        (cluster, strategy, label)
        for cluster, labels_of in decisions.items()
        for strategy, label in zip(
            ("seed", "lexical", "register"), labels_of, strict=True
        )
    ]
    table = groups.group_table(asked(rows))
    lexical, register, seed = (
        table[(table["kind"] == "strategy") & (table["group"] == name)].iloc[0]
        for name in ("lexical", "register", "seed")
    )
    # lexical: a and c to rejection, b to acceptance, d has no decided seed: 3 of 3;
    # refused 3 of 4
    assert [lexical["n_flip"], lexical["flip"], lexical["frr"]] == [3, 1, 0.75]
    assert [lexical["to_reject"], lexical["to_accept"]] == pytest.approx([2 / 3, 1 / 3])
    assert [register["n_flip"], register["flip"], register["n_reject"]] == [3, 0, 1]
    assert [lexical["flip_most"], register["flip_most"]] == [1, 0]
    assert math.isnan(seed["flip"]) and math.isnan(seed["flip_most"])
    assert "the seed is the reference" in seed["note"]
    # seeds: 1 of 3 refused; the category holds all: 5 of 11 refused, 3 of 6 variants
    # flipped
    whole = table[table["kind"] == "category"].iloc[0]
    assert [seed["n_scored"], whole["n_scored"], whole["n_flip"]] == [3, 11, 6]
    assert [seed["frr"], whole["frr"], whole["flip"]] == pytest.approx(
        [1 / 3, 5 / 11, 0.5]
    )
    assert table["too_few"].all()


labels = st.sampled_from(["accept", "reject", "unparsed"])
clusters_of_three = st.lists(st.tuples(labels, labels, labels), min_size=1, max_size=10)


@pytest.mark.slow
@settings(max_examples=12)
@given(clusters_of_three)
def test_flips_split_into_their_directions_and_groups_add_up(decisions):
    names = ("seed", "lexical", "rewrite")
    rows = [
        (f"c{i}", name, label)
        for i, row in enumerate(decisions)
        for name, label in zip(names, row, strict=True)
    ]
    table = groups.group_table(asked(rows, 50))
    assert table["flip"].to_numpy() == pytest.approx(
        (table["to_reject"] + table["to_accept"]).to_numpy(), nan_ok=True
    )
    for measure in ("n_scored", "n_reject", "n_flip"):
        assert table.groupby("kind")[measure].sum().nunique() == 1
    for name in ("frr", "flip", "ci", "cr60"):
        assert (table[name].isna() | table[name].between(0, 1)).all()
        assert (
            table[f"{name}_low"].isna()
            | (table[f"{name}_low"] <= table[f"{name}_high"])
        ).all()
    for kind, rows in table.groupby("kind"):
        for measure in ("frr", "flip"):
            if rows[measure].notna().any():
                assert rows[f"{measure}_most"].sum() == pytest.approx(1), kind
    undefined = table.loc[table["n_reject"] == 0, "note"]
    assert undefined.str.contains("no scored rejection").all()


@pytest.mark.slow
def test_figures_are_drawn_where_much_is_undefined():
    table = groups.group_table(asked(pairs_of(3, 3, 3, 91), 50))
    assert len(figures.plot_strategy_flips(table).axes) == 1


@pytest.mark.parametrize("label", ["reject", "unparsed"])
def test_seeds_alone_or_nothing_decided_give_reasons(label):
    system = asked([(f"c{i}", "seed", label) for i in range(4)], 20)
    undefined = system.scores.assign(ci=np.nan, ci_clipped=np.nan)
    table = groups.group_table(replace(system, scores=undefined))
    assert table[["ci", "flip", "flip_most"]].isna().all(axis=None)
    assert table["note"].str.contains("no scored rejection").all()
    figures.plot_strategy_flips(table)
