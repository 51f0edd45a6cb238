"""Asking a model and keeping what it answers: resumable traces (`docs/method.md`, Asking).

A trace holds model facts only. Its key is made of the weights id, the rendered text, the decoding and the dtype, and
nothing else: a row with the right key is never asked again, a row with another key is never used.
"""

import itertools
import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from tqdm import tqdm

from paraguard_utils import paths, registry, schemas, stores
from paraguard_utils.errors import DataError
from paraguard_utils.models import loading, prompting
from paraguard_utils.models.prompting import OPEN_THOUGHT, Decoding, PromptContext
from paraguard_utils.stores import Parts, Store
from paraguard_utils.text import readable

if TYPE_CHECKING:  # loading torch takes seconds
    from paraguard_utils.models.engine import Request

BATCH = 64
"""Prompts per batch, which is also what a kill can lose."""


IDENTITY = ("weights_id", "dtype", "prefix", "suffix", "decoding", "wrapper", "wrapper_text")
"""What a trace's meta file must tell, so that keys can be recomputed without weights."""


class TraceParts(Parts):
    """The growing traces of one target in a live store: a part a batch, compacted at the end.

    Parameters
    ----------
    store : stores.Store
        Not the recorded one.
    corpus_name, target : str
    """

    def __init__(self, store: Store, corpus_name: str, target: str) -> None:
        super().__init__(store.target_path("traces", corpus_name, target), "traces")

    def done(self, keys: pd.Series) -> schemas.Traces:
        """Return the rows already there whose key is wanted.

        Parameters
        ----------
        keys : Series
            Wanted key by prompt_id.

        Returns
        -------
        DataFrame
            Trace rows, one per prompt; without columns where there is nothing yet.
        """
        frames = self.read(self.file)
        if not frames:
            return pd.DataFrame()
        rows = pd.concat(frames, ignore_index=True)
        rows = rows[rows["prompt_id"].map(keys).eq(rows["key"])]
        return rows.drop_duplicates("prompt_id", keep="last")

    def finished(self, meta: dict[str, object]) -> bool:
        """Return whether the trace file is compacted and its meta file tells how these rows were asked."""
        known = stores.read_meta(self.file)
        return self.file.is_file() and not self.files() and all(known.get(name) == meta[name] for name in IDENTITY)

    def compact(self, rows: schemas.Traces, meta: dict[str, object]) -> None:
        """Write all rows as the target's trace file, then remove the parts."""
        stores.write(self.file, rows, "traces", meta)
        self.clear()


