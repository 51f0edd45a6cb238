"""The gates (`GATE_REASONS`) that a paraphrase must pass to enter the corpus
(`docs/method.md`, Corpus).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
from py3langid import langid
from rapidfuzz.distance import LCSseq

from paraguard_lab.corpus import fluency
from paraguard_utils.core.estimates import ClusterBootstrap, exact_share, to_columns
from paraguard_utils.core.vectors import normalize_rows
from paraguard_utils.core.words import jaccard, split_words
from paraguard_utils.corpus.risk import BIN_EDGES, RiskFunction, surface_risk
from paraguard_utils.errors import DataError
from paraguard_utils.models import encoder
from paraguard_utils.schemas import SCHEMAS, STRATEGIES, Candidates, Corpus, Table
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
"""Why a candidate is not in the corpus, in the order of the gates; a length is compared
with the seed's after all other sanity gates."""

JUDGE_REASONS = ("intent", "harm", "unparsed")  # reasons that a judge gives
SELECTION_REASONS = (
    "stilted",
    "frame",
    "sibling",
    "surplus",
    "incomplete",
)  # pass alone: siblings are preferred
# The most fluent candidates of a seed and strategy, as many as this, are never stilted
MIN_FLUENT = 2

PAPER_STRATEGY = {name: name for name in STRATEGIES} | {
    "softening": "keywords",
    "hardening": "keywords",
}
"""The paper's four strategies: softening and hardening are one."""

IntentJudge: TypeAlias = Callable[[pd.DataFrame], Sequence[str]]
"""A function from candidates beside their seeds (seed_id, seed, text) to reasons, ""
for one that keeps the intent.
"""


