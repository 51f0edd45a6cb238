"""A study beyond the paper: scored systems, guards, and what was asked again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd

from paraguard_lab.analysis import guarded as lab_guarded
from paraguard_lab.analysis import veto, voting
from paraguard_lab.analysis.predictions import read_predictions
from paraguard_lab.corpus import compared, nearest_seeds, reword
from paraguard_lab.corpus.paraphrase import RULES_GENERATOR
from paraguard_lab.corpus.twins import keep_with_twin
from paraguard_lab.corpus.xstest import read_xstest_prompts
from paraguard_lab.labels import follow_ups
from paraguard_lab.remedies import effects
from paraguard_lab.report import numbers  # noqa: F401, adds tables to sentences
from paraguard_lab.report import tables as lab_tables  # noqa: F401, adds headings
from paraguard_lab.report.figures.guards import NAMED_REMEDIES
from paraguard_lab.settings import (
    DecisionSettings,
    LabelCheckSettings,
    RemedySettings,
    WriterSettings,
)
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.analysis import guarded, pipeline
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.corpus import gates, inputs, risk
from paraguard_utils.errors import DataError, Missing
from paraguard_utils.guards import panel
from paraguard_utils.labels import labelling
from paraguard_utils.models import encoder, trace_store
from paraguard_utils.models.prompting import make_system_name
from paraguard_utils.schemas import Labels, Seeds, Table
from paraguard_utils.settings import XSTEST, AnalysisSettings, StudySettings
from paraguard_utils.study import Page, Study

VERDICT_TITLES = {"undecided": "cannot tell", "too_few": "too few"}
"""How verdicts are shown; the others are shown as they are."""

_Settings = TypeVar("_Settings", bound=StudySettings)
_Analysed = TypeVar("_Analysed", bound=AnalysisSettings)


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


def read_benchmark(name: str) -> Table:
    """Read `benchmarks/NAME.csv`."""
    return stores.read_file(paths.BENCHMARKS_FOLDER / f"{name}.csv", "tables")


def name_verdicts(judged: Table) -> Table:
    """Put the titles of verdicts in place of them, in all columns."""
    return judged.replace(VERDICT_TITLES)


def count_verdicts(judged: Table) -> Table:
    """Count the verdicts on each prediction.

    Returns
    -------
    Table
        number, prediction (its statement), and how many of its rows have each verdict.
    """
    counts = pd.crosstab(judged["number"], name_verdicts(judged)["verdict"])
    statements = read_predictions().drop_duplicates("number").set_index("number")
    counts.insert(0, "prediction", statements["statement"].reindex(counts.index))
    return counts.reset_index()


class LabPage(Page[_Settings]):
    """A page that reads tables, and whose sentences name tables of the lab."""

    def has_table(self, name: str) -> bool:
        """Return whether the store has a table."""
        return self.store.has("tables", name)

    def read_table(self, name: str) -> Table:
        """Read a table of this store; raise Missing if it has none."""
        return self.store.read("tables", name)

    def read_earlier(self, kind: str, *names: str) -> pd.DataFrame:
        """Read what an earlier notebook made (`Store.read_earlier`)."""
        return self.store.read_earlier(kind, *names)


class LabStudy(LabPage[_Settings], Study[_Settings]):
    """A study with the sentences and tables of a `LabPage`."""


class ScoredStudy(LabStudy[_Analysed]):
    """Systems that 03 scored, and the guards and harmful requests beside them."""

    @cached_property
    def vectors(self) -> np.ndarray:
        """The sentence vectors of the corpus, shape (prompts, d)."""
        return encoder.stored_vectors(self.files, self.prompts["text"], earlier=True)

    def read_scored(self) -> dict[str, System]:
        """Read the systems that 03 scored, with traces, pairs and scores."""
        return pipeline.read_systems(self.files, self.names, self.settings)

    def read_guards(
        self, kinds: Sequence[str] = ("guard", "refusal")
    ) -> dict[str, System]:
        """Read the decisions of the published guards of some kinds on the corpus."""
        guards = {}
        for name in registry.published_systems(*kinds).index:
            if self.files.has("labels", name):
                labels = labelling.read_decisions(self.files, name)
                guards[name] = System.of(name, self.prompts, labels, self.clusters)
        return guards


def name_remedies(remedy_map: Table) -> Table:
    """Select the remedies that the map names, and say names and verdicts in words."""
    named = remedy_map[remedy_map["remedy"].isin(NAMED_REMEDIES)]
    named = name_verdicts(named).replace({"": None})
    return named.assign(remedy=named["remedy"].map(NAMED_REMEDIES))


class RemedyStudy(LabStudy[RemedySettings]):
    """Vetoes and remedies, on harmless requests and their harmful twins (07)."""

    def measure_vetoes(self) -> tuple[Table, Table]:
        """Judge the vetoes of all systems, and return `vetoes` and `veto_curves`."""
        paired = keep_with_twin(self.prompts, self.twins)
        corpora = {self.settings.corpus: paired, self.settings.twins: self.twins}
        self.meta = self.settings.meta(corpus=paired, twins=self.twins)
        measured = veto.measure_vetoes(
            self.files, corpora, self.settings, reword.reword_prompts
        )
        for name, table in measured.items():
            self.write(name, table)
        return measured["vetoes"], measured["veto_curves"]

    def measure_remedies(self) -> dict[str, Table]:
        """Apply the remedies, and return the tables about them by name.

        Without systems to apply them to, there is an empty `remedy_map` only.
        """
        corpora = {self.settings.corpus: self.prompts, self.settings.twins: self.twins}
        self.meta = self.settings.meta(corpus=self.prompts, twins=self.twins)
        measured = effects.measure_remedies(self.store, corpora, self.settings)
        for name, table in measured.items():
            self.write(name, table)
        none = pd.DataFrame({"system": [], "remedy": [], "role": []})
        return {"remedy_map": none, **measured}

    def measure_votes(self) -> tuple[Table, Table]:
        """Compare one query with several wordings and systems.

        Returns `votes` and `foretelling` (`analysis.voting`); without systems that can
        be split, both are empty.
        """
        corpora = {self.settings.corpus: self.prompts, self.settings.twins: self.twins}
        try:
            scored = effects.read_refusal_scores(self.store, corpora, self.settings)
        except (DataError, Missing):
            if self.store.recorded:
                raise
            return pd.DataFrame(), pd.DataFrame()
        votes = voting.tabulate_votes(scored, self.clusters)
        foretold = []
        for name, scores in scored.items():
            n, auc = voting.estimate_foretelling(scores, self.clusters)
            foretold.append({"system": name, "n": n, **to_columns({"auc": auc})})
        foretelling = pd.DataFrame(foretold)
        return self.write("votes", votes), self.write("foretelling", foretelling)


class AnswerStudy(LabStudy[LabelCheckSettings]):
    """Systems and their answers, whose labels are checked (A1)."""

    @classmethod
    def open(cls, settings: LabelCheckSettings) -> "AnswerStudy":
        """Open a study; DataError if its corpus asks for harm."""
        study = cls(settings)
        unsafe.refuse_unsafe(study.prompts, "A1_labels")
        return study

    def read_answered(self) -> dict[str, System]:
        """Read the systems' answers and their labels, in the order of prompts."""
        answered = {}
        for name in self.names:
            traces = trace_store.read_traces(self.files, name, self.prompts)
            labels = labelling.read_matching_labels(self.files, name, traces)
            system = System.of(name, self.prompts, labels, self.clusters)
            answered[name] = replace(system, traces=traces)
        return answered


