"""A corpus at the paper's size from public benchmarks, in one command
(`docs/method.md`, Corpus).

It is built in parts of `SEEDS_PER_PART` seeds, each written atomically with a digest of
its inputs: a killed run loses only the part in hand, and another threshold, word list
or seed order starts anew. The corpus stays in a live store.
"""

import hashlib
import json
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from paraguard_lab.corpus import benchmarks, fluency, paraphrase
from paraguard_utils import paths, stores
from paraguard_utils.core import estimates
from paraguard_utils.corpus import fidelity, gates, risk
from paraguard_utils.models import encoder, loading, weights
from paraguard_utils.schemas import Corpus, Seeds, Table
from paraguard_utils.settings import CORPUS, PUBLIC_GATES, Gates
from paraguard_utils.text import match_key as text_key

SEEDS_PER_PART = 100

PUBLIC_CORPUS_TABLES = (
    "seeds",
    "yield",
    "gates",
    "fidelity",
    "steps",
    "risk",
    "risk_auc",
)  # counts without texts
BUILD_VERSION = "1"
"""Raise it with a change of the generators, gates or encoder that changes what is built:
parts of another version are made again.
"""

BUILD_STEPS = ("generate", "embed", "read", "judge")
_PART_COLUMNS = "seed_id strategy rule text similarity overlap content_overlap framed risk reason".split()  # noqa: SIM905


def build_corpus(
    store: stores.Store,
    name: str,
    pool: Seeds,
    wanted: int,
    limits: Gates,
    scorer: risk.RiskScorer,
) -> tuple[Corpus, pd.DataFrame, pd.DataFrame, Table]:
    """Build a corpus of `wanted` clusters in a live store, from the first seeds of a
    pool that allow one.

    The pool holds seed_id, text, source, category. Returns the corpus, with as many
    complete clusters as were wanted or as the pool allows; the seeds (with source,
    category and `complete`) and candidates that were judged; and step, seconds and
    seconds_per_1000 (candidates) over all parts, whenever they were made. Raise
    DataError where another process builds this corpus, no cluster is complete, or the
    disk is full.
    """
    models = (
        weights.MINILM_FILE.sha256,
        loading.PACKAGED_MODELS[fluency.FLUENCY_MODEL].sha256,
    )
    made_by = json.dumps([limits.model_dump(), scorer.identity, *models, *_versions()])
    digest = hashlib.sha256(made_by.encode()).hexdigest()[:16]
    chain = hashlib.sha256(digest.encode())
    used: list[pd.DataFrame] = []
    taken: set[str] = set()
    complete = 0
    bar = tqdm(total=wanted, desc="clusters", unit="cluster")
    with (
        stores.Parts(store.output_path("corpus", name), "judged", digest) as parts,
        bar,
    ):
        there = {rows["inputs"].iloc[0]: rows for rows in parts.read()}
        for start in range(0, len(pool), SEEDS_PER_PART):
            if complete >= wanted:
                break
            seeds = pool.iloc[start : start + SEEDS_PER_PART]
            chain.update(stores.frame_hash(seeds).encode())
            inputs = chain.hexdigest()[:16]
            rows = there.get(inputs)
            if rows is None:
                rows = _make_part(seeds, limits, scorer, taken).assign(inputs=inputs)
                parts.add(rows)
            used.append(rows)
            kept = rows[rows["reason"] == ""]
            taken.update(text_key(text) for text in kept["text"])
            new = kept.loc[kept["strategy"] != "seed", "seed_id"].nunique()
            bar.update(min(new, wanted - complete))
            complete += new
        return _join_parts(
            store,
            name,
            pool,
            wanted,
            limits,
            scorer,
            pd.concat(used, ignore_index=True),
        )


def _versions() -> list[str]:
    """Return the versions of what decides what a part holds, beside seeds and settings."""
    packages = ("textblob", "lemminflect", "inflect", "py3langid")
    versions = [metadata.version(name) for name in packages]
    return [BUILD_VERSION, paraphrase.rules_digest(), *versions]


