"""What a notebook opens: its checked parameters, the store, the corpus and its systems.

The functions of `analysis`, `guards` and `report` do the work; a study remembers what
they all need, writes what they return, and shows it.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

import pandas as pd
from threadpoolctl import threadpool_limits

from paraguard_utils import seams, unsafe
from paraguard_utils.analysis import confusion, guarded, pipeline
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.corpus import gates, inputs, risk
from paraguard_utils.guards import panel
from paraguard_utils.guards.contract import GuardOptions
from paraguard_utils.labels import labelling, systems
from paraguard_utils.report import figures, sentences, tables
from paraguard_utils.schemas import Corpus, Labels, Table
from paraguard_utils.settings import (
    XSTEST,
    AnalysisSettings,
    CohortSettings,
    CorpusSettings,
    Gates,
    GuardSettings,
    QuerySettings,
    ScoringSettings,
    StudySettings,
    end_notebook,
)

SHOWN_CHARACTERS = 90  # of an answer

_Settings = TypeVar("_Settings", bound=StudySettings)


class Page(Generic[_Settings]):
    """The parameters of a notebook, its store, and what it writes and shows.

    Attributes
    ----------
    settings : StudySettings
        The checked parameters.
    store : Store
        Where files are read and written.
    files : CorpusFiles
        The files of the corpus in that store.
    meta : dict
        Parameters and hashes of inputs, written beside each file.
    """

    def __init__(self, settings: _Settings) -> None:
        # Products here are small: a second thread saves little, and beside a busy
        # process all wait for it (`benchmarks/busy_machine.csv`). A model has threads
        # of its own.
        threadpool_limits(1, user_api="blas")
        self.settings = settings
        self.files = settings.open_files()
        self.store = self.files.store
        self.meta: dict[str, Any] = settings.meta()

    def write(self, name: str, table: Table) -> Table:
        """Write a table as `tables/NAME.csv`, and return it."""
        self.store.write("tables", name, frame=table, meta=self.meta)
        return table

    def show(
        self, table: pd.DataFrame, name: str = "", most: int = tables.MOST_ROWS
    ) -> None:
        """Show the first rows of a table; `name` is that of the CSV with all of it."""
        tables.display_table(self.store, name, table, most)

    def publish(
        self,
        name: str,
        table: Table,
        about: Sequence[str],
        estimates: Sequence[str],
        caption: str,
    ) -> None:
        """Write a table for papers, `tables/NAME.tex` and `tables/NAME.md`.

        `about` are columns that are shown as they are; `estimates` have intervals.
        """
        shown = tables.format_estimates(table, estimates, about)
        tables.publish_table(self.store, name, shown, caption)

    def show_estimates(
        self,
        name: str,
        table: Table,
        about: Sequence[str],
        estimates: Sequence[str],
    ) -> None:
        """Show rows of `tables/NAME.csv`, estimates with their intervals."""
        shown = tables.format_estimates(table, estimates, about)
        tables.display_table(self.store, name, shown, len(shown))

    def draw(self, name: str, figure: Any, panel: pd.DataFrame) -> None:
        """Write a figure and the numbers that it draws, and show it."""
        figures.publish_figure(self.store, name, figure, panel, self.meta)

    def show_figure(self, name: str) -> None:
        """Show a figure that an earlier notebook of this run drew."""
        figures.show_figure(self.store, name)

    def say(self, text: str, **frames: Table) -> None:
        """Show sentences with numbers of this run (`report.sentences.show`)."""
        sentences.show(self.store, text.strip(), **frames)


class Study(Page[_Settings]):
    """A corpus and the systems that are measured on it.

    Examples
    --------
    >>> settings = ScoringSettings(store="recorded", corpus="paraguard_mini")
    >>> study = Study.open(settings)
    >>> len(study.prompts), len(study.clusters.codes)
    (1200, 200)
    """

    @classmethod
    def open(cls, settings: _Settings) -> Self:
        """Open a study; DataError if its corpus cannot be read."""
        study = cls(settings)
        study.meta = settings.meta(corpus=study.prompts)
        return study

    @cached_property
    def prompts(self) -> Corpus:
        """The corpus."""
        return self.files.prompts

    @cached_property
    def clusters(self) -> ClusterBootstrap:
        """The resampled clusters, by the seed the same for all systems."""
        if isinstance(self.settings, AnalysisSettings):
            return self.settings.resample(self.prompts)
        return ClusterBootstrap(self.prompts["cluster_id"])

    @cached_property
    def twins(self) -> Corpus:
        """The harmful twins of the corpus's clusters; no rows without any."""
        name = getattr(self.settings, "twins", "")
        if not name:
            return self.prompts.head(0)
        twins = self.store.read_earlier("corpus", name)
        return unsafe.select_twins(self.prompts, twins)

    @cached_property
    def names(self) -> list[str]:
        """The systems of this store."""
        return systems.list_systems_to_score(self.files, self.settings.model)

    def focus(
        self, measured: Mapping[str, System], wanted: str = "", last: bool = False
    ) -> System:
        """Return the system that a notebook looks at closely.

        It is the wanted one, or else the first (or `last`) with the safety instruction.
        """
        names = list(measured)
        if last:
            names.reverse()
        return measured[systems.choose_focus(names, self.settings.model, wanted)]


