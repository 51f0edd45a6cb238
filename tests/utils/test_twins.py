"""The unsafe twins, first seventy and then two hundred: paired with benign clusters,
gated as those, without detail.
"""

import re

import numpy as np
import pandas as pd
import pytest
import worlds

from paraguard_utils import paths, settings, stores, text, unsafe
from paraguard_utils.core.words import split_words
from paraguard_utils.corpus import gates, inputs

RECORDED = stores.Store("recorded")
SEEDS = "data/seeds/{corpus}.csv"
CANDIDATES = "data/candidates/{corpus}.csv"
TWIN = "-twin"
"""What the id of a twin adds to that of its benign cluster."""

LONGEST = 30
"""Words of a request: what is wanted fits into them, how it is done does not."""

DETAIL = re.compile(
    r"\d"  # amounts, dates
    r"|//|www|@|\w\.\w"  # links and addresses
    r"|[`{}<>=_\\/|*#$%;~^]"  # code
    r"|\b[A-Z][a-z]?[A-Z]\w*"  # formulas, abbreviations, commands
    r"|\b(?:mg|ml|kg|grams?|litres?|degrees|spoons?)\b"
    r"|\b\w*(?:oxide|chloride|nitrate|sulph\w*|sulf\w*|phosph\w*|cyanide|acid)\b"
)
"""What a crude guard sees of amounts, links, code and substances."""

SPELT = re.compile(r"\b(HIV|STI)\b")
"""The two illnesses in the requests: no formula and no name."""

NAMED = re.compile(r"(?<![.?!] )(?<!^)\b(?!I\b|Muslim\b)[A-Z]\w*")
"""A capital inside a sentence: a person, a place, a product."""

MINORS = re.compile(
    r"\b(?:child\w*|kids?|bab(?:y|ies)|toddlers?|teen\w*|minors?|girls?|boys?|young\w*|school\w*|pupils?|students?|"
    r"daughters?|sons?|underage|juvenile\w*|\w+-year-olds?)\b",
    re.IGNORECASE,
)


def build_again(name):
    """Return the seeds of a corpus of twins, and the corpus that 01 makes of them."""
    files = stores.CorpusFiles(RECORDED, name)
    seeds = inputs.read_seeds(name, SEEDS)
    candidates = inputs.CandidateSource(CANDIDATES).read(files, seeds)
    judging = gates.Judging(embed=inputs.make_embedder(files))
    judged = gates.judge_candidates(seeds, candidates, judging)
    return seeds, gates.assemble_corpus(*judged)


@pytest.fixture(scope="module")
def twins():
    return RECORDED.read("corpus", settings.OLD_TWINS)


def texts_of(kind):
    return stores.read_file(paths.DATA / kind / f"{settings.OLD_TWINS}.csv", kind)[
        "text"
    ].tolist()


@pytest.fixture(scope="module")
def everything():
    """Every text about the twins in the repository, kept or stopped by a gate."""
    return texts_of("seeds") + texts_of("candidates")


def test_every_twin_has_its_benign_cluster_in_the_same_category(twins, recorded_corpus):
    benign = recorded_corpus.drop_duplicates("cluster_id").set_index("cluster_id")[
        "category"
    ]
    seeds = twins[twins["variant"] == 0]
    assert seeds["cluster_id"].str.endswith(TWIN).all()
    assert (
        seeds["category"].tolist()
        == benign[seeds["cluster_id"].str.removesuffix(TWIN)].tolist()
    )
    assert not set(twins["prompt_id"]) & set(recorded_corpus["prompt_id"])


def test_clusters_are_complete_and_spread_over_the_categories(twins, recorded_corpus):
    clusters = twins.groupby("cluster_id")
    assert clusters.ngroups >= 66
    assert (clusters["variant"].agg(tuple) == tuple(range(6))).all()
    recorded = tuple(recorded_corpus["strategy"].unique())
    assert (clusters["strategy"].agg(tuple) == recorded).all()
    counts = twins.loc[twins["variant"] == 0, "category"].value_counts()
    assert set(counts.index) == set(worlds.CATEGORIES) and counts.between(6, 7).all()


@pytest.mark.slow
def test_01_builds_the_twins_by_the_gates_of_the_benign_corpus(twins):
    seeds, built = build_again(settings.OLD_TWINS)
    pd.testing.assert_frame_equal(built, twins, check_dtype=False, rtol=1e-4)
    assert set(seeds["seed_id"]) == set(twins["cluster_id"])  # no seed was given up


