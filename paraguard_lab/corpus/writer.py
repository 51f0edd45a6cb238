"""Let a model write candidates, and another judge whether they keep the intent.

The judge must be another model than the writer, and is queried only about what passes
every gate alone (`docs/method.md`, Corpus).
"""

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import yaml

from paraguard_lab.core import control_strings
from paraguard_lab.core.sampling import Sampling
from paraguard_lab.corpus import fidelity, fluency, paraphrase
from paraguard_lab.parameters import MODEL_PREFIX
from paraguard_lab.report import costs
from paraguard_utils import paths, stores, unsafe
from paraguard_utils.core.strategies import STRATEGIES
from paraguard_utils.corpus import gates, inputs
from paraguard_utils.errors import Missing, SettingsError
from paraguard_utils.models import backends, loading, local, trace_store
from paraguard_utils.models.prompting import Decoding
from paraguard_utils.schemas import Candidates, Seeds
from paraguard_utils.settings import (
    SERVED_PREFIX,
    CorpusSettings,
    Gates,
    end_notebook,
)
from paraguard_utils.text import THINKING_BLOCK, replace_control

# Some paraphrases are longer than the 64 tokens of an answer
PARAPHRASE_DECODING = Decoding(max_new_tokens=96)
# Of a judge's reply only the first word is read
JUDGE_DECODING = Decoding(max_new_tokens=4)

JUDGE_QUESTIONS = {"same": "intent", "harmless": "harm"}
"""By question, the reason of a candidate for which the judge says no."""

WRITER_CANDIDATES_TABLE = "writer_candidates"  # every candidate and what became of it
_WRITER_COLUMNS = [
    "generator",
    "seed_id",
    "strategy",
    "text",
    "similarity",
    "overlap",
    "content_overlap",
    "risk",
    "reason",
]
_PREAMBLE = re.compile(
    r"(?i)^(?:sure|certainly|of"
    r" course|here|re-?written|paraphrased?|new|request|version)[^:?]*:\W*"
)


@dataclass(frozen=True, kw_only=True)
class Authors(inputs.CandidateSource):
    """Who writes candidates and who judges their intent, found but not yet loaded.

    It is what 01 reads candidates from if rules or a model write them, or a model
    judges them. `writer` and `judge` are None if nobody does.
    """

    settings: CorpusSettings
    writer: backends.BackendSource | None = None
    judge: backends.BackendSource | None = None

    def read(
        self, files: stores.CorpusFiles, seeds: Seeds, limits: Gates = Gates()
    ) -> Candidates:
        """Have candidates written for the seeds that pass the sanity gates, or read.

        Raise DataError if a model would read requests that ask for harm.
        """
        if self.writer or self.judge:
            unsafe.refuse_unsafe(seeds, "candidates written or judged by a model")
        is_sane = [not gates.sanity_reason(text, limits) for text in seeds["text"]]
        if self.writer:
            return self.write(files, seeds[is_sane])
        if self.name == paraphrase.RULES_GENERATOR:
            written = paraphrase.paraphrase_by_rules(seeds[is_sane])
            return written.assign(generator=self.name)
        return super().read(files, seeds)

    def write(self, files: stores.CorpusFiles, seeds: Seeds) -> Candidates:
        """Say what it costs, then have the writer write candidates.

        Returns the rows of `paraphrase_by_model` with generator, and raises and ends as
        it does. Raise Missing if the store is the recorded one.
        """
        assert self.writer is not None
        _require_live(files, "a model writes candidates")
        draws = {}
        for draw in range(self.settings.samples):
            sampling = Sampling(PARAPHRASE_DECODING.max_new_tokens, draw=draw)
            draws[f"--draw-{draw}"] = sampling
        prompts = make_paraphrase_prompts(seeds, read_model_prompts()["writer"])
        _announce(self.writer.name, prompts["text"], PARAPHRASE_DECODING, len(draws))
        model = self.writer.open(self.settings)
        written = paraphrase_by_model(files, seeds, model, "writer", draws)
        return written.assign(generator=model.name)

    def review(self, files: stores.CorpusFiles) -> gates.Review | None:
        """Return what judges candidates that pass the gates: intent, then fluency.

        Fluency counts for what rules write. None if nothing judges. A live store keeps
        a judge's replies as traces of the corpus `<name>-intent`; the recorded store
        raises Missing.
        """
        by_rules = self.name == paraphrase.RULES_GENERATOR
        judge = self.judge
        if judge:
            _require_live(files, "a model judges intent")

        def review_pairs(pairs: pd.DataFrame) -> pd.Series:
            reasons = pd.Series("", pairs.index)
            if judge and len(pairs):
                questions = _make_questions(pairs)["text"]
                _announce(judge.name, questions, JUDGE_DECODING)
                reasons[:] = judge_intent(files, pairs, judge.open(self.settings))
            if by_rules:
                keeps = reasons == ""
                fluent = fluency.prefer_fluent(pairs[keeps])
                reasons = pd.concat([fluent, reasons[~keeps]])
            return reasons

        return review_pairs if judge or by_rules else None

    def about(self) -> dict[str, Any]:
        """Describe writer and judge for a meta file; {} if there is neither."""
        roles = {
            "writer": (self.writer, PARAPHRASE_DECODING),
            "judge": (self.judge, JUDGE_DECODING),
        }
        described: dict[str, Any] = {}
        for role, (source, decoding) in roles.items():
            if source:
                prompts = json.dumps(read_model_prompts()[role], sort_keys=True)
                described[role] = {
                    "name": source.name,
                    "weights_id": source.weights_id,
                    "prompts": _digest(prompts),
                    "max_new_tokens": decoding.max_new_tokens,
                }
        if self.writer:
            described["writer"] |= {
                "samples": self.settings.samples,
                "seeds": list(range(self.settings.samples)),
                "temperature": Sampling.temperature,
            }
        return described

    def keep(
        self,
        files: stores.CorpusFiles,
        seeds: Seeds,
        candidates: pd.DataFrame,
        meta: Mapping[str, Any],
    ) -> None:
        """Keep judged candidates and a sheet for people, if a model writes or judges.

        Raise DataError if there is a sheet of other candidates with marks.
        """
        if not (self.writer or self.judge):
            return
        table = candidates[_WRITER_COLUMNS]
        store = files.store
        store.write("tables", WRITER_CANDIDATES_TABLE, frame=table, meta=meta)
        passing = candidates[gates.passes_alone(candidates)]
        print(f"{len(passing)} of {len(candidates)} candidates pass alone")
        if len(passing):
            path = store.output_path("tables", "writer_audit")
            print(fidelity.write_audit_sheet(path, seeds, passing, meta))