def name_generators(table: pd.DataFrame, other: str = "model") -> pd.DataFrame:
    """Put one name in place of all generators but the rules."""
    is_rules = table["generator"] == RULES_GENERATOR
    return table.assign(generator=table["generator"].where(is_rules, other))


class WriterStudy(LabPage[WriterSettings]):
    """Seeds, and candidates that rules and models write for them (A2)."""

    def __init__(self, settings: WriterSettings) -> None:
        super().__init__(settings)
        self.seeds = inputs.read_seeds(settings.corpus, settings.seeds)
        self.risk = risk.load_risk_scorer(settings.risk)
        self.meta = settings.meta(seeds=self.seeds, risk=self.risk.identity)

    def compare_generators(self) -> tuple[Seeds, pd.DataFrame]:
        """Return a sample of seeds, and each generator's candidates, judged alone.

        Without candidates in the store, there are none.
        """
        sample, written = compared.generate_candidates(
            self.files, self.seeds, self.settings.paraphraser
        )
        judging = gates.Judging(
            self.settings, inputs.make_embedder(self.files), self.risk.score
        )
        judged = [written.head(0)]
        for _, rows in written.groupby("generator", sort=False):
            judged.append(gates.judge_candidates(sample, rows, judging)[1])
        return sample, pd.concat(judged[1:] or judged)

    def find_nearest_seeds(self) -> pd.DataFrame:
        """Return the nearest seed of each paraphrase of the corpus."""
        corpus = self.files.prompts
        texts = corpus["text"].tolist()
        vectors = encoder.stored_vectors(self.files, texts, earlier=True)
        variants = nearest_seeds.measure_spread(corpus, vectors)
        return variants.merge(corpus[["prompt_id", "text"]])

    @staticmethod
    def select_rules(candidates: pd.DataFrame) -> pd.DataFrame:
        """Return the candidates that the rules wrote."""
        return candidates[candidates["generator"] == RULES_GENERATOR]


