"""Build a corpus at the paper's size from public benchmarks, in one command.

It is built in parts of `SEEDS_PER_PART` seeds, each written atomically with a digest of
its inputs: a killed run loses only the part in hand, and another threshold, word list
or seed order starts anew. The corpus stays in a live store (`docs/method.md`, Corpus).
"""

import hashlib
import json
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from paraguard_lab.core.inference import exact_share
from paraguard_lab.corpus import benchmarks, charged, fluency, paraphrase
from paraguard_utils import paths, stores
from paraguard_utils.core.strategies import SEED_STRATEGY
from paraguard_utils.corpus import fidelity, gates, risk, xstest
from paraguard_utils.models import encoder, loading, weights
from paraguard_utils.parts import Parts
from paraguard_utils.schemas import Corpus, Seeds, Table
from paraguard_utils.settings import CORPUS, PUBLIC_GATES, Gates
from paraguard_utils.text import match_key

SEEDS_PER_PART = 100

PUBLIC_CORPUS_TABLES = (
    "seeds",
    "yield",
    "gates",
    "fidelity",
    "steps",
    "risk",
    "risk_auc",
)
"""Tables that describe the corpus: counts without texts."""

BUILD_VERSION = "1"
"""Raise it with a change of the generators, gates or encoder that changes what is
built: parts of another version are made again."""

