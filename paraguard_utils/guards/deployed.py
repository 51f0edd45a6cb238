"""The guards that people deploy: a hub id, a local folder or an endpoint, described by an entry of `data/guards.yaml`.

The score of a guard that answers in words is the probability of its unsafe labels' first tokens against that of its
safe ones', where its answer begins (`first_token`) or where it wrote its label (`regex`, `json`). A text is data: a
control token's string inside it is made plain text (`prompting.defuse_control_strings`). If a text imitates a prompt's
plain words, such as the line that ends a conversation, no tokenizer can tell them from the prompt's own.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paraguard_utils.errors import DataError, ModelError
from paraguard_utils.guards import formats
from paraguard_utils.guards.contract import Guard, GuardScorer
from paraguard_utils.guards.formats import GuardEntry
from paraguard_utils.models import loading, prompting

if TYPE_CHECKING:
    import torch

_MIN_LABEL_SHARE = 1e-4
"""Share of the next token's probability that the labels must have: below it, a guard was about to say another thing."""


def match_guard_entry(name: str, entries: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the first of the entries (section `deployed` of `data/guards.yaml`) with a pattern that a name matches.

    The name is a hub id or a local folder, of which the last part is compared unless it is a hub's snapshot; behind a
    colon may stand another reading of the same weights.
    """
    where, _, reading = name.partition(":")
    folder = Path(where).expanduser()
    own = loading.folder_model_id(folder) if folder.is_dir() else where
    by_last_part = folder.is_dir() and "/" not in own
    for entry in entries.values():
        for pattern in entry.get("match", ()):
            wanted, _, other = pattern.lower().partition(":")
            wanted = wanted.rpartition("/")[2] if by_last_part else wanted
            if reading == other and fnmatchcase(own.lower(), wanted):
                return entry
    return None


def load_deployed_guard(
    name: str,
    entry: Mapping[str, Any],
    device: str = "cpu",
    dtype: str = "float32",
    batch: int = 16,
    base_url: str | None = None,
    retries: int = 2,
) -> Guard:
    """Load a guard that people deploy, with its entry as in the section `deployed` of `data/guards.yaml`.

    `name` is a hub id, a local folder, or the model of an endpoint. A classifier has the precision of its weights,
    whatever `dtype` says. An endpoint's `base_url` is by default that of the variable OPENAI_BASE_URL, or OpenAI's;
    `retries` are those of a call to it. Raise DataError where the entry is not complete, and ModelError where the model
    cannot be loaded, lacks a token or a label that the entry names, or its endpoint cannot be asked.
    """
    where, _, reading = name.partition(":")
    checked = formats.parse_guard_entry(name, entry)
    if checked.kind == "endpoint":
        own, weights = where.rpartition("/")[2], where
        score = _endpoint(name, batch, base_url, retries)
    else:
        source = loading.resolve_model(where)
        own, weights = source.name, source.weights_id[:16]
        if checked.kind == "classifier":
            score = _classifier(name, checked, source, batch, device)
        else:
            model = loading.load_model(source, dtype, device, "plain" if checked.template else "error")
            score = _generative(name, checked, model, batch)
    shape = hashlib.sha256(f"{checked.shape} {dtype}".encode()).hexdigest()[:8]
    return Guard(
        name=checked.name or (f"{own}-{reading}" if reading else own),
        version=checked.version or f"{weights} {shape}",
        score=score,
        threshold=checked.threshold,
        axis=checked.axis,
        licence=checked.licence,
        citation=checked.citation,
        about=checked.about + (f"; unverified: {checked.unverified}" if checked.unverified else ""),
    )


def _generative(name: str, entry: GuardEntry, model: loading.LoadedModel, batch: int) -> GuardScorer:
    """Return the scorer of a guard that answers in words; a token that is missing is an error now, not later."""
    of_requests, of_answers = (PromptedGuard(name, one, model, batch) for one in (entry, entry.judging_answers))

    def score(texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
        return of_requests(texts, [""] * len(texts)) if answers is None else of_answers(texts, answers)

    return score


class PromptedGuard:
    """Asks a guard that answers in words, about requests or answers; ModelError if a label is not one token."""

    def __init__(self, name: str, entry: GuardEntry, model: loading.LoadedModel, batch: int) -> None:
        assert entry.tokens is not None  # `Entry` sees to it
        self.entry, self.model, self.batch = entry, model, batch
        frame = self.prompt("x", "x", entry.runs[0])  # a request and an answer that stand for any
        self.controls = prompting.find_control_strings(model.tokenizer, frame)
        resolve = partial(_token, name, model, frame + entry.before)
        self.unsafe, self.safe = (list(map(resolve, strings)) for strings in (entry.tokens.unsafe, entry.tokens.safe))

    def __call__(self, texts: Sequence[str], answers: Sequence[str]) -> np.ndarray:
        """Return one probability a text: the greatest of its runs; NaN where an output cannot be read."""
        pairs = [
            (
                prompting.defuse_control_strings(text, self.controls),
                prompting.defuse_control_strings(answer, self.controls),
            )
            for text, answer in zip(texts, answers, strict=True)
        ]
        runs = [self._run([self.prompt(*pair, run) for pair in pairs]) for run in self.entry.runs]
        return np.max(runs, axis=0)

    def prompt(self, text: str, answer: str, run: Mapping[str, Any]) -> str:
        """Return what the model reads for one text, up to where its own words begin."""
        tokenizer = self.model.tokenizer
        rendered = str(
            tokenizer.apply_chat_template(
                formats.render_turns(self.entry, text, answer),
                tokenize=False,
                chat_template=prompting.fix_template_date(self.entry.template or tokenizer.get_chat_template()),
                **{"date_string": prompting.TEMPLATE_DATE, **self.entry.arguments, **run},
            )
        )
        return rendered if rendered.endswith(self.entry.forced) else rendered + self.entry.forced

    def _run(self, prompts: list[str]) -> np.ndarray:
        found = np.full(len(prompts), np.nan)
        if self.entry.kind == "first_token":
            probabilities = self._next(prompts)
            read = np.flatnonzero(probabilities.sum(1) >= _MIN_LABEL_SHARE)
        else:
            verdicts = [formats.read_verdict(self.entry, output) for output in self._written(prompts)]
            read = np.array([i for i, verdict in enumerate(verdicts) if verdict], dtype=int)
            probabilities = np.full((len(prompts), 2), np.nan)
            written = [prompts[i] + verdict.written for i, verdict in enumerate(verdicts) if verdict]
            probabilities[read] = self._next(written)
        found[read] = probabilities[read, 0] / probabilities[read].sum(1)
        return found

    def _next(self, prompts: list[str]) -> np.ndarray:
        """Return the probabilities that the next token is an unsafe label's and a safe one's, shape (prompts, 2)."""
        import torch

        from paraguard_utils.models.cpu import FittedThreads

        found = np.empty((len(prompts), 2))
        network = self.model.network
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        with torch.inference_mode(), FittedThreads(network.device):
            for start in range(0, len(order), self.batch):
                rows = order[start : start + self.batch]
                ids = self.model.tokenizer([prompts[i] for i in rows], add_special_tokens=False)["input_ids"]
                last = torch.softmax(self._last_logits(ids).double(), dim=-1)
                both = torch.stack([last[:, self.unsafe].sum(1), last[:, self.safe].sum(1)], dim=1)
                found[rows] = both.cpu().numpy()
        return found

    def _last_logits(self, ids: list[list[int]]) -> "torch.Tensor":
        """Return the logits behind each prompt; prompts are padded on the left."""
        import torch

        network = self.model.network
        wide = max(map(len, ids))
        padded = torch.tensor([[0] * (wide - len(row)) + row for row in ids], device=network.device)
        mask = torch.tensor([[0] * (wide - len(row)) + [1] * len(row) for row in ids], device=network.device)
        places = (mask.cumsum(1) - 1).clamp(min=0)
        given = {"input_ids": padded, "attention_mask": mask, "position_ids": places}
        return network(**given, use_cache=False, logits_to_keep=1).logits[:, -1]

    def _written(self, prompts: list[str]) -> list[str]:
        """Return what the model writes by greedy decoding, with its control tokens."""
        if not prompts:
            return []
        from paraguard_utils.models.engine import Engine, ask_in_batches, count_shared_tokens

        more = self.entry.max_new_tokens
        ids = self.model.tokenizer(prompts, add_special_tokens=False)["input_ids"]
        asked = [prompting.Request(str(i), "", tuple(row), len(row) - 1, len(row)) for i, row in enumerate(ids)]
        engine = Engine(self.model, asked[0].token_ids[: count_shared_tokens(asked)], more, raw=True)
        return [row["response"] for row in ask_in_batches(engine, asked, self.batch, more)]


def _token(name: str, model: loading.LoadedModel, before: str, string: str) -> int:
    """Return the one token that a string is behind what stands before it in a prompt."""
    tokenizer = model.tokenizer
    found = tokenizer(before + string, add_special_tokens=False, return_offsets_mapping=True)
    pairs = zip(found["input_ids"], found["offset_mapping"], strict=True)
    # It does not matter how the text before is cut into tokens, but none may reach into the string.
    own = [(token, start) for token, (start, end) in pairs if end > len(before)]
    if len(own) == 1 and own[0][1] >= len(before) and str(tokenizer.decode([own[0][0]])).strip() == string.strip():
        return int(own[0][0])
    pieces = " + ".join(repr(str(tokenizer.decode([token]))) for token, _ in own)
    raise ModelError(
        f"the guard {name}: {string!r} is not one token of the tokenizer of {model.name} behind {before[-12:]!r} "
        f"(it reads {pieces or 'nothing'}); name its first token under `tokens` in an entry of your own, or load the "
        "weights that the entry is for"
    )


def _classifier(name: str, entry: GuardEntry, source: loading.ModelSource, batch: int, device: str) -> GuardScorer:
    """Score by the sum of a classifier's unsafe labels, or the greatest if independent; it reads answers alone."""
    model = loading.load_text_classifier(source, batch, device, entry.independent)
    wanted = {label.casefold() for label in entry.labels}
    columns = [i for i, label in enumerate(model.labels) if label.casefold() in wanted]
    if not columns or (len(columns) == len(model.labels) > 1 and not model.independent):
        raise ModelError(
            f"the guard {name}: it is not known which of the labels {', '.join(model.labels)} are the unsafe "
            "ones; name them under `labels` in an entry of your own"
        )

    def score(texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
        rows = model.classify(texts if answers is None else answers)[:, columns]
        return rows.max(1) if model.independent else rows.sum(1).clip(0, 1)

    return score


def _endpoint(name: str, batch: int, base_url: str | None, retries: int) -> GuardScorer:
    """Return a moderation endpoint's scorer: the greatest category score; NaN for a text that it rejects."""
    try:
        import openai
    except ImportError as error:
        raise ModelError(
            f"the guard {name} needs the package openai; run: python -m pip install 'paraguard-utils[endpoints]'"
        ) from error
    try:
        client = openai.OpenAI(base_url=base_url, max_retries=retries)
    except openai.OpenAIError as error:
        raise ModelError(f"the guard {name}: its endpoint has no key; set OPENAI_API_KEY") from error
    model = name.partition(":")[0].rpartition("/")[2]

    def ask(texts: list[str]) -> list[float]:
        try:
            reply = client.moderations.with_raw_response.create(model=model, input=texts)
        except (openai.BadRequestError, openai.UnprocessableEntityError):  # one of the texts may be why
            return [np.nan] if len(texts) == 1 else [value for text in texts for value in ask([text])]
        except openai.OpenAIError as error:
            raise ModelError(
                f"the guard {name}: the endpoint {client.base_url} cannot be asked ({type(error).__name__}: "
                f"{str(error).partition(chr(10))[0]}); see OPENAI_BASE_URL and OPENAI_API_KEY"
            ) from error
        try:
            results = json.loads(reply.content)["results"]
        except (ValueError, KeyError, TypeError):
            results = []
        if not isinstance(results, list) or len(results) != len(texts):
            raise DataError(
                f"the guard {name}: the endpoint {client.base_url} was given {len(texts)} texts and returned "
                f"{len(results) if isinstance(results, list) else 'no list of'} results"
            )
        return [formats.max_category_score(result) for result in results]

    def score(texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
        judged = list(texts if answers is None else answers)
        found = [value for start in range(0, len(judged), batch) for value in ask(judged[start : start + batch])]
        return np.array(found, dtype=float)

    return score
