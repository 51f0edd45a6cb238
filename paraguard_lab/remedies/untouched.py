"""The system that remedies are applied to.

It is a model with its system prompt, as the store knows it.
"""

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Self

from paraguard_lab import served
from paraguard_lab.remedies.splits import Split
from paraguard_lab.settings import RemedySettings, name_remedied
from paraguard_utils import paths
from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.models import loading, prompting, trace_store
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.registry import read_system_prompt
from paraguard_utils.schemas import Corpus, Labels, Traces, select_prompts
from paraguard_utils.stores import CorpusFiles, Store, read_meta


class UntouchedSystem:
    """A chat model with its system prompt, and its traces and labels in a store.

    `corpora` are the corpus and its twins, by name. Of the settings, max_new_tokens,
    batch, dtype, device and without_template are used. `third` is the number of the
    split that remedies are reported on, and part of the names of what they learn and
    ask; 0: none.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        corpora: Mapping[str, Corpus],
        settings: RemedySettings,
    ) -> None:
        self.store = store
        self.name = name
        self.corpora = dict(corpora)
        self.settings = settings
        self.system_prompt = name.rpartition("--")[2]
        self.decoding = prompting.Decoding(settings.max_new_tokens)
        self.third = 0
        self._loaded: dict[str, LocalBackend] = {}
        self._traces: dict[tuple[str, str], Traces] = {}

    def reported_on(self, third: int) -> Self:
        """Return the same system for remedies that are reported on another split.

        It shares the model and what was read.
        """
        other = copy.copy(self)
        other.third = third
        return other

    @cached_property
    def benign_corpus(self) -> str:
        """The name of the corpus that the twins belong to."""
        return next(iter(self.corpora))

    def by_corpus(self, split: Split) -> dict[str, Corpus]:
        """Return the prompts of a split by the name of their corpus, benign first."""
        return dict(zip(self.corpora, split, strict=True))

    def files(self, corpus_name: str, remedy: str = "") -> CorpusFiles:
        """Return the store's files of a corpus, or of what a remedy asks of it."""
        if remedy:
            third = self.third if corpus_name in self.corpora else 0
            corpus_name = name_remedied(corpus_name, remedy, third)
        return CorpusFiles(self.store, corpus_name)

    def decide(self, corpus_name: str, prompts: Corpus | None = None) -> Labels:
        """Return labels of the model's own answers to prompts (None: to all).

        The column `queries` is 1.
        """
        files = self.files(corpus_name)
        labels = labelling.read_labels(files, self.name)
        if prompts is not None:
            where = paths.display_path(files.path("labels", self.name))
            labels = select_prompts(labels, prompts, where)
        return labels.assign(queries=1)

    def traces(
        self, corpus_name: str, prompts: Corpus | None, system_prompt: str = ""
    ) -> Traces:
        """Return the model's traces, by default under its own system prompt.

        Raises Missing if the store lacks prompts or their next-token probabilities.
        """
        if corpus_name not in self.corpora or prompts is None:
            raise Missing(
                f"no traces of {corpus_name} are kept, without which nothing can be"
                " decided on it"
            )
        place = corpus_name, system_prompt or self.system_prompt
        if place not in self._traces:
            self._traces[place] = self._read_traces(*place)
        return select_prompts(self._traces[place], prompts)

    def _read_traces(self, corpus_name: str, system_prompt: str) -> Traces:
        model = prompting.model_of_system(self.name)
        system = prompting.make_system_name(model, system_prompt)
        prompts = self.corpora[corpus_name]
        traces = trace_store.read_traces(self.files(corpus_name), system, prompts)
        lacking = int((traces["next_ids"].map(len) == 0).sum())
        if lacking:
            raise Missing(
                f"{lacking} of {len(traces)} prompts of {corpus_name} have no"
                " next-token probabilities"
            )
        return traces

    @property
    def local(self) -> LocalBackend:
        """The loaded model.

        Raises Missing for a model behind a server, since only its answers can be
        changed.
        """
        if served.is_served_system(self.name):
            raise Missing(
                f"{self.name} is behind a server; remedies that ask need the model's"
                " weights here"
            )
        if "model" not in self._loaded:  # a dict is shared by `reported_on`
            self._loaded["model"] = LocalBackend(self.load())
        return self._loaded["model"]

    @property
    def context(self) -> prompting.PromptContext:
        """What decides the loaded model's answers beside the user's words."""
        return self.local.context(read_system_prompt(self.system_prompt), self.decoding)

    def load(self) -> loading.LoadedModel:
        """Load a new copy of the model.

        It is found by the parameter `model` that named it when it was asked.
        """
        path = self.files(self.benign_corpus).path("traces", self.name)
        source = loading.resolve_model(read_meta(path).get("model", ""))
        return loading.load_model(
            source,
            self.settings.dtype,
            self.settings.device,
            self.settings.without_template,
        )
