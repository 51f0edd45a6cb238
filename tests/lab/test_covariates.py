"""What the metric adds, near-identical prompts, brittle clusters and examples to tune
on.
"""

import csv
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import worlds
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from paraguard_lab.analysis import covariates, near_identical
from paraguard_lab.labels import follow_ups
from paraguard_lab.remedies import tuning_data
from paraguard_lab.report import figures, review
from paraguard_lab.sheets import escape_formulas
from paraguard_utils import stores
from paraguard_utils.analysis import confusion
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.signals import PPL_INTERPRETATIONS, Scoring
from paraguard_utils.core.vectors import cosine_similarity
from paraguard_utils.labels import labelling
from paraguard_utils.models import trace_store


def scored(labels, clusters, seed=0, texts=None, k=2):
    corpus, vectors, traces, labels, tokens = worlds.world(labels, clusters, seed)
    if texts:
        corpus["text"] = texts
    return worlds.scored(
        (corpus, vectors, traces, labels, tokens), scoring=Scoring(k=k)
    )


def test_covariates_by_hand():
    texts = [
        "red fox jumps",
        "red fox sleeps",
        "blue fish swims",
        "red fox",
        "green tree",
    ]
    system = scored(
        ["reject", "accept", "accept", "reject", "accept"],
        ["a", "a", "a", "a", "b"],
        texts=texts,
    )
    # the near neighbours are set: p000 has p001 and p002, p003 has p001
    row = {
        "centre_label": "reject",
        "neighbour_label": "accept",
        "same_cluster": True,
        "similarity": 0.5,
    }
    row |= {"drift": 0.1, "prob_shift": 0.2, "ppl_relative": 0.3, "ppl_clipped": 0.4}
    pairs = pd.DataFrame(
        [
            row | {"centre_id": "p000", "neighbour_id": "p001", "rank": 1},
            row
            | {
                "centre_id": "p000",
                "neighbour_id": "p002",
                "rank": 2,
                "drift": 0.5,
                "similarity": 0.3,
            },
            row
            | {
                "centre_id": "p000",
                "neighbour_id": "p004",
                "rank": 3,
                "drift": 0.9,
            },  # beyond k
            row | {"centre_id": "p003", "neighbour_id": "p001", "rank": 1},
            row
            | {
                "centre_id": "p003",
                "neighbour_id": "p002",
                "rank": pd.NA,
                "drift": 0.9,
            },  # not among the nearest
        ]
    )
    system = replace(system, pairs=pairs)
    system = replace(system, scores=confusion.score_prompts(system))
    found = covariates.ci_covariates(system).set_index("prompt_id")
    assert found.index.tolist() == ["p000", "p003"]
    # {red, fox, jumps} shares 2 of 4 words with {red, fox, sleeps} and none with {blue,
    # fish, swims}
    assert found["jaccard"].tolist() == pytest.approx([(2 / 4 + 0) / 2, 2 / 3])
    assert found["drift"].tolist() == pytest.approx([0.3, 0.1])
    assert found["similarity"].tolist() == pytest.approx([0.4, 0.5])
    # CI = 0.4 drift + 0.1 ProbShift + 0.5 PPL
    assert found["ci"].tolist() == pytest.approx(
        [0.12 + 0.02 + 0.15, 0.04 + 0.02 + 0.15]
    )
    assert found["ci_clipped"].tolist() == pytest.approx(
        [0.12 + 0.02 + 0.2, 0.04 + 0.02 + 0.2]
    )
    # cluster a: 2 of 4 refused, so 1 of the 3 others; entropy of 1/2 is one bit
    assert found["cluster_frr"].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert found["flip_entropy"].tolist() == [1.0, 1.0]
    own = system.traces.set_index("prompt_id").loc[found.index]
    assert found["length"].tolist() == (own["user_end"] - own["user_start"]).tolist()
    assert (
        found["risk"].tolist()
        == system.prompts.set_index("prompt_id")["risk"].loc[found.index].tolist()
    )


def test_without_other_scored_prompts_the_clusters_rate_is_undefined():
    system = scored(["reject", "accept", "blocked"], ["a", "b", "a"])
    found = covariates.ci_covariates(system)
    assert (
        len(found) == 1
        and np.isnan(found["cluster_frr"][0])
        and np.isnan(found["flip_entropy"][0])
    )