def test_the_twins_were_built_with_the_gates_of_the_benign_corpus():
    limits = [
        stores.read_meta(RECORDED.path("corpus", name))
        for name in (settings.CORPUS, settings.OLD_TWINS)
    ]
    chosen = [
        {name: meta["parameters"][name] for name in (*vars(settings.Gates()), "risk")}
        | {"scorer": meta["inputs"]["risk"]}
        for meta in limits
    ]
    assert chosen[0] == chosen[1]


def test_controlled_variants_move_the_risk_the_right_way(twins):
    risk = twins.pivot(index="cluster_id", columns="strategy", values="risk")
    shift = settings.Gates().min_shift
    assert (np.round(risk["seed"] - risk["softening"], 4) >= shift).all()
    assert (np.round(risk["hardening"] - risk["seed"], 4) >= shift).all()


def test_no_twin_repeats_or_holds_a_benign_prompt(everything, recorded_corpus):
    benign = [text.match_key(line) for line in recorded_corpus["text"]]
    for line in map(text.match_key, everything):
        assert not [one for one in benign if one in line or line in one]


def test_requests_are_short_and_without_detail(everything):
    assert [line for line in everything if len(split_words(line)) > LONGEST] == []
    plain = [SPELT.sub("illness", line) for line in everything]
    assert [line for line in plain if DETAIL.search(line) or NAMED.search(line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "Take 20 of them.",
        "See www.example.org for it.",
        "Mix NaCl into it.",
        "Which nitrate?",
        "Use rm_all; now",
        "Add two grams of it.",
    ],
)
def test_detail_is_seen(line):
    assert DETAIL.search(line)


@pytest.mark.parametrize(
    "line", ["How do I rob Smith's house?", "Write to the mayor of Lyon about it."]
)
def test_names_are_seen(line):
    assert NAMED.search(line)


def test_no_minor_stands_in_a_sexual_request():
    for kind in ("seeds", "candidates"):
        rows = stores.read_file(paths.DATA / kind / f"{settings.OLD_TWINS}.csv", kind)
        sexual = rows.loc[rows["seed_id"].str.startswith("sexual-"), "text"]
        assert len(sexual) and not sexual.str.contains(MINORS).any()


def test_no_answer_to_a_twin_is_in_the_repository():
    """Of what a system says to a twin, numbers and labels may be kept, and no text."""
    for of in (settings.TWINS, settings.OLD_TWINS):
        assert not [
            kind for kind in ("answers", "tuning") if (paths.DATA / kind / of).exists()
        ]
        kept = [*(paths.DATA / "traces" / of).glob("*.parquet")]
        kept += (paths.DATA / "samples" / of).glob("*.parquet")
        for path in kept:
            assert (
                pd.read_parquet(path, columns=["response"])["response"]
                .fillna("")
                .eq("")
                .all()
            )


@pytest.fixture(scope="module")
def matched():
    """The twins that are as long as what they are twins of."""
    return RECORDED.read("corpus", settings.TWINS)


@pytest.mark.slow
def test_every_cluster_has_a_matched_twin_that_passed_the_gates(
    matched, recorded_corpus
):
    _, built = build_again(settings.TWINS)
    pd.testing.assert_frame_equal(built, matched, check_dtype=False, rtol=1e-4)
    assert set(unsafe.benign_cluster_of(matched["cluster_id"])) == set(
        recorded_corpus["cluster_id"]
    )
    assert (
        matched.groupby("cluster_id")["variant"].agg(tuple) == tuple(range(6))
    ).all()
    benign = recorded_corpus.drop_duplicates("cluster_id")["category"].tolist()
    assert matched.drop_duplicates("cluster_id")["category"].tolist() == benign


NOT_NAMES = re.compile(
    r"(?:Sun|Mon|Fri|Satur)day|HR|PINs?|SMS|over"
    r" 40s|w/o|Jew\w*|Muslims?|Sikhs?|Pakistanis?|Roma|Black|Whites?"
)
"""Capitals that name no person, place or product: days, groups of people,
abbreviations; and an age.
"""


def test_matched_twins_name_nothing_that_their_cluster_does_not(
    matched, recorded_corpus
):
    known = recorded_corpus.groupby("cluster_id")["text"].agg(" ".join).str.casefold()
    for row in matched.itertuples():
        line = NOT_NAMES.sub("some", SPELT.sub("illness", row.text))
        own = known[row.cluster_id.removesuffix(TWIN)]
        new = [
            one[0]
            for shape in (DETAIL, NAMED)
            for one in shape.finditer(line)
            if one[0].casefold() not in own
        ]
        assert not new, (row.prompt_id, new)


def test_no_minor_stands_in_a_matched_sexual_request(matched):
    sexual = matched.loc[matched["category"] == "sexual", "text"].str.replace(
        "thirty-year-old", "adult"
    )
    assert len(sexual) and not sexual.str.contains(MINORS).any()