def find_authors(settings: CorpusSettings) -> Authors:
    """Find the writer and the judge that the settings name, without loading.

    The writer is `candidates=model:NAME`, the judge `intent_judge`.

    Raises
    ------
    ModelError
        There is no such model.
    SettingsError
        Both are the same model.
    """
    writer = None
    judge = None
    if settings.candidates.startswith(MODEL_PREFIX):
        names = {"model": settings.candidates.removeprefix(MODEL_PREFIX)}
        (writer,) = backends.resolve_backends(settings.model_copy(update=names))
    if settings.intent_judge:
        names = {"model": settings.intent_judge, "base_url": settings.judge_base_url}
        (judge,) = backends.resolve_backends(settings.model_copy(update=names))
    if writer and judge and _known_as(writer) & _known_as(judge):
        raise SettingsError(
            f"parameter 'intent_judge': {settings.intent_judge} is the model that"
            " writes; let another one judge"
        )
    name = settings.candidates
    return Authors(name, settings=settings, writer=writer, judge=judge)


def _known_as(source: backends.BackendSource) -> set[str]:
    """Return what a model is known by: its weights, and its name without its owner."""
    name = source.argument.removeprefix(SERVED_PREFIX).rstrip("/").partition("@")[0]
    return {source.weights_id, loading.slugify_model(name.rpartition("/")[2])}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _require_live(files: stores.CorpusFiles, what: str) -> None:
    if files.recorded:
        raise Missing(f"{what} in a live store only; add, for example, store=live")


def _announce(name: str, texts: pd.Series, decoding: Decoding, times: int = 1) -> None:
    """Say on stderr what the queries to a model will cost."""
    cost = costs.describe_cost(texts, decoding, times=times)
    print(f"{name}: {cost} (what is kept is not asked again)", file=sys.stderr)


@cache
def read_model_prompts() -> dict[str, Any]:
    """Read what models are asked.

    Keys: `writer`, a request per strategy; `judge`, its questions; `compared`, two
    requests per strategy.
    """
    path = paths.DATA / "generation" / "model_prompts.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def make_paraphrase_prompts(
    seeds: pd.DataFrame, wordings: Mapping[str, str | Sequence[str]]
) -> pd.DataFrame:
    """Return the prompts that ask a model to paraphrase seeds.

    Parameters
    ----------
    seeds : pandas.DataFrame
        Columns seed_id, text.
    wordings : mapping
        One or more wordings of the request by strategy. A strategy without one is not
        asked for.

    Returns
    -------
    pandas.DataFrame
        prompt_id (SEED--STRATEGY--NUMBER of the wording), text.
    """
    rows = []
    for seed_id, text in zip(seeds["seed_id"], seeds["text"], strict=True):
        for strategy in STRATEGIES:
            asked = np.atleast_1d(wordings.get(strategy, []))
            for number, wording in enumerate(asked.tolist()):
                prompt_id = f"{seed_id}--{strategy}--{number}"
                rows.append((prompt_id, wording.format(text=text)))
    return pd.DataFrame(rows, columns=["prompt_id", "text"])


