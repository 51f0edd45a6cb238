"""The guards that people deploy: a hub id, a local folder or an endpoint, described by
an entry of `data/guards.yaml`.

A text is data: a control token's string inside it is made plain text
(`prompting.defuse_control_strings`). If a text imitates a prompt's plain words, such as
the line that ends a conversation, no tokenizer can tell them from its own.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paraguard_tools.guards import formats
from paraguard_tools.guards.formats import GuardEntry, ServiceCall
from paraguard_tools.servers import served
from paraguard_utils.errors import DataError, ModelError
from paraguard_utils.guards.contract import Guard, GuardNotes, GuardScorer
from paraguard_utils.models import loading, prompting
from paraguard_utils.settings import SERVED_PREFIX

SERVICE_RETRIES = 2  # of a call to a moderation service


def match_guard_entry(
    name: str, entries: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the first of the entries (section `deployed` of `data/guards.yaml`) with a
    pattern that a name matches.

    The name is a hub id or a local folder, of which the last part is compared unless it
    is a hub's snapshot; behind a colon may stand another reading of the same weights.
    """
    where, _, interpretation = name.partition(":")
    folder = Path(where).expanduser()
    own = loading.folder_model_id(folder) if folder.is_dir() else where
    by_last_part = folder.is_dir() and "/" not in own
    for entry in entries.values():
        hosted = entry.get("kind") in ("endpoint", "any_guardrail")  # by no folder
        for pattern in () if hosted and folder.is_dir() else entry.get("match", ()):
            wanted, _, other = pattern.lower().partition(":")
            wanted = wanted.rpartition("/")[2] if by_last_part else wanted
            if interpretation == other and fnmatchcase(own.lower(), wanted):
                return entry
    return None


def load_deployed_guard(
    name: str,
    raw: Mapping[str, Any],
    device: str = "cpu",
    dtype: str = "float32",
    batch: int = 16,
    base_url: str = "",
) -> Guard:
    """Load a guard that people deploy, with its `raw` entry as in the section
    `deployed` of `data/guards.yaml`.

    `name` is a hub id, a local folder, the model of a service, or `openai/` and the
    name of a model at the server `base_url`. A classifier has the precision of its
    weights, whatever `dtype` says. A service's address is `base_url`, or that of its
    entry. Raise SettingsError where the entry is not complete, and ModelError where the
    model cannot be loaded, lacks a token or a label that the entry names, or cannot be
    asked.
    """
    where, _, interpretation = name.partition(":")
    entry = formats.parse_guard_entry(name, raw)
    if entry.kind == "refused":
        raise ModelError(f"the guard {name} cannot be asked: {entry.about}")
    notes, own, weights = GuardNotes(), where.rpartition("/")[2], where
    how = f"{len(entry.runs)} times each, on {device} in {dtype}, {batch} at a time"
    if entry.call:
        score, how = (
            _service(name, entry.call, batch, base_url),
            "by a service that may charge for it",
        )
    elif entry.kind == "any_guardrail":
        score, how = _any_guardrail(name, entry), "by any-guardrail"
    elif base_url and where.startswith(SERVED_PREFIX):
        backend = served.ServerBackend(where.removeprefix(SERVED_PREFIX), base_url)
        own, weights, score = (
            backend.name,
            backend.weights_id,
            _served(name, entry, backend, notes),
        )
        how = f"{len(entry.runs)} times each, at {base_url}"
    else:
        loading.check_device(device)
        source = loading.resolve_model(where)
        own, weights = source.name, source.weights_id[:16]
        if entry.kind == "classifier":
            score = _classifier(name, entry, source, batch, device, notes)
        else:
            model = loading.load_model(
                source, dtype, device, "plain" if entry.template else "error"
            )
            judges = [
                PromptedGuard(name, one, model, batch, notes)
                for one in (entry, entry.judging_answers)
            ]

            def score(
                texts: Sequence[str], answers: Sequence[str] | None = None
            ) -> np.ndarray:
                return judges[answers is not None](texts, answers)

    shape = hashlib.sha256(f"{entry.shape} {dtype}".encode()).hexdigest()[:8]
    known_as = entry.name or (f"{own}-{interpretation}" if interpretation else own)
    version = entry.version or f"{weights} {shape}"
    return Guard(
        name=known_as,
        version=version,
        score=score,
        asks=how,
        notes=notes,
        **entry.described,
    )


