"""Ask a model and keep its answers as resumable traces (`docs/method.md`, Asking)."""

import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import pandas as pd

from paraguard_utils import paths, registry, schemas, stores, unsafe
from paraguard_utils.errors import DataError, UserError
from paraguard_utils.models import loading, local, prompting
from paraguard_utils.models.backends import Backend
from paraguard_utils.models.prompting import Decoding, PromptContext, Sampling
from paraguard_utils.stores import WHOLE, Parts, Shard, Store
from paraguard_utils.text import replace_control

BATCH_SIZE = 64  # prompts in a batch; a kill loses one batch at most
MAX_PARTS = 200  # parts above which we merge them; a server's answers come one by one

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


class TraceParts(Parts):
    """The growing traces of one system in a live store: one part for each batch,
    compacted at the end.
    """

    def __init__(
        self, store: Store, corpus_name: str, system: str, shard: Shard = WHOLE
    ) -> None:
        super().__init__(
            store.output_path("traces", corpus_name, system), "traces", shard=shard
        )
        self.results = {"traces": self.file}  # the final files, by kind

    def add(self, rows: pd.DataFrame) -> None:
        """Write one more part; merge the parts if there are more than `MAX_PARTS`."""
        super().add(rows)
        small = sorted(self.folder.glob("part-*.parquet"))
        if (
            len(small) > MAX_PARTS
        ):  # a kill in between leaves rows twice; `done` takes one
            rows = pd.concat(self.read(), ignore_index=True)
            super().add(
                rows.drop_duplicates("prompt_id", keep="last")
            )  # one may have failed before it was answered
            for part in small:
                part.unlink(missing_ok=True)

    def done(self, keys: pd.Series) -> pd.DataFrame:
        """Return the rows already there with a wanted key (`keys`: key by prompt_id).

        No columns if there are none.
        """
        frames = self.read(self.file)
        if not frames:
            return pd.DataFrame()
        rows = pd.concat(frames, ignore_index=True)
        return _wanted(
            rows[rows["response"].notna()], keys
        )  # null: an error, or withheld while declared harmful

    def finished(self, meta: dict[str, object]) -> bool:
        """Return whether all is compacted, and meta files record how these rows were
        asked and who labelled them.
        """
        told = [*IDENTITY_FIELDS, *({"remedy", "inputs"} & meta.keys())]
        known = [
            stores.read_meta(file) for file in self.results.values() if file.is_file()
        ]
        same = [there.get(name) == meta[name] for there in known for name in told]
        return len(known) == len(self.results) and not self.files() and all(same)

    def compact(self, rows: pd.DataFrame, meta: dict[str, object]) -> None:
        """Write all rows as the final files, then remove the parts."""
        for kind, file in self.results.items():
            stores.write_file(
                file, rows[list(schemas.SCHEMAS[kind].columns)], kind, meta
            )
        self.clear()


class LabelsOnly(NamedTuple):
    """How to label answers whose text must not be kept: in memory, batch by batch."""

    # Name and version: what another one labelled is asked again, since no text is left
    # to label anew
    labeller: str
    label: Callable[[schemas.Traces], schemas.Labels]  # it keeps their order
    # Keep traces too, without the answers; they spell the prompts, so not for somebody
    # else's
    numbers: bool = True


