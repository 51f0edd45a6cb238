"""A model that writes candidates, and another that judges whether they keep the intent (`docs/method.md`, Corpus).

Both are whatever can be asked: local weights, a server, or files of requests. The judge is another model than the
writer, and is asked only about what passes every gate alone. What was answered is never asked again.
"""

import hashlib
import json
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from paraguard_utils import stores
from paraguard_utils.core.estimates import SEED
from paraguard_utils.corpus import fidelity, gates, paraphrase
from paraguard_utils.errors import Missing, SettingsError
from paraguard_utils.models import backends, loading, local, prompting, trace_store
from paraguard_utils.models.backends import Source
from paraguard_utils.models.local import Respondent
from paraguard_utils.models.prompting import Decoding, Sampling
from paraguard_utils.models.served import slug
from paraguard_utils.schemas import Seeds
from paraguard_utils.settings import MODEL, Settings

ANSWER = Decoding(max_new_tokens=96)
"""A paraphrase is longer than the 64 tokens of an answer now and then."""

REPLY = Decoding(max_new_tokens=4)
"""A judge's reply: its first word is read."""

QUESTIONS = {"same": "intent", "harmless": "harm"}
"""What the judge is asked (`model_prompts.yaml`), and the reason of a candidate for which it says no."""

WORDS = ("yes", "no")

CANDIDATES, AUDIT = "writer_candidates", "writer_audit"
"""Tables: every candidate and what became of it, and the sheet for people."""

COLUMNS = ["generator", "seed_id", "strategy", "text", "similarity", "overlap", "content_overlap", "risk", "reason"]
"""Columns of the first."""


@dataclass(frozen=True)
class Authors:
    """Who writes candidates and who judges their intent, found but not yet loaded.

    Attributes
    ----------
    settings : settings.Settings
        samples, base_url and judge_base_url are used.
    writer, judge : backends.Source or None
        None: candidates come from elsewhere; nobody judges.
    """

    settings: Settings
    writer: Source | None = None
    judge: Source | None = None

    def write(self, store: stores.Store, name: str, seeds: Seeds) -> pd.DataFrame:
        """Have the writer write candidates for seeds, having said what that costs.

        Parameters
        ----------
        store : stores.Store
            A live store.
        name : str
            Of the corpus.
        seeds : DataFrame

        Returns
        -------
        DataFrame
            As of `paraphrase.drawn`, with the column generator.

        Raises
        ------
        Missing
            The store is the recorded one.
        DataError
            The seeds ask for harm.
        SystemExit
            With 0: the requests lie in files, and not all have been answered.
        """
        assert self.writer is not None
        _live(store, "a model writes candidates")
        draws = self.decodings()
        prompts = paraphrase.prompts(seeds, paraphrase.requests()["writer"])
        then = f"; then at most {2 * len(prompts) * len(draws):,} short ones to {self.judge.name}" if self.judge else ""
        _announce(self.writer.name, prompts["text"], ANSWER, len(draws), then)
        model = backends.opened(self.writer, self.settings)
        return paraphrase.drawn(store, name, seeds, model, draws).assign(generator=model.name)

    def decodings(self) -> list[Sampling]:
        """Return how the writer answers each prompt: one draw a sample."""
        return [Sampling(ANSWER.max_new_tokens, draw=draw) for draw in range(self.settings.samples)]

    def intent(self, store: stores.Store, name: str) -> gates.Intent | None:
        """Return what tells the gates whether candidates keep the intent; None where nobody judges.

        Parameters
        ----------
        store : stores.Store
            A live store; the replies are kept there as traces of the corpus `<name>-intent`.
        name : str
            Of the corpus.

        Raises
        ------
        Missing
            The store is the recorded one.
        """
        if self.judge is None:
            return None
        _live(store, "a model judges intent")
        source = self.judge

        @cache
        def model() -> Respondent:
            return backends.opened(source, self.settings)

        def judged(pairs: pd.DataFrame) -> list[str]:
            if pairs.empty:
                return []
            _announce(source.name, _questions(pairs)["text"], REPLY)
            return reasons(store, name, pairs, model())

        return judged

    def about(self) -> dict[str, Any]:
        """Return what a meta file tells of writer and judge; {} where there is neither."""
        found: dict[str, Any] = {}
        if self.writer:
            draws = self.decodings()
            found["writer"] = _identity(self.writer, "writer") | {
                "samples": len(draws),
                "seeds": [decoding.draw for decoding in draws],
                "temperature": draws[0].temperature,
                "max_new_tokens": ANSWER.max_new_tokens,
            }
        if self.judge:
            found["judge"] = _identity(self.judge, "judge") | {"max_new_tokens": REPLY.max_new_tokens}
        return found

    def keep(self, store: stores.Store, seeds: Seeds, candidates: pd.DataFrame, meta: dict[str, Any]) -> None:
        """Write all candidates with what became of them, and an audit sheet for people; nothing without an author.

        Parameters
        ----------
        store : stores.Store
        seeds, candidates : DataFrame
            From `gates.judge`.
        meta : dict
            For the meta files.

        Raises
        ------
        DataError
            The sheet that is there is of other candidates and holds marks.
        """
        if not (self.writer or self.judge):
            return
        store.write("tables", CANDIDATES, frame=candidates[COLUMNS], meta=meta)
        passing = candidates[gates.alone(candidates)]
        print(f"{len(passing)} of {len(candidates)} candidates pass alone")
        if len(passing):
            print(fidelity.write_audit(store.target_path("tables", AUDIT), seeds, passing, meta, SEED))