class PromptedGuard:
    """Asks a guard that answers in words, about requests or answers.

    ModelError if a label is not one token.
    """

    def __init__(
        self,
        name: str,
        entry: GuardEntry,
        model: loading.LoadedModel,
        batch: int,
        notes: GuardNotes,
    ) -> None:
        assert entry.tokens is not None  # `Entry` sees to it
        self.name, self.entry, self.model, self.batch, self.notes = (
            name,
            entry,
            model,
            batch,
            notes,
        )
        self.room = loading.count_positions(model.network, model.tokenizer)
        self.room -= 0 if entry.kind == "first_token" else entry.max_new_tokens
        frame = self.prompt(
            "x", "x", entry.runs[0]
        )  # a request and an answer that stand for any
        self.controls = prompting.find_control_strings(model.tokenizer, frame)
        resolve = partial(_token, name, model, frame + entry.before)
        self.unsafe, self.safe = (
            list(map(resolve, strings))
            for strings in (entry.tokens.unsafe, entry.tokens.safe)
        )

    def __call__(
        self, texts: Sequence[str], answers: Sequence[str] | None = None
    ) -> np.ndarray:
        """Return one probability a text: the greatest of its runs.

        NaN where an output cannot be read.
        """
        answers = [""] * len(texts) if answers is None else answers
        defused = partial(prompting.defuse_control_strings, strings=self.controls)
        pairs = list(zip(map(defused, texts), map(defused, answers), strict=True))
        found = np.full((len(self.entry.runs), len(texts)), np.nan)
        for row, run in zip(found, self.entry.runs, strict=True):
            prompts = [
                self._fitted(text, *pair, run)
                for text, pair in zip(texts, pairs, strict=True)
            ]
            row[:], masses = self._run(prompts)
            for text, mass in zip(texts, masses, strict=True):
                self.notes.note_mass(text, mass)
        return found.max(axis=0)

    def _fitted(
        self, asked: str, text: str, answer: str, run: Mapping[str, Any]
    ) -> str:
        """Return a prompt that the model can hold: the longer of text and answer loses
        its end, which is noted.
        """
        count: Any = partial(self.model.tokenizer.__call__, add_special_tokens=False)
        prompt = self.prompt(text, answer, run)
        while (over := len(count(prompt)["input_ids"]) - self.room) > 0:
            self.notes.cut.add(asked)
            longer = max(text, answer, key=len)
            ends = [
                end
                for _, end in count(longer, return_offsets_mapping=True)[
                    "offset_mapping"
                ]
            ]
            if len(ends) < 2:
                raise ModelError(
                    f"the guard {self.name}: {self.model.name} cannot hold its"
                    " instruction alone"
                )
            kept = longer[: ends[max(len(ends) - over, 1) - 1]]
            text, answer = (kept, answer) if longer is text else (text, kept)
            prompt = self.prompt(text, answer, run)
        return prompt

    def prompt(self, text: str, answer: str, run: Mapping[str, Any]) -> str:
        """Return what the model reads for one text, up to where its own words begin."""
        turns, given = (
            formats.render_turns(self.entry, text, answer),
            {
                **self.entry.arguments,
                **run,
            },
        )
        rendered = prompting.render_chat(
            self.model.tokenizer, turns, self.entry.template, **given
        )
        return (
            rendered
            if rendered.endswith(self.entry.forced)
            else rendered + self.entry.forced
        )

    def _run(self, prompts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return probabilities and the labels' share of the next token's, NaN where an
        output cannot be read.
        """
        probabilities = np.full((len(prompts), 2), np.nan)
        if self.entry.kind == "first_token":
            probabilities[:] = self._next(prompts)
        else:
            verdicts = [
                formats.read_verdict(self.entry, output)
                for output in self._written(prompts)
            ]
            read = [(i, verdict) for i, verdict in enumerate(verdicts) if verdict]
            probabilities[[i for i, _ in read]] = self._next(
                [prompts[i] + verdict.written for i, verdict in read]
            )
        masses = probabilities.sum(1)
        found = probabilities[:, 0] / np.where(masses > 0, masses, np.nan)
        return np.where(masses >= self.entry.least, found, np.nan), masses

    def _next(self, prompts: list[str]) -> np.ndarray:
        """Return the probabilities that the next token is an unsafe label's and a safe
        one's, shape (prompts, 2).
        """
        import torch

        from paraguard_utils.models.cpu import FittedThreads

        found = np.empty((len(prompts), 2))
        network = self.model.network
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        with torch.inference_mode(), FittedThreads(network.device):
            for start in range(0, len(order), self.batch):
                rows = order[start : start + self.batch]
                ids = self.model.tokenizer(
                    [prompts[i] for i in rows], add_special_tokens=False
                )["input_ids"]
                wide = max(map(len, ids))  # padding stands on the left
                padded = torch.tensor(
                    [[0] * (wide - len(row)) + row for row in ids],
                    device=network.device,
                )
                mask = torch.tensor(
                    [[0] * (wide - len(row)) + [1] * len(row) for row in ids],
                    device=network.device,
                )
                places = (mask.cumsum(1) - 1).clamp(min=0)
                given = {
                    "input_ids": padded,
                    "attention_mask": mask,
                    "position_ids": places,
                }
                logits = network(**given, use_cache=False, logits_to_keep=1).logits[
                    :, -1
                ]
                last = torch.softmax(logits.double(), dim=-1)
                found[rows] = (
                    torch.stack(
                        [last[:, own].sum(1) for own in (self.unsafe, self.safe)], 1
                    )
                    .cpu()
                    .numpy()
                )
        return found

    def _written(self, prompts: list[str]) -> list[str]:
        """Return what the model writes by greedy decoding, with its control tokens."""
        if not prompts:
            return []
        from paraguard_utils.models.engine import ask_in_batches

        ids = self.model.tokenizer(prompts, add_special_tokens=False)["input_ids"]
        asked = [
            prompting.Request(str(i), "", tuple(row), len(row) - 1, len(row))
            for i, row in enumerate(ids)
        ]
        rows = ask_in_batches(
            self.model, asked, self.batch, self.entry.max_new_tokens, raw=True
        )
        return [row["response"] for row in rows]


def _token(name: str, model: loading.LoadedModel, before: str, string: str) -> int:
    """Return the one token that a string is behind what stands before it in a prompt."""
    tokenizer = model.tokenizer
    found = tokenizer(
        before + string, add_special_tokens=False, return_offsets_mapping=True
    )
    pairs = zip(found["input_ids"], found["offset_mapping"], strict=True)
    # It does not matter how the text before is cut into tokens, but none may reach into
    # the string.
    own = [(token, start) for token, (start, end) in pairs if end > len(before)]
    if (
        len(own) == 1
        and own[0][1] >= len(before)
        and str(tokenizer.decode([own[0][0]])).strip() == string.strip()
    ):
        return int(own[0][0])
    pieces = " + ".join(repr(str(tokenizer.decode([token]))) for token, _ in own)
    raise ModelError(
        f"the guard {name}: {string!r} is not one token of the tokenizer of"
        f" {model.name} behind {before[-12:]!r} (it reads {pieces or 'nothing'}); name"
        " its first token under `tokens` in an entry of your own, or load the weights"
        " that the entry is for"
    )


def _classifier(
    name: str,
    entry: GuardEntry,
    source: loading.ModelSource,
    batch: int,
    device: str,
    notes: GuardNotes,
) -> GuardScorer:
    """Score by the sum of a classifier's unsafe labels, or the greatest if independent.

    It reads answers alone.
    """
    model = loading.TextClassifier(
        source, batch, device, entry.independent, entry.respace
    )
    wanted = {label.casefold() for label in entry.labels}
    columns = [i for i, label in enumerate(model.labels) if label.casefold() in wanted]
    if not columns or (len(columns) == len(model.labels) > 1 and not model.independent):
        remedy = "name them under `labels` in an entry of your own"
        if columns:  # all are, and of a softmax their sum is 1
            remedy = (
                "if each stands alone, say `independent: true` in an entry of your own;"
                " if not, " + remedy
            )
        known = ", ".join(model.labels)
        raise ModelError(
            f"the guard {name}: it is not known which of the labels {known} are the"
            f" unsafe ones; {remedy}"
        )

    def score(texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
        rows = model.classify(texts if answers is None else answers)[:, columns]
        notes.cut.update(model.cut)
        return rows.max(1) if model.independent else rows.sum(1).clip(0, 1)

    return score


def _served(
    name: str, entry: GuardEntry, backend: served.ServerBackend, notes: GuardNotes
) -> GuardScorer:
    """Return the scorer of a guard behind a server, whose own chat template is used.

    Its answer is generated.
    """
    if entry.template or entry.tokens is None:
        raise ModelError(
            f"the guard {name} cannot be asked at a server: it needs a prompt of ours,"
            " or a classifier"
        )

    def judge(one: GuardEntry, text: str, answer: str) -> float:
        found = []
        for run in one.runs:
            more = {
                key: value
                for key, value in {**one.arguments, **run}.items()
                if key != "add_generation_prompt"
            }
            turns = formats.render_turns(one, text, answer)
            choice = backend.ask_turns(
                turns,
                one.max_new_tokens,
                {"chat_template_kwargs": more} if more else {},
            )
            probability, mass = formats.read_choice(one, choice)
            notes.note_mass(text, mass)
            found.append(probability)
        return float(np.max(found))

    def score(
        texts: Sequence[str], answers: Sequence[str] | None = None
    ) -> list[float]:
        one = entry if answers is None else entry.judging_answers
        with ThreadPoolExecutor(backend.concurrency) as pool:
            return list(
                pool.map(
                    partial(judge, one),
                    texts,
                    [""] * len(texts) if answers is None else answers,
                )
            )

    return score


def _any_guardrail(name: str, entry: GuardEntry) -> GuardScorer:
    """Return the scorer of a guard of the package any-guardrail: its score where that
    is a probability, else 1 or 0.
    """
    filled = partial(
        formats.fill_template, model=name.partition(":")[0].rpartition("/")[2]
    )
    try:
        from any_guardrail import AnyGuardrail, GuardrailName

        guard = AnyGuardrail.create(
            GuardrailName(filled(entry.guardrail)), **filled(entry.options)
        )
    # The package, or an extra of it, is missing, or the guard fails in its own way
    except Exception as error:
        raise ModelError(
            f"the guard {name}: any-guardrail cannot make it"
            f" ({loading.first_error_line(error)}); it is installed by: python -m pip"
            " install 'paraguard-utils[any-guardrail]'"
        ) from error

    def judge(*texts: str) -> float:
        found = guard.validate(*texts)
        if (found.extra or {}).get("parse_failure"):
            return np.nan
        return (
            found.score
            if found.score is not None and 0 <= found.score <= 1
            else float(not found.valid)
        )

    def score(
        texts: Sequence[str], answers: Sequence[str] | None = None
    ) -> list[float]:
        return [
            judge(*asked)
            for asked in (
                zip(texts) if answers is None else zip(texts, answers, strict=True)
            )
        ]

    return score


def _service(name: str, call: ServiceCall, batch: int, base_url: str) -> GuardScorer:
    """Return a moderation service's scorer; NaN for a text that it rejects.

    No message holds the key.
    """
    base, key = (
        base_url or os.environ.get(call.variable) or call.base,
        os.environ.get(call.key, "").strip(),
    )
    if not base or not key:
        missing = f"key; set {call.key}" if base else f"address; set {call.variable}"
        raise ModelError(f"the guard {name}: its service has no {missing}")
    client = served.ServerBackend(
        name, base
    ).client  # it asks, and asks again, any service
    import openai

    headers = {
        "Authorization": openai.Omit(),
        **formats.fill_template(call.headers, key=key),
    }
    options: Any = {"headers": headers, "max_retries": SERVICE_RETRIES}
    fill = partial(
        formats.fill_template,
        call.body,
        model=name.partition(":")[0].rpartition("/")[2],
    )

    def ask(texts: list[str]) -> list[float]:
        try:
            reply: Any = client.post(
                call.path,
                cast_to=object,
                body=fill(texts=texts, text=texts[0]),
                options=options,
            )
            results = reply[call.results] if call.results else [reply]
        except (
            openai.BadRequestError,
            openai.UnprocessableEntityError,
        ):  # one of the texts may be why
            return (
                [np.nan]
                if len(texts) == 1
                else [value for text in texts for value in ask([text])]
            )
        except openai.OpenAIError as error:
            raise ModelError(
                f"the guard {name}: the service {base} cannot be asked"
                f" ({type(error).__name__}); see {call.variable} and {call.key}"
            ) from None
        except (ValueError, KeyError, TypeError):
            results = None
        if not isinstance(results, list) or len(results) != len(texts):
            said = (
                f"{len(results)} results"
                if isinstance(results, list)
                else "no list of results"
            )
            raise DataError(
                f"the guard {name}: the service {base} was given {len(texts)} texts and"
                f" returned {said}"
            )
        return [formats.read_service_score(call, result) for result in results]

    def score(
        texts: Sequence[str], answers: Sequence[str] | None = None
    ) -> list[float]:
        judged, size = (
            list(texts if answers is None else answers),
            (batch if call.results else 1),
        )
        return [
            value
            for start in range(0, len(judged), size)
            for value in ask(judged[start : start + size])
        ]

    return score