class LabelledParts(TraceParts):
    """The growing labels of one system's answers, and its traces without the answers.

    A part holds both, so that a kill cannot separate them; at the end they become two
    files, with null text in both. The labels' meta file names the labeller and, by
    `hash_answers`, the keys of what was asked.
    """

    def __init__(
        self,
        store: Store,
        corpus_name: str,
        system: str,
        withheld: LabelsOnly,
        shard: Shard = WHOLE,
    ) -> None:
        kinds = ("labels", "traces") if withheld.numbers else ("labels",)
        self.withheld, self.results = (
            withheld,
            {kind: store.output_path(kind, corpus_name, system) for kind in kinds},
        )
        Parts.__init__(self, self.results[kinds[-1]], "labelled", "labelled", shard)

    def done(self, keys: pd.Series) -> pd.DataFrame:
        """Return rows with a wanted key and this labeller's label.

        DataError if answers were kept before.
        """
        frames = [*self._compacted(keys), *self.read()]
        if not frames:
            return pd.DataFrame()
        rows = _wanted(pd.concat(frames, ignore_index=True), keys)
        rows = (
            rows[rows["finish_reason"] != "error"]
            if "finish_reason" in rows
            else rows[rows["rule"] != "error"]
        )
        ours = rows["labeller"] == self.withheld.labeller
        if not ours.all():
            earlier = ", ".join(sorted(set(rows.loc[~ours, "labeller"])))
            said = (
                f"labelled by {earlier}, not by {self.withheld.labeller}, and not kept:"
                " they are asked again"
            )
            print(
                f"{self.file.stem}: {int((~ours).sum())} answers were {said}",
                file=sys.stderr,
            )
        return rows[ours]

    def _compacted(self, keys: pd.Series) -> list[pd.DataFrame]:
        """Return the rows of the compacted files if all can be read and their labels
        describe what was asked.
        """
        found = {}
        for kind, file in reversed(self.results.items()):
            if file.is_file():
                try:
                    found[kind] = stores.read_file(file, kind)
                except DataError as error:
                    print(f"{error}; what it held is made again", file=sys.stderr)
        holding = [
            self.results[kind]
            for kind, rows in found.items()
            if rows["response"].notna().any()
        ]
        if Parts(self.file, "traces").files():
            holding.append(self.file.with_suffix(".parts"))
        if holding:
            name, store = (
                self.results["labels"].parent.name,
                self.results["labels"].parents[2],
            )
            folders = [
                path
                for path in store.glob("*/*")
                if path.is_dir() and path.name.partition("--")[0] == name
            ]
            raise DataError(
                f"{paths.display_path(holding[0])} holds answers, asked before {name}"
                " was declared to ask for harm; remove"
                f" {', '.join(sorted(map(paths.display_path, folders)))} and the tables"
                " and notebooks made of them, and ask again"
            )
        if len(found) < len(self.results):
            return []
        # Without traces the keys are kept as a hash only.
        facts = found.get(
            "traces",
            keys.rename("key")
            .rename_axis("prompt_id")
            .reset_index()
            .assign(response=None),
        )
        if stores.read_meta(self.results["labels"]).get("inputs", {}).get(
            "traces"
        ) != hash_answers(facts):
            return []
        return [facts.merge(found["labels"].drop(columns="response"), on="prompt_id")]

    def label(self, rows: schemas.Traces) -> pd.DataFrame:
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
        made = labels.drop(columns=["prompt_id", "response"]).set_axis(rows.index)
        return kept.assign(response=None, **dict(made.items()))

    def compact(self, rows: pd.DataFrame, meta: dict[str, object]) -> None:
        """Write all rows as the system's labels and, if they are kept, its traces.

        Then remove the parts.
        """
        self.add(rows)  # a kill may leave one file of two: the parts still have all
        super().compact(rows, meta)


def _wanted(rows: pd.DataFrame, keys: pd.Series) -> pd.DataFrame:
    """Return the last row of each prompt with its wanted key."""
    return rows[rows["prompt_id"].map(keys).eq(rows["key"])].drop_duplicates(
        "prompt_id", keep="last"
    )


def hash_answers(traces: schemas.Traces) -> str:
    """Return the hash that ties labels to the answers that they describe, or to the
    keys of those that are not kept.
    """
    return stores.frame_hash(
        traces[["prompt_id", "key", "response"]].sort_values("prompt_id")
    )


def hash_keys(context: PromptContext, corpus: pd.DataFrame) -> str:
    """Return the `hash_answers` of answers to these prompts that are not kept: it
    depends on their keys only.
    """
    return hash_answers(
        corpus.assign(key=[context.key(text) for text in corpus["text"]], response=None)
    )


