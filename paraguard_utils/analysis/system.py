"""One system on one corpus: its decisions, its files, and how often it refuses."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.core import disagreement
from paraguard_utils.core.confusion import estimate_confusion
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate
from paraguard_utils.core.signals import PAPER_SCORING, Scoring
from paraguard_utils.schemas import (
    Corpus,
    Labels,
    Pairs,
    Scores,
    Traces,
    select_prompts,
)

CI_COLUMNS = {"relative": "ci", "clipped": "ci_clipped"}
"""The columns of CI in a scores file, by interpretation of the PPL contrast."""

_NOT_SCORED: Any = {"pairs": None, "scores": None}


@dataclass(frozen=True, eq=False)
class System:
    """A model under a system prompt, or a guard, on one corpus.

    Attributes
    ----------
    name : str
    prompts : Corpus
    labels : Labels
        Its decisions, with rows in the order of the prompts.
    clusters : ClusterBootstrap
        The clusters that its estimates resample. Systems that share them have paired
        estimates.
    scoring : Scoring
        How its pairs are scored.
    labeller : str
        What read its answers (`labels.labelling`).
    traces, pairs, scores : DataFrame or None
        What a store holds of it; traces have the order of the prompts. A guard has the
        traces and drifts of a chat system. None if they were not read.
    drifts : DriftCache or None
        Drift of pairs of prompts under the model whose tokens the traces hold.
    token_model : str
        The model whose tokens the traces hold, usually its own.

    Examples
    --------
    >>> prompts = pd.DataFrame({"cluster_id": ["a", "a", "b", "b"]})
    >>> labels = pd.DataFrame({"label": ["reject", "accept", "accept", "unparsed"]})
    >>> system = System.of("my-model", prompts, labels)
    >>> system.decided
      cluster_id  n  rejected
    0          a  2         1
    >>> round(system.frr().value, 2)
    0.33
    """

    name: str
    prompts: Corpus
    labels: Labels
    clusters: ClusterBootstrap
    scoring: Scoring = PAPER_SCORING
    labeller: str = "combined"
    # Typed as if they were always there: functions say which of these they need.
    traces: Traces = None  # type: ignore[assignment]
    drifts: DriftCache = None  # type: ignore[assignment]
    pairs: Pairs = None  # type: ignore[assignment]
    scores: Scores = None  # type: ignore[assignment]
    token_model: str = ""

    def __post_init__(self) -> None:
        """Refuse labels of other prompts, or in another order (ValueError)."""
        matches = len(self.labels) == len(self.prompts)
        if matches and "prompt_id" in self.labels and "prompt_id" in self.prompts:
            ids = self.prompts["prompt_id"].to_numpy()
            matches = np.array_equal(self.labels["prompt_id"].to_numpy(), ids)
        if not matches:
            raise ValueError(f"{self.name}: labels and prompts are in different order")

    @classmethod
    def of(
        cls,
        name: str,
        prompts: Corpus,
        labels: Labels,
        clusters: ClusterBootstrap | None = None,
    ) -> "System":
        """Make a system that has decisions only.

        `labels` may be in another order, and hold other prompts as well. `clusters` are
        those of the prompts unless others are given.
        """
        if "prompt_id" in labels and "prompt_id" in prompts:
            labels = select_prompts(labels, prompts, f"labels of {name}")
        if clusters is None:
            clusters = ClusterBootstrap(prompts["cluster_id"])
        return cls(name, prompts, labels, clusters)

    def with_labels(self, labels: Labels, name: str = "") -> "System":
        """Return a system with these traces and other decisions, and perhaps a name.

        Pairs and scores depend on the decisions, and are dropped.
        """
        return replace(self, name=name or self.name, labels=labels, **_NOT_SCORED)

    def select(self, chosen: np.ndarray) -> "System":
        """Return this system on some of its prompts, marked by a bool for each."""
        prompts = self.prompts[chosen]
        selected: Any = {"prompts": prompts, "labels": self.labels[chosen]}
        if self.traces is not None:
            selected["traces"] = self.traces[chosen]
        for name, column in {"pairs": "centre_id", "scores": "prompt_id"}.items():
            frame = getattr(self, name)
            if frame is not None:
                selected[name] = frame[frame[column].isin(prompts["prompt_id"])]
        return replace(self, **selected)

    @cached_property
    def refused(self) -> np.ndarray:
        """1 for a rejected prompt, 0 for an accepted one, else NaN; shape (n,).

        `labels.labelling.convert_labels` has turned what a provider blocked into a
        rejection, unless the labeller `aside` sets it aside.
        """
        return as_refused(self.labels["label"], blocked=False)

    @cached_property
    def is_scored(self) -> np.ndarray:
        """Which prompts are accepted or rejected; bool, shape (n,)."""
        return ~np.isnan(self.refused)

    @cached_property
    def decided(self) -> pd.DataFrame:
        """Counts of the clusters with two or more decisions (`count_decisions`)."""
        return disagreement.count_decisions(self.refused, self.prompts["cluster_id"])

    @cached_property
    def isolation(self) -> np.ndarray:
        """Share of each rejection's paraphrases that are accepted (`isolation`)."""
        return disagreement.isolation(self.refused, self.prompts["cluster_id"])

    @cached_property
    def rejections(self) -> Scores:
        """The rows of `scores` that CI, CR and CD use (`select_rejections`)."""
        return select_rejections(self.scores)

    def frr(self) -> Estimate:
        """Estimate the share of scored prompts that are rejected."""
        scored = self.is_scored
        ids = self.prompts["cluster_id"].to_numpy()[scored]
        return self.clusters.share(ids, self.refused[scored] == 1)

    def dr(self) -> Estimate:
        """Estimate the disagreement ratio (`core.disagreement`)."""
        return disagreement.estimate_disagreement(self.clusters, self.decided)

    @cached_property
    def confusion(self) -> dict[str, dict[str, Estimate]]:
        """ci, cr60, cr75 and cd by interpretation (`core.confusion`)."""
        rejected = self.rejections
        ids = rejected["cluster_id"]
        return {
            name: estimate_confusion(self.clusters, ids, rejected[column])
            for name, column in CI_COLUMNS.items()
        }


def select_rejections(scores: Scores) -> Scores:
    """Select the rows of a scores file that CI, CR and CD use.

    These are the rejections with an accepted neighbour.
    """
    return scores[(scores["label"] == "reject") & scores["ci"].notna()]
