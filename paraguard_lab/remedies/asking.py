"""Ask what a remedy asks, resumably, and keep only labels.

(`docs/method.md`, Remedies; Asking)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from paraguard_lab.corpus.reword import original_ids
from paraguard_lab.labels.withheld import hash_keys, keep_labels
from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_utils import paths
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.models import prompting, trace_store
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.models.prompting import Decoding, PromptContext
from paraguard_utils.schemas import Corpus, Labels, Traces, select_prompts
from paraguard_utils.stores import CorpusFiles, read_meta


@dataclass(frozen=True)
class RemediedQueries:
    """What a remedy asks a model, and where the labels of its answers are kept.

    Attributes
    ----------
    base : UntouchedSystem
    remedy : str
        The name that the labels are kept under.
    parameters : Mapping
        Labels that were made with other parameters are asked again.
    respondent : Callable
        Loads and prepares the model, only if something is missing.
    keep_numbers : bool
        Whether to keep the traces of the corpora too, without the answers.
    """

    base: UntouchedSystem
    remedy: str
    parameters: Mapping[str, Any]
    respondent: Callable[[], LocalBackend]
    keep_numbers: bool = False

    def decide(self, corpus_name: str, texts: Corpus | None) -> Labels:
        """Return labels of the remedied model's answers, with `queries`, which is 1.

        A live store first asks what is missing.

        Parameters
        ----------
        corpus_name : str
        texts : Corpus or None
            Prompts, or copies of them (`x~1`, `x~2`); None: those that the store has.

        Raises
        ------
        UserError
            The recorded store lacks labels, or has those of other prompts or
            parameters.
        """
        base = self.base
        files = base.files(corpus_name, self.remedy)
        where = paths.display_path(files.path("labels", base.name))
        problem = self.find_problem(files, texts)
        if problem and not base.store.recorded and texts is not None:
            keeps = self.keep_numbers and corpus_name in base.corpora
            query = trace_store.Query(
                files,
                texts,
                base.system_prompt,
                base.decoding,
                base.settings.batch,
                keep=keep_labels(texts, keeps),
            )
            trace_store.query_model(self.respondent(), query)
        elif problem:
            # If the file is missing, the error of reading it says what to run.
            files.read("labels", base.name)
            raise DataError(f"{where}: {problem}; run 07_remedies with a live store")
        labels = labelling.read_labels(files, base.name)
        if texts is not None:
            labels = select_prompts(labels, texts, where)
        return labels.assign(queries=1)

    def find_problem(self, files: CorpusFiles, texts: Corpus | None) -> str:
        """Say why a store's labels cannot be used; "" if they can."""
        path = files.path("labels", self.base.name)
        if not path.is_file():
            return "is not there"
        meta = read_meta(path)
        parameters = dict(self.parameters)
        if meta.get("remedy") != parameters:
            return f"the remedy had other parameters than {parameters}"
        if meta["inputs"]["labeller"] != labelling.LABELLER:
            return "labels of another version"
        if texts is None:
            return ""
        context = trace_store.context_from_meta(meta, paths.display_path(path))
        if context.decoding != self.base.decoding:
            return "the decoding differs"
        if hash_keys(context, texts) != meta["inputs"]["traces"]:
            return "labels of other prompts"
        return ""


class RemediedModel(LocalBackend):
    """A loaded model that is asked in another way.

    Parameters
    ----------
    base : LocalBackend
    parameters : mapping
        They were fixed before anything was learned. Four of them change the words
        around the user's: `text` is another system prompt, `turns` are earlier turns of
        the conversation, `before` and `after` are in the user's turn.
    learned : dict, optional
        What was learned or chosen, for meta files.
    state : str
        What else decides an answer and is in no text, as part of keys; "" if the
        weights are unchanged.
    """

    def __init__(
        self,
        base: LocalBackend,
        parameters: Mapping[str, Any],
        learned: dict[str, Any] | None = None,
        state: str = "",
    ) -> None:
        super().__init__(base.model)
        self.parameters = dict(parameters)
        self.learned = learned or {}
        self.state = state

    def context(self, system_prompt_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        prefix, suffix = prompting.render_system_prompt(
            self.reader.tokenizer,
            self.parameters.get("text", system_prompt_text),
            self.parameters.get("turns", ()),
        )
        prefix += self.parameters.get("before", "")
        suffix = self.parameters.get("after", "") + suffix
        weights_id = self.reader.weights_id
        if self.state:
            weights_id += f"+{self.state}"
        return PromptContext(weights_id, self.reader.dtype, prefix, suffix, decoding)

    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what a meta file tells beside the context."""
        facts = dict(super().facts(traces))
        facts |= {"remedy": self.parameters, "learned": self.learned}
        return facts


def vote_by_majority(own: Labels, copies: Labels, with_own: bool) -> Labels:
    """Decide each prompt by the majority of its accepted and rejected copies.

    The prompt's own decision stands in a tie and if nobody votes.

    Parameters
    ----------
    own, copies : Labels
        Of the prompts and of their copies (`x~1`, `x~2`), with `queries`.
    with_own : bool
        Whether a prompt's own decision is a vote too.

    Returns
    -------
    Labels
        `own` with the new `label`, with `queries` of all that were asked, and with the
        `answer` of a text that was decided so.
    """
    votes = copies.assign(voted_on=original_ids(copies["prompt_id"]))
    if with_own:
        own_votes = own.assign(voted_on=own["prompt_id"])
        votes = pd.concat([own_votes, votes], ignore_index=True)
    counted = votes[votes["label"].isin(["accept", "reject"])]
    rejected = (counted["label"] == "reject").groupby(counted["voted_on"]).mean()
    shares = own["prompt_id"].map(rejected)
    label = own["label"].mask(shares > 0.5, "reject").mask(shares < 0.5, "accept")

    decision = ["voted_on", "label"]
    answers = counted.drop_duplicates(decision).set_index(decision)["answer"]
    decided = pd.MultiIndex.from_arrays([own["prompt_id"], label])
    answer = pd.Series(answers.reindex(decided).to_numpy(), own.index)

    asked = votes.groupby("voted_on")["queries"].sum()
    queries = own["prompt_id"].map(asked).fillna(1).astype(int)
    return own.assign(label=label, answer=answer.fillna(own["answer"]), queries=queries)