def frame(n=40, seed=0, **columns):
    """Covariates of n rejections in clusters of two, drawn, with some columns set."""
    rng = np.random.default_rng(seed)
    names = [
        *covariates.COVARIATE_TITLES,
        "drift",
        "prob_shift",
        *PPL_INTERPRETATIONS.values(),
        "ci",
        "ci_clipped",
    ]
    drawn = pd.DataFrame({name: rng.random(n) for name in names})
    return drawn.assign(
        prompt_id=[f"p{i}" for i in range(n)],
        cluster_id=[f"c{i // 2:02d}" for i in range(n)],
        **columns,
    )


def correlated(**columns):
    made = frame(**columns)
    clusters = ClusterBootstrap(made["cluster_id"], resamples=200)
    return covariates.correlate_covariates({"t": made}, clusters).set_index(
        ["interpretation", "covariate"]
    )


def test_r_and_rho_by_hand():
    made = frame(n=4).assign(
        ci=[0.1, 0.2, 0.3, 0.4], risk=[1.0, 2.0, 3.0, 10.0], length=[4, 3, 2, np.nan]
    )
    clusters = ClusterBootstrap(made["cluster_id"], resamples=50)
    table = covariates.correlate_covariates({"t": made}, clusters).set_index(
        ["interpretation", "covariate"]
    )
    row = table.loc[("relative", "risk")]
    # centred: ci -.15 -.05 .05 .15, risk -3 -2 -1 6: r = 1.4 / sqrt(0.05 * 50); the
    # order is the same: rho = 1
    assert row["r"] == pytest.approx(1.4 / np.sqrt(2.5)) and row[
        "rho"
    ] == pytest.approx(1)
    assert row["n"] == 4 and row["too_few"]
    assert table.loc[("relative", "length"), "n"] == 3 and table.loc[
        ("relative", "length"), "r"
    ] == pytest.approx(-1)


def test_each_interpretation_has_its_own_ci_and_its_own_contrast():
    rng = np.random.default_rng(5)
    relative, clipped = rng.random(40), rng.random(40)
    table = correlated(
        ci=relative, ppl_relative=relative, ci_clipped=clipped, ppl_clipped=-clipped
    )
    assert table.loc[("relative", "ppl"), "r"] == pytest.approx(1)
    assert table.loc[("clipped", "ppl"), "r"] == pytest.approx(-1)
    assert not table["too_few"].any()


def test_a_covariate_without_spread_is_undefined():
    table = correlated(risk=0.5)
    assert table.loc[("relative", "risk"), ["r", "r_low", "rho"]].isna().all()


def test_near_identical_by_hand():
    pairs = pd.DataFrame(
        {"similarity": [0.95, 0.94, 0.2, 0.2], "jaccard": [0.0, 0.79, 0.8, np.nan]}
    )
    assert near_identical.is_near_identical(pairs).tolist() == [
        True,
        False,
        True,
        False,
    ]


def test_prompts_without_content_words_do_not_overlap():
    corpus = pd.DataFrame(
        {"prompt_id": ["a", "b"], "text": ["How do I do it?", "What is that?"]}
    )
    assert np.isnan(near_identical.content_word_overlaps(corpus, ["a"], ["b"])).all()


def test_own_pairs_are_all_pairs_of_a_cluster_once():
    corpus, vectors, *_ = worlds.world(["accept"] * 6, list("abacaa"))
    own = near_identical.pair_within_clusters(corpus, vectors)
    ids = ["p000", "p002", "p004", "p005"]
    assert list(zip(own["first_id"], own["second_id"], strict=True)) == [
        (first, second) for i, first in enumerate(ids) for second in ids[i + 1 :]
    ]
    expected = cosine_similarity(vectors[[0]], vectors[[2]])[0, 0]
    assert own["similarity"][0] == pytest.approx(expected)


def twins(flipped, seed=0, k=5):
    """A world of clusters of four: two near-identical prompts, decided differently in
    some clusters, and two others.
    """
    n = len(flipped)
    labels = [
        label
        for flip in flipped
        for label in ("accept", "reject" if flip else "accept", "reject", "accept")
    ]
    corpus, vectors, traces, labels, tokens = worlds.world(
        labels, np.repeat([f"c{i:03d}" for i in range(n)], 4), seed
    )
    for i in range(0, 4 * n, 4):
        vectors[i + 1] = vectors[i] * 1.01
        for column in ("token_ids", "token_nll", "user_start", "user_end"):
            traces.at[i + 1, column] = traces.at[i, column]
    made = (corpus, vectors, traces, labels, tokens)
    return corpus, vectors, worlds.scored(made, scoring=Scoring(k=k))


