"""A study beyond the paper: scored systems, guards, and what was asked again."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pandas as pd

from paraguard_lab.labels import follow_ups
from paraguard_lab.settings import DecisionSettings
from paraguard_utils import registry
from paraguard_utils.analysis import guarded, pipeline
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.labels import labelling
from paraguard_utils.models.prompting import make_system_name
from paraguard_utils.schemas import Labels
from paraguard_utils.study import Study


class GuardSides(NamedTuple):
    """A guard's scores: columns cluster_id, text and score.

    Attributes
    ----------
    benign, paired, twins : DataFrame
        The harmless prompts, those in clusters that have a twin, and the twins.
    clusters : ClusterBootstrap
        The clusters that have a twin.
    threshold : float
        From which the guard rejects.
    """

    benign: pd.DataFrame
    paired: pd.DataFrame
    twins: pd.DataFrame
    clusters: ClusterBootstrap
    threshold: float


def find_threshold(name: str, system: System, scores: pd.Series) -> float:
    """Return the threshold of a published guard.

    That of a model's own refusal is one of its scores (`guards.refusal`): the lowest
    with which it rejects.
    """
    entry = registry.guard_entries("panel")[name]
    if "threshold" in entry:
        return float(entry["threshold"])
    rejected = system.prompts.loc[system.refused == 1, "prompt_id"]
    return float(scores[rejected].min())


class DecisionStudy(Study[DecisionSettings]):
    """What the decisions of systems and guards say beyond Tables 1 to 3 (A4)."""

    def read_scored(self) -> dict[str, System]:
        """Read the systems that 03 scored, with traces, pairs and scores."""
        return pipeline.read_systems(self.files, self.names[0], self.settings)

    def read_worded(self, measured: Mapping[str, System]) -> list[System]:
        """Return models under several wordings of each instruction, model by model."""
        systems = []
        by_model = follow_ups.read_wordings(self.files, measured)
        for model, by_wording in by_model.items():
            for wording, labels in by_wording.items():
                name = make_system_name(model, wording)
                systems.append(System.of(name, self.prompts, labels, self.clusters))
        return systems

    def read_guards(self) -> dict[str, System]:
        """Read the decisions of the published guards on the corpus."""
        guards = {}
        for name in registry.published_systems("guard", "refusal").index:
            if self.files.has("labels", name):
                labels = labelling.read_decisions(self.files, name)
                guards[name] = System.of(name, self.prompts, labels, self.clusters)
        return guards

    def read_twins_of(self, names: Iterable[str]) -> dict[str, System]:
        """Read the decisions of systems on the harmful twins, as far as there are any."""
        twins = self.files.other(self.settings.twins)
        decided = {}
        for name in names:
            if len(self.twins) and twins.has("labels", name):
                labels = labelling.read_decisions(twins, name)
                decided[name] = System.of(name, self.twins, labels, self.clusters)
        return decided

    def read_guard_scores(self, guards: Mapping[str, System]) -> dict[str, GuardSides]:
        """Read the scores of the guards that scored the corpus and its twins."""
        twins = self.files.other(self.settings.twins)
        sides = {}
        for name, system in guards.items():
            if not (self.files.has("guards", name) and twins.has("guards", name)):
                continue
            paired = guarded.keep_paired(system, self.twins)
            benign_scores = self.files.read("guards", name).set_index("prompt_id")
            twin_scores = twins.read("guards", name).set_index("prompt_id")
            sides[name] = GuardSides(
                guarded.add_scores(self.prompts, benign_scores["score"]),
                guarded.add_scores(paired.prompts, benign_scores["score"]),
                guarded.add_scores(self.twins, twin_scores["score"]),
                paired.clusters,
                find_threshold(name, system, benign_scores["score"]),
            )
        return sides

    @staticmethod
    def labels_in_front(guards: Mapping[str, System]) -> dict[str, Labels]:
        """Return the decisions of guards that can stand in front of a model.

        A model's own refusal cannot: it is read from the model's answers.
        """
        labels = {}
        for name, guard in guards.items():
            if not registry.is_refusal(name):
                labels[name] = guard.labels
        return labels