def query_model(
    store: Store,
    corpus_name: str,
    corpus: pd.DataFrame,
    model: Backend | loading.LoadedModel,
    system_prompt: str,
    decoding: Decoding = Decoding(),
    batch: int = BATCH_SIZE,
    withheld: LabelsOnly | None = None,
    shard: Shard = WHOLE,
    trial: bool = False,
) -> schemas.Traces:
    """Ask a model every prompt that a live store lacks of a corpus, under a system
    prompt of `registry.system prompts`.

    The corpus has prompt_id, text and what says whether it asks for harm
    (`unsafe.asks_for_harm`); if it does, `withheld` labels the answers, and labels are
    kept beside the traces. A `shard` asks its part of the batches and leaves the rows
    as parts; `WHOLE` asks what no shard in the store has asked, and merges all. Of a
    `trial`, the beginning of a corpus, the rows stay parts.

    Returns traces in corpus order, with `response` null if withheld, or labels if
    traces are not kept either; a shard returns its own only, and a model asked by files
    what it has answered. A thinking block that the chat template opens is part of the
    answer. Another process that writes this system, a prompt that cannot be asked, or
    an answer that would be kept and must not be raise `DataError`.
    """
    if withheld is None:
        unsafe.refuse_unsafe(corpus, f"{corpus_name}: asking for answers to keep")
    respondent = (
        local.LocalBackend(model) if isinstance(model, loading.LoadedModel) else model
    )
    prompting.check_prompts(corpus, respondent.tokenizer)
    text = registry.read_system_prompt(system_prompt)
    context = respondent.context(text, decoding)
    keys = pd.Series(
        [context.key(prompt) for prompt in corpus["text"]],
        index=corpus["prompt_id"],
        dtype=object,
    )
    system = prompting.make_system_name(respondent.name, system_prompt)
    place = (store, corpus_name, system)
    with (
        LabelledParts(*place, withheld, shard)
        if withheld
        else TraceParts(*place, shard)
    ) as traces:
        done = traces.done(keys)
        known, new, started = set(done.get("prompt_id", ())), [], time.monotonic()
        for rows in respondent.answers(corpus, context, system, known, batch, shard):
            new.append(
                traces.label(rows) if isinstance(traces, LabelledParts) else rows
            )
            traces.add(new[-1])
        columns = list(
            schemas.SCHEMAS[
                "traces" if "traces" in traces.results else "labels"
            ].columns
        )
        rows = pd.concat([done, *new], ignore_index=True)
        if (
            rows.empty
        ):  # a shard with nothing in it, or requests that nobody has answered yet
            return pd.DataFrame(columns=columns)
        rows = schemas.select_prompts(
            rows, corpus[corpus["prompt_id"].isin(rows["prompt_id"])]
        )
        meta: dict[str, Any] = {
            "system": system,
            "model": respondent.argument,
            "instruction": system_prompt,
        }
        meta |= {
            "system_prompt_text": text,
            **asdict(context),
            **respondent.facts(rows),
        }
        meta["corpus"] = stores.frame_hash(corpus[["prompt_id", "text"]])
        meta |= {
            "asked_now": sum(map(len, new)),
            "seconds": round(time.monotonic() - started, 1),
        }
        meta["peak_gb"] = round(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2
        )
        if withheld:
            meta["inputs"] = {
                "traces": hash_answers(rows),
                "labeller": withheld.labeller,
            }
        if (
            shard == WHOLE
            and not trial
            and len(rows) == len(corpus)
            and (new or not traces.finished(meta))
        ):
            traces.compact(rows, meta)
    return rows[columns]