@pytest.mark.slow
def test_a_world_where_a_fifth_of_near_identical_pairs_is_flipped():
    flipped = np.random.default_rng(8).random(150) < 0.2
    corpus, vectors, system = twins(flipped)
    own = near_identical.pair_within_clusters(corpus, vectors)
    near = own[near_identical.is_near_identical(own)]
    twin = near["first_id"].str[1:].astype(int) % 4 == 0
    row = near_identical.near_identical_flips(
        own[own.index.isin(near.index[twin])], [system]
    ).iloc[0]
    assert (
        row["n_near"] == 150
        and row["n_near_flipped"] == flipped.sum()
        and not row["too_few"]
    )
    assert (
        row["flip_near"] == pytest.approx(flipped.mean())
        and row["flip_near_low"] < 0.2 < row["flip_near_high"]
    )
    tail = near_identical.lowest_scored_pairs([system])
    wanted = {(f"p{4 * i + 1:03d}", f"p{4 * i:03d}") for i in np.flatnonzero(flipped)}
    found = tail.set_index(["rejected_id", "accepted_id"])
    assert wanted <= set(found.index)
    # threat 4: the same words, another decision: these score lowest of all
    assert found.loc[list(wanted), "share_below"].max() < 0.1
    assert tail["score"].is_monotonic_increasing


def test_only_scored_prompts_flip():
    corpus, vectors, _, labels, _ = worlds.world(
        ["accept", "blocked", "reject", "accept"], list("aabb")
    )
    own = near_identical.pair_within_clusters(corpus, vectors).assign(similarity=1.0)
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples=50)
    system = worlds.system(corpus, labels, clusters)
    row = near_identical.near_identical_flips(own, [system]).iloc[0]
    assert row["n_near"] == 1 and row["flip_near"] == 1.0 and row["too_few"]
    row = near_identical.near_identical_flips(
        own.assign(similarity=0.0, jaccard=0.0), [system]
    ).iloc[0]
    assert (
        row["n_near"] == 0 and np.isnan(row["flip_near"]) and row["flip_pairs"] == 1.0
    )


def test_the_tail_lists_share_below_by_hand():
    row = {
        "centre_label": "reject",
        "same_cluster": True,
        "similarity": 0.5,
        "prob_shift": 0.0,
        "ppl_clipped": 1.0,
    }
    pairs = pd.DataFrame(
        [
            row
            | {
                "centre_id": "a",
                "neighbour_id": "b",
                "drift": 0.5,
                "ppl_relative": 0.0,
            },
            row
            | {
                "centre_id": "a",
                "neighbour_id": "c",
                "drift": 0.0,
                "ppl_relative": 0.2,
            },
            row
            | {
                "centre_id": "a",
                "neighbour_id": "d",
                "drift": 0.0,
                "ppl_relative": 0.3,
                "similarity": 0.97,
            },
            row
            | {
                "centre_id": "b",
                "neighbour_id": "d",
                "drift": 0.0,
                "ppl_relative": 0.0,
                "centre_label": "accept",
            },
        ]
    )
    corpus = pd.DataFrame(
        {
            "prompt_id": list("abcd"),
            "cluster_id": "c",
            "text": ["=one", "two", "three", "four"],
        }
    )
    system = worlds.system(corpus, corpus.assign(label="unparsed"), pairs=pairs)
    tail = near_identical.lowest_scored_pairs([system])
    assert tail[["rejected_id", "accepted_id", "rejected_prompt"]].values.tolist() == [
        ["a", "d", "'=one"]
    ]
    # scores 0.2, 0.1, 0.15; clipped 0.7, 0.5, 0.5: a tie is not below
    assert tail["score"][0] == pytest.approx(0.15) and tail["share_below"][
        0
    ] == pytest.approx(1 / 3)