def judge_candidates(
    seeds: pd.DataFrame,
    candidates: Candidates,
    gates: Gates = Gates(),
    embed: encoder.Embed = encoder.encode_texts,
    risk: RiskFunction = surface_risk,
    taken: Collection[str] = (),
    losses: fluency.Losses | None = None,
    intent: IntentJudge | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure every candidate (seed_id, strategy, text) of seeds (seed_id, text) and
    say which gate stops it.

    `embed` gives sentence vectors, `risk` risks (`risk.load_risk_scorer`); `taken` are
    texts, as `text.match_key` has them, that stand elsewhere in the corpus. Of what
    passes alone, `intent` says first which keep the intent (`writer`), and those with
    low `losses` (`models.fluency`) are preferred; None for candidates that people
    wrote.

    Returns the seeds with risk and reason ("" or a sanity or risk reason), and the
    candidates with similarity, overlap, content_overlap, framed (the seed's words in
    another frame), risk and reason: "" (kept) or a key of `GATE_REASONS`.
    """
    embed = encoder.memoize_embedding(embed)
    seeds, candidates = (
        judge_seeds(seeds, gates, embed, risk, taken),
        candidates.reset_index(drop=True),
    )
    own = (
        pd.Series(seeds.index, index=seeds["seed_id"])
        .loc[candidates["seed_id"]]
        .to_numpy()
    )
    own_text, own_risk = (seeds[name].to_numpy()[own] for name in ("text", "risk"))
    vectors, seed_vectors = (
        normalize_rows(embed(frame["text"].tolist())) for frame in (candidates, seeds)
    )
    candidates["similarity"] = np.einsum("ij,ij->i", vectors, seed_vectors[own])
    pairs = list(zip(candidates["text"], own_text, strict=True))
    for column, tokens in (
        ("overlap", split_words),
        ("content_overlap", content_words),
    ):
        candidates[column] = np.array(
            [jaccard(tokens(text), tokens(seed)) for text, seed in pairs], float
        )
    lengths = np.array(
        [[len(split_words(side)) for side in pair] for pair in pairs]
    ).reshape(-1, 2)
    candidates["framed"] = [is_only_framed(text, seed) for text, seed in pairs]
    candidates["risk"] = risk(candidates["text"], embed)
    candidates["reason"] = _first(
        sanity_reasons(candidates["text"], gates),
        np.where(
            lengths.max(axis=1) > gates.max_length_ratio * lengths.min(axis=1),
            "length",
            "",
        ),
        _repeated(seeds["text"], candidates["text"], taken),
        np.where(candidates["similarity"] < gates.min_similarity, "similarity", ""),
        np.where(candidates["overlap"] > gates.max_overlap, "overlap", ""),
        np.where(
            candidates["content_overlap"] > gates.max_overlap, "content_overlap", ""
        ),
        _risky(candidates["risk"], gates),
        _uncontrolled(
            candidates["strategy"],
            pairs,
            candidates["risk"].to_numpy() - own_risk,
            gates,
        ),
        np.where((seeds["reason"] == "").to_numpy()[own], "", "seed"),
    )
    passing = candidates[candidates["reason"] == ""]
    if intent is not None:
        candidates.loc[passing.index, "reason"] = intent(
            passing.assign(seed=own_text[passing.index])
        )
        passing = candidates[candidates["reason"] == ""]
    if losses is not None:
        candidates.loc[passing.index, "reason"] = "stilted"
        passing = _fluent(passing, losses)
    for _, cluster in passing.groupby("seed_id", sort=False):
        candidates.loc[cluster.index, "reason"] = _select(cluster, gates)
    return seeds, candidates.assign(
        **candidates[["similarity", "overlap", "content_overlap"]].round(4)
    )


def judge_seeds(
    seeds: pd.DataFrame,
    gates: Gates,
    embed: encoder.Embed,
    risk: RiskFunction,
    taken: Collection[str],
) -> pd.DataFrame:
    """Return seeds with `risk` and the `reason` of the gate that stops them, as
    `judge_candidates` does.
    """
    seeds = seeds.reset_index(drop=True)
    seeds["risk"] = risk(seeds["text"], embed)
    repeated = _repeated((), seeds["text"], taken)
    seeds["reason"] = _first(
        sanity_reasons(seeds["text"], gates), repeated, _risky(seeds["risk"], gates)
    )
    return seeds


def _first(*reasons: Sequence[str] | np.ndarray) -> np.ndarray:
    """Return each row's first reason that is not empty."""
    given = [np.asarray(one, dtype=object) for one in reasons]
    return np.select([one != "" for one in given], given, "")


def sanity_reasons(texts: Iterable[str], gates: Gates = Gates()) -> list[str]:
    """Return the sanity reason of each text by itself, "" where it is sane."""
    return [
        "blank" if not split_words(text)
        else "characters" if has_hidden(text)
        else "formula" if text.lstrip()[0] in "=+-@"
        else "length" if len(text) > gates.max_chars
        else "language" if langid.classify(text)[0] not in ENGLISH_CODES
        else ""
        for text in texts
    ]  # fmt: skip


def _repeated(
    before: Collection[str], texts: Iterable[str], taken: Collection[str]
) -> np.ndarray:
    """Mark texts with the same words, in the same order, as an earlier or taken one."""
    keys = pd.Series([match_key(text) for text in (*before, *texts)], dtype=object)
    return np.where(
        (keys.duplicated() | keys.isin(taken))[len(before) :], "duplicate", ""
    )


def _risky(risks: pd.Series, gates: Gates) -> np.ndarray:
    return np.select(
        [risks < gates.min_risk, risks > gates.max_risk], ["risk_low", "risk_high"], ""
    )


def ordered_word_overlap(text: str, seed: str) -> float:
    """Compute the longest common subsequence of words over the number of words of the
    longer text, in [0, 1].
    """
    return float(LCSseq.normalized_similarity(split_words(text), split_words(seed)))


def _uncontrolled(
    strategies: pd.Series,
    pairs: list[tuple[str, str]],
    shifts: np.ndarray,
    gates: Gates,
) -> np.ndarray:
    """Stop softenings and hardenings that change more than charged words or do not move
    the risk their way.
    """
    direction = strategies.map({"softening": -1, "hardening": 1}).to_numpy(
        float, na_value=np.nan
    )
    kept = np.array([ordered_word_overlap(*pair) for pair in pairs])
    shifts = np.round(
        direction * shifts, 4
    )  # risks have four decimals: a shift of min_shift itself passes
    conditions = [
        ~np.isnan(direction) & (kept < gates.min_kept),
        shifts < gates.min_shift,
    ]
    return np.select(conditions, ["restructured", "direction"], "")


def _fluent(candidates: pd.DataFrame, losses: fluency.Losses) -> pd.DataFrame:
    """Return the more fluent half, `MIN_FLUENT` at least, of each seed's candidates by
    strategy, best first.
    """
    candidates = candidates.assign(
        loss=losses(candidates["text"].tolist())
    ).sort_values("loss", kind="stable")
    alike = candidates.groupby(["seed_id", "strategy"])
    return candidates[
        alike.cumcount()
        < np.maximum(MIN_FLUENT, np.ceil(alike["loss"].transform("size") / 2))
    ]


def _select(cluster: pd.DataFrame, gates: Gates) -> np.ndarray:
    """Choose a cluster's variants, by the paper's four strategies if need be.

    Return each row's reason or "" (kept).
    """
    words = [
        (frozenset(split_words(text)), content_words(text)) for text in cluster["text"]
    ]
    overlap = np.array([[max(map(jaccard, a, b)) for b in words] for a in words])
    label = cluster["strategy"]
    reasons = _farthest_first(
        cluster, gates, overlap, label.to_numpy(), np.zeros(len(cluster))
    )
    if "incomplete" not in reasons:
        return reasons
    paper = label.map(PAPER_STRATEGY).to_numpy()
    again = _farthest_first(
        cluster, gates, overlap, paper, cluster["framed"].to_numpy()
    )
    return reasons if "incomplete" in again else again


def _farthest_first(
    cluster: pd.DataFrame,
    gates: Gates,
    overlap: np.ndarray,
    label: np.ndarray,
    late: np.ndarray,
) -> np.ndarray:
    """Take the candidate that overlaps least with the seed, then again and again with
    those taken; new labels first.
    """
    framed = cluster["framed"].to_numpy()
    nearest = cluster[["overlap", "content_overlap"]].max(axis=1).to_numpy()
    reasons = np.full(len(cluster), "", dtype=object)
    kept: list[int] = []
    while True:
        if framed[kept].sum() >= gates.max_framed:
            reasons[framed & (reasons == "")] = "frame"
        reasons[(nearest > gates.max_overlap) & (reasons == "")] = "sibling"
        reasons[kept] = ""
        left = [i for i in range(len(cluster)) if reasons[i] == "" and i not in kept]
        if len(kept) == gates.per_seed or not left:
            break
        there = set(label[kept])
        kept.append(min(left, key=lambda i: (label[i] in there, late[i], nearest[i])))
        nearest = overlap[kept].max(axis=0)
    reasons[left] = "surplus"
    strategies = set(cluster["strategy"].iloc[kept].map(PAPER_STRATEGY))
    if len(kept) < gates.per_seed or len(strategies) < gates.min_strategies:
        reasons[np.isin(reasons, ["", "surplus"])] = "incomplete"
    return reasons


def assemble_corpus(seeds: pd.DataFrame, candidates: pd.DataFrame) -> Corpus:
    """Build the corpus from what `judge_candidates` returns: each complete cluster's
    seed, then its variants.

    A seed's similarity and overlap with itself are 1. Raise DataError where no cluster
    is complete.
    """
    kept = candidates[candidates["reason"] == ""]
    heads = seeds[seeds["seed_id"].isin(kept["seed_id"])].assign(
        strategy="seed", similarity=1.0, overlap=1.0
    )
    if heads.empty:
        if (seeds["reason"] != "").all():
            first = seeds.iloc[0]
            why = (
                f"{first['seed_id']}: {GATE_REASONS[first['reason']]}, risk"
                f" {first['risk']:.2f}"
            )
            raise DataError(
                f"all {len(seeds)} seeds are stopped ({why}); reword them, or move"
                " min_risk or max_risk"
            )
        best = (
            count_passing_by_seed(seeds, candidates)
            .sort_values("variants", kind="stable")
            .iloc[-1]
        )
        passing = (
            f"the best is {best['seed_id']} with {best['variants']} paraphrases that"
            " pass alone"
        )
        lack = "too few of them differ enough from each other, or a strategy is missing"
        how = "write more candidates or widen the gates"
        raise DataError(f"no seed has a complete cluster; {passing}, but {lack}; {how}")
    rows = pd.concat([heads, kept], ignore_index=True)
    about = seeds.set_index("seed_id")
    for name in ("source", "category", "topical"):
        rows[name] = rows["seed_id"].map(about[name]) if name in about else "unstated"
    rows["order"] = rows["seed_id"].map(
        pd.Series(range(len(seeds)), index=seeds["seed_id"])
    )
    rows["place"] = rows["strategy"].map(
        {name: i for i, name in enumerate(("seed", *STRATEGIES))}
    )
    rows = rows.sort_values(["order", "place"], kind="stable", ignore_index=True)
    rows["variant"] = rows.groupby("seed_id").cumcount()
    rows["prompt_id"] = rows["seed_id"] + "-" + rows["variant"].astype(str)
    return rows.rename(columns={"seed_id": "cluster_id"})[
        list(SCHEMAS["corpus"].columns)
    ]


def count_passing_by_seed(seeds: pd.DataFrame, candidates: pd.DataFrame) -> Table:
    """Count each seed's candidates: seed_id, risk, reason (of the seed), variants (that
    pass alone), candidates.
    """
    passing = candidates[passes_alone(candidates)]
    counts = (
        seeds["seed_id"].map(rows["seed_id"].value_counts())
        for rows in (passing, candidates)
    )
    variants, written = (count.fillna(0).astype(int) for count in counts)
    return (
        seeds[["seed_id", "risk", "reason"]]
        .assign(variants=variants, candidates=written)
        .reset_index(drop=True)
    )


def passes_alone(candidates: pd.DataFrame) -> "pd.Series[bool]":
    """Return which judged candidates pass alone: at most, others were preferred to
    them.
    """
    return candidates["reason"].isin(["", *SELECTION_REASONS])


def count_fates(candidates: pd.DataFrame, by: str = "generator") -> Table:
    """Count judged candidates by a column, by what became of them and by strategy.

    Returns `by`, fate (`kept`, then the reasons that occur, in the order of
    `GATE_REASONS`), a column per strategy, total, share (of the candidates in the same
    `by`).
    """
    fate = pd.Categorical(
        candidates["reason"].replace("", "kept"), ["kept", *GATE_REASONS]
    )
    counts = pd.crosstab(
        [candidates[by], fate], candidates["strategy"], rownames=[by, "fate"]
    )
    counts = counts.reindex(columns=list(STRATEGIES), fill_value=0)
    counts = (
        counts.assign(total=counts.sum(axis=1))
        .query("total > 0")
        .rename_axis(columns=None)
        .reset_index()
    )
    share = counts["total"] / counts.groupby(by)["total"].transform("sum")
    return counts.assign(fate=counts["fate"].astype(str), share=share)


def count_complete_clusters(candidates: pd.DataFrame, n_seeds: int) -> Table:
    """Count the seeds for which each generator's candidates, judged by themselves, make
    a complete cluster.

    `n_seeds` were given to each generator. Returns generator, complete, seeds, share
    with its exact 95 % interval.
    """
    kept = (
        candidates["seed_id"]
        .where(candidates["reason"] == "")
        .groupby(candidates["generator"], sort=False)
    )
    counts = [
        {"generator": name, "complete": n, "seeds": n_seeds}
        for name, n in kept.nunique().items()
    ]
    return pd.DataFrame([row | exact_share(row["complete"], n_seeds) for row in counts])


def count_passing(candidates: pd.DataFrame) -> Table:
    """Count the judged candidates that pass alone, by generator and strategy.

    Returns generator, strategy ("all" last), written, passing, share (of written) with
    its 95 % interval over seeds.
    """
    lines = []
    for name, own in candidates.groupby("generator", sort=False):
        clusters = ClusterBootstrap(own["seed_id"])
        for strategy in (*STRATEGIES, "all"):
            rows = own if strategy == "all" else own[own["strategy"] == strategy]
            hits = passes_alone(rows)
            counts = {
                "generator": name,
                "strategy": strategy,
                "written": len(rows),
                "passing": int(hits.sum()),
            }
            lines.append(
                counts | to_columns({"share": clusters.share(rows["seed_id"], hits)})
            )
    return pd.DataFrame(lines)


GATE_MEASURES = {
    "similarity": "cosine to the seed",
    "content_overlap": "content-word overlap",
    "risk": "risk",
}


def bin_gate_measures(candidates: pd.DataFrame) -> Table:
    """Count judged candidates by what the gates measure, in bins between `BIN_EDGES`.

    Returns measure (a key of `GATE_MEASURES`), low (lower edge of the bin; a negative
    cosine counts in the first), passes and stopped (candidates that pass alone, and the
    others).
    """
    passing = passes_alone(candidates)
    parts = []
    for measure in GATE_MEASURES:
        values = candidates[measure].clip(0, 1)
        passes, stopped = (
            np.histogram(values[mask], BIN_EDGES)[0] for mask in (passing, ~passing)
        )
        parts.append(
            pd.DataFrame(
                {
                    "measure": measure,
                    "low": BIN_EDGES[:-1],
                    "passes": passes,
                    "stopped": stopped,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)
