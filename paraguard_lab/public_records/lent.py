"""Measure recorded systems on near neighbours, and by the paper's CI (ours).

Prompts are read from a source's folder, and none of their text is kept. Tokens are lent
by a model of ours, as they are to a guard (`docs/method.md`, Public records).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_lab.core import neighbours
from paraguard_lab.public_records.measures import MOST_UNDECIDED
from paraguard_lab.public_records.sources import RecordedDecisions, refused_bits
from paraguard_utils.analysis.confusion import score_prompts
from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.analysis.signals import compute_pairs
from paraguard_utils.analysis.system import CI_COLUMNS, System
from paraguard_utils.core import disagreement
from paraguard_utils.core.confusion import THETA
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, to_columns
from paraguard_utils.core.signals import PAPER_SCORING
from paraguard_utils.models import backends, encoder, loading
from paraguard_utils.models.prompting import Decoding, Workload
from paraguard_utils.schemas import Table, Tokens, Traces
from paraguard_utils.settings import QueryOptions

LENDER = "smollm2-135m-instruct"
NEARER = 0.75  # cosine of neighbours that are nearly the same
LOWEST = "temperature 0.0"


def read_stability_prompts(folder: Path) -> pd.DataFrame:
    """Read the prompts of `stability`: prompt_id and text."""
    prompts = pd.read_csv(folder / "ssi_prompts.csv", keep_default_na=False)
    return prompts.rename(columns={"id": "prompt_id", "prompt": "text"})


def decide_by_most(
    decisions: RecordedDecisions,
) -> Iterator[tuple[str, str, pd.Series]]:
    """Yield system, judge and the decision of each prompt at the lowest temperature.

    A prompt is refused if most of its repeats are; with as many answered it is NaN. A
    judge who leaves more than `MOST_UNDECIDED` undecided is passed over.
    """
    lowest = decisions[decisions["setting"] == LOWEST]
    for (system, judge), own in lowest.groupby(["system", "judge"], sort=True):
        refused = pd.Series(refused_bits(own["decision"]), own["cluster"])
        if refused.isna().mean() > MOST_UNDECIDED:
            continue
        share = refused.groupby(level=0).mean()
        yield str(system), str(judge), (share > 0.5).astype(float).mask(share == 0.5)


def tabulate_neighbours(decisions: RecordedDecisions, prompts: pd.DataFrame) -> Table:
    """Measure DR of near neighbours in the place of paraphrases.

    Returns
    -------
    Table
        source, system, judge; pairs: near (cosine 0.60 or more), nearer (0.75 or
        more), "near only" (0.60 to 0.75) or "nearer minus near"; n, prompts with a
        decision; n_near, those with such a neighbour; dr with an interval over groups
        of neighbours; too_few.
    """
    vectors = encoder.encode_texts(prompts["text"].tolist())
    rows = []
    for system, judge, decided in decide_by_most(decisions):
        refused = decided.reindex(prompts["prompt_id"]).to_numpy()
        known = ~np.isnan(refused)
        is_refused = refused[known] == 1
        about = {"source": "stability", "system": system, "judge": judge}
        found = _measure_bands(vectors[known], is_refused)
        fewest = min(is_refused.sum(), (~is_refused).sum())
        for pairs, (n_near, dr) in found.items():
            rows.append(
                about
                | {"pairs": pairs, "n": int(known.sum()), "n_near": n_near}
                | to_columns({"dr": dr})
                | {"too_few": bool(fewest < disagreement.MIN_DECISIONS_EACH)}
            )
    return pd.DataFrame(rows)


def _measure_bands(
    vectors: np.ndarray, refused: np.ndarray
) -> dict[str, tuple[int, Estimate]]:
    """Return, by kind of pair, prompts with a neighbour and DR, on the same groups."""
    bands = {
        "near": (THETA, np.inf),
        "nearer": (NEARER, np.inf),
        "near only": (THETA, NEARER),
    }
    groups = neighbours.find_neighbours(vectors, refused).groups
    clusters = ClusterBootstrap(groups)
    found = {}
    for pairs, (theta, below) in bands.items():
        near = neighbours.find_neighbours(vectors, refused, theta, below)
        near = near._replace(groups=groups)
        dr = neighbours.estimate_neighbour_disagreement(clusters, near, refused)
        found[pairs] = (int((near.near > 0).sum()), dr)
    difference = found["nearer"][1] - found["near only"][1]
    found["nearer minus near"] = (found["nearer"][0], difference)
    return found


def query_lender(prompts: pd.DataFrame) -> tuple[Traces, Tokens]:
    """Return what `LENDER` says of prompts: their traces, and its tokens in them."""
    options = QueryOptions(model=LENDER, system_prompts=["none"])
    source = loading.resolve_model(LENDER)
    model = backends.LocalSource(**vars(source), dtype=options.dtype).open(options)
    context = model.context("", Decoding(max_new_tokens=1))
    answered = list(model.answers(Workload(prompts, title=LENDER), context))
    traces = pd.concat(answered).set_index("prompt_id").loc[prompts["prompt_id"]]
    ids = np.unique(np.concatenate(traces["token_ids"].tolist())).tolist()
    tokens = {"token_id": ids, "embedding": list(model.embeddings(ids))}
    return traces.reset_index(), pd.DataFrame(tokens)


def lend_tokens(
    decisions: RecordedDecisions, prompts: pd.DataFrame, lent: tuple[Traces, Tokens]
) -> dict[str, System]:
    """Return the recorded systems with lent tokens, pairs and scores, by name.

    `lent` is what `query_lender` returns. A system is judged by the first judge, in
    alphabetical order, with enough decisions.
    """
    traces, tokens = lent
    drifts = DriftCache(tokens)
    vectors = encoder.encode_texts(prompts["text"].tolist())
    none = np.zeros(len(prompts), bool)
    groups = neighbours.find_neighbours(vectors, none).groups
    corpus = pd.DataFrame({"prompt_id": prompts["prompt_id"], "cluster_id": groups})
    clusters = ClusterBootstrap(corpus["cluster_id"])
    systems: dict[str, System] = {}
    for name, _, decided in decide_by_most(decisions):
        if name in systems:
            continue
        refused = decided.reindex(corpus["prompt_id"]).to_numpy()
        label = np.where(refused == 1, "reject", "accept").astype(object)
        label[np.isnan(refused)] = "unparsed"
        labels = corpus[["prompt_id"]].assign(label=label)
        system = System(
            name,
            corpus,
            labels,
            clusters,
            PAPER_SCORING,
            traces=traces,
            drifts=drifts,
            token_model=LENDER,
        )
        system = replace(system, pairs=compute_pairs(system, vectors))
        systems[name] = replace(system, scores=score_prompts(system))
    return systems


def tabulate_confusion(systems: Mapping[str, System]) -> Table:
    """Return the paper's measures of recorded systems, in both interpretations.

    Returns
    -------
    Table
        system, interpretation; n_refused, n_answered; ci, cr60, cr75 and cd with
        intervals over groups of neighbours; too_few: fewer than 100 refusals or 100
        answers, among which neighbours are looked for.
    """
    rows = []
    for name, system in systems.items():
        n_refused = int(np.nansum(system.refused == 1))
        n_answered = int(np.nansum(system.refused == 0))
        fewest = min(n_refused, n_answered)
        for interpretation, measures in system.confusion.items():
            wanted = {one: measures[one] for one in ("ci", "cr60", "cr75", "cd")}
            rows.append(
                {"source": "stability", "system": name}
                | {"interpretation": interpretation}
                | {"n_refused": n_refused, "n_answered": n_answered}
                | to_columns(wanted)
                | {"too_few": fewest < disagreement.MIN_DECISIONS_EACH}
            )
    return pd.DataFrame(rows)


def tabulate_record_pairs(systems: Mapping[str, System]) -> Table:
    """Compare every two recorded systems on the same prompts.

    Returns
    -------
    Table
        first, second; measure: rate, ci_relative or ci_clipped; n, prompts that both
        decided, or refused; difference, second minus first, with an interval over
        groups of neighbours; too_few, as in `tabulate_confusion`.
    """
    rows: list[dict[str, object]] = []
    names = list(systems)
    for number, first in enumerate(names):
        for second in names[number + 1 :]:
            rows += _compare(systems[first], systems[second])
    return pd.DataFrame(rows)


def _compare(first: System, second: System) -> Iterator[dict[str, object]]:
    about = {"source": "stability", "first": first.name, "second": second.name}
    ids = first.prompts["cluster_id"].to_numpy()
    both = first.is_scored & second.is_scored
    change = (second.refused - first.refused)[both]
    rate = first.clusters.mean(ids[both], change)
    yield (
        about
        | {"measure": "rate", "n": int(both.sum())}
        | to_columns({"difference": rate})
        | {"too_few": False}
    )
    scores = first.rejections.merge(
        second.rejections, on=["prompt_id", "cluster_id"], suffixes=("", "_second")
    )
    answered = min(np.nansum(one.refused == 0) for one in (first, second))
    for interpretation, column in CI_COLUMNS.items():
        change = scores[f"{column}_second"] - scores[column]
        difference = first.clusters.mean(scores["cluster_id"], change)
        yield (
            about
            | {"measure": f"ci_{interpretation}", "n": len(scores)}
            | (to_columns({"difference": difference}))
            | {"too_few": bool(answered < disagreement.MIN_DECISIONS_EACH)}
        )