def read_traces(
    store: Store,
    corpus_name: str,
    corpus: pd.DataFrame,
    system: str,
    decoding: Decoding | None = None,
    dtype: str = "",
) -> schemas.Traces:
    """Read a system's traces in corpus order, and check that they answer this corpus
    with this decoding and dtype.

    Keys are recomputed from the meta file, without weights; None or "" is not checked.
    Without a trace file this raises `Missing`; if a prompt is not in it, or its key
    differs, `DataError`, which says which part of the key differs.
    """
    path = store.path("traces", corpus_name, system)
    traces = store.read("traces", corpus_name, system).set_index("prompt_id")
    where = paths.display_path(path)
    context = context_from_meta(stores.read_meta(path), where)
    for name, there, wanted in (
        ("decoding", context.decoding, decoding),
        ("dtype", context.dtype, dtype),
    ):
        if wanted and wanted != there:
            raise DataError(
                f"{where}: the {name} differs: {there} there, {wanted} asked for; use a"
                " live store"
            )
    packaged = {
        loading.packaged_model_name(name): file.sha256
        for name, file in loading.PACKAGED_MODELS.items()
    }
    model_name = prompting.model_of_system(system)
    if packaged.get(model_name, context.weights_id) != context.weights_id:
        raise DataError(
            f"{where}: the weights differ from those of the packaged {model_name}; ask"
            " again in a live store"
        )
    keys = traces["key"].to_dict()
    for prompt_id, text in zip(
        corpus["prompt_id"].tolist(), corpus["text"].tolist(), strict=True
    ):
        if prompt_id not in keys:
            raise DataError(
                f"{where}: prompt {prompt_id} is not in it; run 02_querying with a live"
                " store"
            )
        if keys[prompt_id] != context.key(text):
            raise DataError(
                f"{where}: prompt {prompt_id} had another text when it was asked; ask"
                " again in a live store"
            )
    return traces.loc[corpus["prompt_id"]].reset_index()


def asking_cost(
    store: Store, corpus_name: str, system: str, prompts: int
) -> dict[str, float]:
    """Return the `minutes` that asking all prompts takes, by a system's last run, and
    its memory in `gb`; or {}.
    """
    meta = stores.read_meta(store.path("traces", corpus_name, system))
    if not meta.get("asked_now"):
        return {}
    return {
        "minutes": meta["seconds"] / meta["asked_now"] * prompts / 60,
        "gb": meta["peak_gb"],
    }


def context_from_meta(meta: Mapping[str, Any], where: str) -> PromptContext:
    """Return how prompts were asked by a meta file.

    Raise `DataError` if it lacks that or the system prompt changed since.
    """
    if not set(IDENTITY_FIELDS) <= set(meta):
        raise DataError(
            f"{where}: its meta file is missing; restore it beside the traces"
        )
    text = registry.system_prompts().get(meta["instruction"], {}).get("text")
    if text != meta["system_prompt_text"]:
        raise DataError(
            f"{where}: the system prompt {meta['instruction']!r} has another text than when"
            " it was asked; ask again"
        )
    how = meta["decoding"]
    decoding = (Sampling if how.get("method") == Sampling.method else Decoding)(**how)
    return PromptContext(
        meta["weights_id"], meta["dtype"], meta["prefix"], meta["suffix"], decoding
    )


def write_tokens(
    store: Store, model: local.WeightsBackend, traces: Iterable[schemas.Traces]
) -> None:
    """Add text and input embedding of every user token in traces to a live store, so
    that Drift needs no weights.
    """
    rows = (row for frame in traces for row in frame.itertuples())
    found = {
        token
        for row in rows
        for token in row.token_ids[row.user_start : row.user_end].tolist()
    }
    if store.has("tokens", model.name):
        found |= set(store.read("tokens", model.name)["token_id"])
    ids = sorted(found)
    # A token may be part of a character: alone it decodes to U+FFFD.
    words = [
        replace_control(str(model.reader.tokenizer.decode([number]))) for number in ids
    ]
    frame = pd.DataFrame(
        {"token_id": ids, "text": words, "embedding": list(model.embeddings(ids))}
    )
    store.write(
        "tokens",
        model.name,
        frame=frame,
        meta={"model": model.name, "weights_id": model.reader.weights_id},
    )


def find_systems(store: Store, corpus_name: str, model: str) -> list[str]:
    """Return the systems in a store that were asked with this `model` parameter, in the
    order of system prompts.
    """
    folder = store.path("traces", corpus_name, "x").parent
    asked = {file.stem: stores.read_meta(file) for file in folder.glob("*.parquet")}
    order = list(registry.system_prompts())
    own = [
        name
        for name, meta in asked.items()
        if meta.get("model") == model and meta["instruction"] in order
    ]
    return sorted(own, key=lambda name: (order.index(asked[name]["instruction"]), name))
