"""Compare systems request by request, and one model under several instructions (ours).

(`docs/method.md`, What a decision hangs on)
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from paraguard_lab.analysis.comparisons import compare_systems
from paraguard_lab.core.inference import adjust_holm
from paraguard_utils.analysis.system import System
from paraguard_utils.analysis.wording import find_cluster_pairs, make_phrasings
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import (
    MIN_MIXED,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.core.wording import estimate_pair_disagreement
from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.schemas import Table

MIN_INSTRUCTIONS = 4
"""Instructions under which DR can be judged, to fit a slope over them."""

SIZES = ("qwen2.5-coder-0.5b-instruct-q4_k_m", "qwen2.5-coder-1.5b-instruct-q4_k_m")
"""Two models of one maker that differ in size."""


def _shares_by_cluster(system: System) -> pd.Series:
    """Return the refused share of every cluster, by its id; NaN without a decision."""
    ids = system.prompts["cluster_id"].to_numpy()
    return pd.Series(system.refused).groupby(ids).mean()


def correlate_requests(first: System, second: System) -> Estimate:
    """Estimate Spearman's rho between the refused shares of the same requests.

    Requests without a decision of one system are left out. NaN if one decides all
    alike.
    """
    shares = pd.DataFrame(
        {"x": _shares_by_cluster(first), "y": _shares_by_cluster(second)}
    )
    shares = shares.dropna()
    usual = first.clusters
    clusters = ClusterBootstrap(shares.index, usual.resamples, usual.seed)

    def correlate(counts: np.ndarray) -> np.ndarray:
        rows = np.tile(np.arange(len(shares)), len(counts))
        drawn = np.repeat(rows, counts.astype(int).ravel()).reshape(len(counts), -1)
        ranks = [
            rankdata(shares[side].to_numpy()[drawn], axis=1) for side in ("x", "y")
        ]
        x, y = (side - side.mean(axis=1, keepdims=True) for side in ranks)
        spread = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
        return (x * y).sum(axis=1) / spread

    return clusters.estimate_from_counts(correlate)


def correlate_flips(first: System, second: System) -> Estimate:
    """Estimate the correlation of two systems' decisions inside requests.

    Each decision counts as its distance from the mean of its cluster. NaN if one system
    decides no cluster both ways.
    """
    known = first.is_scored & second.is_scored
    ids = first.prompts["cluster_id"].to_numpy()[known]
    values = pd.DataFrame({"x": first.refused[known], "y": second.refused[known]})
    centred = values - values.groupby(ids).transform("mean")
    clusters = first.clusters
    x = centred["x"].to_numpy()
    y = centred["y"].to_numpy()
    sums = clusters.sums(ids, x * x, y * y, x * y)
    if not sums[0].any() or not sums[1].any():
        return clusters.undefined()
    return clusters.estimate(lambda xx, yy, xy: xy / np.sqrt(xx * yy), *sums)


def tabulate_agreement(systems: Sequence[System]) -> Table:
    """Compare every two systems request by request.

    Returns
    -------
    Table
        first, second, same_model; with intervals rho and phi; too_few: one of them has
        fewer than `MIN_MIXED` clusters decided both ways.
    """
    rows = []
    for first, second in combinations(systems, 2):
        estimates = {
            "rho": correlate_requests(first, second),
            "phi": correlate_flips(first, second),
        }
        mixed = [disagreement.is_mixed(one.decided).sum() for one in (first, second)]
        rows.append(
            {
                "first": first.name,
                "second": second.name,
                "same_model": model_of_system(first.name)
                == model_of_system(second.name),
                **to_columns(estimates),
                "too_few": min(mixed) < MIN_MIXED,
            }
        )
    return pd.DataFrame(rows)


def group_by_model(systems: Sequence[System]) -> dict[str, dict[str, System]]:
    """Group systems by model and instruction."""
    grouped: dict[str, dict[str, System]] = {}
    for system in systems:
        by_instruction = grouped.setdefault(model_of_system(system.name), {})
        by_instruction[system.name.rpartition("--")[2]] = system
    return grouped


def tabulate_slopes(systems: Sequence[System]) -> Table:
    """Estimate how DR changes with FRR over one model's instructions.

    Returns
    -------
    Table
        model, n (instructions under which DR can be judged), slope with its interval:
        the change of DR for one of FRR, by least squares; NaN below
        `MIN_INSTRUCTIONS`.
    """
    rows = []
    for model, by_instruction in group_by_model(systems).items():
        judged = [
            system
            for system in by_instruction.values()
            if not disagreement.too_few_for_disagreement(system.decided)
        ]
        slope = next(iter(by_instruction.values())).clusters.undefined()
        if len(judged) >= MIN_INSTRUCTIONS:
            slope = _slope(
                [system.frr() for system in judged], [system.dr() for system in judged]
            )
        rows.append({"model": model, "n": len(judged), **to_columns({"slope": slope})})
    return pd.DataFrame(rows)


def _slope(x: Sequence[Estimate], y: Sequence[Estimate]) -> Estimate:
    """Return the slope of some estimates on others, paired by resample."""

    def fit(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x = x - x.mean(axis=0)
        return (x * y).sum(axis=0) / (x * x).sum(axis=0)

    # The values stand before the draws
    x_rows = np.stack([np.append(estimate.value, estimate.draws) for estimate in x])
    y_rows = np.stack([np.append(estimate.value, estimate.draws) for estimate in y])
    slopes = fit(x_rows, y_rows)
    return Estimate.percentile(slopes[0], slopes[1:])


def compare_sizes(systems: Sequence[System]) -> Table:
    """Compare a small with a larger model of one maker under every instruction.

    Returns
    -------
    Table
        instruction and the columns of `comparisons.compare_systems` for dr_free and frr
        (smaller minus larger), p_holm over the instructions of a measure.
    """
    grouped = group_by_model(systems)
    estimates: dict[str, dict[str, Mapping[str, Estimate]]] = {}
    for model in SIZES:
        for instruction, system in grouped.get(model, {}).items():
            pairs = find_cluster_pairs(system.prompts)
            free = pairs.select(pairs.free)
            phrasings = make_phrasings(system)
            clusters = system.clusters
            dr = estimate_pair_disagreement(clusters, phrasings, free)
            measured = {"dr_free": dr, "frr": system.frr()}
            estimates.setdefault(instruction, {})[model] = measured
    rows: list[Any] = []
    for instruction, by_model in estimates.items():
        if len(by_model) == len(SIZES):
            compared = compare_systems(by_model, ("dr_free", "frr"))
            rows.append(compared.assign(instruction=instruction))
    if not rows:
        return pd.DataFrame()
    table = pd.concat(rows, ignore_index=True)
    adjusted = table.groupby("measure")["p"].transform(adjust_holm)
    return table.assign(p_holm=adjusted)