def authors(settings: Settings) -> Authors:
    """Find the writer and the judge that the parameters name, without loading anything.

    Parameters
    ----------
    settings : settings.Settings
        candidates (`model:NAME`: there is a writer), base_url, samples, intent_judge, judge_base_url, concurrency and
        per_minute are used.

    Returns
    -------
    Authors

    Raises
    ------
    ModelError
        There is no such model.
    SettingsError
        Both are the same model.
    """
    writer = judge = None
    if settings.candidates.startswith(MODEL):
        (writer,) = backends.sources(settings.model_copy(update={"model": settings.writer}))
    if settings.intent_judge:
        own = {"model": settings.intent_judge, "base_url": settings.judge_base_url}
        (judge,) = backends.sources(settings.model_copy(update=own))
    if writer and judge and _same(writer, judge):
        raise SettingsError(
            f"parameter 'intent_judge': {settings.intent_judge} is the model that writes; let another one judge"
        )
    return Authors(settings, writer, judge)


def _same(first: Source, second: Source) -> bool:
    """Return whether two are one model: the same weights, or, where these are unknown, the same name."""
    if isinstance(first, loading.Source) and isinstance(second, loading.Source):
        return first.weights_id == second.weights_id
    return _plain(first) == _plain(second)


def _plain(source: Source) -> str:
    """Return a model's name without its owner and a stated revision."""
    name = source.argument.removeprefix("openai/").rstrip("/").partition("@")[0]
    return slug(name.rpartition("/")[2])


def _identity(source: Source, section: str) -> dict[str, str]:
    asked = json.dumps(paraphrase.requests()[section], sort_keys=True).encode()
    digest = hashlib.sha256(asked).hexdigest()[:16]
    return {"name": source.name, "weights_id": source.weights_id, "prompts": digest}


def _live(store: stores.Store, what: str) -> None:
    if store.recorded:
        raise Missing(f"{what} in a live store only; add, for example, store=live")


def _announce(name: str, texts: pd.Series, decoding: Decoding, times: int = 1, then: str = "") -> None:
    cost = prompting.price(texts, decoding, times=times)
    print(f"{name}: {cost} (what is kept is not asked again){then}", file=sys.stderr, flush=True)


def _questions(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the judge's prompts: prompt_id, text; both questions of a pair, then those of the next.

    An id is made of the pair's texts, so that it stays when others come and go.
    """
    asked = paraphrase.requests()["judge"]
    rows = []
    for seed_id, seed, text in zip(pairs["seed_id"], pairs["seed"], pairs["text"], strict=True):
        digest = hashlib.sha256(f"{seed}\x1f{text}".encode()).hexdigest()[:16]
        rows += [(f"{seed_id}--{digest}--{name}", asked[name].format(seed=seed, text=text)) for name in QUESTIONS]
    return pd.DataFrame(rows, columns=["prompt_id", "text"])


def reasons(store: stores.Store, name: str, pairs: pd.DataFrame, model: Respondent | loading.Model) -> list[str]:
    """Ask a judge about candidates beside their seeds.

    Parameters
    ----------
    store : stores.Store
        A live store.
    name : str
        Of the corpus.
    pairs : DataFrame
        n rows: seed_id, seed (its text), text; no pair twice.
    model : local.Respondent or loading.Model

    Returns
    -------
    list of str
        n reasons: "" where both replies are yes; a value of `QUESTIONS` where one is no, the first in doubt; else
        "unparsed": a reply that is neither, or none, is no yes.

    Raises
    ------
    DataError
        The pairs ask for harm.
    SystemExit
        With 0: the requests lie in files, and not all have been answered.
    """
    respondent = local.Local(model) if isinstance(model, loading.Model) else model
    prompts = _questions(pairs)
    if isinstance(respondent, local.Local):  # what one model wrote may be a control token to the other
        strings = prompting.control_strings(respondent.model.tokenizer)
        prompts["text"] = [prompting.defused(text, strings) for text in prompts["text"]]
    traces = trace_store.query(store, f"{name}-intent", prompts, respondent, "none", REPLY)
    trace_store.end_if_waiting(len(prompts) - len(traces))
    replies = traces["response"].fillna("").str.lower().str.extract(r"\A\W*([a-z]+)")[0]
    said = replies.where(replies.isin(WORDS), "").to_numpy().reshape(-1, len(QUESTIONS))
    found = []
    for row in said:
        noes = [reason for reason, word in zip(QUESTIONS.values(), row, strict=True) if word == "no"]
        found.append(noes[0] if noes else "" if (row == "yes").all() else "unparsed")
    return found