BUILD_STEPS = ("generate", "embed", "read", "judge")
_PART_COLUMNS = [
    "seed_id",
    "strategy",
    "rule",
    "text",
    "similarity",
    "overlap",
    "content_overlap",
    "framed",
    "risk",
    "reason",
]


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
        Those that were judged; seeds with source, category and `complete`.
    steps : pandas.DataFrame
        step, seconds, seconds_per_1000 (candidates), over all parts, whenever they were
        made.
    """

    corpus: Corpus
    seeds: pd.DataFrame
    candidates: pd.DataFrame
    steps: Table


def build_corpus(order: Order) -> Built:
    """Build a corpus in a live store, from the first seeds that allow a cluster.

    Raise DataError if another process builds this corpus, no cluster is complete, or
    the disk is full.
    """
    path = order.files.output_path("corpus")
    digest = _digest(order)
    with Parts(path, "judged", digest) as parts:
        rows = pd.concat(list(_make_parts(order, parts, digest)), ignore_index=True)
        return _assemble(order, rows)


def _assemble(order: Order, parts: pd.DataFrame) -> Built:
    """Write the corpus that the parts make, and its sentence vectors."""
    is_seed = parts["strategy"] == SEED_STRATEGY
    candidates = parts.loc[~is_seed, _PART_COLUMNS].reset_index(drop=True)
    candidates["generator"] = paraphrase.RULES_GENERATOR
    kept = candidates[candidates["reason"] == ""]

    about = order.pool.set_index("seed_id")[["source", "category"]]
    seeds = parts.loc[is_seed, ["seed_id", "text", "risk", "reason"]]
    seeds = seeds.join(about, on="seed_id").reset_index(drop=True)
    seeds["complete"] = seeds["seed_id"].isin(kept["seed_id"])

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
    _write_vectors(order.files, corpus, parts)
    return Built(corpus, seeds, candidates, _sum_seconds(parts, len(candidates)))


def _make_parts(order: Order, parts: Parts, digest: str) -> Iterator[pd.DataFrame]:
    """Yield parts, kept or new ones, until enough clusters are complete."""
    chain = hashlib.sha256(digest.encode())
    taken: set[str] = set()
    complete = 0
    kept_parts = {rows["inputs"].iloc[0]: rows for rows in parts.read()}
    with tqdm(total=order.clusters, desc="clusters", unit="cluster") as bar:
        for start in range(0, len(order.pool), SEEDS_PER_PART):
            if complete >= order.clusters:
                break
            seeds = order.pool.iloc[start : start + SEEDS_PER_PART]
            # A part depends on all earlier ones, whose texts it must not repeat.
            chain.update(stores.frame_hash(seeds).encode())
            inputs = chain.hexdigest()[:16]
            rows = kept_parts.get(inputs)
            if rows is None:
                rows = _make_part(seeds, order, taken).assign(inputs=inputs)
                parts.add(rows)
            yield rows
            kept = rows[rows["reason"] == ""]
            taken.update(match_key(text) for text in kept["text"])
            is_variant = kept["strategy"] != SEED_STRATEGY
            new = kept.loc[is_variant, "seed_id"].nunique()
            bar.update(min(new, order.clusters - complete))
            complete += new


def _digest(order: Order) -> str:
    """Return a digest of what decides what a part holds, beside its seeds."""
    packages = ("textblob", "lemminflect", "inflect", "py3langid")
    made_by = [
        order.limits.model_dump(),
        order.scorer.identity,
        weights.MINILM_FILE.sha256,
        loading.PACKAGED_MODELS[fluency.FLUENCY_MODEL].sha256,
        BUILD_VERSION,
        paraphrase.rules_digest(),
        *[metadata.version(name) for name in packages],
    ]
    return hashlib.sha256(json.dumps(made_by).encode()).hexdigest()[:16]


class _Stopwatch:
    """Seconds by `BUILD_STEPS`."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(BUILD_STEPS, 0.0)

    def timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls count as a step."""

        def measured(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments)
            self.seconds[step] += time.perf_counter() - started
            return result

        return measured


def _make_part(seeds: Seeds, order: Order, taken: set[str]) -> pd.DataFrame:
    """Write and judge the candidates of some seeds.

    Returns `_PART_COLUMNS`, vectors of what may enter, seconds by `BUILD_STEPS`.
    """
    watch = _Stopwatch()
    judging = gates.Judging(
        order.limits,
        encoder.memoize_embedding(watch.timed("embed", encoder.encode_texts)),
        order.scorer.score,
        taken,
        watch.timed("read", fluency.compute_losses),
    )
    judged_seeds = watch.timed("judge", gates.judge_seeds)(seeds, judging)
    fine = judged_seeds[judged_seeds["reason"] == ""]
    candidates = watch.timed("generate", paraphrase.paraphrase_by_rules)(fine)
    judge = watch.timed("judge", gates.judge_candidates)
    judged_seeds, candidates = judge(seeds, candidates, judging)
    watch.seconds["judge"] -= watch.seconds["embed"] + watch.seconds["read"]

    heads = judged_seeds.assign(
        strategy=SEED_STRATEGY,
        rule="",
        similarity=1.0,
        overlap=1.0,
        content_overlap=1.0,
        framed=False,
    )
    both = [heads[_PART_COLUMNS], candidates[_PART_COLUMNS]]
    rows = pd.concat(both, ignore_index=True)
    vectors = []
    for text, reason in zip(rows["text"], rows["reason"], strict=True):
        vectors.append(judging.embed([text])[0] if reason == "" else None)
    return rows.assign(vector=vectors, **watch.seconds)


def _write_vectors(
    files: stores.CorpusFiles, corpus: Corpus, parts: pd.DataFrame
) -> None:
    """Write the sentence vectors of a corpus, which its parts hold."""
    known = parts[parts["vector"].notna()].drop_duplicates("text")
    vectors = known.set_index("text")["vector"]
    sentences = pd.DataFrame(
        {
            "text_hash": [encoder.hash_text(text) for text in corpus["text"]],
            "vector": [np.asarray(vectors[x], np.float16) for x in corpus["text"]],
        }
    )
    meta = {"weights": weights.MINILM_FILE.sha256}
    files.write("sentences", encoder.ENCODER_NAME, frame=sentences, meta=meta)


def _sum_seconds(parts: pd.DataFrame, n_candidates: int) -> Table:
    """Return step, seconds, seconds_per_1000 (candidates)."""
    by_part = parts.groupby("inputs", sort=False)[list(BUILD_STEPS)].first()
    steps = by_part.sum().rename_axis("step").rename("seconds").reset_index()
    per_thousand = 1000 * steps["seconds"] / max(n_candidates, 1)
    return steps.assign(seconds_per_1000=per_thousand)


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
    rows = []
    for source in [*sorted(set(pool["source"])), "all"]:
        drawn = seeds
        in_pool = pool
        if source != "all":
            drawn = seeds[seeds["source"] == source]
            in_pool = pool[pool["source"] == source]
        low = int((drawn["reason"] == "risk_low").sum())
        high = int((drawn["reason"] == "risk_high").sum())
        within = int((drawn["reason"] == "").sum())
        complete = int(drawn["complete"].sum())
        counts = {
            "source": source,
            "pool": len(in_pool),
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
    started = time.monotonic()
    files = public.files
    scorer = risk.load_risk_scorer(public.risk)
    described = xstest.read_xstest(public.xstest) if public.xstest else None
    unordered, left_out = benchmarks.read_benchmarks(public.sources, public.labels)
    pool = benchmarks.order_by_strata(unordered, public.seed)
    print(f"{len(pool)} seeds in the pool; left out:")
    print(left_out.to_string(index=False))
    limits = PUBLIC_GATES.model_copy(update={"min_strategies": public.min_strategies})
    built = build_corpus(Order(files, pool, public.clusters, limits, scorer))

    meta = {
        "sources": sorted(set(pool["source"])),
        "risk": scorer.identity,
        "clusters": public.clusters,
    }
    for name, table in _describe_build(files, built, pool).items():
        files.store.write("tables", f"{files.name}_{name}", frame=table, meta=meta)
        if name != "gates":  # a histogram is for the figure
            print(f"\n{name}\n{table.to_string(index=False, float_format='%.3f')}\n")
    if described is not None:
        _describe_risk(files, described, unordered, scorer)
    clusters = built.corpus["cluster_id"].nunique()
    short = ""
    if clusters < public.clusters:
        short = f" ({public.clusters} wanted: the pool allows no more)"
    where = paths.display_path(files.path("corpus"))
    print(f"{clusters} clusters, {len(built.corpus)} prompts{short}: {where}")
    minutes = (time.monotonic() - started) / 60
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{minutes:.1f} min, {peak:.2f} GB")


def _describe_build(
    files: stores.CorpusFiles, built: Built, pool: Seeds
) -> dict[str, Table]:
    """Return the tables that describe a build, by name."""
    texts = built.corpus["text"].tolist()
    vectors = encoder.stored_vectors(files, texts)
    variants = fidelity.measure_spread(built.corpus, vectors)
    source = built.seeds.set_index("seed_id")["source"]
    candidates = built.candidates.join(source, on="seed_id")
    return {
        "seeds": count_seed_yield(built.seeds, pool),
        "yield": gates.count_fates(candidates, by="source"),
        "gates": gates.bin_gate_measures(candidates),
        "fidelity": fidelity.nearest_seed_share(variants),
        "steps": built.steps,
    }


def _describe_risk(
    files: stores.CorpusFiles,
    xstest_prompts: pd.DataFrame,
    pool: Seeds,
    scorer: risk.RiskScorer,
) -> None:
    """Write the risk scorer's distribution by source, and its AUC on XSTest.

    The project's own corpus is included, if there is one.
    """
    mini = files.other(CORPUS)
    recorded = stores.Store(stores.RECORDED)
    own = pd.DataFrame(columns=["text"])
    if mini.has("corpus") or recorded.has("corpus", CORPUS):
        own = mini.prompts
    first_source = pool["source"].str.split(" + ", regex=False).str[0]
    groups = [
        own.assign(group="ParaGuard mini"),
        pool.assign(group=first_source),
        xstest_prompts.assign(group="XSTest " + xstest_prompts["label"]),
    ]
    texts = pd.concat([frame[["group", "text"]] for frame in groups], ignore_index=True)
    texts["risk"] = scorer.score(texts["text"], encoder.encode_texts)
    limits = PUBLIC_GATES
    distribution = charged.describe_risks(texts, limits.min_risk, limits.max_risk)
    is_unsafe = (xstest_prompts["label"] == "unsafe").to_numpy()
    areas = charged.risk_auc(xstest_prompts["text"], is_unsafe, scorer)
    meta = {"risk": scorer.identity}
    name = files.name
    files.store.write("tables", f"{name}_risk", frame=distribution, meta=meta)
    files.store.write("tables", f"{name}_risk_auc", frame=areas, meta=meta)
    print(f"\nrisk on XSTest\n{areas.to_string(index=False, float_format='%.3f')}\n")
