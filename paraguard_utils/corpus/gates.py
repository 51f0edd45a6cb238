"""Judge which paraphrases enter the corpus (`docs/method.md`, Corpus).

`GATE_REASONS` lists the gates in their order.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from py3langid import langid
from rapidfuzz.distance import LCSseq

from paraguard_utils.core.strategies import (
    DIRECTION,
    PAPER_STRATEGY,
    SEED_STRATEGY,
    STRATEGIES,
)
from paraguard_utils.core.vectors import normalize_rows
from paraguard_utils.core.words import jaccard, split_words
from paraguard_utils.corpus.risk import RiskFunction, surface_risk
from paraguard_utils.errors import DataError
from paraguard_utils.models import encoder
from paraguard_utils.schemas import SCHEMAS, Candidates, Corpus, Seeds, Table
from paraguard_utils.settings import Gates
from paraguard_utils.text import (
    ENGLISH_CODES,
    content_words,
    has_hidden,
    is_only_framed,
    match_key,
)

GATE_REASONS = {
    "blank": "no text",
    "characters": "a control, direction or other invisible character",
    "formula": "begins like a spreadsheet's formula (= + - @)",
    "length": (
        "longer than max_chars, or more than max_length_ratio times as long or short as"
        " its seed"
    ),
    "language": "not English",
    "duplicate": "the same words as its seed or as an earlier text",
    "similarity": "cosine to its seed below min_similarity",
    "overlap": "Jaccard overlap with its seed above max_overlap (all words)",
    "content_overlap": (
        "Jaccard overlap with its seed above max_overlap (content words)"
    ),
    "risk_low": "risk below min_risk",
    "risk_high": "risk above max_risk",
    "restructured": (
        "a softening or hardening with less than min_kept of its seed's words in their"
        " order"
    ),
    "direction": (
        "a softening that does not lower its seed's risk by min_shift, or a hardening"
        " that does not raise it"
    ),
    "seed": "its seed does not pass the risk or sanity gates",
    "intent": "a judge says that it asks for something else than its seed",
    "harm": "a judge says that it is not harmless",
    "unparsed": "a judge's reply is neither yes nor no",
    "stilted": (
        "passes, but half of its seed's candidates in this strategy are more fluent"
    ),
    "frame": (
        "its seed's own words in another frame, and its cluster has max_framed of these"
    ),
    "sibling": "Jaccard overlap with a kept sibling above max_overlap",
    "surplus": "passes, but its cluster is full",
    "incomplete": (
        "passes, but its cluster has fewer than per_seed variants or lacks a strategy"
    ),
}
"""Why a candidate is not in the corpus, in the order of the gates.

A length is compared with the seed's after all other sanity gates."""

JUDGE_REASONS = ("intent", "harm", "unparsed")  # reasons that a judge gives

# Candidates with these reasons pass alone, but siblings are preferred
SELECTION_REASONS = ("stilted", "frame", "sibling", "surplus", "incomplete")

# The most fluent candidates of a seed and strategy, as many as this, are never stilted
MIN_FLUENT = 2

GATE_MEASURES = {
    "similarity": "cosine to the seed",
    "content_overlap": "content-word overlap",
    "risk": "risk",
}
BIN_WIDTH = 0.05  # width of a bin in histograms of these measures
BIN_EDGES = np.linspace(0, 1, round(1 / BIN_WIDTH) + 1)

Losses: TypeAlias = Callable[[Sequence[str]], np.ndarray]
"""A function from n texts to n losses; the lowest is the most fluent."""

IntentJudge: TypeAlias = Callable[[pd.DataFrame], Sequence[str]]
"""A function from candidates beside their seeds (seed_id, seed, text) to reasons.

The reason is "" for a candidate that keeps the intent, else one of `JUDGE_REASONS`."""


@dataclass(frozen=True)
class Judging:
    """What candidates are judged by.

    Attributes
    ----------
    limits : Gates
        The thresholds.
    embed : callable
        From texts to sentence vectors.
    score : callable
        From texts and `embed` to risks (`risk.load_risk_scorer`).
    taken : collection of str
        Texts that are elsewhere in the corpus, as `text.match_key` returns them.
    losses : callable, optional
        From texts to losses. If given, only the more fluent half of each strategy takes
        part; people's candidates need none.
    intent : callable, optional
        From candidates that pass alone to reasons, "" for those that keep the intent.
    """

    limits: Gates = Gates()
    embed: encoder.Embed = encoder.encode_texts
    score: RiskFunction = surface_risk
    taken: Collection[str] = ()
    losses: Losses | None = None
    intent: IntentJudge | None = None