def test_brittle_clusters_by_hand():
    labels = [
        "reject",
        "accept",
        "reject",
        "accept",
        "accept",
        "accept",
        "reject",
        "accept",
        "accept",
        "blocked",
    ]
    clusters = ["a", "a", "b", "b", "b", "c", "d", "d", "d", "d"]
    texts = [
        "=1+1",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight | nine",
        "ten",
        "eleven",
    ]
    system = scored(labels, clusters, texts=texts)
    scores = system.scores
    scores["ci"] = scores["prompt_id"].map({"p000": 0.2, "p002": 0.4, "p006": 0.6})
    table = review.list_brittle_clusters([system])
    # a: 1 of 2, one bit; b and d: 1 of 3, the higher CI first; c is not mixed
    assert table["cluster_id"].tolist() == ["a", "d", "b"]
    assert table["flip_entropy"].tolist() == pytest.approx(
        [1.0, 0.9183, 0.9183], abs=1e-4
    )
    assert table["ci"].tolist() == [0.2, 0.6, 0.4]
    assert table["rejected"].tolist() == ["'=1+1", "seven", "three"]
    assert table["accepted"].tolist() == ["two", "eight | nine | ten", "four | five"]
    assert table[["n_accepted", "n_rejected"]].values.tolist() == [
        [1, 1],
        [2, 1],
        [2, 1],
    ]


@pytest.mark.parametrize("label", ["accept", "reject"])
def test_a_system_of_one_mind_has_no_brittle_cluster_no_tail_and_no_example(label):
    system = scored([label] * 4, list("aabb"))
    corpus, labels = system.prompts, system.labels
    assert review.list_brittle_clusters([system]).empty
    assert near_identical.lowest_scored_pairs([system]).empty
    answered = replace(system, labels=labels.assign(response="Yes."))
    assert tuning_data.make_tuning_examples(answered, None, "") == []
    made = covariates.ci_covariates(system)
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples=50)
    table = covariates.correlate_covariates({"t": made}, clusters)
    assert table["r"].isna().all()


def test_examples_to_tune_on_by_hand():
    labels = ["reject", "accept", "accept", "accept", "reject", "accept", "reject"]
    system = replace(scored(labels, ["a", "a", "a", "a", "b", "b", "c"]), name="t")
    traces, labels, pairs = system.traces, system.labels, system.pairs
    labels["response"] = [f"answer {i}" for i in range(7)]
    traces["finish_reason"] = [
        "stop",
        "length",
        "stop",
        "stop",
        "stop",
        "length",
        "stop",
    ]
    near = {("p000", "p001"): 0.9, ("p000", "p002"): 0.5, ("p000", "p003"): 0.6}
    pairs["similarity"] = [
        near.get(ends, 0.1)
        for ends in zip(pairs["centre_id"], pairs["neighbour_id"], strict=True)
    ]

    def made(longer=None, system_prompt=""):
        return tuning_data.make_tuning_examples(system, longer, system_prompt)

    # the nearest was cut; so was the only accepted prompt of b; c has none
    (first,) = made()
    assert first == {
        "messages": [
            {"role": "user", "content": "text 0"},
            {"role": "assistant", "content": "answer 3"},
        ],
        "system": "t",
        "cluster_id": "a",
        "prompt_id": "p000",
        "answered_as": "p003",
    }
    assert made(system_prompt="Be safe.")[0]["messages"][0] == {
        "role": "system",
        "content": "Be safe.",
    }
    longer = pd.DataFrame(
        {
            "prompt_id": ["p001", "p005"],
            "response": ["whole 1", "whole 5"],
            "finish_reason": "stop",
        }
    )
    longer = longer.assign(label="accept", declined_later=False, sample=False)
    assert [row["answered_as"] for row in made(longer)] == ["p001", "p005"]
    assert made(longer)[0]["messages"][-1]["content"] == "whole 1"
    unfit = (
        {"response": "I'm Sorry, but yes"},
        {"finish_reason": "length"},
        {"label": "reject"},
        {"response": None},
    )
    for change in (
        *unfit,
        {"declined_later": True},
        {"response": "so it goes and " * 9},
    ):
        assert [row["answered_as"] for row in made(longer.assign(**change))] == [
            "p003"
        ], change
    labels.loc[3, "response"] = "I apologize, yes"
    assert made()[0]["answered_as"] == "p002"


@pytest.mark.slow
@examples(max_examples=60)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=4)
)
def test_jsonl_round_trip(tmp_path_factory, texts):
    path = tmp_path_factory.getbasetemp() / "round.jsonl"
    made = [{"messages": [{"role": "user", "content": content}]} for content in texts]
    tuning_data.write_jsonl(path, made, {})
    content = path.read_bytes().decode("utf-8")
    assert [json.loads(line) for line in content.splitlines()] == made
    assert content.count("\n") == len(made)


