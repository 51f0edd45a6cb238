"""What `outside.py` computes from the definitions alone, the package computes, and the
record says.
"""

import re
from dataclasses import replace

import nbformat
import numpy as np
import outside
import pandas as pd
import pytest
from recorded import recorded_systems
from worlds import systems

from paraguard_lab import run
from paraguard_lab.analysis import (
    drawn_pairs,
    harm,
    label_noise,
    rephrasing,
    shared_wording,
)
from paraguard_lab.core import pair_shares
from paraguard_lab.labels import annotations, follow_ups
from paraguard_lab.public_records import measures, sources
from paraguard_lab.remedies import coin
from paraguard_lab.report import numbers
from paraguard_utils import paths, stores
from paraguard_utils.analysis import wording
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.words import split_words
from paraguard_utils.report import sentences

RECORDED = stores.Store("recorded")
CORPORA = {
    name: RECORDED.read("corpus", name) for name in (outside.HARMLESS, outside.TWINS)
}
CORPUS = CORPORA[outside.HARMLESS]
CLUSTERS, PAIRS = (
    ClusterBootstrap(CORPUS["cluster_id"], resamples=20),
    wording.find_cluster_pairs(CORPUS),
)
CHAT, GUARDS = (recorded_systems(kind) for kind in ("chat", "guard"))
STRATEGIES = ("seed", "hardening", "lexical", "register", "softening", "rewrite")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "known"), [*((name, 1.0) for name in CHAT + GUARDS), (CHAT[5], 0.5)]
)  # and half
def test_the_package_agrees_on_wording_and_rephrasing(system, known):
    labels, rng = (
        [RECORDED.read("labels", name, system) for name in CORPORA],
        np.random.default_rng(1),
    )
    labels = [
        own.assign(label=own["label"].where(rng.random(len(own)) < known, "blocked"))
        for own in labels
    ]
    both = list(zip(CORPORA.values(), labels, strict=True))
    measured = [System.of(system, *side, CLUSTERS) for side in both]
    row = wording.wording_row(measured[0], PAIRS)
    found = {name: (row[name],) for name in ("dr_near", "dr_free")}
    found |= shared_wording.estimate_comparisons(measured[0], PAIRS)
    found |= rephrasing.estimate_rephrasing(
        CLUSTERS, *(rephrasing.count_benign_decisions(side) for side in measured)
    )
    found |= {"dr": measured[0].dr()}
    sides = [outside.scored(corpus, own["label"]) for corpus, own in both]
    own = (
        {"dr": outside.disagreement(sides[0])}
        | outside.wording(sides[0])
        | outside.rephrasing(*sides)
    )
    values = {
        name: value for name, (value, *_) in found.items() if "_minus_" not in name
    }
    assert {name: own[name] for name in values} == pytest.approx(
        values, rel=0, abs=1e-9, nan_ok=True
    )


@pytest.mark.slow
def test_the_package_agrees_on_corrected_rates():
    labels = {name: RECORDED.read("labels", outside.HARMLESS, name) for name in CHAT}
    table = label_noise.correct_rates(
        systems(CORPUS, labels, CLUSTERS),
        annotations.join_annotations(annotations.read_annotations(), labels),
    ).set_index("system")
    own = outside.published("chat").set_index("system").loc[table.index]
    assert (
        len(table) == len(CHAT) and (table["noisy"] == (own["precision"] < 0.9)).all()
    )
    for name, ours in {
        "frr": "true_frr",
        "dr": "true_dr",
        "frr_labelled": "frr",
        "dr_labelled": "dr",
    }.items():
        assert own[ours].tolist() == pytest.approx(
            table[name].tolist(), rel=0, abs=1e-9, nan_ok=True
        ), name


