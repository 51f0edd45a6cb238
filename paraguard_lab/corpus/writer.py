"""A model that writes candidates, and another that judges whether they keep the intent
(`docs/method.md`, Corpus).

The judge must be another model than the writer, and is asked only about what passes
every gate alone.
"""

import hashlib
import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.corpus import paraphrase
from paraguard_utils import stores
from paraguard_utils.corpus import fidelity, gates
from paraguard_utils.errors import Missing, SettingsError
from paraguard_utils.models import backends, loading, local, prompting, trace_store
from paraguard_utils.models.prompting import Decoding, Sampling
from paraguard_utils.schemas import Seeds
from paraguard_utils.settings import MODEL_PREFIX, SERVED_PREFIX, Settings

PARAPHRASE_DECODING = Decoding(
    max_new_tokens=96
)  # some paraphrases are longer than the 64 tokens of an answer
JUDGE_DECODING = Decoding(
    max_new_tokens=4
)  # of a judge's reply only the first word is read
JUDGE_QUESTIONS = {
    "same": "intent",
    "harmless": "harm",
}  # by question, a candidate's reason where it says no
WRITER_CANDIDATES_TABLE = "writer_candidates"  # every candidate and what became of it
_WRITER_COLUMNS = "generator seed_id strategy text similarity overlap content_overlap risk reason".split()  # noqa: SIM905


@dataclass(frozen=True)
class Authors:
    """Who writes candidates and who judges their intent, found but not yet loaded.

    None where nobody does.
    """

    settings: Settings
    writer: backends.BackendSource | None = None
    judge: backends.BackendSource | None = None

    def write(self, store: stores.Store, name: str, seeds: Seeds) -> pd.DataFrame:
        """Say what it costs, then have the writer write candidates, as
        `paraphrase_by_model`, with generator.

        Raise Missing where the store is the recorded one; it raises and ends as
        `paraphrase_by_model` otherwise.
        """
        assert self.writer is not None
        _live(store, "a model writes candidates")
        tokens, samples = (
            PARAPHRASE_DECODING.max_new_tokens,
            range(self.settings.samples),
        )
        draws = {f"--draw-{draw}": Sampling(tokens, draw=draw) for draw in samples}
        prompts = paraphrase.make_paraphrase_prompts(
            seeds, paraphrase.read_model_prompts()["writer"]
        )
        then = (
            f"; then at most {2 * len(prompts) * len(draws):,} short ones to"
            f" {self.judge.name}"
            if self.judge
            else ""
        )
        _announce(
            self.writer.name, prompts["text"], PARAPHRASE_DECODING, len(draws), then
        )
        model = backends.open_backend(self.writer, self.settings)
        return paraphrase.paraphrase_by_model(
            store, name, seeds, model, "writer", draws
        ).assign(generator=model.name)

    def intent(self, store: stores.Store, name: str) -> gates.IntentJudge | None:
        """Return the function that tells the gates whether candidates keep the intent.

        None where nobody judges.

        A live store keeps the replies as traces of the corpus `<name>-intent`; the
        recorded store raises Missing.
        """
        if (judge := self.judge) is None:
            return None
        _live(store, "a model judges intent")

        def judged(pairs: pd.DataFrame) -> list[str]:
            if pairs.empty:
                return []
            _announce(judge.name, _questions(pairs)["text"], JUDGE_DECODING)
            return judge_intent(
                store, name, pairs, backends.open_backend(judge, self.settings)
            )

        return judged

    def about(self) -> dict[str, Any]:
        """Describe writer and judge for a meta file; {} where there is neither."""
        found: dict[str, Any] = {}
        if self.writer:
            samples = self.settings.samples
            draws = {
                "samples": samples,
                "seeds": list(range(samples)),
                "temperature": Sampling.temperature,
            }
            found["writer"] = (
                _identity(self.writer, "writer", PARAPHRASE_DECODING) | draws
            )
        if self.judge:
            found["judge"] = _identity(self.judge, "judge", JUDGE_DECODING)
        return found

    def keep(
        self,
        store: stores.Store,
        seeds: Seeds,
        candidates: pd.DataFrame,
        meta: dict[str, Any],
    ) -> None:
        """Write judged candidates and an audit sheet for people, if there is an author.

        DataError on a marked sheet.
        """
        if not (self.writer or self.judge):
            return
        store.write(
            "tables",
            WRITER_CANDIDATES_TABLE,
            frame=candidates[_WRITER_COLUMNS],
            meta=meta,
        )
        passing = candidates[gates.passes_alone(candidates)]
        print(f"{len(passing)} of {len(candidates)} candidates pass alone")
        if len(passing):
            print(
                fidelity.write_audit_sheet(
                    store.output_path("tables", "writer_audit"), seeds, passing, meta
                )
            )


