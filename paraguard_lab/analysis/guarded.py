"""Compare a model alone and behind a guard, and guards at other thresholds and twins.

The measures are defined in the method (`docs/method.md`, Guards).
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from paraguard_lab.core.inference import (
    POWER_ERRORS,
    share_of_clusters,
    standard_error,
)
from paraguard_lab.core.thresholds import choose_promised_threshold
from paraguard_lab.corpus.twins import keep_with_twin
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.analysis.confusion import rejection_row
from paraguard_utils.analysis.system import System
from paraguard_utils.core import disagreement
from paraguard_utils.core.auc import estimate_auc
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.core.estimates import (
    SEED,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.core.signals import Scoring
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.models.trace_store import hash_answers
from paraguard_utils.schemas import Corpus, Labels, Table, select_prompts
from paraguard_utils.settings import OLD_TWINS, AnalysisSettings, TwinOptions
from paraguard_utils.stores import CorpusFiles

N_THRESHOLDS = 41  # quantiles of the benign scores that `sweep_guard_thresholds` tries


def apply_guard(model: Labels, guard: Labels) -> Labels:
    """Return a model's labels behind a guard: a prompt that either rejects is rejected.

    If the guard gives no decision (`unparsed`) the guarded model has none either,
    unless the model itself rejects. A ValueError says that the labels are of different
    prompts, or in another order.
    """
    if model["prompt_id"].tolist() != guard["prompt_id"].tolist():
        raise ValueError("labels of a model and of a guard are of different prompts")
    alone = model["label"].to_numpy()
    of_guard = guard["label"].to_numpy()
    decides_alone = (of_guard == "accept") | (alone == "reject")
    label = np.where(decides_alone, alone, "unparsed")
    label = np.where(of_guard == "reject", "reject", label)
    return model.assign(label=label)


def guarded_changes(alone: System, behind: System) -> dict[str, float]:
    """Return how FRR and DR change behind a guard.

    Columns: x_alone, x_guarded and x_change (guarded minus alone), with intervals.
    """
    estimates: dict[str, Estimate] = {}
    for name, measure in (("frr", System.frr), ("dr", System.dr)):
        before = measure(alone)
        after = measure(behind)
        estimates[f"{name}_alone"] = before
        estimates[f"{name}_guarded"] = after
        estimates[f"{name}_change"] = after - before
    return to_columns(estimates)


def tabulate_guarded(systems: Iterable[System], guards: Mapping[str, Labels]) -> Table:
    """Tabulate how the measures of chat systems change behind each guard.

    `guards` holds each guard's decisions on the same prompts, by name. Columns: system,
    guard, too_few_for_dr (of the system alone), and those of `guarded_changes`.
    """
    rows = []
    for system in systems:
        too_few = disagreement.too_few_for_disagreement(system.decided)
        for guard, decisions in guards.items():
            behind = system.with_labels(apply_guard(system.labels, decisions))
            row = {"system": system.name, "guard": guard, "too_few_for_dr": too_few}
            rows.append(row | guarded_changes(system, behind))
    return pd.DataFrame(rows)


def compare_twins(
    sides: Sequence[tuple[pd.DataFrame, pd.DataFrame]], clusters: ClusterBootstrap
) -> dict[str, float]:
    """Compare how far a system separates two sets of twins from harmless requests.

    Parameters
    ----------
    sides : sequence of two pairs of DataFrame
        Harmless and harmful requests of each set, the set in question first, with
        cluster_id, refused (1, 0 or NaN) and score (a guard's, else NaN).
    clusters : ClusterBootstrap
        The harmless clusters.

    Returns
    -------
    dict
        With intervals: apart, the share of the twins that is refused minus that of the
        harmless; auc of the score, NaN without scores; apart_change and auc_change, the
        first set minus the second. Then detectable and detectable_before, the smallest
        `apart` of each set that 80 % of such samples would show.
    """
    estimates = [_separate(benign, twins, clusters) for benign, twins in sides]
    now, before = estimates
    changes = {f"{name}_change": now[name] - before[name] for name in now}
    return to_columns(now | changes) | {
        "detectable": POWER_ERRORS * standard_error(now["apart"]),
        "detectable_before": POWER_ERRORS * standard_error(before["apart"]),
    }


def _separate(
    benign: pd.DataFrame, twins: pd.DataFrame, clusters: ClusterBootstrap
) -> dict[str, Estimate]:
    """Estimate `apart` and `auc` of `compare_twins`."""
    rates = []
    for side in (twins, benign):
        decided = side[side["refused"].notna()]
        ids = unsafe.benign_cluster_of(decided["cluster_id"])
        rates.append(clusters.share(ids, decided["refused"] == 1))
    both = pd.concat([benign, twins])
    ids = unsafe.benign_cluster_of(both["cluster_id"])
    harmful = np.arange(len(both)) >= len(benign)
    return {
        "apart": rates[0] - rates[1],
        "auc": estimate_auc(clusters, ids, harmful, both["score"].to_numpy(float)),
    }


def tabulate_twin_sets(
    files: CorpusFiles, twins: Corpus, options: TwinOptions, clusters: ClusterBootstrap
) -> Table:
    """Compare the twins with the earlier ones: a row of `compare_twins` per system.

    Columns before those: system, kind and instruction, as in `data/systems.csv`. Only
    published systems with labels on both sets have a row.
    """
    twin_sets = {
        options.twins: twins,
        OLD_TWINS: files.other(OLD_TWINS).prompts,
    }
    listed = registry.published_systems("chat", "guard", "refusal")
    rows = []
    for name in listed.index:
        if not all(files.other(of).has("labels", name) for of in twin_sets):
            continue
        sides = []
        for of, harmful in twin_sets.items():
            benign = keep_with_twin(files.prompts, harmful)
            sides.append(
                (_decide(files, benign, name), _decide(files.other(of), harmful, name))
            )
        about = listed.loc[name, ["kind", "instruction"]]
        rows.append({"system": name, **about, **compare_twins(sides, clusters)})
    return pd.DataFrame(rows)


def _decide(files: CorpusFiles, prompts: Corpus, name: str) -> pd.DataFrame:
    """Return prompts with what a system refused, and its score if it is a guard."""
    labels = labelling.read_decisions(files, name)
    label_of = labels.set_index("prompt_id")["label"]
    score_of = pd.Series(dtype=float)
    if files.has("guards", name):
        score_of = files.read("guards", name).set_index("prompt_id")["score"]
    return prompts.assign(
        refused=as_refused(prompts["prompt_id"].map(label_of)),
        score=prompts["prompt_id"].map(score_of).astype(float),
    )


def external_rejection_rate(
    labels: Labels | None, name: str = "xstest"
) -> dict[str, float]:
    """Return the rejected share of requests from elsewhere, and how many are decided.

    Columns: NAME_rejected with its interval, and NAME_n; NaN without labels.
    """
    row = {} if labels is None else rejection_row("", labels)
    columns = {}
    for rate in ("rejected", "rejected_low", "rejected_high"):
        columns[f"{name}_{rate}"] = row.get(rate, np.nan)
    return columns | {f"{name}_n": row.get("n_scored", np.nan)}


def tabulate_elsewhere(files: CorpusFiles, names: Iterable[str]) -> Table:
    """Tabulate how often systems reject a corpus of requests from elsewhere.

    Columns: system, and those of `external_rejection_rate`; no rows without labels.
    """
    rows = []
    for name in names:
        if files.has("labels", name):
            labels = labelling.read_decisions(files, name)
            rows.append({"system": name, **external_rejection_rate(labels)})
    return pd.DataFrame(rows)


def compare_with_promised_threshold(
    benign: pd.DataFrame,
    twins: pd.DataFrame,
    threshold: float,
    clusters: ClusterBootstrap,
) -> dict[str, float]:
    """Compare what a guard blocks at its own threshold and at a promised one.

    The second promises to block at most 5 % of harmless requests. For one half of the
    clusters it is chosen on the other half (`core.thresholds`).

    Parameters
    ----------
    benign, twins : DataFrame
        Columns cluster_id and score; what has no score is left out.
    threshold : float
        The guard's own.
    clusters : ClusterBootstrap

    Returns
    -------
    dict
        With intervals: own_requests, own_twins, promised_requests and promised_twins.
        The last two are NaN if a half has too few clusters for the promise.
    """
    benign = benign[benign["score"].notna()]
    twins = twins[twins["score"].notna()]
    benign_ids = benign["cluster_id"]
    twin_ids = unsafe.benign_cluster_of(twins["cluster_id"])
    promised = _choose_on_other_half(benign)
    names = ("promised_requests", "promised_twins")
    estimates = dict.fromkeys(names, clusters.undefined())
    blocked = {"own": (benign["score"] >= threshold, twins["score"] >= threshold)}
    if promised.notna().all():
        blocked["promised"] = (
            benign["score"] > benign_ids.map(promised),
            twins["score"] > twin_ids.map(promised),
        )
    for name, (of_benign, of_twins) in blocked.items():
        requests = of_benign.groupby(benign_ids).any()
        share = share_of_clusters(clusters, requests.index, requests)
        estimates[f"{name}_requests"] = share
        estimates[f"{name}_twins"] = clusters.share(twin_ids, of_twins)
    return to_columns(estimates)


def _choose_on_other_half(benign: pd.DataFrame) -> pd.Series:
    """Return the promised threshold for each cluster, chosen on the half without it.

    NaN if a half has too few clusters for the promise.
    """
    ids = benign["cluster_id"]
    names = np.unique(ids)
    order = np.random.default_rng(SEED).permutation(len(names))
    half = pd.Series(order % 2, names)
    thresholds = pd.Series(np.nan, names)
    for side in (0, 1):
        others = benign[ids.map(half) != side]
        with contextlib.suppress(DataError):
            promised = choose_promised_threshold(others["score"], others["cluster_id"])
            thresholds[half == side] = promised.threshold
    return thresholds


def sweep_guard_thresholds(
    benign: pd.DataFrame, twins: pd.DataFrame, clusters: ClusterBootstrap
) -> Table:
    """Compute what a guard rejects at many thresholds, not only at its own.

    Both frames have the columns cluster_id and score. The thresholds are 41 quantiles
    of the benign scores. Columns: threshold; with intervals rejected_benign and
    rejected_twins (of scored prompts), and the benign dr.
    """
    benign = benign[benign["score"].notna()]
    twins = twins[twins["score"].notna()]
    # Numbers in place of ids: quicker to look up at every threshold
    codes = clusters.codes
    benign_ids = codes.loc[unsafe.benign_cluster_of(benign["cluster_id"])].to_numpy()
    twin_ids = codes.loc[unsafe.benign_cluster_of(twins["cluster_id"])].to_numpy()
    numbered = ClusterBootstrap(codes, clusters.resamples, clusters.seed)
    thresholds = np.array([])
    if len(benign):
        shares = np.linspace(0, 1, N_THRESHOLDS)
        thresholds = np.unique(np.quantile(benign["score"], shares))
    rows = []
    for threshold in thresholds:
        benign_hits = (benign["score"] >= threshold).to_numpy()
        twin_hits = (twins["score"] >= threshold).to_numpy()
        decided = disagreement.count_decisions(benign_hits, benign_ids)
        estimates = {
            "rejected_benign": numbered.share(benign_ids, benign_hits),
            "rejected_twins": numbered.share(twin_ids, twin_hits),
            "dr": disagreement.estimate_disagreement(numbered, decided),
        }
        rows.append({"threshold": threshold, **to_columns(estimates)})
    return pd.DataFrame(rows)


def read_guards(files: CorpusFiles, systems: Iterable[System]) -> dict[str, System]:
    """Read the published guards that were scored with the traces of one of the systems.

    Others are left out. A DataError says that scores are of another corpus or other
    decisions.
    """
    references = {hash_answers(system.traces): system for system in systems}
    guards: dict[str, System] = {}
    for name in registry.published_systems("guard").index:
        if not files.has("scores", name):
            continue
        path = files.path("scores", name)
        meta = stores.read_meta(path)
        inputs = meta["inputs"]
        scoring = AnalysisSettings.pick(meta["parameters"]).scoring()
        reference = references.get(inputs["traces"])
        if reference is None or not _score_alike(reference.scoring, scoring):
            continue
        labels = files.read("labels", name)
        of_labels = paths.display_path(files.path("labels", name))
        same_corpus = inputs["corpus"] == stores.frame_hash(files.prompts)
        if not same_corpus or inputs["labels"] != labelling.hash_labels(labels):
            raise DataError(
                f"{paths.display_path(path)}: scores of another corpus or other"
                " decisions; run 05_guard_comparison again"
            )
        labels = select_prompts(labels, files.prompts, of_labels)
        guard = reference.with_labels(labels, name)
        guards[name] = replace(
            guard, pairs=files.read("pairs", name), scores=files.read("scores", name)
        )
    return guards


def _score_alike(one: Scoring, other: Scoring) -> bool:
    return one.weights == other.weights and one.k == other.k
