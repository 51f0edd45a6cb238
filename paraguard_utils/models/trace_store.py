"""Query a model and keep its answers as resumable traces (`docs/method.md`, Asking)."""

import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from paraguard_utils import paths, registry, schemas, stores, unsafe
from paraguard_utils.errors import DataError, UserError
from paraguard_utils.models import loading, local, prompting
from paraguard_utils.models.backends import Backend
from paraguard_utils.models.prompting import (
    BATCH_SIZE,
    Decoding,
    PromptContext,
    Sampling,
    Workload,
)
from paraguard_utils.parts import WHOLE, Parts, Shard
from paraguard_utils.schemas import Corpus, Labels, Traces
from paraguard_utils.stores import CorpusFiles, Store
from paraguard_utils.text import replace_control

IDENTITY_FIELDS = (
    "weights_id",
    "dtype",
    "prefix",
    "suffix",
    "decoding",
    "instruction",
    "system_prompt_text",
)
"""What a trace's meta file must record, so that keys can be recomputed without weights.
"""


@dataclass(frozen=True)
class LabelsOnly:
    """How to label answers whose text must not be kept: in memory, batch by batch.

    Parameters
    ----------
    labeller : str
        Name and version. What another one labelled is queried again, since no text is
        left to label anew.
    label : Callable
        From traces to labels, in the same order.
    numbers : bool
        Whether the traces are kept too, without the answers. They spell the prompts, so
        this is not for somebody else's.
    """

    labeller: str
    label: Callable[[Traces], Labels]
    numbers: bool = True


@dataclass(frozen=True, eq=False)
class Query:
    """What to ask a model, and where its answers are kept.

    Parameters
    ----------
    files : CorpusFiles
        Of a live store.
    prompts : Corpus
        With prompt_id, text and what says whether they ask for harm
        (`unsafe.asks_for_harm`).
    system_prompt : str
        A name of `registry.system_prompts`.
    decoding : Decoding
    batch : int
        Most prompts in a batch.
    withheld : LabelsOnly, optional
        How to label answers that must not be kept, as those to prompts that ask for
        harm. Labels are then kept beside the traces.
    shard : tuple of int
        The part of the batches to answer; its rows stay parts. `WHOLE` answers what no
        shard in the store has answered, and merges all.
    trial : bool
        Whether the prompts are the beginning of a corpus, whose rows stay parts.
    """

    files: CorpusFiles
    prompts: Corpus
    system_prompt: str
    decoding: Decoding = Decoding()
    batch: int = BATCH_SIZE
    withheld: LabelsOnly | None = None
    shard: Shard = WHOLE
    trial: bool = False


class TraceParts(Parts):
    """The growing traces of one system in a live store.

    There is one part for each batch; at the end they are compacted into one file.
    `results` are the final files, by kind.
    """

    def __init__(self, files: CorpusFiles, system: str, shard: Shard = WHOLE) -> None:
        super().__init__(files.output_path("traces", system), "traces", shard=shard)
        self.results = {"traces": self.file}

    def done(self, keys: pd.Series) -> pd.DataFrame:
        """Return the rows already there with a wanted key (`keys`: key by prompt_id).

        It has no columns if there are none.
        """
        # A null response: an error, or withheld while the prompt was declared harmful;
        # it must not hide an answer that another part holds.
        frames = [frame[frame["response"].notna()] for frame in self.read(self.file)]
        return _select_wanted(frames, keys)

    def prepare(self, rows: Traces) -> pd.DataFrame:
        """Return a batch's traces as they are kept."""
        return rows

    def finished(self, meta: dict[str, object]) -> bool:
        """Return whether all is compacted, and the meta files record the same query.

        That is how these rows were queried and who labelled them.
        """
        for file in self.results.values():
            known = stores.read_meta(file)
            for name in ("decoding", "inputs", "remedy"):
                if known.get(name) != meta.get(name):
                    return False
        return not self.files()

    def compact(self, rows: pd.DataFrame, meta: dict[str, object]) -> None:
        """Write all rows as the final files, then remove the parts."""
        for kind, file in self.results.items():
            columns = list(schemas.SCHEMAS[kind].columns)
            stores.write_file(file, rows[columns], kind, meta)
        self.clear()


