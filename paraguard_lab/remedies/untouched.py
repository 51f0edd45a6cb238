"""The system that remedies are applied to: a model with its system prompt, as the store
knows it.
"""

import copy
from collections.abc import Mapping
from typing import Self

from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.models import loading, prompting, trace_store
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.registry import read_system_prompt
from paraguard_utils.schemas import Corpus, Labels, Traces, select_prompts
from paraguard_utils.settings import Settings, name_remedied
from paraguard_utils.stores import Store, read_meta


class UntouchedSystem:
    """A chat model with its system prompt, and its traces and labels in a store.

    `corpora` are the corpus and its twins, by name. Of the settings max_new_tokens,
    batch, dtype, device and without_template are used. `third` is the number of the
    split that remedies are reported on, and part of the names of what they learn and
    ask; 0: none.
    """

    def __init__(
        self, store: Store, name: str, corpora: Mapping[str, Corpus], settings: Settings
    ) -> None:
        self.store, self.name, self.corpora, self.settings = (
            store,
            name,
            dict(corpora),
            settings,
        )
        self.system_prompt = name.rpartition("--")[2]
        self.decoding = prompting.Decoding(settings.max_new_tokens)
        self.third = 0
        self._loaded: list[LocalBackend] = []
        self._traces: dict[tuple[str, str], Traces] = {}
        self._labels: dict[str, Labels] = {}

    def reported_on(self, third: int) -> Self:
        """Return the same system, sharing model and caches, for remedies that are
        reported on another split.
        """
        other = copy.copy(self)
        other.third = third
        return other

    def folder(self, of: str, remedy: str) -> str:
        """Return the name under which the store keeps what a remedy asks of a corpus."""
        return name_remedied(of, remedy, self.third if of in self.corpora else 0)

    def decide(self, of: str, prompts: Corpus | None = None) -> Labels:
        """Return labels of the model's own answers to prompts (None: to all), with
        `queries`, which is 1.
        """
        if of not in self._labels:
            self._labels[of] = labelling.read_labels(self.store, of, self.name)[
                1
            ].assign(queries=1)
        found = self._labels[of]
        return found if prompts is None else select_prompts(found, prompts)

    def traces(
        self, of: str, prompts: Corpus | None, system_prompt: str = ""
    ) -> Traces:
        """Return the model's traces, by default under its own system prompt.

        Missing if it lacks prompts or probabilities.
        """
        system_prompt = system_prompt or self.system_prompt
        if of not in self.corpora or prompts is None:
            raise Missing(
                f"no traces of {of} are kept, without which nothing can be decided"
                " on it"
            )
        if (of, system_prompt) not in self._traces:
            system = prompting.make_system_name(
                prompting.model_of_system(self.name), system_prompt
            )
            found = trace_store.read_traces(self.store, of, self.corpora[of], system)
            untold = int((found["next_ids"].map(len) == 0).sum())
            if untold:
                raise Missing(
                    f"{untold} of {len(found)} prompts of {of} have no next-token"
                    " probabilities"
                )
            self._traces[of, system_prompt] = found
        return select_prompts(self._traces[of, system_prompt], prompts)

    @property
    def local(self) -> LocalBackend:
        """The loaded model. Raises Missing for a model behind a server, since only its
        answers can be changed.
        """
        if prompting.is_served_system(self.name):
            raise Missing(
                f"{self.name} is behind a server; remedies that ask need the model's"
                " weights here"
            )
        if not self._loaded:
            self._loaded.append(LocalBackend(self.load(packed=True)))
        return self._loaded[0]

    @property
    def context(self) -> prompting.PromptContext:
        """What decides the loaded model's answers beside the user's words."""
        return self.local.context(read_system_prompt(self.system_prompt), self.decoding)

    def load(self, packed: bool) -> loading.LoadedModel:
        """Load a new copy of the model, by the parameter `model` that named it when it
        was asked.
        """
        meta = read_meta(self.store.path("traces", next(iter(self.corpora)), self.name))
        given = (
            self.settings.dtype,
            self.settings.device,
            self.settings.without_template,
        )
        return loading.load_model(
            loading.resolve_model(meta.get("model", "")), *given, packed=packed
        )