def _make_part(
    seeds: Seeds, limits: Gates, scorer: risk.RiskScorer, taken: set[str]
) -> pd.DataFrame:
    """Write and judge candidates of seeds: `_PART_COLUMNS`, vectors of what may enter,
    seconds by `BUILD_STEPS`.
    """
    seconds = dict.fromkeys(BUILD_STEPS, 0.0)

    def timed(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any) -> Any:
            started = time.perf_counter()
            found = function(*arguments)
            seconds[step] += time.perf_counter() - started
            return found

        return measured

    embed = encoder.memoize_embedding(timed("embed", encoder.encode_texts))
    first = timed("judge", gates.judge_seeds)(seeds, limits, embed, scorer.score, taken)
    candidates = timed("generate", paraphrase.paraphrase_by_rules)(
        first[first["reason"] == ""]
    )
    judged_seeds, candidates = timed("judge", gates.judge_candidates)(
        seeds,
        candidates,
        limits,
        embed,
        scorer.score,
        taken,
        timed("read", fluency.compute_losses),
    )
    seconds["judge"] -= seconds["embed"] + seconds["read"]
    own = {
        "strategy": "seed",
        "rule": "",
        "similarity": 1.0,
        "overlap": 1.0,
        "content_overlap": 1.0,
        "framed": False,
    }
    rows = pd.concat(
        [judged_seeds.assign(**own)[_PART_COLUMNS], candidates[_PART_COLUMNS]],
        ignore_index=True,
    )
    enters = zip(rows["text"], rows["reason"] == "", strict=True)
    return rows.assign(
        vector=[embed([text])[0] if may else None for text, may in enters], **seconds
    )


def _join_parts(
    store: stores.Store,
    name: str,
    pool: Seeds,
    wanted: int,
    limits: Gates,
    scorer: risk.RiskScorer,
    rows: pd.DataFrame,
) -> tuple[Corpus, pd.DataFrame, pd.DataFrame, Table]:
    """Write the corpus and its sentence vectors; return what `build_corpus` returns."""
    is_seed = rows["strategy"] == "seed"
    about = pool.set_index("seed_id")[["source", "category"]]
    seeds = (
        rows.loc[is_seed, ["seed_id", "text", "risk", "reason"]]
        .join(about, on="seed_id")
        .reset_index(drop=True)
    )
    candidates = (
        rows.loc[~is_seed, _PART_COLUMNS]
        .assign(generator="rules")
        .reset_index(drop=True)
    )
    seeds["complete"] = seeds["seed_id"].isin(
        candidates.loc[candidates["reason"] == "", "seed_id"]
    )
    chosen = seeds.loc[seeds["complete"], "seed_id"].head(wanted)
    corpus = gates.assemble_corpus(
        seeds, candidates[candidates["seed_id"].isin(chosen)]
    )
    meta = {
        "clusters": len(chosen),
        "seeds": stores.frame_hash(pool),
        "gates": limits.model_dump(),
        "risk": scorer.identity,
        "rules": f"{paraphrase.RULES_VERSION} {paraphrase.rules_digest()}",
    }
    store.write("corpus", name, frame=corpus, meta=meta)
    known = (
        rows[rows["vector"].notna()].drop_duplicates("text").set_index("text")["vector"]
    )
    sentences = pd.DataFrame(
        {"text_hash": [encoder.hash_text(text) for text in corpus["text"]]}
    )
    sentences["vector"] = [
        np.asarray(known[text], np.float16) for text in corpus["text"]
    ]
    store.write(
        "sentences",
        name,
        encoder.ENCODER_NAME,
        frame=sentences,
        meta={"weights": weights.MINILM_FILE.sha256},
    )
    seconds = rows.groupby("inputs", sort=False)[list(BUILD_STEPS)].first().sum()
    per_thousand = 1000 * seconds / max(len(candidates), 1)
    steps = (
        pd.DataFrame({"seconds": seconds, "seconds_per_1000": per_thousand})
        .rename_axis("step")
        .reset_index()
    )
    return corpus, seeds, candidates, steps


def count_seed_yield(seeds: pd.DataFrame, pool: Seeds) -> Table:
    """Count by source what became of the seeds of a pool that `build_corpus` drew.

    Returns source ("all" last), pool, drawn, insane (stopped by a sanity gate),
    risk_low, risk_high, within (seeds within the gates), complete (with unneeded ones
    of the last part), share (of within) with its exact interval.
    """
    lines = []
    for source in [*sorted(set(pool["source"])), "all"]:
        own, of_pool = (
            frame if source == "all" else frame[frame["source"] == source]
            for frame in (seeds, pool)
        )
        low, high, within = (
            int((own["reason"] == reason).sum())
            for reason in ("risk_low", "risk_high", "")
        )
        complete = int(own["complete"].sum())
        counts = {
            "pool": len(of_pool),
            "drawn": len(own),
            "insane": len(own) - low - high - within,
        }
        counts |= {
            "risk_low": low,
            "risk_high": high,
            "within": within,
            "complete": complete,
        }
        lines.append(
            {"source": source} | counts | estimates.exact_share(complete, within)
        )
    return pd.DataFrame(lines)


