"""Judge which paraphrases enter the corpus (`docs/method.md`, Corpus).

`GATE_REASONS` lists the gates in their order.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
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

# Candidates with these reasons pass alone, but siblings are preferred
SELECTION_REASONS = ("stilted", "frame", "sibling", "surplus", "incomplete")

GATE_MEASURES = {
    "similarity": "cosine to the seed",
    "content_overlap": "content-word overlap",
    "risk": "risk",
}
BIN_WIDTH = 0.05  # width of a bin in histograms of these measures
BIN_EDGES = np.linspace(0, 1, 21)

Review: TypeAlias = Callable[[pd.DataFrame], pd.Series]
"""A function from candidates that pass alone to their reasons, best first.

It gets seed_id, strategy, seed (its text) and text. The reason is "" for a candidate
that may be chosen, else a key of `GATE_REASONS`; its index is the candidate's."""


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
    review : callable, optional
        What else judges candidates that pass alone, as models do; people's need none.
    """

    limits: Gates = Gates()
    embed: encoder.Embed = encoder.encode_texts
    score: RiskFunction = surface_risk
    taken: Collection[str] = ()
    review: Review | None = None


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
    seeds = judge_seeds(seeds, judging)
    candidates = candidates.reset_index(drop=True)
    texts = candidates["text"].tolist()
    own_seeds = seeds.set_index("seed_id").loc[candidates["seed_id"]].reset_index()
    pairs = list(zip(texts, own_seeds["text"], strict=True))

    vectors = normalize_rows(judging.embed(texts))
    seed_vectors = normalize_rows(judging.embed(own_seeds["text"].tolist()))
    candidates["similarity"] = np.einsum("ij,ij->i", vectors, seed_vectors)
    candidates["overlap"] = _compare(word_overlap, pairs)
    candidates["content_overlap"] = _compare(content_overlap, pairs)
    candidates["framed"] = _compare(is_only_framed, pairs).astype(bool)
    candidates["risk"] = judging.score(texts, judging.embed)

    kept = _compare(ordered_word_overlap, pairs)
    direction = candidates["strategy"].map(DIRECTION).astype(float)
    # Risks have four decimals: a shift of min_shift itself passes.
    shift = (direction * (candidates["risk"] - own_seeds["risk"])).round(4)
    is_repeated = _find_repeated([*seeds["text"], *texts], judging.taken)
    stops = {
        "length": _compare(length_ratio, pairs) > limits.max_length_ratio,
        "duplicate": is_repeated[len(seeds) :],
        "similarity": candidates["similarity"] < limits.min_similarity,
        "overlap": candidates["overlap"] > limits.max_overlap,
        "content_overlap": candidates["content_overlap"] > limits.max_overlap,
        "risk_low": candidates["risk"] < limits.min_risk,
        "risk_high": candidates["risk"] > limits.max_risk,
        "restructured": direction.notna() & (kept < limits.min_kept),
        "direction": shift < limits.min_shift,
        "seed": own_seeds["reason"] != "",
    }
    candidates["reason"] = _first_reasons(texts, limits, stops)
    passing = candidates[candidates["reason"] == ""]
    if judging.review is not None:
        reasons = judging.review(passing.assign(seed=own_seeds["text"]))
        candidates.loc[reasons.index, "reason"] = reasons
        passing = passing.loc[reasons.index[reasons == ""]]
    for _, cluster in passing.groupby("seed_id", sort=False):
        candidates.loc[cluster.index, "reason"] = _select_variants(cluster, limits)
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
    limits = judging.limits
    texts = seeds["text"].tolist()
    risk = judging.score(texts, judging.embed)
    stops = {
        "duplicate": _find_repeated(texts, judging.taken),
        "risk_low": risk < limits.min_risk,
        "risk_high": risk > limits.max_risk,
    }
    reasons = _first_reasons(texts, limits, stops)
    return seeds.reset_index(drop=True).assign(risk=risk, reason=reasons)


def _first_reasons(
    texts: Sequence[str], limits: Gates, stops: Mapping[str, ArrayLike]
) -> np.ndarray:
    """Return the first reason against each text: of sanity, then of `stops`, or ""."""
    insane = np.array([sanity_reason(text, limits) for text in texts], object)
    conditions: list[Any] = [insane != "", *stops.values()]
    reasons: list[Any] = [insane, *stops]
    return np.select(conditions, reasons, "")


def sanity_reason(text: str, limits: Gates = Gates()) -> str:
    """Return why a corpus should not take a text, whatever its seed is.

    It is a key of `GATE_REASONS`, up to "language", or "" for a sane text.

    Examples
    --------
    >>> sanity_reason("=cmd()"), sanity_reason("How do I kill a process?")
    ('formula', '')
    """
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


def _compare(
    measure: Callable[[str, str], float], pairs: Sequence[tuple[str, str]]
) -> np.ndarray:
    """Measure pairs of texts."""
    return np.array([measure(text, other) for text, other in pairs], float)


def word_overlap(text: str, other: str) -> float:
    """Compute the Jaccard overlap of the words of two texts, in [0, 1]."""
    return jaccard(split_words(text), split_words(other))


def content_overlap(text: str, other: str) -> float:
    """Compute the Jaccard overlap of the content words of two texts, in [0, 1]."""
    return jaccard(content_words(text), content_words(other))


def largest_overlap(text: str, other: str) -> float:
    """Compute the larger overlap of two texts, by all or by content words."""
    return max(word_overlap(text, other), content_overlap(text, other))


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


def length_ratio(text: str, other: str) -> float:
    """Compute the number of words of the longer text to that of the shorter one."""
    shorter, longer = sorted([len(split_words(text)), len(split_words(other))])
    return longer / max(shorter, 1)


def _find_repeated(texts: Sequence[str], taken: Collection[str]) -> np.ndarray:
    """Return which texts have the words of an earlier or taken one, in their order."""
    keys = pd.Series([match_key(text) for text in texts], dtype=object)
    return (keys.duplicated() | keys.isin(taken)).to_numpy()


def _select_variants(cluster: pd.DataFrame, limits: Gates) -> np.ndarray:
    """Choose a cluster's variants; return each candidate's reason, "" for the kept.

    If one of each strategy do not make a complete cluster, the paper's strategies are
    tried, in which softening and hardening are one.
    """
    reasons = _farthest_first(cluster, limits, by_paper=False)
    if "incomplete" in reasons:
        again = _farthest_first(cluster, limits, by_paper=True)
        if "incomplete" not in again:
            return again
    return reasons


def _farthest_first(cluster: pd.DataFrame, limits: Gates, by_paper: bool) -> np.ndarray:
    """Take the candidate that overlaps least with the seed, then with those taken.

    A candidate of a strategy, the paper's with `by_paper`, that none of the taken has
    goes first, and then, with `by_paper`, one that is not only framed.
    """
    texts = cluster["text"].to_numpy(object)
    overlap = np.vectorize(largest_overlap, otypes=[float])(texts[:, None], texts)
    nearest = cluster[["overlap", "content_overlap"]].max(axis=1).to_numpy()
    framed = cluster["framed"].to_numpy()
    paper = cluster["strategy"].map(PAPER_STRATEGY).to_numpy()
    label = paper if by_paper else cluster["strategy"].to_numpy()
    late = framed & by_paper
    reasons = np.full(len(cluster), "surplus", object)
    kept: list[int] = []
    while True:
        is_open = reasons == "surplus"
        reasons[is_open & (nearest > limits.max_overlap)] = "sibling"
        if framed[kept].sum() >= limits.max_framed:
            reasons[is_open & framed] = "frame"
        left = np.flatnonzero(reasons == "surplus").tolist()
        if len(kept) == limits.per_seed or not left:
            break
        taken = set(label[kept])
        kept.append(min(left, key=lambda i: (label[i] in taken, late[i], nearest[i])))
        reasons[kept] = ""
        nearest = overlap[kept].max(axis=0)
    if len(kept) < limits.per_seed or len(set(paper[kept])) < limits.min_strategies:
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
    if heads.empty:
        raise DataError(
            "no seed has a complete cluster; see which gates stop its paraphrases, and"
            " write more that differ from each other, in all strategies, or widen the"
            " gates"
        )
    heads = heads.assign(strategy=SEED_STRATEGY, similarity=1.0, overlap=1.0)
    about = seeds.set_index("seed_id").reindex(
        columns=["source", "category", "topical"], fill_value="unstated"
    )
    columns = ["seed_id", "strategy", "text", "similarity", "overlap", "risk"]
    rows = pd.concat([heads[columns], kept[columns]]).join(about, on="seed_id")
    rows["seed"] = about.index.get_indexer(rows["seed_id"])
    rows["place"] = rows["strategy"].map([SEED_STRATEGY, *STRATEGIES].index)
    rows = rows.sort_values(["seed", "place"], kind="stable", ignore_index=True)
    rows["variant"] = rows.groupby("seed_id").cumcount()
    rows["prompt_id"] = rows["seed_id"] + "-" + rows["variant"].astype(str)
    rows = rows.rename(columns={"seed_id": "cluster_id"})
    return rows[list(SCHEMAS["corpus"].columns)]


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
    by_seed = passes_alone(candidates).groupby(candidates["seed_id"])
    counts = by_seed.agg(variants="sum", candidates="size")
    counts = counts.reindex(seeds["seed_id"], fill_value=0)
    return seeds[["seed_id", "risk", "reason"]].join(counts, on="seed_id")


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
        part = pd.DataFrame({"measure": measure, "low": BIN_EDGES[:-1]})
        values = candidates[measure].clip(0, 1)
        for name, chosen in (("passes", passing), ("stopped", ~passing)):
            part[name] = np.histogram(values[chosen], BIN_EDGES)[0]
        parts.append(part)
    return pd.concat(parts, ignore_index=True)
