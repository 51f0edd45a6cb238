"""Query a model and keep its answers as resumable traces (`docs/method.md`, Asking)."""

import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import pandas as pd

from paraguard_utils import paths, registry, schemas, stores, unsafe
from paraguard_utils.errors import DataError
from paraguard_utils.models import loading, local, prompting
from paraguard_utils.models.backends import Backend
from paraguard_utils.models.prompting import (
    BATCH_SIZE,
    Decoding,
    PromptContext,
    Workload,
)
from paraguard_utils.parts import WHOLE, Parts, Shard
from paraguard_utils.schemas import Corpus, Traces
from paraguard_utils.stores import CorpusFiles, Store
from paraguard_utils.text import replace_control


class TraceParts(Parts):
    """The growing traces of one system in a live store.

    There is one part for each batch; at the end they are compacted into one file.

    Attributes
    ----------
    results : dict of str to Path
        The final files, by kind.
    withholds : bool
        Whether the text of answers is never kept.
    """

    withholds = False

    def __init__(self, files: CorpusFiles, system: str, shard: Shard = WHOLE) -> None:
        super().__init__(files.path("traces", system), "traces", shard=shard)
        self.results = {"traces": self.file}

    def done(self, keys: pd.Series) -> pd.DataFrame:
        """Return the rows already there with a wanted key (`keys`: key by prompt_id).

        It has no columns if there are none.
        """
        # A null response: an error, or withheld while the prompt was declared harmful;
        # it must not hide an answer that another part holds.
        frames = [frame[frame["response"].notna()] for frame in self.read(self.file)]
        return select_wanted(frames, keys)

    def prepare(self, rows: Traces) -> pd.DataFrame:
        """Return a batch's traces as they are kept."""
        return rows

    def about(self, rows: pd.DataFrame) -> dict[str, object]:
        """Return what the meta file says of all rows; for traces nothing more."""
        return {}

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


PartsMaker: TypeAlias = Callable[[CorpusFiles, str, Shard], TraceParts]
"""From files, a system's name and a shard to the parts that keep its answers."""


def _watch_nothing(rows: Traces) -> None:
    """Look at no rows."""


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
    keep : callable
        Makes the parts (`PartsMaker`). Answers to prompts that ask for harm need parts
        that withhold them.
    shard : tuple of int
        The part of the batches to answer; its rows stay parts. `WHOLE` answers what no
        shard in the store has answered, and merges all.
    trial : bool
        Whether the prompts are the beginning of a corpus, whose rows stay parts.
    watch : callable
        Called with rows, first with those that are there, then with new ones once they
        are kept. What it raises ends the query.
    """

    files: CorpusFiles
    prompts: Corpus
    system_prompt: str
    decoding: Decoding = Decoding()
    batch: int = BATCH_SIZE
    keep: PartsMaker = TraceParts
    shard: Shard = WHOLE
    trial: bool = False
    watch: Callable[[Traces], None] = _watch_nothing


def select_wanted(frames: list[pd.DataFrame], keys: pd.Series) -> pd.DataFrame:
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


def query_model(model: Backend | loading.LoadedModel, query: Query) -> Traces:
    """Query a model for every prompt that a live store lacks.

    A thinking block that the chat template opens is part of the answer.

    Returns
    -------
    Traces
        In the order of the prompts; whatever else `keep` keeps instead. A shard returns
        its own only, and a model behind files of requests what has been answered.

    Raises
    ------
    DataError
        Another process writes this system, the model cannot read a prompt as it is, or
        an answer would be kept that must not be.
    """
    prompts = query.prompts
    if isinstance(model, loading.LoadedModel):
        model = local.LocalBackend(model)
    prompting.check_prompts(prompts, model.tokenizer)
    system_prompt_text = registry.read_system_prompt(query.system_prompt)
    context = model.context(system_prompt_text, query.decoding)
    keys = prompts.set_index("prompt_id")["text"].map(context.key)
    system = prompting.make_system_name(model.name, query.system_prompt)
    parts = query.keep(query.files, system, query.shard)
    if not parts.withholds:
        unsafe.refuse_unsafe(prompts, f"{query.files.name}: asking for answers to keep")
    with parts:
        columns = list(schemas.SCHEMAS[list(parts.results)[-1]].columns)
        done = parts.done(keys)
        known = set(done.get("prompt_id", ()))
        workload = Workload(prompts, known, query.batch, query.shard, system)
        started = time.monotonic()
        if len(done) and not parts.withholds:
            query.watch(done)
        new = []
        for rows in model.answers(workload, context):
            new.append(parts.prepare(rows))
            parts.add(new[-1])
            query.watch(rows)
        rows = pd.concat([done, *new], ignore_index=True)
        # A shard with nothing in it, or requests that nobody has answered yet
        if rows.empty:
            return pd.DataFrame(columns=columns)
        answered = prompts[prompts["prompt_id"].isin(rows["prompt_id"])]
        rows = schemas.select_prompts(rows, answered)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in kilobytes
        meta = {
            "system": system,
            "model": model.argument,
            "instruction": query.system_prompt,
            "system_prompt_text": system_prompt_text,
            **asdict(context),
            **model.facts(rows),
            **parts.about(rows),
            "corpus": stores.frame_hash(prompts[["prompt_id", "text"]]),
            "asked_now": sum(len(batch) for batch in new),
            "seconds": round(time.monotonic() - started, 1),
            "peak_gb": round(memory / 2**20, 2),
        }
        is_whole = query.shard == WHOLE and len(rows) == len(prompts)
        is_new = bool(new) or not parts.finished(meta)
        if is_whole and is_new and not query.trial:
            parts.compact(rows, meta)
    return rows[columns]


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

    Raise `DataError` if it lacks that, the system prompt changed since or the answers
    were not decoded greedily.
    """
    name = meta["instruction"]
    text = registry.system_prompts().get(name, {}).get("text")
    if text != meta["system_prompt_text"]:
        raise DataError(
            f"{where}: the system prompt {name!r} has another text than when it was"
            " asked; ask again"
        )
    try:
        decoding = Decoding(**meta["decoding"])
    except TypeError:
        raise DataError(
            f"{where}: its answers were not decoded greedily; ask again"
        ) from None
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
