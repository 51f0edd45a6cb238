"""Split the variance of decisions in worlds whose parts are known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from worlds import systems

from paraguard_lab.analysis import variance
from paraguard_utils.analysis.system import System
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import ClusterBootstrap


def corpus_of(n_clusters, size=6):
    cluster = np.repeat(np.arange(n_clusters), size)
    n = len(cluster)
    return pd.DataFrame(
        {
            "prompt_id": [f"p{i:05d}" for i in range(n)],
            "cluster_id": [f"c{i:04d}" for i in cluster],
            "strategy": np.resize(
                ["seed", "lexical", "register", "softening", "hardening", "rewrite"], n
            ),
            "text": [f"Tell me about {i}." for i in range(n)],
            "risk": np.resize([0.3, 0.5, 0.7], n),
        }
    )


def split(rejected, features, n_clusters=200):
    corpus = corpus_of(n_clusters)
    labels = pd.DataFrame({"label": np.where(rejected, "reject", "accept")})
    return variance.split_variance(System.of("t", corpus, labels), features)


def noise(rng, n):
    return pd.DataFrame({f"x{i}": rng.normal(size=n) for i in range(5)})


def test_parts_of_pure_worlds():
    rng = np.random.default_rng(4)
    n = 1200
    meaning = split(np.repeat(rng.random(200) < 0.4, 6), noise(rng, n))
    assert meaning["meaning"] == pytest.approx(1) and meaning[
        "wording"
    ] == pytest.approx(0)
    chance = split(rng.random(n) < 0.4, noise(rng, n))
    assert chance["meaning"] == pytest.approx(0, abs=0.05) and chance[
        "r2"
    ] == pytest.approx(0, abs=0.02)
    tone = np.resize([0, 0, 1, 0, 0, 1], n)
    styled = split(tone == 1, noise(rng, n).assign(tone=tone))
    assert styled["style"] == pytest.approx(1.2, abs=0.05), (
        "two of six in every cluster: DR is 1.2"
    )
    assert styled["r2"] == pytest.approx(1, abs=1e-3)
    for row in (meaning, chance, styled):
        assert sum(row[part] for part in variance.VARIANCE_PARTS) == pytest.approx(1)


@pytest.mark.slow
def test_style_that_says_nothing_is_shown_as_nothing():
    rng = np.random.default_rng(9)
    rows = [split(rng.random(1200) < 0.3, noise(rng, 1200)) for _ in range(6)]
    assert min(row["r2"] for row in rows) < 0 and min(row["style"] for row in rows) == 0
    assert max(row["style"] for row in rows) < 0.02


def test_intervals_of_parts_lie_around_them():
    """Meaning is 1 - DR, the interval of which is turned round."""
    rng = np.random.default_rng(8)
    corpus = corpus_of(60)
    rejected = rng.random(360) < np.repeat(rng.choice([0.2, 0.7], 60), 6)
    labels = pd.DataFrame({"label": np.where(rejected, "reject", "accept")})
    clusters = ClusterBootstrap(corpus["cluster_id"], 200)
    system = System.of("t", corpus, labels, clusters)
    features = noise(rng, 360).assign(tone=rejected + rng.normal(size=360))
    row = variance.split_variance(system, features)
    for part in ("meaning", "style", "wording"):
        assert row[f"{part}_low"] < row[part] < row[f"{part}_high"], part
    _, low, high = system.dr()
    assert (row["meaning_low"], row["meaning_high"]) == pytest.approx(
        (1 - high, 1 - low)
    )


def test_no_cluster_predicts_itself():
    """Were a cluster among those that its fit has seen, twelve columns of noise would
    explain its few deviations.
    """
    rng = np.random.default_rng(2)
    ids = np.repeat([f"c{i}" for i in range(12)], 3)
    values = rng.normal(size=36)
    y, left = variance.style_residuals(
        ids, values, pd.DataFrame(rng.normal(size=(36, 12)))
    )
    assert (left**2).sum() > 0.9 * (y**2).sum()
    assert pd.Series(y).groupby(ids).mean().abs().max() < 1e-12


def undecided(corpus):
    """A system that has drawn answers only."""
    return System.of("t", corpus, corpus.assign(label="unparsed"))


def drawn(rng, n_clusters, meaning, wording, draws=8):
    """Chances of refusal 0.5 + meaning +- wording: variances meaning**2, wording**2,
    and what is left of 0.25.
    """
    corpus = corpus_of(n_clusters)
    of_cluster = np.repeat(rng.choice([-meaning, meaning], n_clusters), 6)
    chance = 0.5 + of_cluster + rng.choice([-wording, wording], len(corpus))
    label = np.where(rng.random((draws, len(corpus))) < chance, "reject", "accept")
    frames = [
        pd.DataFrame({"prompt_id": corpus["prompt_id"], "draw": i, "label": row})
        for i, row in enumerate(label)
    ]
    return corpus, pd.concat(frames, ignore_index=True)


@pytest.mark.slow
def test_drawn_parts_of_a_known_world():
    rng = np.random.default_rng(6)
    corpus, samples = drawn(rng, 1500, 0.3, 0.15)
    row = variance.split_sampled_variance(
        undecided(corpus), samples, noise(rng, len(corpus))
    )
    # of 0.25: 0.3^2 = 0.09, 0.15^2 = 0.0225, and the rest
    expected = {"meaning": 0.36, "wording": 0.09, "chance": 0.55, "style": 0.0}
    for part, value in expected.items():
        assert row[part] == pytest.approx(value, abs=0.02), part
        assert row[f"{part}_low"] <= row[part] <= row[f"{part}_high"]
    assert sum(row[part] for part in variance.VARIANCE_PARTS) == pytest.approx(1)


def test_the_table_has_greedy_rows_then_drawn_ones():
    rng = np.random.default_rng(4)
    corpus, samples = drawn(rng, 8, 0.2, 0.2, draws=3)
    greedy = samples[samples["draw"] == 0].reset_index(drop=True)
    losses = list(rng.uniform(0.5, 4, (len(corpus), 6)))
    traces = corpus[["prompt_id"]].assign(token_nll=losses, user_start=1, user_end=5)
    system = replace(System.of("t", corpus, greedy), traces=traces)
    asked = {"drawn": {"t": samples}, variance.HOT: {}}
    found = variance.tabulate_variance([system], asked)
    assert found[["system", "decoding", "n"]].to_numpy().tolist() == [
        ["t", "greedy", 48],
        ["t", "drawn", 144],
    ]


def test_drawn_parts_by_loops():
    rng = np.random.default_rng(3)
    corpus, samples = drawn(rng, 8, 0.2, 0.2, draws=3)
    samples.loc[rng.random(len(samples)) < 0.2, "label"] = "unparsed"
    row = variance.split_sampled_variance(
        undecided(corpus), samples, noise(rng, len(corpus))
    )
    scored = samples[samples["label"] != "unparsed"].merge(
        corpus[["prompt_id", "cluster_id"]]
    )
    scored = scored[scored.groupby("prompt_id")["draw"].transform("size") >= 2]
    prompts = {name: list(own["label"]) for name, own in scored.groupby("prompt_id")}
    clusters = {
        name: sorted(set(own["prompt_id"]))
        for name, own in scored.groupby("cluster_id")
    }

    def differ(pairs):
        return np.mean([a != b for a, b in pairs])

    same = np.mean(
        [
            differ([(a, b) for i, a in enumerate(x) for b in x[:i]])
            for x in prompts.values()
        ]
    )
    per_cluster = {
        name: differ(
            [
                (a, b)
                for p in own
                for q in own
                if p != q
                for a in prompts[p]
                for b in prompts[q]
            ]
        )
        for name, own in clusters.items()
    }
    within = np.average(
        list(per_cluster.values()), weights=[len(own) for own in clusters.values()]
    )
    between = differ(
        [
            (a, b)
            for one, own in clusters.items()
            for other, theirs in clusters.items()
            if one != other
            for p in own
            for q in theirs
            for a in prompts[p]
            for b in prompts[q]
        ]
    )
    assert row["chance"] == pytest.approx(same / between)
    assert row["meaning"] == pytest.approx(1 - within / between)
    assert row["style"] + row["wording"] == pytest.approx((within - same) / between)


@pytest.mark.slow
def test_style_of_drawn_answers_by_hand():
    """Style decides every prompt's mean exactly, so its share is what these means vary,
    dice and all.
    """
    corpus = corpus_of(200)
    tone = np.resize([0, 0, 1, 0, 1, 1], 1200)
    labels = [
        np.full(1200, "reject"),
        np.where(tone == 1, "reject", "accept"),
    ]  # two draws
    samples = pd.concat(
        [
            corpus[["prompt_id"]].assign(draw=i, label=one)
            for i, one in enumerate(labels)
        ]
    )
    row = variance.split_sampled_variance(
        undecided(corpus), samples, pd.DataFrame({"tone": tone})
    )
    # Means are 1 and 1/2, three each: variance 6 / 16 / 5, doubled 0.15, over 2 * 3/4 *
    # 1/4 between clusters.
    assert row["r2"] == pytest.approx(1, abs=1e-6) and row["style"] == pytest.approx(
        0.15 / 0.375, abs=1e-6
    )
    # Two draws differ for half of the prompts; two paraphrases: (0 * 3 + 1/2 * 3 + 1/2
    # * 9) of 15 pairs.
    assert row["chance"] == pytest.approx(0.5 / 0.375) and row[
        "meaning"
    ] == pytest.approx(1 - 0.4 / 0.375)


def test_greedy_against_the_majority_by_hand():
    corpus = corpus_of(2, size=2)
    labels = corpus[["prompt_id"]].assign(
        label=["reject", "accept", "accept", "unparsed"]
    )
    system = System.of("t", corpus, labels)
    decided = {"p00000": "rra", "p00001": "rrr", "p00002": "ra", "p00003": "rrr"}
    names = {"r": "reject", "a": "accept"}
    rows = [
        (name, i, names[one])
        for name, word in decided.items()
        for i, one in enumerate(word)
    ]
    samples = pd.DataFrame(rows, columns=["prompt_id", "draw", "label"])
    found = variance.compare_with_majority(system, samples)
    # p00002 has no majority, p00003 no greedy decision; p00001 alone is unanimous of
    # the first three
    assert (found["n"], found["other"]) == (2, 0.5) and found[
        "unanimous"
    ] == pytest.approx(1 / 3)
    # one draw is no majority: p00001 counts no more, and of the other two neither is
    # unanimous
    once = samples[(samples["prompt_id"] != "p00001") | (samples["draw"] == 0)]
    found = variance.compare_with_majority(system, once)
    assert (found["n"], found["other"], found["unanimous"]) == (1, 0, 0)


def test_the_flag_counts_what_is_rarer():
    corpus = corpus_of(40)
    label = np.random.default_rng(0).permutation(["reject"] * 141 + ["accept"] * 99)
    labels = pd.DataFrame({"label": label})
    system = System.of("t", corpus, labels)
    assert disagreement.too_few_for_disagreement(system.decided)
    labels = labels.copy()
    labels.loc[np.flatnonzero(label == "reject")[0], "label"] = "accept"
    system = system.with_labels(labels)
    assert not disagreement.too_few_for_disagreement(system.decided)


def instructed(y, clusters=None):
    """Return systems, by wording of an instruction, of decisions of shape (prompts,
    instructions); NaN is unparsed.
    """
    names = ("safety", "safety-2", "strict", "strict-2", "strict-3")[: y.shape[1]]
    corpus = pd.DataFrame(
        {
            "cluster_id": (
                np.repeat(np.arange(len(y) // 3), 3) if clusters is None else clusters
            )
        }
    )
    label = np.where(np.isnan(y), "unparsed", np.where(y == 1, "reject", "accept"))
    corpus["strategy"] = np.resize(["seed", "softening", "lexical"], len(y))
    clusters = ClusterBootstrap(corpus["cluster_id"], 50)
    labels = {
        f"m--{name}": pd.DataFrame({"label": own, "kind": None})
        for name, own in zip(names, label.T, strict=True)
    }
    made = systems(corpus, labels, clusters)
    return {system.name.removeprefix("m--"): system for system in made}


def test_parts_by_loops_over_pairs_of_prompts_and_instructions():
    rng = np.random.default_rng(5)
    y = (rng.random((15, 5)) < rng.choice([0.2, 0.8], (5, 1)).repeat(3, axis=0)).astype(
        float
    )
    y[4, 1] = np.nan  # leaves the prompt out
    row = variance.split_instruction_variance("m", instructed(y))
    ideas, kept = "aabbb", [i for i in range(15) if i != 4]

    def mean(prompts, instructions):
        found = [
            y[p, i] * y[q, j]
            for p in kept
            for q in kept
            for i in range(5)
            for j in range(5)
            if (p == q, p // 3 == q // 3) == prompts
            and (i == j, ideas[i] == ideas[j]) == instructions
        ]
        return np.mean(found)

    same, meaning, apart = (True, True), (False, True), (False, False)
    one, idea, two = (
        same,
        meaning,
        apart,
    )  # an instruction with itself, with another wording, with another idea
    total = mean(same, one) - mean(apart, two)
    expected = {
        "meaning": mean(meaning, two) - mean(apart, two),
        "request": mean(same, two) - mean(meaning, two),
        "idea": mean(apart, idea) - mean(apart, two),
        "wording": mean(apart, one) - mean(apart, idea),
        "idea_request": (
            mean(same, idea) - mean(same, two) - mean(apart, idea) + mean(apart, two)
        ),
        "wording_request": (
            mean(same, one) - mean(same, idea) - mean(apart, one) + mean(apart, idea)
        ),
    }
    assert (
        row["n"] == 14
        and row["too_few"]
        and set(expected) == set(variance.INSTRUCTION_PARTS)
    )
    for part, value in expected.items():
        assert row[part] == pytest.approx(value / total), part
    assert sum(row[part] for part in expected) == pytest.approx(1)
    assert row["idea_minus_wording"] == pytest.approx(row["idea"] - row["wording"])
    assert row["interaction_minus_wording"] == pytest.approx(
        row["wording_request"] - row["wording"]
    )


def test_each_model_and_wording_has_a_row():
    y = np.tile([1.0, 1.0, 0.0, 0.0], (12, 1))
    y[:3, 1] = 0  # of 12 prompts 3 are answered under the second wording: 9 of 12
    made = variance.tabulate_instructions(list(instructed(y).values()))
    assert made["instructions"]["system"].tolist() == ["m"]
    rates = made["instruction_wordings"].set_index("system")
    assert rates["frr"].to_dict() == {
        "m--safety": 1.0,
        "m--safety-2": 0.75,
        "m--strict": 0.0,
        "m--strict-2": 0.0,
    }
    assert rates["too_few"].all() and {"dr", "dr_near", "dr_free"} <= set(rates)


def test_pure_instructions_by_hand():
    # one idea always refuses, the other never: of the products 1/2 - 0 is the idea's,
    # all of the variance
    y = np.tile([1.0, 1.0, 0.0, 0.0], (12, 1))
    row = variance.split_instruction_variance("m", instructed(y))
    assert {name: round(row[name], 9) for name in variance.INSTRUCTION_PARTS} == {
        **dict.fromkeys(variance.INSTRUCTION_PARTS, 0.0),
        "idea": 1.0,
    }
    # a wording that refuses whatever is asked, beside one of its idea that does not,
    # and so in the other idea: its own
    y = np.tile([1.0, 0.0, 1.0, 0.0], (12, 1))
    row = variance.split_instruction_variance("m", instructed(y))
    # products: itself 1/2, other wording of its idea 0, other idea 1/4: wording 1/2,
    # idea -1/4, of 1/4 in all
    assert (row["wording"], row["idea"]) == pytest.approx((2, -1)) and row[
        "request"
    ] == pytest.approx(0)