class CorpusStudy(Page[CorpusSettings]):
    """A corpus that is built from seeds and candidates (01)."""

    def __init__(self, settings: CorpusSettings) -> None:
        super().__init__(settings)
        self.source = inputs.find_source(settings)
        self.embed = inputs.make_embedder(self.files)
        self.risk = risk.load_risk_scorer(settings.risk)
        self.judging = gates.Judging(
            Gates.pick(settings.model_dump()),
            self.embed,
            self.risk.score,
            review=self.source.review(self.files),
        )

    def judge(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Read the seeds and their candidates, and judge both by the gates."""
        seeds = inputs.read_seeds(self.files.name, self.settings.seeds)
        candidates = self.source.read(self.files, seeds, self.judging.limits)
        judged = gates.judge_candidates(seeds, candidates, self.judging)
        self.meta = self.settings.meta(
            seeds=seeds, candidates=candidates, risk=self.risk.identity
        )
        self.meta |= self.source.about()
        self.source.keep(self.files, *judged, self.meta)
        return judged

    def keep(self, corpus: Corpus) -> Corpus:
        """Write the corpus to the store, and return it."""
        self.files.write("corpus", frame=corpus, meta=self.meta)
        return corpus


class QueryStudy(Study[QuerySettings]):
    """Systems that are queried with a corpus, and their answers (02)."""

    @cached_property
    def prompts(self) -> Corpus:
        """The corpus, or its first prompts with the parameter `limit`."""
        prompts = self.files.prompts
        return prompts.head(self.settings.limit or len(prompts))

    def query(self) -> dict[str, System]:
        """Query the systems that the parameters name, and label their answers.

        The notebook ends here if prompts are left without an answer. DataError if a
        system gave no answer that can be read (`paraguard_lab.labels.unread`).
        """
        shard = self.settings.shard
        traces = systems.ask_systems(self.files, self.prompts, self.settings)
        if not traces and not self.settings.stop:
            self.query_harmful()  # a shard asks its part of them
        if shard:
            end_notebook(
                f"shard {shard} is asked; when all are, 02_querying without `shard`"
                " puts them together"
            )
        if not traces:
            end_notebook()
        labels = systems.label_systems(self.files, self.prompts, traces, self.settings)
        measured = {}
        for name, decisions in labels.items():
            system = System.of(name, self.prompts, decisions, self.clusters)
            measured[name] = replace(system, traces=traces[name])
        return measured

    def query_harmful(self) -> dict[str, dict[str, Labels]]:
        """Return labels of requests that ask for harm, by corpus and system.

        An extension reads them, and in a live store it first queries the requests.
        """
        ask_harmful_requests = seams.load_extension("queries", "harmful")
        labels: dict[str, dict[str, Labels]] = ask_harmful_requests(
            self.files, self.settings
        )
        return labels

    def show_cluster(self, system: System) -> None:
        """Show the first cluster that a system decides both ways, and its answers."""
        flips = confusion.describe_flips(system)
        mixed = flips.loc[flips["mixed"], "cluster_id"].head(1)
        answers = system.labels["response"].str.slice(0, SHOWN_CHARACTERS)
        shown = self.prompts.assign(label=system.labels["label"], answer=answers)
        shown = shown[shown["cluster_id"].isin(mixed)]
        self.show(shown[["strategy", "text", "label", "answer"]])

    def show_rates(
        self, rates: Table, harmful: Mapping[str, Mapping[str, Labels]]
    ) -> None:
        """Show how often systems refuse harmless requests, and harmful ones beside."""
        headings = {
            "frr": "harmless",
            "flip_rate": "both ways",
            self.settings.twins: "harmful twins",
            XSTEST: "XSTest",
        }
        shown = tables.format_estimates(rates, ["frr", "flip_rate"], ["system"])
        for corpus_name, by_system in harmful.items():
            rows = []
            for name, labels in by_system.items():
                rows.append(confusion.rejection_row(name, labels))
            refused = pd.DataFrame(rows)
            refused = tables.format_estimates(refused, ["rejected"], ["system"])
            refused = refused.rename(columns={"rejected": corpus_name})
            shown = shown.merge(refused, how="left")
        shown = shown.rename(columns=headings)
        if self.settings.limit:
            about = (
                f"A try: the first {len(self.prompts):,} of {len(self.files.prompts):,}"
                " prompts. Its numbers are not those of the corpus."
            )
            self.say(f"**{about}**")
            print(about, file=sys.stderr)
        if not self.store.recorded:
            print(f"refused (FRR)\n{shown.to_string(index=False)}", file=sys.stderr)
        self.show(shown)

    def show_answers(self, rates: Table, measured: Mapping[str, System]) -> None:
        """Show how many answers were accepted, rejected and unparsed.

        How they end is shown too.
        """
        ends = {}
        for name, system in measured.items():
            ends[name] = system.traces["finish_reason"].value_counts()
        counts = pd.DataFrame(ends).T.fillna(0).astype(int)
        counts = counts.rename_axis("system").reset_index()
        columns = ["system", "n_scored", "n_accept", "n_reject", "n_unparsed"]
        self.show(rates[columns].merge(counts))


class ScoringStudy(Study[ScoringSettings]):
    """Systems whose refusals are scored (03)."""

    def score(self) -> dict[str, System]:
        """Compute pairs and scores of all systems in the store, and write them.

        DataError if the corpus asks for harm.
        """
        unsafe.refuse_unsafe(self.prompts, "03_scoring")
        scored = pipeline.score_systems(self.files, self.names, self.settings)
        hashes = {}
        for name, system in scored.items():
            hashes[name] = labelling.hash_labels(system.labels)
        self.meta = self.settings.meta(corpus=self.prompts, **hashes)
        return scored

    def write_systems(
        self, rows: Sequence[dict[str, Any]], measured: Mapping[str, System]
    ) -> Table:
        """Write Table 1, with a column that says whose labels are noisy.

        An extension knows that from annotations of a sample of answers.
        """
        flag_noisy_systems = seams.load_extension("queries", "noisy")
        labels = {name: system.labels for name, system in measured.items()}
        table = pd.DataFrame(rows)
        table["noisy"] = table["system"].map(flag_noisy_systems(labels))
        return self.write("table1_systems", table)


class CohortStudy(Study[CohortSettings]):
    """Scored systems whose refusals are grouped (04)."""

    def read_systems(self) -> dict[str, System]:
        """Read the labels and scores that 03 wrote."""
        return pipeline.read_systems(self.files, self.names, self.settings)


class GuardStudy(Study[GuardSettings]):
    """Guards beside models, on harmless requests and on their harmful twins (05)."""

    def read_models(self) -> dict[str, guarded.Judged]:
        """Read the models that 03 scored, and their decisions on harmful requests."""
        scored = pipeline.read_systems(self.files, self.names, self.settings)
        judged = {}
        for name, system in scored.items():
            judged[name] = guarded.Judged(system, self._read_twins(name))
        return judged

    def query_guards(self, reference: System) -> dict[str, guarded.Judged]:
        """Run the guards, and score their rejections with the reference's traces.

        A live store keeps their probabilities; labels are written for every corpus.
        """
        corpora = {self.files.name: self.prompts}
        if len(self.twins):
            corpora[self.settings.twins] = self.twins
        options = GuardOptions(**self.settings.guard_options())
        wanted = self.settings.asked_guards("guard", "refusal")
        scores = panel.ask_guards(
            self.store, corpora, wanted, options, needed=self.files.name
        )
        for corpus_name, by_guard in scores.items():
            files = self.files.other(corpus_name)
            for name, guard_scores in by_guard.items():
                meta = self.settings.meta(scores=guard_scores.scores)
                files.write("labels", name, frame=guard_scores.labels, meta=meta)
        on_corpus = scores[self.files.name]
        labels = {name: by_guard.labels for name, by_guard in on_corpus.items()}
        scored = pipeline.score_guards(self.files, reference, labels, self.settings)
        on_twins = scores.get(self.settings.twins, {})
        judged = {}
        for name, system in scored.items():
            twins = on_twins.get(name)
            judged[name] = guarded.Judged(
                system,
                twins and twins.labels,
                on_corpus[name].guard.axis,
                on_corpus[name].probabilities,
                twins and twins.probabilities,
            )
        return judged

    def _read_twins(self, name: str) -> Labels | None:
        """Read a model's decisions on the harmful twins; None if there are none."""
        files = self.files.other(self.settings.twins)
        if self.settings.twins and files.has("labels", name):
            return labelling.read_decisions(files, name)
        return None