class LabelledParts(TraceParts):
    """The growing labels of one system's answers, and its traces without the answers.

    A part holds both, so that a kill cannot separate them; at the end they become two
    files, with null text in both. The labels' meta file names the labeller and, by
    `hash_answers`, the keys of what was queried.
    """

    def __init__(
        self,
        files: CorpusFiles,
        system: str,
        withheld: LabelsOnly,
        shard: Shard = WHOLE,
    ) -> None:
        self.withheld = withheld
        self.results = {"labels": files.output_path("labels", system)}
        if withheld.numbers:
            self.results["traces"] = files.output_path("traces", system)
        last = list(self.results.values())[-1]
        Parts.__init__(self, last, "labelled", "labelled", shard)

    def done(self, keys: pd.Series) -> pd.DataFrame:
        """Return rows with a wanted key and this labeller's label.

        DataError if answers were kept before.
        """
        rows = _select_wanted([*self._read_compacted(keys), *self.read()], keys)
        if rows.empty:
            return rows
        is_ours = rows["labeller"] == self.withheld.labeller
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
        if not self.withheld.numbers:  # then the keys are kept as a hash only
            traces = keys.rename("key").rename_axis("prompt_id").reset_index()
            traces["response"] = None
        inputs = stores.read_meta(self.results["labels"]).get("inputs", {})
        if inputs.get("traces") != hash_answers(traces):
            return []
        return [traces.merge(frames[0].drop(columns="response"), on="prompt_id")]

    def prepare(self, rows: Traces) -> pd.DataFrame:
        """Label a batch in memory and return it without its answers."""
        try:
            labels = self.withheld.label(rows)
        except UserError:
            raise
        except Exception as error:  # whose message might quote an answer
            raise DataError(
                f"{self.file.stem}: {self.withheld.labeller} failed on an answer"
                f" ({type(error).__name__})"
            ) from None
        kept = rows if self.withheld.numbers else rows[["prompt_id", "key"]]
        columns = labels.drop(columns=["prompt_id", "response"]).set_axis(rows.index)
        return kept.assign(response=None, **dict(columns.items()))

    def compact(self, rows: pd.DataFrame, meta: dict[str, object]) -> None:
        """Write all rows as the system's labels and, if they are kept, its traces.

        Then remove the parts.
        """
        self.add(rows)  # a kill may leave one file of two: the parts still have all
        super().compact(rows, meta)


def _kept_answers_error(path: Path) -> DataError:
    name = path.parent.name
    return DataError(
        f"{paths.display_path(path)} holds answers, asked before {name} was declared to"
        f" ask for harm; remove labels/{name}, traces/{name} and whatever was made of"
        " them from this store, and ask again"
    )


def _select_wanted(frames: list[pd.DataFrame], keys: pd.Series) -> pd.DataFrame:
    """Return the last row of each prompt with its wanted key."""
    if not frames:
        return pd.DataFrame()
    rows = pd.concat(frames, ignore_index=True)
    wanted = rows[rows["prompt_id"].map(keys).eq(rows["key"])]
    return wanted.drop_duplicates("prompt_id", keep="last")


def hash_answers(traces: Traces) -> str:
    """Return the hash that ties labels to the answers that they describe.

    Of answers that are not kept it covers the keys.
    """
    columns = traces[["prompt_id", "key", "response"]]
    return stores.frame_hash(columns.sort_values("prompt_id"))


def hash_keys(context: PromptContext, corpus: Corpus) -> str:
    """Return the `hash_answers` of answers to these prompts that are not kept."""
    keys = [context.key(text) for text in corpus["text"]]
    return hash_answers(corpus.assign(key=keys, response=None))


def query_model(model: Backend | loading.LoadedModel, query: Query) -> Traces:
    """Query a model for every prompt that a live store lacks.

    A thinking block that the chat template opens is part of the answer.

    Returns
    -------
    Traces
        In the order of the prompts, with `response` null if answers are withheld; or
        labels, if traces are not kept either. A shard returns its own only, and a model
        behind files of requests what has been answered.

    Raises
    ------
    DataError
        Another process writes this system, the model cannot read a prompt as it is, or
        an answer would be kept that must not be.
    """
    prompts = query.prompts
    if query.withheld is None:
        unsafe.refuse_unsafe(prompts, f"{query.files.name}: asking for answers to keep")
    if isinstance(model, loading.LoadedModel):
        model = local.LocalBackend(model)
    prompting.check_prompts(prompts, model.tokenizer)
    system_prompt_text = registry.read_system_prompt(query.system_prompt)
    context = model.context(system_prompt_text, query.decoding)
    keys = prompts.set_index("prompt_id")["text"].map(context.key)
    system = prompting.make_system_name(model.name, query.system_prompt)
    with _open_parts(query, system) as parts:
        columns = list(schemas.SCHEMAS[list(parts.results)[-1]].columns)
        done = parts.done(keys)
        known = set(done.get("prompt_id", ()))
        workload = Workload(prompts, known, query.batch, query.shard, system)
        started = time.monotonic()
        new = []
        for rows in model.answers(workload, context):
            new.append(parts.prepare(rows))
            parts.add(new[-1])
        rows = pd.concat([done, *new], ignore_index=True)
        # A shard with nothing in it, or requests that nobody has answered yet
        if rows.empty:
            return pd.DataFrame(columns=columns)
        answered = prompts[prompts["prompt_id"].isin(rows["prompt_id"])]
        rows = schemas.select_prompts(rows, answered)
        meta = {
            "system": system,
            "model": model.argument,
            "instruction": query.system_prompt,
            "system_prompt_text": system_prompt_text,
            **asdict(context),
            **model.facts(rows),
            "corpus": stores.frame_hash(prompts[["prompt_id", "text"]]),
            "asked_now": sum(len(batch) for batch in new),
            "seconds": round(time.monotonic() - started, 1),
            "peak_gb": _peak_memory(),
        }
        if query.withheld:
            labeller = query.withheld.labeller
            meta["inputs"] = {"traces": hash_answers(rows), "labeller": labeller}
        is_whole = query.shard == WHOLE and len(rows) == len(prompts)
        is_new = bool(new) or not parts.finished(meta)
        if is_whole and is_new and not query.trial:
            parts.compact(rows, meta)
    return rows[columns]


