"""Build a corpus at the paper's size from public benchmarks, in one command.

It is built in parts of `SEEDS_PER_PART` seeds, each written in one step: a killed run
loses only the part in hand, and another threshold, word list or pool starts anew. The
corpus stays in a live store (`docs/method.md`, Corpus).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from paraguard_lab.core.inference import exact_share
from paraguard_lab.corpus import (
    benchmarks,
    charged,
    fluency,
    nearest_seeds,
    paraphrase,
    xstest,
)
from paraguard_lab.corpus.fidelity import iterate_groups
from paraguard_lab.settings import PUBLIC_GATES
from paraguard_utils import __version__, paths, stores
from paraguard_utils.core.strategies import SEED_STRATEGY
from paraguard_utils.corpus import gates, risk
from paraguard_utils.models import encoder
from paraguard_utils.parts import Parts
from paraguard_utils.schemas import Corpus, Seeds, Table
from paraguard_utils.settings import CORPUS, Gates
from paraguard_utils.text import match_key

SEEDS_PER_PART = 100

PUBLIC_CORPUS_TABLES = ("seeds", "yield", "gates", "fidelity", "risk", "risk_auc")
"""Tables that describe the corpus: counts without texts."""

_HISTOGRAMS = ("gates", "risk")


def memoize_embedding(embed: encoder.Embed) -> encoder.Embed:
    """Return a function from texts to vectors that calls `embed` once for each text."""
    known: dict[str, np.ndarray] = {}

    def embed_once(texts: Sequence[str]) -> np.ndarray:
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            known.update(zip(new, embed(new), strict=True))
        if not len(texts):
            return embed([])
        return np.stack([known[text] for text in texts])

    return embed_once


@dataclass(frozen=True)
class Order:
    """A corpus to be built.

    Attributes
    ----------
    files : CorpusFiles
        Where it is written, in a live store.
    pool : pandas.DataFrame
        Seeds in the order in which they are tried: seed_id, text, source, category.
    clusters : int
        How many complete clusters are wanted.
    limits : Gates
    scorer : RiskScorer
    """

    files: stores.CorpusFiles
    pool: Seeds
    clusters: int
    limits: Gates
    scorer: risk.RiskScorer


class Built(NamedTuple):
    """A built corpus.

    Attributes
    ----------
    corpus : pandas.DataFrame
        As many complete clusters as were wanted, or as the pool allows.
    seeds, candidates : pandas.DataFrame
        Those that were judged, with source and category; seeds with `complete`.
    """

    corpus: Corpus
    seeds: pd.DataFrame
    candidates: pd.DataFrame


def build_corpus(order: Order) -> Built:
    """Build a corpus in a live store, from the first seeds that allow a cluster.

    Raise DataError if another process builds this corpus, no cluster is complete, or
    the disk is full.
    """
    made_by = [
        __version__,
        stores.frame_hash(order.pool),
        order.limits.model_dump(),
        order.scorer.identity,
        paraphrase.rules_digest(),
    ]
    digest = hashlib.sha256(json.dumps(made_by).encode()).hexdigest()[:16]
    path = order.files.output_path("corpus")
    with Parts(path, "judged", digest) as parts:
        rows = _judge_pool(order, parts)
        is_seed = rows["strategy"] == SEED_STRATEGY
        seeds = rows[is_seed].reset_index(drop=True)
        candidates = rows[~is_seed].reset_index(drop=True)
        kept = candidates.loc[candidates["reason"] == "", "seed_id"]
        seeds["complete"] = seeds["seed_id"].isin(kept)
        chosen = seeds.loc[seeds["complete"], "seed_id"].head(order.clusters)
        of_chosen = candidates[candidates["seed_id"].isin(chosen)]
        corpus = gates.assemble_corpus(seeds, of_chosen)
        meta = {
            "clusters": len(chosen),
            "seeds": stores.frame_hash(order.pool),
            "gates": order.limits.model_dump(),
            "risk": order.scorer.identity,
            "rules": f"{paraphrase.RULES_VERSION} {paraphrase.rules_digest()}",
        }
        order.files.write("corpus", frame=corpus, meta=meta)
    return Built(corpus, seeds, candidates)


def _judge_pool(order: Order, parts: Parts) -> pd.DataFrame:
    """Judge parts of the pool, or read them, until enough clusters are complete."""
    made = {rows["seed_id"].iloc[0]: rows for rows in parts.read()}
    taken: set[str] = set()
    frames = []
    with tqdm(total=order.clusters, desc="clusters", unit="cluster") as bar:
        for start in range(0, len(order.pool), SEEDS_PER_PART):
            if bar.n >= order.clusters:
                break
            seeds = order.pool.iloc[start : start + SEEDS_PER_PART]
            rows = made.get(seeds["seed_id"].iloc[0])
            if rows is None:
                rows = _judge_part(seeds, order, taken)
                parts.add(rows)
            frames.append(rows)
            # A part depends on all earlier ones, whose texts it must not repeat.
            kept = rows[rows["reason"] == ""]
            taken.update(match_key(text) for text in kept["text"])
            is_variant = kept["strategy"] != SEED_STRATEGY
            bar.update(kept.loc[is_variant, "seed_id"].nunique())
    return pd.concat(frames, ignore_index=True)


def _judge_part(seeds: Seeds, order: Order, taken: set[str]) -> pd.DataFrame:
    """Write and judge the candidates of some seeds; return these and the seeds."""
    judging = gates.Judging(
        order.limits,
        memoize_embedding(encoder.encode_texts),
        order.scorer.score,
        taken,
        fluency.prefer_fluent,
    )
    judged = gates.judge_seeds(seeds, judging)
    candidates = paraphrase.paraphrase_by_rules(judged[judged["reason"] == ""])
    judged, candidates = gates.judge_candidates(seeds, candidates, judging)
    about = judged.set_index("seed_id")[["source", "category"]]
    heads = judged.assign(strategy=SEED_STRATEGY)
    candidates = candidates.drop(columns="framed").join(about, on="seed_id")
    return pd.concat([heads, candidates], ignore_index=True)


def count_seed_yield(seeds: pd.DataFrame, pool: Seeds) -> Table:
    """Count by source what became of the seeds of a pool.

    Parameters
    ----------
    seeds : pandas.DataFrame
        The seeds that `build_corpus` judged.
    pool : pandas.DataFrame

    Returns
    -------
    pandas.DataFrame
        source ("all" last), pool, drawn, insane (stopped by a sanity gate), risk_low,
        risk_high, within (seeds within the gates), complete (with unneeded ones of the
        last part), share (of within) with its exact interval.
    """
    sources = sorted(set(pool["source"]))
    in_pool = dict(iterate_groups(pool, "source", sources))
    rows = []
    for source, drawn in iterate_groups(seeds, "source", sources):
        low = (drawn["reason"] == "risk_low").sum()
        high = (drawn["reason"] == "risk_high").sum()
        within = (drawn["reason"] == "").sum()
        complete = drawn["complete"].sum()
        counts = {
            "source": source,
            "pool": len(in_pool[source]),
            "drawn": len(drawn),
            "insane": len(drawn) - low - high - within,
            "risk_low": low,
            "risk_high": high,
            "within": within,
            "complete": complete,
        }
        rows.append(counts | exact_share(complete, within))
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class PublicCorpus:
    """A corpus to be built from public benchmarks.

    Attributes
    ----------
    files : CorpusFiles
        Where it is written, in a live store.
    sources : mapping of str to path
        Benchmark files by key of `benchmarks.BENCHMARKS`.
    labels : sequence of str
        The harmfulness labels whose rows are taken.
    clusters : int
    min_strategies : int
        How many of the paper's strategies a cluster needs.
    risk : str
        Name of the risk scorer.
    seed : int
        Of the order of the seeds.
    xstest : str
        XSTest's file, on which the scorer is described; "" for none.
    """

    files: stores.CorpusFiles
    sources: Mapping[str, str | Path]
    labels: Sequence[str]
    clusters: int
    min_strategies: int
    risk: str
    seed: int
    xstest: str = ""


def build_public_corpus(public: PublicCorpus) -> None:
    """Build a public corpus, write the tables that describe it, and print its yields.

    Raise UserError if a file is missing or does not fit, no cluster is complete, or
    another process builds it.
    """
    files = public.files
    scorer = risk.load_risk_scorer(public.risk)
    outside = xstest.read_xstest(public.xstest) if public.xstest else None
    unordered, left_out = benchmarks.read_benchmarks(public.sources, public.labels)
    pool = benchmarks.order_by_strata(unordered, public.seed)
    print(f"{len(pool)} seeds in the pool; left out:")
    print(left_out.to_string(index=False))
    limits = PUBLIC_GATES.model_copy(update={"min_strategies": public.min_strategies})
    built = build_corpus(Order(files, pool, public.clusters, limits, scorer))

    tables = _describe_build(files, built, pool)
    if outside is not None:
        tables |= _describe_risk(files, outside, unordered, scorer)
    meta = {
        "sources": sorted(set(pool["source"])),
        "risk": scorer.identity,
        "clusters": public.clusters,
    }
    for name, table in tables.items():
        files.store.write("tables", f"{files.name}_{name}", frame=table, meta=meta)
        if name not in _HISTOGRAMS:
            print(f"\n{name}\n{table.to_string(index=False, float_format='%.3f')}\n")
    clusters = built.corpus["cluster_id"].nunique()
    short = ""
    if clusters < public.clusters:
        short = f" ({public.clusters} wanted: the pool allows no more)"
    where = paths.display_path(files.path("corpus"))
    print(f"{clusters} clusters, {len(built.corpus)} prompts{short}: {where}")


def _describe_build(
    files: stores.CorpusFiles, built: Built, pool: Seeds
) -> dict[str, Table]:
    """Return the tables that describe a build, by name."""
    vectors = encoder.stored_vectors(files, built.corpus["text"].tolist())
    variants = nearest_seeds.measure_spread(built.corpus, vectors)
    return {
        "seeds": count_seed_yield(built.seeds, pool),
        "yield": gates.count_fates(built.candidates, by="source"),
        "gates": gates.bin_gate_measures(built.candidates),
        "fidelity": nearest_seeds.nearest_seed_share(variants),
    }


def _describe_risk(
    files: stores.CorpusFiles,
    outside: pd.DataFrame,
    pool: Seeds,
    scorer: risk.RiskScorer,
) -> dict[str, Table]:
    """Return the risk scorer's distribution by source, and its AUC on XSTest."""
    own = files.other(CORPUS).prompts
    groups = [
        own.assign(group="ParaGuard mini"),
        pool.assign(group=pool["source"].str.split(" + ", regex=False).str[0]),
        outside.assign(group="XSTest " + outside["label"]),
    ]
    texts = pd.concat(groups, ignore_index=True)
    texts["risk"] = scorer.score(texts["text"], encoder.encode_texts)
    limits = PUBLIC_GATES
    is_unsafe = (outside["label"] == "unsafe").to_numpy()
    return {
        "risk": charged.describe_risks(texts, limits.min_risk, limits.max_risk),
        "risk_auc": charged.risk_auc(outside["text"], is_unsafe, scorer),
    }
