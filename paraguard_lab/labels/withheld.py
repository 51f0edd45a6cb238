"""Keep labels of answers whose text must not be kept (`docs/method.md`, Asking).

Answers to prompts that ask for harm are labelled in memory, batch by batch.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd

from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError, UserError
from paraguard_utils.labels import labelling
from paraguard_utils.models.prompting import PromptContext
from paraguard_utils.models.trace_store import TraceParts, hash_answers, select_wanted
from paraguard_utils.parts import WHOLE, Parts, Shard
from paraguard_utils.schemas import Corpus, Traces
from paraguard_utils.stores import CorpusFiles


class LabelledParts(TraceParts):
    """The growing labels of one system's answers, and its traces without the answers.

    A part holds both, so that a kill cannot separate them; at the end they become two
    files, with null text in both. The labels' meta file names the labeller and, by
    `hash_answers`, the keys of what was queried. What another labeller labelled is
    queried again, since no text is left to label anew.

    Parameters
    ----------
    files : CorpusFiles
        Of a live store.
    system : str
    shard : tuple of int
    prompts : Corpus
        What is queried.
    numbers : bool
        Whether the traces are kept too, without the answers. They spell the prompts, so
        this is not for somebody else's.
    """

    withholds = True

    def __init__(
        self,
        files: CorpusFiles,
        system: str,
        shard: Shard = WHOLE,
        *,
        prompts: Corpus,
        numbers: bool,
    ) -> None:
        self.prompts = prompts
        self.numbers = numbers
        self.results = {"labels": files.path("labels", system)}
        if numbers:
            self.results["traces"] = files.path("traces", system)
        last = list(self.results.values())[-1]
        Parts.__init__(self, last, "labelled", "labelled", shard)

    def done(self, keys: pd.Series) -> pd.DataFrame:
        """Return rows with a wanted key and this labeller's label.

        DataError if answers were kept before.
        """
        rows = select_wanted([*self._read_compacted(keys), *self.read()], keys)
        if rows.empty:
            return rows
        is_ours = rows["labeller"] == labelling.LABELLER
        return rows[is_ours & rows["rule"].ne("error")]

    def _read_compacted(self, keys: pd.Series) -> list[pd.DataFrame]:
        """Return the rows of the compacted files, or none if they do not fit.

        They fit if all can be read and the labels describe what was queried.
        """
        open_parts = Parts(self.file, "traces")
        if open_parts.files():
            raise _kept_answers_error(open_parts.folder)
        frames = []
        for kind, file in self.results.items():
            for frame in self.read_if_sound(file, kind):
                if frame["response"].notna().any():
                    raise _kept_answers_error(file)
                frames.append(frame)
        if len(frames) < len(self.results):
            return []
        traces = frames[-1]
        if not self.numbers:  # then the keys are kept as a hash only
            traces = keys.rename("key").rename_axis("prompt_id").reset_index()
            traces["response"] = None
        inputs = stores.read_meta(self.results["labels"]).get("inputs", {})
        if inputs.get("traces") != hash_answers(traces):
            return []
        return [traces.merge(frames[0].drop(columns="response"), on="prompt_id")]

    def prepare(self, rows: Traces) -> pd.DataFrame:
        """Label a batch in memory and return it without its answers."""
        try:
            labels = labelling.label_answers(rows, self.prompts)
        except UserError:
            raise
        except Exception as error:  # whose message might quote an answer
            raise DataError(
                f"{self.file.stem}: {labelling.LABELLER} failed on an answer"
                f" ({type(error).__name__})"
            ) from None
        kept = rows if self.numbers else rows[["prompt_id", "key"]]
        columns = labels.drop(columns=["prompt_id", "response"]).set_axis(rows.index)
        return kept.assign(response=None, **dict(columns.items()))

    def about(self, rows: pd.DataFrame) -> dict[str, object]:
        """Return the labeller, and the hash of what was labelled."""
        hashed = hash_answers(rows)
        return {"inputs": {"traces": hashed, "labeller": labelling.LABELLER}}

    def compact(self, rows: pd.DataFrame, meta: dict[str, object]) -> None:
        """Write all rows as the system's labels and, if they are kept, its traces.

        Then remove the parts.
        """
        self.add(rows)  # a kill may leave one file of two: the parts still have all
        super().compact(rows, meta)


def keep_labels(prompts: Corpus, numbers: bool = True) -> Callable[..., TraceParts]:
    """Return what `trace_store.Query` takes as `keep` to label answers in memory.

    `numbers` keeps the rest of their traces (`LabelledParts`).
    """
    return partial(LabelledParts, prompts=prompts, numbers=numbers)


def hash_keys(context: PromptContext, prompts: Corpus) -> str:
    """Return the `hash_answers` of answers to these prompts that are not kept."""
    keys = [context.key(text) for text in prompts["text"]]
    return hash_answers(prompts.assign(key=keys, response=None))


def _kept_answers_error(path: Path) -> DataError:
    name = path.parent.name
    return DataError(
        f"{paths.display_path(path)} holds answers, asked before {name} was declared to"
        f" ask for harm; remove labels/{name}, traces/{name} and whatever was made of"
        " them from this store, and ask again"
    )