def find_authors(settings: Settings) -> Authors:
    """Find the writer (`candidates=model:NAME`) and the judge (`intent_judge`) that the
    settings name, without loading.

    Raise ModelError where there is no such model, and SettingsError where both are the
    same.
    """
    writer = judge = None
    if settings.candidates.startswith(MODEL_PREFIX):
        (writer,) = backends.resolve_backends(
            settings.model_copy(update={"model": settings.writer})
        )
    if settings.intent_judge:
        own = {"model": settings.intent_judge, "base_url": settings.judge_base_url}
        (judge,) = backends.resolve_backends(settings.model_copy(update=own))
    if writer and judge and _model_id(writer, judge) == _model_id(judge, writer):
        same = (
            f"{settings.intent_judge} is the model that writes; let another one judge"
        )
        raise SettingsError(f"parameter 'intent_judge': {same}")
    return Authors(settings, writer, judge)


def _model_id(source: backends.BackendSource, other: backends.BackendSource) -> str:
    """Return which model it is: its weights where those of both are known, else its
    name without owner and revision.
    """
    if isinstance(source, loading.ModelSource) and isinstance(
        other, loading.ModelSource
    ):
        return source.weights_id
    name = source.argument.removeprefix(SERVED_PREFIX).rstrip("/").partition("@")[0]
    return loading.slugify_model(name.rpartition("/")[2])


def _identity(
    source: backends.BackendSource, section: str, decoding: Decoding
) -> dict[str, Any]:
    asked = json.dumps(
        paraphrase.read_model_prompts()[section], sort_keys=True
    ).encode()
    about = {
        "prompts": hashlib.sha256(asked).hexdigest()[:16],
        "max_new_tokens": decoding.max_new_tokens,
    }
    return {"name": source.name, "weights_id": source.weights_id} | about


def _live(store: stores.Store, what: str) -> None:
    if store.recorded:
        raise Missing(f"{what} in a live store only; add, for example, store=live")


def _announce(
    name: str, texts: pd.Series, decoding: Decoding, times: int = 1, then: str = ""
) -> None:
    cost = prompting.describe_cost(texts, decoding, times=times)
    print(
        f"{name}: {cost} (what is kept is not asked again){then}",
        file=sys.stderr,
        flush=True,
    )


def _questions(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the judge's prompts (prompt_id, text), pair by pair.

    Ids are made of the texts, so they always stay.
    """
    asked = paraphrase.read_model_prompts()["judge"]
    rows = []
    for seed_id, seed, text in zip(
        pairs["seed_id"], pairs["seed"], pairs["text"], strict=True
    ):
        digest = hashlib.sha256(f"{seed}\x1f{text}".encode()).hexdigest()[:16]
        rows += [
            (f"{seed_id}--{digest}--{name}", asked[name].format(seed=seed, text=text))
            for name in JUDGE_QUESTIONS
        ]
    return pd.DataFrame(rows, columns=["prompt_id", "text"])


def judge_intent(
    store: stores.Store, name: str, pairs: pd.DataFrame, model: backends.Backend
) -> list[str]:
    """Ask a judge about n candidates beside their seeds: seed_id, seed (its text),
    text; no pair twice.

    Returns n reasons: "" where both replies are yes; a value of `JUDGE_QUESTIONS` where
    one is no, the first where both are; else "unparsed", since an unclear or missing
    reply is no yes. Raises and ends as `Authors.write` does.
    """
    prompts = _questions(pairs)
    if isinstance(
        model, local.LocalBackend
    ):  # what the writer wrote may be a control token to the judge
        strings = prompting.find_control_strings(model.model.tokenizer)
        prompts["text"] = [
            prompting.defuse_control_strings(text, strings) for text in prompts["text"]
        ]
    traces = trace_store.query_model(
        store, f"{name}-intent", prompts, model, "none", JUDGE_DECODING
    )
    if len(traces) < len(prompts):
        raise SystemExit(0)  # files of requests wait to be answered
    replies = (
        traces["response"]
        .fillna("")
        .str.lower()
        .str.extract(r"\A\W*([a-z]+)")[0]
        .fillna("")
    )
    said = replies.to_numpy().reshape(-1, len(JUDGE_QUESTIONS))
    conditions = [*(said == "no").T, (said == "yes").all(axis=1)]
    return np.select(conditions, [*JUDGE_QUESTIONS.values(), ""], "unparsed").tolist()
