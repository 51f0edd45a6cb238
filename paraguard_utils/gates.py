"""The gates a paraphrase must pass to enter the corpus (`paper.md`, ParaGuard, the corpus).

From the paper: cosine to the seed >= 0.60, Jaccard overlap with the seed <= 0.90, risk in [0.30, 0.70]. Ours: the
overlap must hold on content words too, siblings must differ from each other by the same rule, and one cluster holds
`per_seed` variants, one of each strategy first.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from paraguard_utils import encoder
from paraguard_utils.errors import DataError
from paraguard_utils.risk import surface_risk
from paraguard_utils.schemas import SCHEMAS, STRATEGIES
from paraguard_utils.text import content_words, jaccard, words

REASONS = {
    "blank": "no text",
    "length": "longer than max_chars",
    "similarity": "cosine to its seed below min_similarity",
    "overlap": "Jaccard overlap with its seed above max_overlap (all words)",
    "content_overlap": "Jaccard overlap with its seed above max_overlap (content words)",
    "risk_low": "surface risk below min_risk",
    "risk_high": "surface risk above max_risk",
    "seed": "its seed does not pass the risk gate",
    "sibling": "Jaccard overlap with a kept sibling above max_overlap",
    "surplus": "passes, but its cluster is full",
    "incomplete": "passes, but its cluster has fewer than per_seed variants",
}
"""Why a candidate is not in the corpus, in the order in which the gates are tried."""


@dataclass(frozen=True)
class Gates:
    """Thresholds of the gates; the defaults are the paper's.

    Attributes
    ----------
    min_similarity : float
        Lowest cosine to the seed, in [-1, 1].
    max_overlap : float
        Highest Jaccard overlap, in [0, 1].
    min_risk, max_risk : float
        Closed interval for surface risk, in [0, 1].
    per_seed : int
        Variants a cluster holds.
    max_chars : int
        Longest text accepted.
    """

    min_similarity: float = 0.60
    max_overlap: float = 0.90
    min_risk: float = 0.30
    max_risk: float = 0.70
    per_seed: int = 5
    max_chars: int = 600


def judge(seeds, candidates, gates=Gates(), embed=encoder.encode):
    """Measure every candidate and say which gate stops it.

    Parameters
    ----------
    seeds : DataFrame
        Columns seed_id, text.
    candidates : DataFrame
        Columns seed_id, strategy, text.
    gates : Gates
    embed : callable
        Texts to sentence vectors; default: the packaged encoder.

    Returns
    -------
    seeds : DataFrame
        The seeds with `risk` and `reason` ("" or a risk reason).
    candidates : DataFrame
        The candidates with similarity, overlap, content_overlap, risk and `reason`: "" for a kept one, else a key of
        `REASONS`.
    """
    seeds, candidates = seeds.copy(), candidates.copy()
    seeds["risk"] = surface_risk(seeds["text"], embed)
    seeds["reason"] = [_risk_reason(risk, gates) for risk in seeds["risk"]]
    position = pd.Series(np.arange(len(seeds)), index=seeds["seed_id"])
    own = position.loc[candidates["seed_id"]].to_numpy()

    pairs = list(zip(candidates["text"], seeds["text"].to_numpy()[own], strict=True))
    vectors, seed_vectors = (encoder.unit(embed(frame["text"].tolist())) for frame in (candidates, seeds))
    cosines = np.einsum("ij,ij->i", vectors, seed_vectors[own])
    candidates["similarity"] = cosines.round(4)
    candidates["overlap"] = [round(jaccard(words(text), words(seed)), 4) for text, seed in pairs]
    candidates["content_overlap"] = [
        round(jaccard(content_words(text), content_words(seed)), 4) for text, seed in pairs
    ]
    candidates["risk"] = surface_risk(candidates["text"], embed)
    seed_ok = (seeds["reason"] == "").to_numpy()[own]
    candidates["reason"] = [
        _reason(row, gates) or ("" if ok else "seed") for row, ok in zip(candidates.itertuples(), seed_ok, strict=True)
    ]
    for _, cluster in candidates[candidates["reason"] == ""].groupby("seed_id", sort=False):
        reasons = _select(cluster, gates)
        candidates.loc[reasons.index, "reason"] = reasons
    return seeds, candidates


def _risk_reason(risk, gates):
    return "risk_low" if risk < gates.min_risk else "risk_high" if risk > gates.max_risk else ""


def _reason(row, gates):
    if not row.text.strip():
        return "blank"
    if len(row.text) > gates.max_chars:
        return "length"
    if row.similarity < gates.min_similarity:
        return "similarity"
    if row.overlap > gates.max_overlap:
        return "overlap"
    if row.content_overlap > gates.max_overlap:
        return "content_overlap"
    return _risk_reason(row.risk, gates)


def _select(cluster, gates):
    """Choose a cluster's variants, one of each strategy first; return the reason for each row ("" = kept)."""
    first_of_strategy = ~cluster.duplicated("strategy")
    order = cluster.index[first_of_strategy].append(cluster.index[~first_of_strategy])
    kept, reasons = [], pd.Series("surplus", index=cluster.index)
    for index in order:
        if len(kept) == gates.per_seed:
            break
        text = cluster.at[index, "text"]
        if any(_too_alike(text, other, gates) for other in kept):
            reasons[index] = "sibling"
        else:
            kept.append(text)
            reasons[index] = ""
    return reasons if len(kept) == gates.per_seed else reasons.replace({"": "incomplete", "surplus": "incomplete"})