@pytest.mark.parametrize("system", CHAT)
def test_the_package_agrees_on_twins_that_readings_correct(system):
    table = RECORDED.read("tables", "label_noise_kinds")
    row = table[(table["kind"] == "twins") & (table["system"] == system)].iloc[0]
    labels = RECORDED.read("labels", outside.TWINS, system)["label"]
    own = outside.refused_twins(labels)
    assert own == pytest.approx((row["frr"], row["frr_read"]), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("system", CHAT)
def test_the_package_agrees_on_harm_and_thresholds(system):
    labels = [RECORDED.read("labels", name, system) for name in CORPORA]
    both = list(zip(CORPORA.values(), labels, strict=True))
    row = harm.harm_row(*(System.of(system, *side, CLUSTERS) for side in both))
    sides = [outside.scored(corpus, own["label"]) for corpus, own in both]
    own = outside.harm_parts(*sides)
    assert {name: row[name] for name in own} == pytest.approx(own, rel=0, abs=1e-9)

    scores = RECORDED.read("scores", outside.HARMLESS, system)
    measured = replace(System.of(system, CORPUS, labels[0], CLUSTERS), scores=scores)
    rates = outside.confusion_rates(scores)
    for interpretation, column in (("relative", "ci"), ("clipped", "ci_clipped")):
        found = measured.confusion[interpretation]
        for tau in (0.60, 0.75):
            value = found[f"cr{round(100 * tau)}"].value
            assert rates[column, tau] == pytest.approx(value, rel=0, abs=1e-9)


@pytest.mark.slow
def test_the_package_agrees_on_chance_by_kind_of_pair():
    drawn = follow_ups.read_samples(
        stores.CorpusFiles(RECORDED, "paraguard_mini"), CHAT
    )
    assert len(drawn) == 3
    for system, samples in drawn.items():
        labels = RECORDED.read("labels", outside.HARMLESS, system)
        measured = System.of(system, CORPUS, labels, CLUSTERS)
        for row in drawn_pairs.split_chance(measured, samples, "drawn")[:2]:
            own = outside.drawn_parts(CORPUS, samples, row["pairs"])
            found = {name: row[name] for name in own}
            assert found == pytest.approx(own, rel=0, abs=1e-9)


@pytest.mark.slow
def test_the_package_agrees_on_the_gap_s_p():
    system = CHAT[4]
    chosen = CORPUS["cluster_id"].isin(CORPUS["cluster_id"].unique()[:40])
    corpus = CORPUS[chosen].reset_index(drop=True)
    labels = RECORDED.read("labels", outside.HARMLESS, system)[chosen.to_numpy()]
    measured = System.of(system, corpus, labels.reset_index(drop=True))
    phrasings = wording.make_phrasings(measured)
    pairs = wording.find_cluster_pairs(corpus)
    sides = pairs.select(pairs.near), pairs.select(pairs.free)
    gap, p = pair_shares.gap_p(measured.clusters, phrasings, *sides, draws=49)
    code = measured.clusters.codes.loc[phrasings.cluster].to_numpy()
    dealt = pair_shares.deal_out(phrasings.refused, code, 49)
    own = []
    for decisions in [phrasings.refused, *dealt]:
        found = outside.wording(
            outside.scored(corpus, np.where(decisions == 1, "reject", "accept"))
        )
        own.append(found["dr_free"] - found["dr_near"])
    assert gap == pytest.approx(own[0], rel=0, abs=1e-9)
    n_beyond = sum(value >= own[0] - 1e-12 for value in own[1:])
    assert p == pytest.approx((1 + n_beyond) / 50, rel=0, abs=1e-9)


@pytest.mark.slow
def test_the_package_agrees_on_the_coin():
    # A softer instruction: its labels are on record, third by third.
    for system in CHAT:
        if not system.endswith("--safety"):
            continue
        before = [RECORDED.read("labels", corpus, system) for corpus in CORPORA]
        after = []
        for corpus in CORPORA.values():
            thirds = [
                RECORDED.read("labels", f"{name}--rewritten--third-{third}", system)
                for name in CORPORA
                if CORPORA[name] is corpus
                for third in (1, 2, 3)
            ]
            labels = pd.concat(thirds).set_index("prompt_id")
            after.append(labels.loc[corpus["prompt_id"]].reset_index())
        sides = [
            [own["label"].eq("reject").to_numpy() for own in labels]
            for labels in (before, after)
        ]
        own = outside.against_coin(*sides)
        rates = [
            [
                CLUSTERS.share(corpus["cluster_id"].str.removesuffix("-twin"), refused)
                for corpus, refused in zip(CORPORA.values(), side, strict=True)
            ]
            for side in sides
        ]
        found = coin.compare_with_coin(*rates).value
        assert found == pytest.approx(own, rel=0, abs=1e-9)
        row = RECORDED.read("tables", "remedy_map")
        row = row[(row["system"] == system) & (row["remedy"] == "rewritten")].iloc[0]
        assert row["against_coin"] == pytest.approx(own, rel=1e-4)


def test_words_are_split_alike():
    for text in [
        *pd.concat(CORPORA.values())["text"],
        "Don’t 'kill' my co-worker_s --naïve 3.5 x-'y ²½-٣",
        "",
        "'-",
    ]:
        assert outside.words(text) == split_words(text)


MARKS = {
    "prompts": "table1_systems.n_prompts",
    "clusters": "table1_systems.n_clusters",
    "frr.qwen2.5-coder-0.5b-instruct-q4_k_m--none": (
        "table1_systems[system == 'qwen2.5-coder-0.5b-instruct-q4_k_m--none'].frr:.0f %"
    ),
    "wording.n": "wording.too_few == False",
    "rephrased.n": "table1_rephrasing.too_few == False",
    "rephrased.twins.n": "table1_rephrasing.too_few_twins == False",
    "wording.near": "wording[too_few == False].dr_near:.2f",
    "wording.free": "wording[too_few == False].dr_free:.2f",
    "rephrased3.range": "table1_rephrasing[too_few == False].rephrased3:.0f %",
    "rephrased3_twins.range": (
        "table1_rephrasing[too_few_twins == False].rephrased3_twins:.0f %"
    ),
    "noise.dr.lower": "label_noise[dr.notna()].dr < dr_labelled",
    "read.noisy": "annotations.noisy",
    "guards.cr60": "table3_guards[axis != 'model' and too_few == False].cr60:.3f",
    "guards.cr60_clipped": (
        "table3_guards[axis != 'model' and too_few == False].cr60_clipped:.3f"
    ),
    "guards.floor_cr60_clipped": (
        "table3_guards[axis != 'model' and too_few == False].floor_cr60_clipped:.2f"
    ),
    "veto.isolation.better": "judged_vetoes[score == 'isolation'].better",
    "veto.reworded.better": "judged_vetoes[score == 'reworded'].better",
    "veto.ci.better": "judged_vetoes[score == 'ci'].better",
    "veto.low_ci.better": "judged_vetoes[score == '1 - ci'].better",
    "remedies.gains": (
        "tried.frr_change_high < 0 and twins_verdict in ('kept', 'more')"
    ),
    "remedies.dr_lower": "tried.dr_verdict == 'lower'",
    "remedies.coin": "tried.coin_verdict == 'better'",
    "remedies.wins": "tried.wins == 'yes'",
    "auc.ci.all.below": "validity.auc_ci_high < 0.5",
    "r.relative.similarity": (
        "ci_correlations[too_few == False and interpretation == 'relative' and covariate == "
        "'similarity'].r:+.2f"
    ),
    "r.clipped.similarity": (
        "ci_correlations[too_few == False and interpretation == 'clipped' and covariate == "
        "'similarity'].r:+.2f"
    ),
    "claim.safe60.relative": (
        "claims[claim == 'safe60' and interpretation == 'relative'].confirm of testable"
    ),
    "claim.safe60.clipped": (
        "claims[claim == 'safe60' and interpretation == 'clipped'].confirm of testable"
    ),
    "claim.safe75.relative": (
        "claims[claim == 'safe75' and interpretation == 'relative'].confirm of testable"
    ),
    "claim.safe75.clipped": (
        "claims[claim == 'safe75' and interpretation == 'clipped'].confirm of testable"
    ),
    "claim.risky60.relative": (
        "claims[claim == 'risky60' and interpretation == 'relative'].confirm of testable"
    ),
    "claim.risky60.clipped": (
        "claims[claim == 'risky60' and interpretation == 'clipped'].confirm of testable"
    ),
    "claim.risky75.relative": (
        "claims[claim == 'risky75' and interpretation == 'relative'].confirm of testable"
    ),
    "claim.risky75.clipped": (
        "claims[claim == 'risky75' and interpretation == 'clipped'].confirm of testable"
    ),
    "claim.similarity.verdict": "claims[claim == 'similarity'].verdict",
    "claim.safe75.verdict": "claims[claim == 'safe75'].verdict",
    "claim.safe60.verdict": "claims[claim == 'safe60'].verdict",
    "claim.risky75.verdict": "claims[claim == 'risky75'].verdict",
    "claim.risky60.verdict": "claims[claim == 'risky60'].verdict",
    "claim.redundant.verdict": "claims[claim == 'redundant'].verdict",
    "claim.guards.verdict": "claims[claim == 'guards'].verdict",
}
"""How README and notebooks name the numbers of `outside.counts`."""


def read(name):
    """Read a table that a mark names; 07 calls those of remedies `tried`."""
    if name == "tried":
        return RECORDED.read("tables", "remedy_map").query("role == 'remedy'")
    return sentences.read_named_table(RECORDED, name)


@pytest.mark.slow
def test_recorded_numbers_follow_from_labels_and_tables():
    own = outside.counts()
    assert own == {key: sentences.evaluate_mark(MARKS[key], read) for key in MARKS}


def test_every_recomputed_number_is_in_a_sentence():
    marks, said = numbers.read_number_marks(), set()
    for path in (*numbers.DOCUMENTS, *(paths.ROOT / "docs").glob("*.md")):
        names = numbers.NUMBER_PLACE.findall(path.read_text(encoding="utf-8"))
        said |= {marks[name] for name in names}
    for path in run.list_notebooks():
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code" and "study.say(" in cell.source:
                places = re.findall(r"\{(\w[^{}]*)\}", cell.source)
                said |= {" ".join(place.split()) for place in places}
    shown = ("claims[",)  # 00 shows the whole table
    assert {
        m for m in MARKS.values() if m not in said and not m.startswith(shown)
    } == set()


def hand(*labels):
    """Make clusters of prompts that are rejected (r) or accepted (a)."""
    rows = [
        (f"c{i}", STRATEGIES[j], "kill it")
        for i, own in enumerate(labels)
        for j in range(len(own))
    ]
    corpus = pd.DataFrame(rows, columns=["cluster_id", "strategy", "text"])
    return outside.scored(
        corpus, [{"r": "reject", "a": "accept"}[label] for label in "".join(labels)]
    )


def test_outside_by_hand():
    assert outside.words("Don’t 'kill' a co-worker_s") == [
        "don't",
        "kill",
        "a",
        "co-worker",
        "s",
    ]
    # One of two pairs differs. Of a seed and a hardening of two clusters, one of two
    # pairs does: 1 / (1/2 + 1/2).
    found = outside.wording(hand("ar", "aa"))
    assert (
        found["dr_near"] == found["dr_high"] == 1
        and np.isnan([found["dr_free"], found["dr_low"]]).all()
    )
    # Paraphrases decided otherwise: 1, 1/2, 1/2, 0, 0, 0, on average 1/3. Of two
    # clusters: 3 of 9 pairs.
    assert outside.disagreement(hand("raa", "aaa")) == pytest.approx((1 / 3) / (3 / 9))
    # Of each one of five refused, one other of five is accepted; 6 of 10 choices of
    # three hold it. Six more have none.
    odds = outside.rephrasing(hand("rrrrra", "rrrrrr"), hand("aaaaaa"))
    assert (odds["rephrased1"], odds["rephrased3"]) == pytest.approx(
        (5 * 1 / 5 / 11, 5 * 6 / 10 / 11)
    )
    assert (odds["refused_once"], odds["refused_always"], odds["answered_once"]) == (
        1,
        0.5,
        1,
    )
    # Half are refused, labelled and in truth. 1 - DR is divided by 0.8^2 and by 1 + 3 *
    # (0.09 / 10 + 0.09 / 10) / 0.8^2 - (0.09 / 10 + 0.09 / 10) / 4 / (1/4) = 1.066375.
    # DR as labelled: within 2/3, and of two clusters 5 of 9 pairs differ.
    true = outside.corrected(hand("rra", "raa"), (9, 10), (1, 10))
    assert true == pytest.approx(
        {"true_frr": 0.5, "true_dr": 1 - (1 - 6 / 5) / 0.64 / 1.066375}
    )


@pytest.mark.slow
def test_the_package_agrees_on_chance_in_public_records():
    recorded = RECORDED.read("tables", "record_chance")
    recorded = recorded[recorded["source"] == "stability"]
    counts = sources.read_counts("stability")
    computed = measures.tabulate_record_chance(counts, "stability")
    for row, found in zip(
        recorded.to_dict("records"), computed.to_dict("records"), strict=True
    ):
        keys = ["system", "setting", "judge"]
        own = counts[(counts[keys] == [row[key] for key in keys]).all(axis=1)]
        if np.isnan(row["chance"]):
            assert row["undecided"] > 0.2
            continue
        rows = own[["refused", "answered", "prompts"]].to_numpy().tolist()
        known = outside.chance_of_counts(rows)
        assert found["chance"] == pytest.approx(known, abs=1e-9)
        assert row["chance"] == pytest.approx(known, rel=1e-4)


@pytest.mark.slow
def test_the_package_agrees_on_parts_of_tiers():
    decisions = sources.read_recorded_decisions("triples")
    computed = measures.tabulate_tiers(decisions).set_index("system")
    recorded = RECORDED.read("tables", "record_harm").set_index("system")
    for system, own in decisions.groupby("system"):
        known = own[own["decision"] != "error"]
        refused = (known["decision"] == "refused").astype(int)
        rows = zip(known["setting"], known["cluster"], refused, strict=True)
        parts = outside.tier_parts(rows)
        names = list(measures.TIER_PARTS)
        assert list(computed.loc[system, names]) == pytest.approx(parts, abs=1e-9)
        assert list(recorded.loc[system, names]) == pytest.approx(parts, abs=1e-4)