def query(
    store: Store,
    corpus_name: str,
    corpus: pd.DataFrame,
    model: loading.Model,
    wrapper: str,
    decoding: Decoding = Decoding(),
    batch: int = BATCH,
    progress: bool = True,
) -> schemas.Traces:
    """Ask a loaded model every prompt under one wrapper; asked prompts are never asked again.

    A thinking block that the chat template opens is part of the answer, so that it can be told from what follows it.

    Parameters
    ----------
    store : stores.Store
        A live store.
    corpus_name : str
    corpus : DataFrame
        Columns prompt_id, text.
    model : loading.Model
    wrapper : str
        A key of `registry.wrappers()`.
    decoding : Decoding
    batch : int
        Prompts per batch.
    progress : bool

    Returns
    -------
    DataFrame
        Traces in corpus order.

    Raises
    ------
    DataError
        Another process writes this target, or a prompt cannot be asked.
    """
    prompting.check_prompts(corpus, model.tokenizer)
    text = registry.wrappers()[wrapper]["text"]
    context = PromptContext(model.weights_id, model.dtype, *prompting.render_wrapper(model.tokenizer, text), decoding)
    asked = prompting.requests(corpus, model.tokenizer, context)
    target = prompting.target_name(model.name, wrapper)
    with TraceParts(store, corpus_name, target) as traces:
        done = traces.done(pd.Series({request.prompt_id: request.key for request in asked}))
        known, new, started = set(done.get("prompt_id", ())), [], time.monotonic()
        for rows in _answers(model, context, target, asked, known, batch, progress):
            traces.add(rows)
            new.append(rows)
        rows = pd.concat([done, *new], ignore_index=True).set_index("prompt_id").loc[corpus["prompt_id"]].reset_index()
        meta = {
            "target": target,
            "model": model.argument,
            "wrapper": wrapper,
            "wrapper_text": text,
            **asdict(context),
            "device": str(model.network.device),
            "corpus": stores.frame_hash(corpus[["prompt_id", "text"]]),
            "asked_now": sum(map(len, new)),
            "seconds": round(time.monotonic() - started, 1),
            "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        }
        if new or not traces.finished(meta):
            traces.compact(rows, meta)
    return rows


def _answers(
    model: loading.Model,
    context: PromptContext,
    target: str,
    asked: "list[Request]",
    known: set[str],
    batch: int,
    progress: bool,
) -> Iterator[schemas.Traces]:
    """Ask the requests whose prompts are not known; yield the trace rows of each batch."""
    from paraguard_utils.models.engine import Engine, shared_prefix

    more = context.decoding.max_new_tokens
    groups = _groups(asked, known, batch, more)
    if not groups:
        return
    temperature = getattr(context.decoding, "temperature", 0.0)
    engine = Engine(model, asked[0].token_ids[: shared_prefix(asked)], more, temperature)
    opened = OPEN_THOUGHT.search(context.suffix)
    with tqdm(total=len(asked), initial=len(known), desc=target, unit="prompt", disable=not progress) as bar:
        for group in groups:
            rows = pd.DataFrame(engine.ask(group))
            if opened:
                rows["response"] = f"{opened[1]}\n" + rows["response"]
            yield rows
            bar.update(len(rows))


def _groups(asked: "list[Request]", known: set[str], size: int, more: int) -> "list[list[Request]]":
    """Return the batches still to be asked: those of an unbroken run where a whole batch is missing, then the rest.

    A batch decides the padding and with it the last bits of every number, so a resumed run keeps the batches.
    """
    from paraguard_utils.models.engine import batches

    whole = batches(asked, size, more)
    open_ = [[request for request in group if request.prompt_id not in known] for group in whole]
    kept = [group for group, left in zip(whole, open_, strict=True) if len(left) == len(group)]
    rest = [request for group, left in zip(whole, open_, strict=True) if len(left) < len(group) for request in left]
    return kept + batches(rest, size, more)


def recorded_traces(
    store: Store,
    corpus_name: str,
    corpus: pd.DataFrame,
    target: str,
    decoding: Decoding | None = None,
    dtype: str | None = None,
) -> schemas.Traces:
    """Read a target's traces and check that they answer this corpus.

    Keys are recomputed from the meta file, so that no weights are needed.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus : DataFrame
    target : str
    decoding : Decoding or None
    dtype : str or None
        Also checked where given.

    Returns
    -------
    DataFrame
        Traces in corpus order.

    Raises
    ------
    Missing
        No trace file.
    DataError
        A prompt is not in it, or its key differs; the message says in which part.
    """
    path = store.path("traces", corpus_name, target)
    traces = store.read("traces", corpus_name, target).set_index("prompt_id")
    meta = stores.read_meta(path)
    where = paths.shown(path)
    if not set(IDENTITY) <= set(meta):
        raise DataError(f"{where}: its meta file is missing; restore it beside the traces")
    kept = prompting.decoding_of(meta["decoding"])
    text = registry.wrappers().get(meta["wrapper"], {}).get("text")
    if text != meta["wrapper_text"]:
        raise DataError(f"{where}: the wrapper {meta['wrapper']!r} has another text than when it was asked; ask again")
    if decoding is not None and decoding != kept:
        raise DataError(f"{where}: the decoding differs: {kept} there, {decoding} asked for; use a live store")
    if dtype is not None and dtype != meta["dtype"]:
        raise DataError(f"{where}: the dtype differs: {meta['dtype']} there, {dtype} asked for; use a live store")
    packaged = {loading.packaged_name(name): file.sha256 for name, file in loading.PACKAGED.items()}
    model_name = prompting.model_of(target)
    if packaged.get(model_name, meta["weights_id"]) != meta["weights_id"]:
        raise DataError(
            f"{where}: the weights differ from those of the packaged {model_name}; ask again in a live store"
        )
    context = PromptContext(meta["weights_id"], meta["dtype"], meta["prefix"], meta["suffix"], kept)
    for row in corpus.itertuples():
        if row.prompt_id not in traces.index:
            raise DataError(f"{where}: prompt {row.prompt_id} is not in it; run 02_querying with a live store")
        if traces.at[row.prompt_id, "key"] != context.key(row.text):
            raise DataError(
                f"{where}: prompt {row.prompt_id} had another text when it was asked; ask again in a live store"
            )
    return traces.loc[corpus["prompt_id"]].reset_index()


def keep_tokens(store: Store, model: loading.Model, traces: Iterable[schemas.Traces]) -> None:
    """Write the text and input embedding of every user token that occurs, so that Drift needs no weights.

    Parameters
    ----------
    store : stores.Store
        A live store. Tokens of earlier corpora stay in its file.
    model : loading.Model
    traces : iterable of DataFrame
    """
    found = set(itertools.chain.from_iterable(user_tokens(frame) for frame in traces))
    if store.has("tokens", model.name):
        found |= set(store.read("tokens", model.name)["token_id"])
    ids = sorted(found)
    weight = model.network.get_input_embeddings().get_parameter("weight")
    table = weight.detach()[ids].float().cpu().numpy().astype(np.float16)
    # A token may be part of a character: what cannot be decoded alone is U+FFFD.
    words = [readable(str(model.tokenizer.decode([number]))) for number in ids]
    frame = pd.DataFrame({"token_id": ids, "text": words, "embedding": list(table)})
    store.write("tokens", model.name, frame=frame, meta={"model": model.name, "weights_id": model.weights_id})


def user_tokens(traces: schemas.Traces) -> Iterator[int]:
    """Yield every token id of the user's own words in a trace frame."""
    for row in traces.itertuples():
        yield from row.token_ids[row.user_start : row.user_end].tolist()


def find_targets(store: Store, corpus_name: str, model: str) -> list[str]:
    """Return the targets in a store that were asked with this `model` parameter, in wrapper order; needs no weights."""
    folder = store.path("traces", corpus_name, "x").parent
    asked = {file.stem: stores.read_meta(file) for file in folder.glob("*.parquet")}
    return [
        name
        for wrapper in registry.wrappers()
        for name, meta in sorted(asked.items())
        if meta.get("model") == model and meta["wrapper"] == wrapper
    ]