def test_jsonl_keeps_hard_texts_on_their_lines(tmp_path):
    hard = [
        'a\nb\r\n"c"',
        "\u2028 \u2029 \x85 \x0b \x1c \x00",
        "Ünïcode 漢字 😀",
        "<script>",
    ]
    tuning_data.write_jsonl(
        tmp_path / "new" / "x.jsonl", [{"content": one} for one in hard], {}
    )
    lines = (tmp_path / "new" / "x.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["content"] for line in lines] == hard
    assert "漢字" in lines[2]
    with pytest.raises(ValueError, match="JSON compliant"):
        tuning_data.write_jsonl(
            tmp_path / "new" / "x.jsonl", [{"ci": float("nan")}], {}
        )
    assert (
        len((tmp_path / "new" / "x.jsonl").read_text(encoding="utf-8").splitlines())
        == 4
    )


def test_a_spreadsheet_runs_no_prompt():
    cells = pd.DataFrame(
        {"a": ["=1+1", "+1", "-1", "@x", "\tx", "plain = text", "a\n=1"]}
    )
    safe = ["'=1+1", "'+1", "'-1", "'@x", "'\tx", "plain = text", "a\n=1"]
    assert (
        escape_formulas(cells)["a"].tolist() == safe
        and escape_formulas(cells["a"]).tolist() == safe
    )


def test_brittle_table_reads_back(tmp_path):
    system = scored(["reject", "accept"], ["a", "a"], texts=['say "hi",\nnow', "-hi"])
    table = review.list_brittle_clusters([system])
    stores.write_file(tmp_path / "brittle.csv", table, "tables", {})
    with (tmp_path / "brittle.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["rejected"] == 'say "hi",\nnow' and row["accepted"] == "'-hi"


@pytest.mark.slow
def test_on_recorded_answers(recorded_corpus):
    recorded, name = stores.Store("recorded"), "smollm2-135m-instruct-q4_1--safety"
    files = stores.CorpusFiles(recorded, "paraguard_mini")
    traces = trace_store.read_traces(files, name, recorded_corpus)
    labels = labelling.read_matching_labels(files, name, traces)
    pairs = recorded.read("pairs", "paraguard_mini", name)
    system = replace(
        System.of(name, recorded_corpus, labels), traces=traces, pairs=pairs
    )
    system = replace(system, scores=confusion.score_prompts(system))
    made = covariates.ci_covariates(system)
    # CI is the weighted sum of its parts' means
    parts = 0.4 * made["drift"] + 0.1 * made["prob_shift"] + 0.5 * made["ppl_relative"]
    assert np.allclose(parts, made["ci"], atol=1e-12)
    table = covariates.correlate_covariates(
        {name: made}, ClusterBootstrap(recorded_corpus["cluster_id"])
    )
    same = table[table["covariate"] == "similarity"].set_index("interpretation")
    kept = recorded.read("tables", "ci_correlations").query(
        "system == @name and covariate == 'similarity'"
    )
    for column in ("n", "r", "r_low", "r_high"):
        assert same[column].to_numpy() == pytest.approx(
            kept[column].to_numpy(), rel=1e-4
        )
    rejected = set(labels.loc[labels["label"] == "reject", "prompt_id"])
    longer = follow_ups.read_long_answers(files, [name])[name]
    made = tuning_data.make_tuning_examples(system, longer, "Be safe.")
    accepted = labels[labels["label"] == "accept"].set_index("prompt_id")
    cluster = recorded_corpus.set_index("prompt_id")["cluster_id"]
    whole = pd.concat(
        [
            traces[traces["finish_reason"] == "stop"],
            longer[longer["finish_reason"] == "stop"],
        ]
    )
    answers = whole.drop_duplicates("prompt_id").set_index("prompt_id")["response"]
    assert len(made) > 10
    for example in made:
        assert (
            example["prompt_id"] in rejected
            and example["answered_as"] in accepted.index
        )
        assert (
            cluster[example["prompt_id"]]
            == cluster[example["answered_as"]]
            == example["cluster_id"]
        )
        assert [turn["role"] for turn in example["messages"]] == [
            "system",
            "user",
            "assistant",
        ]
        assert example["messages"][2]["content"] == answers[example["answered_as"]]


def test_the_figure_says_where_r_is_undefined():
    made = frame(risk=0.5)
    table = covariates.correlate_covariates(
        {"mine": made}, ClusterBootstrap(made["cluster_id"], resamples=50)
    )
    figure = figures.plot_ci_correlates(table)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()][2] == "surface risk"
    assert [note.get_text() for note in axis.texts].count(
        "undefined"
    ) == 2  # one in each interpretation
    assert "mine, n = 40" in axis.get_title("left")