def _open_parts(query: Query, system: str) -> TraceParts:
    if query.withheld:
        return LabelledParts(query.files, system, query.withheld, query.shard)
    return TraceParts(query.files, system, query.shard)


def _peak_memory() -> float:
    """Return the most memory that this process has used so far, in gigabytes."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def read_traces(
    files: CorpusFiles,
    system: str,
    prompts: Corpus,
    decoding: Decoding | None = None,
    dtype: str = "",
) -> Traces:
    """Read a system's traces of prompts, in their order, and check them.

    They must answer these prompts with this decoding and dtype (None or "" is not
    checked). Keys are recomputed from the meta file, without weights.

    Raises
    ------
    Missing
        There is no trace file.
    DataError
        A prompt is not in it, or its key differs; the error says in which part.
    """
    path = files.path("traces", system)
    where = paths.display_path(path)
    traces = files.read("traces", system).set_index("prompt_id")
    context = context_from_meta(stores.read_meta(path), where)
    wanted = {"decoding": decoding, "dtype": dtype}
    model_name = prompting.model_of_system(system)
    for name, file in loading.PACKAGED_MODELS.items():
        if loading.packaged_model_name(name) == model_name:
            wanted["weights_id"] = file.sha256
    for name, value in wanted.items():
        known = getattr(context, name)
        if value and value != known:
            raise DataError(
                f"{where}: the {name} differs: {known} there, {value} asked for; use a"
                " live store"
            )
    keys = prompts.set_index("prompt_id")["text"].map(context.key)
    is_wrong = traces["key"].reindex(keys.index).ne(keys)
    if is_wrong.any():
        raise DataError(
            f"{where}: prompt {is_wrong.idxmax()} is not in it, or had another text"
            " when it was asked; run 02_querying with a live store"
        )
    return traces.loc[keys.index].reset_index()


def context_from_meta(meta: Mapping[str, Any], where: str) -> PromptContext:
    """Return how prompts were queried, by a meta file.

    Raise `DataError` if it lacks that or the system prompt changed since.
    """
    if not set(IDENTITY_FIELDS) <= set(meta):
        raise DataError(
            f"{where}: its meta file is missing; restore it beside the traces"
        )
    name = meta["instruction"]
    text = registry.system_prompts().get(name, {}).get("text")
    if text != meta["system_prompt_text"]:
        raise DataError(
            f"{where}: the system prompt {name!r} has another text than when it was"
            " asked; ask again"
        )
    fields = meta["decoding"]
    is_drawn = fields.get("method") == Sampling.method
    decoding = Sampling(**fields) if is_drawn else Decoding(**fields)
    return PromptContext(
        meta["weights_id"], meta["dtype"], meta["prefix"], meta["suffix"], decoding
    )


def write_tokens(
    store: Store, model: local.WeightsBackend, traces: Iterable[Traces]
) -> None:
    """Add every user token in traces to a live store: its text and input embedding.

    So Drift needs no weights.
    """
    tokens = set()
    for frame in traces:
        for row in frame.itertuples():
            tokens.update(row.token_ids[row.user_start : row.user_end].tolist())
    if store.has("tokens", model.name):
        tokens.update(store.read("tokens", model.name)["token_id"])
    ids = sorted(tokens)
    # A token may be part of a character: alone it decodes to U+FFFD
    texts = [str(model.tokenizer.decode([token])) for token in ids]
    frame = pd.DataFrame(
        {
            "token_id": ids,
            "text": [replace_control(text) for text in texts],
            "embedding": list(model.embeddings(ids)),
        }
    )
    meta = {"model": model.name, "weights_id": model.reader.weights_id}
    store.write("tokens", model.name, frame=frame, meta=meta)


def find_systems(files: CorpusFiles, model: str) -> list[str]:
    """Return the systems with traces that were queried with this `model` parameter.

    They are in the order of system prompts.
    """
    folder = files.path("traces", "any").parent
    found = []
    for instruction in registry.system_prompts():
        for file in sorted(folder.glob("*.parquet")):
            meta = stores.read_meta(file)
            if (meta.get("model"), meta.get("instruction")) == (model, instruction):
                found.append(file.stem)
    return found
