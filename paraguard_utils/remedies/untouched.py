"""The target that remedies are applied to: a model under its wrapper, as the store knows it."""

import copy
from collections.abc import Mapping
from typing import Self

import pandas as pd

from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.models import loading, local, prompting, trace_store
from paraguard_utils.models.local import Local
from paraguard_utils.schemas import Corpus, Labels, Traces
from paraguard_utils.settings import Settings, remedied_name
from paraguard_utils.stores import Store, read_meta


class Untouched:
    """A chat model under a wrapper, with the traces and labels that a store has of it.

    Parameters
    ----------
    store : stores.Store
    name : str
        Of the target.
    corpora : dict of str to DataFrame
        The corpus and its twins, by name.
    settings : settings.Settings
        max_new_tokens, batch, dtype, device and without_template are used.

    Attributes
    ----------
    third : int
        Which third of the clusters remedies are reported on, counted from 1: part of the names that what they learn
        and ask is kept under. 0 where nothing is learned.
    """

    def __init__(self, store: Store, name: str, corpora: Mapping[str, Corpus], settings: Settings) -> None:
        self.store, self.name, self.corpora, self.settings = store, name, dict(corpora), settings
        self.wrapper = name.rpartition("--")[2]
        self.decoding = prompting.Decoding(settings.max_new_tokens)
        self.third = 0
        self._loaded: list[Local] = []
        self._traces: dict[tuple[str, str], Traces] = {}
        self._labels: dict[str, Labels] = {}

    def reported_on(self, third: int) -> Self:
        """Return the same target, model and caches shared, for remedies that are reported on another third."""
        other = copy.copy(self)
        other.third = third
        return other

    def folder(self, of: str, remedy: str) -> str:
        """Return the name that what a remedy asks of a corpus, or of prompts outside the corpora, is kept under."""
        return remedied_name(of, remedy, self.third if of in self.corpora else 0)

    @property
    def model_name(self) -> str:
        """The model's name, as target names begin."""
        return prompting.model_of(self.name)

    def decide(self, of: str, prompts: Corpus | None = None) -> Labels:
        """Return the labels of the model's own answers, with a column `queries`, which is 1.

        Parameters
        ----------
        of : str
        prompts : DataFrame or None
            None: all that the store has.
        """
        if of not in self._labels:
            self._labels[of] = labelling.labels_by(self.store, of, self.name)[1].assign(queries=1)
        found = self._labels[of]
        return found if prompts is None else rows(found, prompts)

    def traces(self, of: str, prompts: Corpus | None, wrapper: str = "") -> Traces:
        """Return traces of the model's own answers, checked to be of the corpus.

        Raises
        ------
        Missing
            The prompts are others', of which no trace is kept, or a server told no next-token probabilities.
        """
        wrapper = wrapper or self.wrapper
        if of not in self.corpora or prompts is None:
            raise Missing(f"no traces of {of} are kept, without which nothing can be decided on it")
        if (of, wrapper) not in self._traces:
            target = prompting.target_name(self.model_name, wrapper)
            found = trace_store.recorded_traces(self.store, of, self.corpora[of], target)
            untold = int((found["next_ids"].map(len) == 0).sum())
            if untold:
                raise Missing(f"{untold} of {len(found)} prompts of {of} have no next-token probabilities")
            self._traces[of, wrapper] = found
        return rows(self._traces[of, wrapper], prompts)

    @property
    def argument(self) -> str:
        """The parameter `model` that named the model when it was asked."""
        return str(read_meta(self.store.path("traces", next(iter(self.corpora)), self.name)).get("model", ""))

    @property
    def local(self) -> Local:
        """The model, loaded.

        Raises
        ------
        Missing
            It is behind a server, so that nothing but its answers can be changed.
        """
        if prompting.is_served(self.name):
            raise Missing(f"{self.name} is behind a server; remedies that ask need the model's weights here")
        if not self._loaded:
            self._loaded.append(local.Local(self.load(packed=True)))
        return self._loaded[0]

    def load(self, packed: bool) -> loading.Model:
        """Load the model anew, as the settings say."""
        given = (self.settings.dtype, self.settings.device, self.settings.without_template)
        return loading.load(loading.resolve(self.argument), *given, packed=packed)


def rows(frame: pd.DataFrame, prompts: Corpus) -> pd.DataFrame:
    """Return a frame's rows of some prompts, in their order."""
    return frame.set_index("prompt_id").loc[prompts["prompt_id"]].reset_index()