class DecisionStudy(ScoredStudy[DecisionSettings]):
    """What the decisions of systems and guards say beyond Tables 1 to 3 (A4)."""

    def score_anew(self, measured: Mapping[str, System]) -> dict[str, System]:
        """Compute pairs and scores of systems, without writing or rounding."""
        scored = {}
        for name, system in measured.items():
            scored[name] = pipeline.compute_scores(self.files, system)
        return scored

    def score_guards(self, measured: Mapping[str, System]) -> list[System]:
        """Score the guards of Table 3 as 05 does, without writing or rounding."""
        guards: list[System] = []
        if not self.has_table("table3_guards"):
            return guards
        for row in self.read_table("table3_guards").itertuples():
            reference = measured.get(row.reference)
            if row.system in measured or reference is None:
                continue
            labels = labelling.read_decisions(self.files, row.system)
            guard = reference.with_labels(labels, row.system)
            guard = pipeline.compute_scores(self.files, guard)
            guards.append(guard)
        return guards

    def reject_elsewhere(self, measured: Mapping[str, System]) -> Table:
        """Tabulate how often systems reject XSTest's unsafe prompts, if they got them.

        With the parameter `xstest`, the guards among them get the prompts now.
        """
        files = self.files.other(XSTEST)
        if self.settings.xstest:
            prompts = read_xstest_prompts(self.settings.xstest, "unsafe")
            guards = registry.published_systems("guard", "refusal").index
            names = [name for name in measured if name in guards]
            scored = panel.ask_guards(self.store, {XSTEST: prompts}, names)
            for name, scores in scored[XSTEST].items():
                meta = self.settings.meta(scores=scores.scores)
                files.write("labels", name, frame=scores.labels, meta=meta)
        return lab_guarded.tabulate_elsewhere(files, measured)

    def read_worded(self, measured: Mapping[str, System]) -> list[System]:
        """Return models under several wordings of each instruction, model by model."""
        systems = []
        by_model = follow_ups.read_wordings(self.files, measured)
        for model, by_wording in by_model.items():
            for wording, labels in by_wording.items():
                name = make_system_name(model, wording)
                systems.append(System.of(name, self.prompts, labels, self.clusters))
        return systems

    def read_twins_of(self, measured: Mapping[str, System]) -> dict[str, System]:
        """Read the decisions of systems on the harmful twins, if there are any."""
        twins = self.files.other(self.settings.twins)
        decided = {}
        for name, system in measured.items():
            if len(self.twins) and twins.has("labels", name):
                labels = labelling.read_decisions(twins, name, system.labeller)
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

    def rank_guards_together(self, guards: Mapping[str, System]) -> Table:
        """Compare two guards' scores together with the better one (`voting`)."""
        scored = {}
        for name, sides in self.read_guard_scores(guards).items():
            prompts = (sides.paired, sides.twins)
            scores = (sides.paired["score"].to_numpy(), sides.twins["score"].to_numpy())
            if all(np.isfinite(side).all() for side in scores):
                nothing = (np.zeros(len(scores[0])), np.zeros(len(scores[1])))
                scored[name] = voting.RefusalScores.of(prompts, scores, nothing)
                clusters = sides.clusters
        if len(scored) < 2:
            return pd.DataFrame()
        return voting.tabulate_pairs(scored, clusters)

    @staticmethod
    def labels_in_front(guards: Mapping[str, System]) -> dict[str, Labels]:
        """Return the decisions of guards that can stand in front of a model.

        A model's own refusal cannot: it is read from the model's answers.
        """
        refusals = registry.published_systems("refusal").index
        return {
            name: guard.labels for name, guard in guards.items() if name not in refusals
        }