def paraphrase_by_model(
    files: stores.CorpusFiles,
    seeds: pd.DataFrame,
    model: backends.Backend | loading.LoadedModel,
    wordings: str,
    decodings: Mapping[str, Decoding],
) -> pd.DataFrame:
    """Query a model for paraphrases of each seed in each strategy.

    Parameters
    ----------
    files : CorpusFiles
        A live store keeps the answers as traces of the corpora
        `<name>-paraphrases<key of the decoding>`.
    seeds : pandas.DataFrame
        Columns seed_id, text.
    model : Backend
    wordings : str
        A key of `read_model_prompts`: the wordings of the request.
    decodings : mapping of str to Decoding
        Each wording is asked once with each.

    Returns
    -------
    pandas.DataFrame
        seed_id, strategy, text, rule (the model's name), decoding after decoding. A
        text may come more than once; an answer that was cut off or holds no paraphrase
        is left out.

    Raises
    ------
    DataError
        The seeds ask for harm: a model might answer instead, and what it writes is
        kept.
    SystemExit
        With status 0, which ends a notebook, if the requests are in files and not all
        have been answered.
    """
    unsafe.refuse_unsafe(seeds, "paraphrases by a model")
    prompts = make_paraphrase_prompts(seeds, read_model_prompts()[wordings])
    frames = []
    for key, decoding in decodings.items():
        name = f"{files.name}-paraphrases{key}"
        frames.append(_query(files.other(name), prompts, model, decoding))
    traces = pd.concat(frames, ignore_index=True)
    if len(traces) < len(prompts) * len(frames):
        end_notebook()
    keys = traces["prompt_id"].str.rsplit("--", n=2, expand=True)
    answers = traces["response"].fillna("")  # a failed request has no response
    columns = {
        "seed_id": keys[0],
        "strategy": keys[1],
        "text": answers.map(extract_paraphrase),
        "rule": model.name,
    }
    rows = pd.DataFrame(columns)
    finished = traces["finish_reason"] == "stop"  # half a paraphrase is no paraphrase
    return rows[finished & (rows["text"] != "")].reset_index(drop=True)


def _query(
    files: stores.CorpusFiles,
    prompts: pd.DataFrame,
    model: backends.Backend | loading.LoadedModel,
    decoding: Decoding,
) -> pd.DataFrame:
    """Return the traces of prompts without a system prompt."""
    query = trace_store.Query(files, prompts, "none", decoding)
    return trace_store.query_model(model, query)


def extract_paraphrase(answer: str) -> str:
    r"""Return the first line of an answer that is no announcement, or "".

    Quotation marks around it are taken off.

    Examples
    --------
    >>> extract_paraphrase('Here is the rewritten request:\n\n"How does one end it?"')
    'How does one end it?'
    """
    text = THINKING_BLOCK.sub("", replace_control(answer))
    for line in text.splitlines():
        line = re.sub(r"^\W*(?:\d+[.)]\s+)?", "", line)
        line = _PREAMBLE.sub("", line).strip(' \t*"“”`-')
        if line and not line.endswith(":"):
            return line
    return ""


def _make_questions(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the judge's prompts (prompt_id, text), pair by pair.

    The texts make the ids, so that a pair keeps its ids.
    """
    questions = read_model_prompts()["judge"]
    rows = []
    for pair in pairs.itertuples():
        digest = _digest(f"{pair.seed}\x1f{pair.text}")
        for name in JUDGE_QUESTIONS:
            question = questions[name].format(seed=pair.seed, text=pair.text)
            rows.append((f"{pair.seed_id}--{digest}--{name}", question))
    return pd.DataFrame(rows, columns=["prompt_id", "text"])


def judge_intent(
    files: stores.CorpusFiles, pairs: pd.DataFrame, model: backends.Backend
) -> list[str]:
    """Query a judge about candidates beside their seeds.

    Parameters
    ----------
    files : CorpusFiles
        A live store keeps the replies as traces of the corpus `<name>-intent`.
    pairs : pandas.DataFrame
        n rows of seed_id, seed (its text), text; no pair twice.
    model : Backend

    Returns
    -------
    list of str
        n reasons: "" if both replies are yes; a value of `JUDGE_QUESTIONS` if one is
        no, the first if both are; else "unparsed", since an unclear or missing reply is
        no yes.

    Raises
    ------
    SystemExit
        With status 0, which ends a notebook, if the requests are in files and not all
        have been answered.
    """
    prompts = _make_questions(pairs)
    if isinstance(model, local.LocalBackend):
        # What the writer wrote may be a control token to the judge
        strings = control_strings.find_control_strings(model.model.tokenizer)
        defuse = control_strings.defuse_control_strings
        prompts["text"] = prompts["text"].map(partial(defuse, strings=strings))
    intent_files = files.other(f"{files.name}-intent")
    traces = _query(intent_files, prompts, model, JUDGE_DECODING)
    if len(traces) < len(prompts):
        end_notebook()
    replies = traces["response"].fillna("").str.lower()
    words = replies.str.extract(r"\A\W*([a-z]+)")[0].fillna("")
    words_by_pair = words.to_numpy().reshape(-1, len(JUDGE_QUESTIONS))
    conditions = [*(words_by_pair == "no").T, (words_by_pair == "yes").all(axis=1)]
    reasons = [*JUDGE_QUESTIONS.values(), ""]
    return np.select(conditions, reasons, "unparsed").tolist()