def _too_alike(a, b, gates):
    return (
        jaccard(words(a), words(b)) > gates.max_overlap
        or jaccard(content_words(a), content_words(b)) > gates.max_overlap
    )


def assemble(seeds, candidates):
    """Build the corpus from judged seeds and candidates: each complete cluster's seed, then its kept variants.

    Parameters
    ----------
    seeds, candidates : DataFrame
        From `judge`.

    Returns
    -------
    DataFrame
        The columns of a corpus file. A seed's similarity and overlap with itself are 1.

    Raises
    ------
    DataError
        No cluster is complete.
    """
    kept = candidates[candidates["reason"] == ""]
    heads = seeds[seeds["seed_id"].isin(kept["seed_id"])].assign(strategy="seed", similarity=1.0, overlap=1.0)
    if heads.empty:
        best = progress(seeds, candidates).sort_values("variants", kind="stable").iloc[-1]
        stopped = seeds[seeds["reason"] != ""]
        if len(stopped) == len(seeds):
            example = f"{stopped['seed_id'].iloc[0]}: {stopped['risk'].iloc[0]:.2f}"
            raise DataError(
                f"all {len(seeds)} seeds fail the risk gate ({example}); reword them, or move min_risk or max_risk"
            )
        raise DataError(
            f"no seed has a complete cluster of gated paraphrases; the best is {best['seed_id']} with "
            f"{best['variants']} that pass; write more candidates or widen the gates"
        )
    rows = pd.concat([heads, kept], ignore_index=True)
    about = seeds.set_index("seed_id")
    rows["source"], rows["category"] = (rows["seed_id"].map(about[name]) for name in ("source", "category"))
    rows["order"] = rows["seed_id"].map(pd.Series(range(len(seeds)), index=seeds["seed_id"]))
    rows["place"] = rows["strategy"].map({name: i for i, name in enumerate(("seed", *STRATEGIES))})
    rows = rows.sort_values(["order", "place"], kind="stable", ignore_index=True)
    rows["variant"] = rows.groupby("seed_id").cumcount()
    rows["prompt_id"] = rows["seed_id"] + "-" + rows["variant"].astype(str)
    return rows.rename(columns={"seed_id": "cluster_id"})[list(SCHEMAS["corpus"].columns)]


def progress(seeds, candidates):
    """Say for each seed whether it passes and how many of its candidates do.

    Parameters
    ----------
    seeds, candidates : DataFrame
        From `judge`.

    Returns
    -------
    DataFrame
        seed_id, risk, reason (of the seed), variants (candidates that pass every gate), candidates.
    """
    passing = candidates[candidates["reason"].isin(["", "surplus", "incomplete"])]
    counts = {"variants": passing, "candidates": candidates}
    sizes = {
        name: seeds["seed_id"].map(rows.groupby("seed_id").size()).fillna(0).astype(int)
        for name, rows in counts.items()
    }
    return seeds[["seed_id", "risk", "reason"]].assign(**sizes).reset_index(drop=True)


def tally(candidates):
    """Count candidates by what became of them and by strategy: one row per reason that occurs, `kept` first."""
    fate = candidates["reason"].replace("", "kept")
    order = ["kept", *REASONS]
    counts = pd.crosstab(fate, candidates["strategy"])
    counts = counts.reindex(
        index=[name for name in order if name in counts.index], columns=list(STRATEGIES), fill_value=0
    )
    return counts.assign(total=counts.sum(axis=1)).rename_axis(index="fate", columns=None).reset_index()