def judge_candidates(
    seeds: Seeds, candidates: Candidates, judging: Judging = Judging()
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure every candidate and say which gate stops it.

    Parameters
    ----------
    seeds : pandas.DataFrame
        Columns seed_id, text.
    candidates : pandas.DataFrame
        Columns seed_id (of one of the seeds), strategy, text.
    judging : Judging

    Returns
    -------
    judged_seeds : pandas.DataFrame
        The seeds with risk and reason: "" or the sanity or risk gate that stops one.
    judged : pandas.DataFrame
        The candidates with similarity, overlap, content_overlap, framed (the seed's
        words in another frame), risk and reason: "" (kept) or a key of `GATE_REASONS`.
    """
    limits = judging.limits
    embed = encoder.memoize_embedding(judging.embed)
    seeds = judge_seeds(seeds, replace(judging, embed=embed))
    candidates = candidates.reset_index(drop=True)
    seed_rows = pd.Series(seeds.index, index=seeds["seed_id"])
    seed_rows = seed_rows.loc[candidates["seed_id"]].to_numpy()
    seed_texts = seeds["text"].to_numpy()[seed_rows]
    seed_risks = seeds["risk"].to_numpy()[seed_rows]

    vectors = normalize_rows(embed(candidates["text"].tolist()))
    seed_vectors = normalize_rows(embed(seeds["text"].tolist()))[seed_rows]
    candidates["similarity"] = np.einsum("ij,ij->i", vectors, seed_vectors)
    pairs = list(zip(candidates["text"], seed_texts, strict=True))
    candidates["overlap"] = _overlaps(pairs, split_words)
    candidates["content_overlap"] = _overlaps(pairs, content_words)
    candidates["framed"] = [is_only_framed(text, seed) for text, seed in pairs]
    candidates["risk"] = judging.score(candidates["text"], embed)

    reasons = [
        sanity_reasons(candidates["text"], limits),
        _stop_lengths(pairs, limits.max_length_ratio),
        _stop_repeated(seeds["text"], candidates["text"], judging.taken),
        _stop(candidates["similarity"] < limits.min_similarity, "similarity"),
        _stop(candidates["overlap"] > limits.max_overlap, "overlap"),
        _stop(candidates["content_overlap"] > limits.max_overlap, "content_overlap"),
        _stop_risks(candidates["risk"], limits),
        _stop_uncontrolled(candidates, seed_texts, seed_risks, limits),
        _stop(seeds["reason"].to_numpy()[seed_rows] != "", "seed"),
    ]
    candidates["reason"] = _first_reasons(reasons)
    _judge_intent(candidates, seed_texts, judging)
    _select_variants(candidates, judging)
    measures = ["similarity", "overlap", "content_overlap"]
    candidates[measures] = candidates[measures].round(4)
    return seeds, candidates


def judge_seeds(seeds: Seeds, judging: Judging) -> pd.DataFrame:
    """Measure the risk of seeds and say which gate stops them.

    Parameters
    ----------
    seeds : pandas.DataFrame
        Columns seed_id, text.
    judging : Judging

    Returns
    -------
    pandas.DataFrame
        The seeds with risk and reason: "" or the sanity or risk gate that stops one.
    """
    seeds = seeds.reset_index(drop=True)
    seeds["risk"] = judging.score(seeds["text"], judging.embed)
    reasons = [
        sanity_reasons(seeds["text"], judging.limits),
        _stop_repeated((), seeds["text"], judging.taken),
        _stop_risks(seeds["risk"], judging.limits),
    ]
    seeds["reason"] = _first_reasons(reasons)
    return seeds


def _first_reasons(gates: Sequence[Any]) -> np.ndarray:
    """Return each row's first reason that is not empty."""
    reasons = [np.asarray(gate, dtype=object) for gate in gates]
    stopped = [gate != "" for gate in reasons]
    return np.select(stopped, reasons, "")


def _stop(stopped: ArrayLike, reason: str) -> np.ndarray:
    """Return the reason for the rows that are stopped, and "" for the others."""
    return np.where(stopped, reason, "")


def sanity_reasons(texts: Iterable[str], limits: Gates = Gates()) -> list[str]:
    """Return why a corpus should not take each text, whatever its seed is.

    Parameters
    ----------
    texts : iterable of str
    limits : Gates

    Returns
    -------
    list of str
        A key of `GATE_REASONS` per text, up to "language"; "" for a sane text.

    Examples
    --------
    >>> sanity_reasons(["How do I kill a process?", "=cmd()", " ?! "])
    ['', 'formula', 'blank']
    """
    return [_sanity_reason(text, limits) for text in texts]


def _sanity_reason(text: str, limits: Gates) -> str:
    if not split_words(text):
        return "blank"
    if has_hidden(text):
        return "characters"
    if text.lstrip()[0] in "=+-@":
        return "formula"
    if len(text) > limits.max_chars:
        return "length"
    if langid.classify(text)[0] not in ENGLISH_CODES:
        return "language"
    return ""


def _overlaps(
    pairs: Sequence[tuple[str, str]], words: Callable[[str], Iterable[str]]
) -> np.ndarray:
    """Return the Jaccard overlap of each text with its seed."""
    return np.array([jaccard(words(text), words(seed)) for text, seed in pairs], float)


def _stop_lengths(pairs: Sequence[tuple[str, str]], max_ratio: float) -> np.ndarray:
    """Stop texts with many more, or many fewer, words than their seed."""
    too_different = []
    for text, seed in pairs:
        shorter, longer = sorted([len(split_words(text)), len(split_words(seed))])
        too_different.append(longer > max_ratio * shorter)
    return _stop(too_different, "length")


def _stop_repeated(
    before: Collection[str], texts: Iterable[str], taken: Collection[str]
) -> np.ndarray:
    """Stop texts with the same words, in the same order, as an earlier or taken one."""
    keys = pd.Series([match_key(text) for text in (*before, *texts)], dtype=object)
    repeated = keys.duplicated() | keys.isin(taken)
    return _stop(repeated[len(before) :], "duplicate")


def _stop_risks(risks: pd.Series, limits: Gates) -> np.ndarray:
    conditions = [risks < limits.min_risk, risks > limits.max_risk]
    return np.select(conditions, ["risk_low", "risk_high"], "")


def ordered_word_overlap(text: str, seed: str) -> float:
    """Compute the share of words that two texts have in one order, in [0, 1].

    It is the longest common subsequence of words over the number of words of the longer
    text.

    Examples
    --------
    >>> ordered_word_overlap("A b, c!", "b c d e")
    0.5
    """
    return float(LCSseq.normalized_similarity(split_words(text), split_words(seed)))


def _stop_uncontrolled(
    candidates: pd.DataFrame,
    seed_texts: np.ndarray,
    seed_risks: np.ndarray,
    limits: Gates,
) -> np.ndarray:
    """Stop candidates that should move the risk by charged words, and do not.

    They are of a strategy with a direction (softening, hardening), and change more than
    charged words, or do not move the risk that way.
    """
    direction = candidates["strategy"].map(DIRECTION)
    direction = direction.to_numpy(float, na_value=np.nan)
    pairs = zip(candidates["text"], seed_texts, strict=True)
    kept = np.array([ordered_word_overlap(text, seed) for text, seed in pairs])
    # Risks have four decimals: a shift of min_shift itself passes.
    shifts = np.round(direction * (candidates["risk"].to_numpy() - seed_risks), 4)
    conditions = [
        ~np.isnan(direction) & (kept < limits.min_kept),
        shifts < limits.min_shift,
    ]
    return np.select(conditions, ["restructured", "direction"], "")


def _judge_intent(
    candidates: pd.DataFrame, seed_texts: np.ndarray, judging: Judging
) -> None:
    """Let the judge, if there is one, stop candidates that pass alone."""
    if judging.intent is None:
        return
    passing = candidates[candidates["reason"] == ""]
    passing = passing.assign(seed=seed_texts[passing.index])
    candidates.loc[passing.index, "reason"] = judging.intent(passing)


def _select_variants(candidates: pd.DataFrame, judging: Judging) -> None:
    """Stop the candidates to which fluent ones or siblings are preferred."""
    passing = candidates[candidates["reason"] == ""]
    if judging.losses is not None:
        candidates.loc[passing.index, "reason"] = "stilted"
        passing = _more_fluent_half(passing, judging.losses)
    for _, cluster in passing.groupby("seed_id", sort=False):
        reasons = _select_from_cluster(cluster, judging.limits)
        candidates.loc[cluster.index, "reason"] = reasons


def _more_fluent_half(candidates: pd.DataFrame, losses: Losses) -> pd.DataFrame:
    """Return the more fluent half of each seed's candidates by strategy, best first.

    At least `MIN_FLUENT` of them stay.
    """
    candidates = candidates.assign(loss=losses(candidates["text"].tolist()))
    candidates = candidates.sort_values("loss", kind="stable")
    groups = candidates.groupby(["seed_id", "strategy"])
    half = np.ceil(groups["loss"].transform("size") / 2)
    return candidates[groups.cumcount() < np.maximum(MIN_FLUENT, half)]


def _select_from_cluster(cluster: pd.DataFrame, limits: Gates) -> np.ndarray:
    """Choose a cluster's variants; return each candidate's reason, "" for the kept.

    If one of each strategy do not make a complete cluster, the paper's strategies are
    tried, in which softening and hardening are one.
    """
    overlap = _sibling_overlaps(cluster["text"])
    strategy = cluster["strategy"].to_numpy()
    not_late = np.zeros(len(cluster))
    reasons = _farthest_first(cluster, limits, overlap, strategy, not_late)
    if "incomplete" not in reasons:
        return reasons
    paper = cluster["strategy"].map(PAPER_STRATEGY).to_numpy()
    framed = cluster["framed"].to_numpy()
    again = _farthest_first(cluster, limits, overlap, paper, framed)
    return reasons if "incomplete" in again else again


def _sibling_overlaps(texts: Sequence[str]) -> np.ndarray:
    """Return the larger overlap of each pair of texts, by all and by content words."""
    all_words = [frozenset(split_words(text)) for text in texts]
    content = [content_words(text) for text in texts]
    overlap = np.empty((len(texts), len(texts)))
    for i, j in np.ndindex(overlap.shape):
        in_all_words = jaccard(all_words[i], all_words[j])
        overlap[i, j] = max(in_all_words, jaccard(content[i], content[j]))
    return overlap


def _farthest_first(
    cluster: pd.DataFrame,
    limits: Gates,
    overlap: np.ndarray,
    label: np.ndarray,
    late: np.ndarray,
) -> np.ndarray:
    """Take the candidate that overlaps least with the seed, then with those taken.

    A candidate with a label that none of the taken has goes first, and then one that is
    not `late`.
    """
    framed = cluster["framed"].to_numpy()
    nearest = cluster[["overlap", "content_overlap"]].max(axis=1).to_numpy()
    reasons = np.full(len(cluster), "", dtype=object)
    kept: list[int] = []
    while True:
        if framed[kept].sum() >= limits.max_framed:
            reasons[framed & (reasons == "")] = "frame"
        reasons[(nearest > limits.max_overlap) & (reasons == "")] = "sibling"
        reasons[kept] = ""
        left = [i for i in range(len(cluster)) if reasons[i] == "" and i not in kept]
        if len(kept) == limits.per_seed or not left:
            break
        taken = set(label[kept])
        kept.append(min(left, key=lambda i: (label[i] in taken, late[i], nearest[i])))
        nearest = overlap[kept].max(axis=0)
    reasons[left] = "surplus"
    strategies = set(cluster["strategy"].iloc[kept].map(PAPER_STRATEGY))
    if len(kept) < limits.per_seed or len(strategies) < limits.min_strategies:
        reasons[np.isin(reasons, ["", "surplus"])] = "incomplete"
    return reasons


def assemble_corpus(seeds: pd.DataFrame, candidates: pd.DataFrame) -> Corpus:
    """Build the corpus from what `judge_candidates` returns.

    Parameters
    ----------
    seeds, candidates : pandas.DataFrame
        The judged ones. A column source, category or topical of the seeds is taken
        over, and "unstated" if there is none.

    Returns
    -------
    pandas.DataFrame
        Each complete cluster's seed, whose similarity and overlap with itself are 1,
        then its variants, in the order of `STRATEGIES`.

    Raises
    ------
    DataError
        No cluster is complete.
    """
    kept = candidates[candidates["reason"] == ""]
    heads = seeds[seeds["seed_id"].isin(kept["seed_id"])]
    heads = heads.assign(strategy=SEED_STRATEGY, similarity=1.0, overlap=1.0)
    if heads.empty:
        raise DataError(_why_no_cluster(seeds, candidates))
    rows = pd.concat([heads, kept], ignore_index=True)
    by_seed = seeds.set_index("seed_id")
    for name in ("source", "category", "topical"):
        known = name in by_seed
        rows[name] = rows["seed_id"].map(by_seed[name]) if known else "unstated"
    place_of_seed = pd.Series(range(len(seeds)), index=seeds["seed_id"])
    rows["order"] = rows["seed_id"].map(place_of_seed)
    rows["place"] = rows["strategy"].map([SEED_STRATEGY, *STRATEGIES].index)
    rows = rows.sort_values(["order", "place"], kind="stable", ignore_index=True)
    rows["variant"] = rows.groupby("seed_id").cumcount()
    rows["prompt_id"] = rows["seed_id"] + "-" + rows["variant"].astype(str)
    rows = rows.rename(columns={"seed_id": "cluster_id"})
    return rows[list(SCHEMAS["corpus"].columns)]


def _why_no_cluster(seeds: pd.DataFrame, candidates: pd.DataFrame) -> str:
    """Say why no cluster is complete, and what helps."""
    if (seeds["reason"] != "").all():
        first = seeds.iloc[0]
        why = GATE_REASONS[first["reason"]]
        return (
            f"all {len(seeds)} seeds are stopped ({first['seed_id']}: {why}, risk"
            f" {first['risk']:.2f}); reword them, or move min_risk or max_risk"
        )
    counts = count_passing_by_seed(seeds, candidates)
    best = counts.sort_values("variants", kind="stable").iloc[-1]
    return (
        f"no seed has a complete cluster; the best is {best['seed_id']} with"
        f" {best['variants']} paraphrases that pass alone, but too few of them differ"
        " enough from each other, or a strategy is missing; write more candidates or"
        " widen the gates"
    )


def passes_alone(candidates: pd.DataFrame) -> "pd.Series[bool]":
    """Return which judged candidates pass every gate but those of the selection.

    To the candidates with one of `SELECTION_REASONS`, siblings were preferred.
    """
    return candidates["reason"].isin(["", *SELECTION_REASONS])


def count_passing_by_seed(seeds: pd.DataFrame, candidates: pd.DataFrame) -> Table:
    """Count the candidates of each seed.

    Parameters
    ----------
    seeds, candidates : pandas.DataFrame
        As from `judge_candidates`.

    Returns
    -------
    pandas.DataFrame
        seed_id, risk, reason (of the seed), variants (candidates that pass alone),
        candidates.
    """
    passing = candidates[passes_alone(candidates)]
    counts = seeds[["seed_id", "risk", "reason"]].reset_index(drop=True)
    for name, rows in (("variants", passing), ("candidates", candidates)):
        by_seed = counts["seed_id"].map(rows["seed_id"].value_counts())
        counts[name] = by_seed.fillna(0).astype(int)
    return counts


def count_fates(candidates: pd.DataFrame, by: str = "generator") -> Table:
    """Count judged candidates by what became of them, and by strategy.

    Parameters
    ----------
    candidates : pandas.DataFrame
        As from `judge_candidates`, with the column `by`.
    by : str
        A column whose values are counted apart.

    Returns
    -------
    pandas.DataFrame
        `by`, fate (`kept`, then the reasons that occur, in the order of
        `GATE_REASONS`), a column per strategy, total, share (of the candidates with the
        same `by`).
    """
    fate = candidates["reason"].replace("", "kept")
    fate = pd.Categorical(fate, ["kept", *GATE_REASONS])
    groups = [candidates[by], fate]
    counts = pd.crosstab(groups, candidates["strategy"], rownames=[by, "fate"])
    counts = counts.reindex(columns=list(STRATEGIES), fill_value=0)
    counts["total"] = counts.sum(axis=1)
    counts = counts[counts["total"] > 0].rename_axis(columns=None).reset_index()
    share = counts["total"] / counts.groupby(by)["total"].transform("sum")
    return counts.assign(fate=counts["fate"].astype(str), share=share)


def bin_gate_measures(candidates: pd.DataFrame) -> Table:
    """Count judged candidates by what the gates measure, in bins between `BIN_EDGES`.

    Parameters
    ----------
    candidates : pandas.DataFrame
        As from `judge_candidates`.

    Returns
    -------
    pandas.DataFrame
        measure (a key of `GATE_MEASURES`), low (lower edge of the bin; a negative
        cosine counts in the first), passes and stopped (candidates that pass alone, and
        the others).
    """
    passing = passes_alone(candidates)
    parts = []
    for measure in GATE_MEASURES:
        values = candidates[measure].clip(0, 1)
        passes, _ = np.histogram(values[passing], BIN_EDGES)
        stopped, _ = np.histogram(values[~passing], BIN_EDGES)
        columns = {"low": BIN_EDGES[:-1], "passes": passes, "stopped": stopped}
        parts.append(pd.DataFrame(columns).assign(measure=measure))
    bins = pd.concat(parts, ignore_index=True)
    return bins[["measure", "low", "passes", "stopped"]]
