"""Ask what a remedy asks, resumably, and keep only labels (`docs/method.md`, Remedies;
Asking).
"""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_utils import paths
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.models import prompting, trace_store
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.models.prompting import Decoding, PromptContext
from paraguard_utils.schemas import Corpus, Labels, original_ids, select_prompts
from paraguard_utils.stores import read_meta


def ask_remedied(
    base: UntouchedSystem,
    remedy: str,
    parameters: Mapping[str, Any],
    respondent: Callable[[], LocalBackend],
    of: str,
    texts: Corpus | None,
    numbers: bool = False,
) -> Labels:
    """Return labels of a remedied model's answers from the store.

    A live store first asks what is missing.

    The labels are kept under the name of the `remedy`; those made with other
    `parameters` are asked again. The recorded store raises a UserError for these, as
    for labels of other prompts and for missing ones. `respondent` loads and prepares
    the model, only if something is missing. `texts` are prompts, or copies of them
    (`x~1`, `x~2`); None: those that the store has. `numbers` keeps the traces too,
    without the answers.
    """
    folder = base.folder(of, remedy)
    problem = _problem(base, folder, parameters, texts)
    if problem and not base.store.recorded and texts is not None:
        withheld = labelling.label_in_memory(texts, numbers)
        how = (base.system_prompt, base.decoding, base.settings.batch)
        trace_store.query_model(
            base.store, folder, texts, respondent(), *how, withheld=withheld
        )
    elif problem:
        base.store.read(
            "labels", folder, base.name
        )  # if the file is missing, the error says what to run
        path = paths.display_path(base.store.path("labels", folder, base.name))
        raise DataError(f"{path}: {problem}; run 07_remedies with a live store")
    _, found = labelling.read_labels(base.store, folder, base.name)
    return (found if texts is None else select_prompts(found, texts)).assign(queries=1)


def _problem(
    base: UntouchedSystem,
    folder: str,
    parameters: Mapping[str, Any],
    texts: Corpus | None,
) -> str:
    """Say why a store's labels cannot be used; "" if they can."""
    path = base.store.path("labels", folder, base.name)
    if not path.is_file():
        return "is not there"
    meta = read_meta(path)
    if meta.get("remedy") != dict(parameters):
        return f"the remedy had other parameters than {dict(parameters)}"
    if meta["inputs"]["labeller"] != labelling.LABELLER:
        return "labels of another version"
    if texts is None:
        return ""
    context = trace_store.context_from_meta(meta, paths.display_path(path))
    if context.decoding != base.decoding:
        return "the decoding differs"
    return (
        ""
        if trace_store.hash_keys(context, texts) == meta["inputs"]["traces"]
        else "labels of other prompts"
    )


class RemediedModel(LocalBackend):
    """A loaded model that is asked in another way.

    `parameters` were fixed before anything was learned; four of them change the words
    around the user's: `text` is another system prompt, `turns` are earlier turns of the
    conversation, `before` and `after` stand in the user's turn. `learned` is what was
    learned or chosen, for meta files. `state` tells what else decides an answer and is
    in no text, as part of keys; "" if the weights are unchanged.
    """

    def __init__(
        self,
        base: LocalBackend,
        parameters: Mapping[str, Any],
        learned: dict[str, Any] | None = None,
        state: str = "",
    ) -> None:
        super().__init__(base.model)
        self.parameters, self.learned, self.state = (
            dict(parameters),
            learned or {},
            state,
        )

    def context(self, system_prompt_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        own, reader = self.parameters, self.reader
        prefix, suffix = prompting.render_system_prompt(
            reader.tokenizer, own.get("text", system_prompt_text), own.get("turns", ())
        )
        around = (prefix + own.get("before", ""), own.get("after", "") + suffix)
        weights_id = (
            f"{reader.weights_id}+{self.state}" if self.state else reader.weights_id
        )
        return PromptContext(weights_id, reader.dtype, *around, decoding)

    def facts(self, traces: pd.DataFrame) -> Mapping[str, object]:
        """Return what a meta file tells beside the context."""
        return {
            **super().facts(traces),
            "remedy": self.parameters,
            "learned": self.learned,
        }


def vote_by_majority(own: Labels, copies: Labels, with_own: bool) -> Labels:
    """Decide each prompt by the majority of its accepted and rejected copies, and by
    itself if `with_own`.

    The prompt's own decision stands in a tie and if nobody votes. Returns `own` with
    the new `label`, with `queries` of all that were asked, and with the `answer` of a
    text that was decided so.
    """
    votes = copies.assign(of=original_ids(copies["prompt_id"]))
    voters = own.assign(of=own["prompt_id"]) if with_own else own.head(0).assign(of="")
    every = pd.concat([voters, votes], ignore_index=True)
    known = every[every["label"].isin(["accept", "reject"])]
    shares = (
        (known["label"] == "reject")
        .groupby(known["of"])
        .mean()
        .reindex(own["prompt_id"])
        .to_numpy()
    )
    label = own["label"].mask(shares > 0.5, "reject").mask(shares < 0.5, "accept")
    first = known.drop_duplicates(["of", "label"]).set_index(["of", "label"])["answer"]
    answers = first.reindex(
        pd.MultiIndex.from_arrays([own["prompt_id"], label])
    ).to_numpy()
    queries = (
        every.groupby("of")["queries"]
        .sum()
        .reindex(own["prompt_id"])
        .fillna(1)
        .to_numpy()
    )
    return own.assign(
        label=label,
        answer=pd.Series(answers).fillna(own["answer"]),
        queries=queries.astype(int),
    )