def build_public_corpus(
    files: Mapping[str, str | Path],
    store_name: str,
    name: str,
    clusters: int,
    labels: Sequence[str],
    scorer_name: str,
    min_strategies: int,
    seed: int,
    xstest: str = "",
) -> None:
    """Build a public corpus in a live store, write the tables that describe it, and
    print its yields.

    `files` and `labels` are as in `benchmarks.read_benchmarks`; on XSTest's prompts, if
    given, the scorer is described too. UserError where a file is missing or does not
    fit, no cluster is complete, or another process builds it.
    """
    started = time.monotonic()
    store, scorer = stores.Store(store_name), risk.load_risk_scorer(scorer_name)
    described = benchmarks.read_xstest(xstest) if xstest else None
    found, left_out = benchmarks.read_benchmarks(files, tuple(labels))
    pool = benchmarks.order_by_strata(found, seed)
    print(f"{len(pool)} seeds in the pool; left out:")
    print(left_out.to_string(index=False))
    limits = PUBLIC_GATES.model_copy(update={"min_strategies": min_strategies})
    corpus, seeds, candidates, steps = build_corpus(
        store, name, pool, clusters, limits, scorer
    )
    meta = {
        "sources": sorted(set(pool["source"])),
        "risk": scorer.identity,
        "clusters": clusters,
    }
    variants = fidelity.measure_spread(
        corpus, encoder.stored_vectors(store, name, corpus["text"].tolist())
    )
    results = {
        "seeds": count_seed_yield(seeds, pool),
        "yield": gates.count_fates(
            candidates.join(seeds.set_index("seed_id")["source"], on="seed_id"),
            by="source",
        ),
        "gates": gates.bin_gate_measures(candidates),
        "fidelity": fidelity.nearest_seed_share(variants),
        "steps": steps,
    }
    for part, frame in results.items():
        store.write("tables", f"{name}_{part}", frame=frame, meta=meta)
        if part != "gates":  # a histogram is for the figure
            print(f"\n{part}\n{frame.to_string(index=False, float_format='%.3f')}\n")
    if described is not None:
        _describe_risk(store, name, described, found, scorer)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    built = corpus["cluster_id"].nunique()
    short = (
        "" if built == clusters else f" ({clusters} wanted: the pool allows no more)"
    )
    print(
        f"{built} clusters, {len(corpus)} prompts{short}:"
        f" {paths.display_path(store.path('corpus', name))}"
    )
    print(f"{(time.monotonic() - started) / 60:.1f} min, {peak:.2f} GB")


def _describe_risk(
    store: stores.Store,
    name: str,
    xstest: pd.DataFrame,
    found: Seeds,
    scorer: risk.RiskScorer,
) -> None:
    """Write the risk scorer's distribution by source, the project's own corpus
    included, and its AUC on XSTest.
    """
    there = any(
        one.has("corpus", CORPUS) for one in (store, stores.Store(stores.RECORDED))
    )
    own = (
        store.read_earlier("corpus", CORPUS)
        if there
        else pd.DataFrame(columns=["text"])
    )
    groups = [
        own.assign(group="ParaGuard mini"),
        found.assign(group=found["source"].str.split(" + ", regex=False).str[0]),
        xstest.assign(group="XSTest " + xstest["label"]),
    ]
    texts = pd.concat([frame[["group", "text"]] for frame in groups], ignore_index=True)
    texts["risk"] = scorer.score(texts["text"], encoder.encode_texts)
    meta = {"risk": scorer.identity}
    distribution = risk.describe_risks(
        texts, PUBLIC_GATES.min_risk, PUBLIC_GATES.max_risk
    )
    store.write("tables", f"{name}_risk", frame=distribution, meta=meta)
    areas = risk.risk_auc(
        xstest["text"], (xstest["label"] == "unsafe").to_numpy(), scorer
    )
    store.write("tables", f"{name}_risk_auc", frame=areas, meta=meta)
    print(f"\nrisk on XSTest\n{areas.to_string(index=False, float_format='%.3f')}\n")
