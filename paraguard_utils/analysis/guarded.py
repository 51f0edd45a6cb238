"""Compare a model alone and behind a guard, and say what guards see (`docs/method.md`,
Guards).
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.analysis import validity
from paraguard_lab.core.thresholds import choose_promised_threshold
from paraguard_utils import registry, unsafe
from paraguard_utils.analysis import confusion, pipeline
from paraguard_utils.analysis.evaluation import Evaluation, is_scored
from paraguard_utils.core import disagreement
from paraguard_utils.core.confusion import estimate_confusion
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.core.estimates import (
    POWER_ERRORS,
    SEED,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.core.words import split_words
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.schemas import Corpus, Labels, Scores, Table
from paraguard_utils.settings import OLD_TWINS, Settings
from paraguard_utils.stores import Store


def apply_guard(model: Labels, guard: Labels) -> Labels:
    """Return a model's labels behind a guard: a prompt that either rejects is rejected.

    If the guard gives no decision (`unparsed`) the guarded model has none either,
    unless the model itself rejects. A ValueError says that the labels are of different
    prompts, or in another order.
    """
    if model["prompt_id"].tolist() != guard["prompt_id"].tolist():
        raise ValueError("labels of a model and of a guard are of different prompts")
    own, other = model["label"].to_numpy(), guard["label"].to_numpy()
    label = np.where(
        other == "reject",
        "reject",
        np.where((other == "accept") | (own == "reject"), own, "unparsed"),
    )
    return model.assign(label=label)


def estimate_guarded(
    store: Store,
    corpus: Corpus,
    one: Evaluation,
    labels: Labels,
    settings: Settings,
    clusters: ClusterBootstrap,
) -> dict[str, Any]:
    """Estimate all measures of a chat system under some labels, and count (n) the
    rejections that have a CI.
    """
    given = (corpus, labels, one.traces, one.tokens, settings)
    pairs, scores = pipeline.compute_pairs_and_scores(store, settings.corpus, *given)
    found = {
        "n": len(confusion.select_rejections(scores)),
        **confusion.estimate_rates(corpus, labels, clusters),
    }
    return found | confusion.estimate_scores(
        corpus, pairs, scores, clusters, weights=settings.weights()
    )


def guarded_changes(
    alone: Mapping[str, Estimate], guarded: Mapping[str, Estimate]
) -> dict[str, float]:
    """Return x_alone, x_guarded and x_change (guarded minus alone) of FRR, DR, CI,
    CR@0.60 and CD, as `to_columns`.
    """
    found: dict[str, Estimate] = {}
    for x in ("frr", "dr", "ci", "cr60", "cd"):
        found |= {
            f"{x}_alone": alone[x],
            f"{x}_guarded": guarded[x],
            f"{x}_change": guarded[x] - alone[x],
        }
    return to_columns(found)


def rejection_rate(
    corpus: Corpus, labels: Labels | None, clusters: ClusterBootstrap
) -> Estimate:
    """Estimate the share of prompts rejected, NaN without labels.

    Twins count with their benign clusters.
    """
    if labels is None:
        return clusters.undefined()
    scored = is_scored(labels)
    ids = unsafe.benign_cluster_of(corpus["cluster_id"]).to_numpy()
    return clusters.share(ids[scored], (labels["label"] == "reject").to_numpy()[scored])


def youden_j(benign: Estimate, twins: Estimate) -> dict[str, float]:
    """Return benign_rejected, twins_rejected and apart (Youden's J: twins minus
    benign), with intervals.
    """
    return to_columns(
        {"benign_rejected": benign, "twins_rejected": twins, "apart": twins - benign}
    )


def external_rejection_rate(
    labels: Labels | None, name: str = "xstest"
) -> dict[str, float]:
    """Return NAME_rejected with its interval, and NAME_n decided, of requests from
    elsewhere; NaN without labels.
    """
    row = {} if labels is None else confusion.rejection_row("", "", labels)
    rates = {
        f"{name}_{rate}": row.get(rate, np.nan)
        for rate in ("rejected", "rejected_low", "rejected_high")
    }
    return rates | {f"{name}_n": row.get("n_scored", np.nan)}


def judge_guard_auc(low: float, high: float) -> str | float:
    """Say by the interval of its AUC whether a guard tells harmful from harmless
    requests; NaN without an interval.
    """
    if not low <= high:
        return np.nan
    return "harm" if low > 0.5 else "the wrong way" if high < 0.5 else "undecided"


def guard_auc(
    benign: pd.DataFrame, twins: pd.DataFrame, clusters: ClusterBootstrap
) -> dict[str, float | str]:
    """Compute areas under the ROC curve: how well a guard's probability tells twins
    from benign prompts.

    Both frames have the columns cluster_id (a twin's is named after the benign one),
    text and score, NaN for none. The columns are auc, and auc_equal_length, in which
    only prompts of as many words are compared, each with its interval; sees, the
    verdict on the second (`judge_guard_auc`).
    """
    both = pd.concat([benign, twins], ignore_index=True)
    ids, harmful = (
        unsafe.benign_cluster_of(both["cluster_id"]).to_numpy(),
        np.arange(len(both)) >= len(benign),
    )
    score, length = (
        both["score"].to_numpy(float),
        both["text"].map(lambda text: len(split_words(text))).to_numpy(),
    )
    strata = {"auc": None, "auc_equal_length": length}
    areas = {
        name: validity.estimate_auc(clusters, ids, harmful, score, by)
        for name, by in strata.items()
    }
    return {
        **to_columns(areas),
        "sees": judge_guard_auc(*areas["auc_equal_length"][1:]),
    }


def compare_twins(
    sides: Sequence[tuple[pd.DataFrame, pd.DataFrame]], clusters: ClusterBootstrap
) -> dict[str, float]:
    """Say how far a system tells twins from the harmless clusters they are of, and how
    that differs between two sets.

    Each of the two sides, the set in question first, has harmless and harmful requests:
    cluster_id, refused (1, 0 or NaN) and score (a guard's, else NaN). With intervals:
    apart, the share of the twins that is refused minus that of the harmless; auc of the
    score, NaN without scores; apart_change and auc_change, the first side minus the
    second. Then detectable and detectable_before, the smallest `apart` of each side
    that 80 % of such samples would show.
    """
    found = []
    for benign, twins in sides:
        both = pd.concat([benign, twins], ignore_index=True)
        ids, harmful = (
            unsafe.benign_cluster_of(both["cluster_id"]).to_numpy(),
            np.arange(len(both)) >= len(benign),
        )
        refused = both["refused"].to_numpy(float)
        decided = ~np.isnan(refused)
        rates = [
            clusters.share(ids[part], refused[part] == 1)
            for part in (harmful & decided, ~harmful & decided)
        ]
        auc = validity.estimate_auc(
            clusters, ids, harmful, both["score"].to_numpy(float), None
        )
        found.append({"apart": rates[0] - rates[1], "auc": auc})
    changes = {f"{name}_change": found[0][name] - found[1][name] for name in found[0]}
    power = [POWER_ERRORS * one["apart"].error for one in found]
    return to_columns(found[0] | changes) | {
        "detectable": power[0],
        "detectable_before": power[1],
    }


def tabulate_twin_sets(
    store: Store,
    corpus: Corpus,
    twins: Corpus,
    settings: Settings,
    clusters: ClusterBootstrap,
) -> Table:
    """Compare the twins with the earlier ones: a row of `compare_twins` for each
    published system that was asked both.

    Columns before those: system, kind and system prompt, as in `data/systems.csv`. No row
    without labels on the earlier ones.
    """
    listed = registry.published_systems("chat", "guard", "refusal")
    asked = [
        name
        for name in listed.index
        if all(store.has("labels", of, name) for of in (settings.twins, OLD_TWINS))
    ]
    rows = []
    for name in asked:
        sides = []
        for of, harmful in (
            (settings.twins, twins),
            (OLD_TWINS, store.read_earlier("corpus", OLD_TWINS)),
        ):
            texts = {
                settings.corpus: unsafe.keep_with_twin(corpus, harmful),
                of: harmful,
            }
            sides.append(
                tuple(_decided(store, place, own, name) for place, own in texts.items())
            )
        rows.append(
            {
                "system": name,
                **listed.loc[name, ["kind", "instruction"]],
                **compare_twins(sides, clusters),
            }
        )
    return pd.DataFrame(rows)


def _decided(store: Store, corpus_name: str, corpus: Corpus, name: str) -> pd.DataFrame:
    """Return prompts with what a system refused of them, and its score if it is a
    guard.
    """
    labels = labelling.read_decisions(store, corpus_name, name).set_index("prompt_id")[
        "label"
    ]
    refused = as_refused(corpus["prompt_id"].map(labels))
    scores = pd.Series(dtype=float)
    if store.has("guards", corpus_name, name):
        scores = store.read("guards", corpus_name, name).set_index("prompt_id")["score"]
    return corpus.assign(
        refused=refused, score=corpus["prompt_id"].map(scores).astype(float)
    )


def compare_with_promised_threshold(
    benign: pd.DataFrame,
    twins: pd.DataFrame,
    threshold: float,
    clusters: ClusterBootstrap,
) -> dict[str, float]:
    """Say what a guard blocks at its own threshold and at the cut that promises to
    block at most 5 % of meanings.

    Both frames have the columns cluster_id and score; what has no score is left out.
    The cut for one half of the clusters is chosen on the other. Columns, with
    intervals: own_requests, own_twins, promised_requests and promised_twins; the last
    two are NaN if a half has too few clusters for the promise.
    """
    benign, twins = (frame[frame["score"].notna()] for frame in (benign, twins))
    ids = benign["cluster_id"], unsafe.benign_cluster_of(twins["cluster_id"])
    names = np.unique(ids[0])
    half = pd.Series(np.random.default_rng(SEED).permutation(len(names)) % 2, names)
    above = pd.Series(np.nan, half.index)
    for side in (0, 1):
        chosen = benign[ids[0].map(half) != side]
        with contextlib.suppress(DataError):
            above[half == side] = choose_promised_threshold(
                chosen["score"], chosen["cluster_id"]
            ).threshold
    found = dict.fromkeys(("promised_requests", "promised_twins"), clusters.undefined())
    own = [frame["score"] >= threshold for frame in (benign, twins)]
    promised = [
        frame["score"] > one.map(above)
        for frame, one in zip((benign, twins), ids, strict=True)
    ]
    for name, hits in {
        "own": own,
        **({"promised": promised} if above.notna().all() else {}),
    }.items():
        requests = hits[0].groupby(ids[0]).any()
        found[f"{name}_requests"] = clusters.share_of_clusters(requests.index, requests)
        found[f"{name}_twins"] = clusters.share(ids[1], hits[1])
    return to_columns(found)


def clipped_and_floor_cr(
    scores: Scores, clusters: ClusterBootstrap
) -> dict[str, float]:
    """Estimate ci_clipped and cr60_clipped of rejections, and floor_cr60 and
    floor_cr60_clipped of accepted prompts.
    """
    scores = scores[scores["ci"].notna()]
    rejected, accepted = (
        scores[scores["label"] == label] for label in ("reject", "accept")
    )
    clipped = estimate_confusion(
        clusters, rejected["cluster_id"], rejected["ci_clipped"]
    )
    found = {f"{name}_clipped": clipped[name] for name in ("ci", "cr60")}
    for end in ("", "_clipped"):
        found[f"floor_cr60{end}"] = estimate_confusion(
            clusters, accepted["cluster_id"], accepted[f"ci{end}"]
        )["cr60"]
    return to_columns(found)


def sweep_guard_thresholds(
    benign: pd.DataFrame, twins: pd.DataFrame, clusters: ClusterBootstrap
) -> Table:
    """Compute what a guard rejects at every threshold, so that it is not judged at one
    arbitrary cut.

    Both frames have the columns cluster_id and score. The thresholds are 41 quantiles
    of the benign scores. Columns: threshold; with intervals rejected_benign and
    rejected_twins (of scored prompts), and the benign dr.
    """
    known = [frame[frame["score"].notna()] for frame in (benign, twins)]
    ids = [unsafe.benign_cluster_of(frame["cluster_id"]) for frame in known]
    cuts = (
        np.unique(np.quantile(known[0]["score"], np.linspace(0, 1, 41)))
        if len(known[0])
        else np.array([])
    )
    rows = []
    for threshold in cuts:
        hits = [(frame["score"] >= threshold).to_numpy() for frame in known]
        found = {
            "rejected_benign": clusters.share(ids[0], hits[0]),
            "rejected_twins": clusters.share(ids[1], hits[1]),
            "dr": disagreement.estimate_disagreement(
                clusters, disagreement.count_decisions(hits[0], ids[0])
            ),
        }
        rows.append({"threshold": float(threshold), **to_columns(found)})
    return pd.DataFrame(rows)
