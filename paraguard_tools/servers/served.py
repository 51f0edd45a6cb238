"""Ask a model behind an OpenAI-compatible server over HTTP (`docs/method.md`, Asking).

A server's *level* says what it returns beside its answers: `full`, the
log-probabilities of the prompt and of the first answer token; `answer tokens`, those of
the first answer token; `text`, none. We find the level by requests before the first
prompt. The API key comes from the environment and appears in no message.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from paraguard_tools.servers import stops
from paraguard_tools.servers.stops import Stop
from paraguard_utils.errors import ModelError
from paraguard_utils.models.loading import first_error_line, slugify_model
from paraguard_utils.models.prompting import (
    SERVED_SUFFIX,
    Decoding,
    PromptContext,
    count_shared,
    describe_cost,
)
from paraguard_utils.schemas import Corpus, Traces
from paraguard_utils.stores import WHOLE, Shard

if TYPE_CHECKING:
    import openai

# The environment variable with the API key; without it we ask without a key
API_KEY_VARIABLE = "OPENAI_API_KEY"
SERVED_DTYPE = "served"  # the dtype that we record for weights that we cannot see
OWN_TEMPERATURE = (  # the decoding of a model that accepts no temperature
    "the server's own temperature"
)
FILTER_FAULT = (  # the kind of fault that a provider's stop is counted as
    "content filter"
)
MAX_ATTEMPTS = 6  # attempts at a prompt before its row says `error`
MAX_FAILURES = 8  # prompts that may fail one after another before we stop asking
MAX_RETRY_AFTER = (
    300.0  # most seconds that we wait because a server asks for it by Retry-After
)
ANSWER_TIMEOUT = 600.0  # seconds until we count an answer as lost
CONNECT_TIMEOUT = 10.0  # seconds until we count a server as absent
MAX_ANSWER_BYTES = 32 * 2**20  # above which an answer counts as unreadable
DECLINED_STATUSES = (400, 422)  # by which a server declines a field of a request
REFUSED_STATUSES = (
    400,
    413,
    422,
)  # by which a server refuses one prompt, and would again, and does not itself fail

PROBES = (
    ("full", 64),
    ("full", 20),
    ("answer tokens", 20),
    ("answer tokens", 5),
    ("text", 0),
)
"""Level and number of top tokens, in the order in which we ask a server for them."""

_PROBE_TEXTS = (
    "Hello there",
    "What now",
)  # they begin and end differently: their prompts share the template alone
_NOT_TOLD = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
)  # of a missing or malformed field

_LISTS = {
    "token_ids": np.int32,
    "token_nll": np.float32,
    "next_ids": np.int32,
    "next_logprobs": np.float32,
}
EMPTY_TRACE: dict[str, Any] = {
    name: np.array([], dtype) for name, dtype in _LISTS.items()
}  # nothing was returned
EMPTY_TRACE |= {
    "response": None,
    "finish_reason": "error",
    "user_start": 0,
    "user_end": 0,
    "tail_mass": 1.0,
}


class UnusableAnswer(Exception):
    """An answer that is not JSON, without a choice, too large, cut off or no longer
    waited for, or the client's error.

    `name` is the error's, `status` the server's, 0 if it sent none, and `stop` the
    provider's stop behind it.
    """

    def __init__(
        self,
        said: str,
        fault: str = "unreadable answer",
        name: str = "",
        status: int = 0,
        stop: Stop | None = None,
    ) -> None:
        super().__init__(said)
        self.fault, self.name, self.status, self.stop = (
            fault,
            name or type(self).__name__,
            status,
            stop,
        )


class Capabilities(NamedTuple):
    """What a server returns, and how to ask for it."""

    level: str
    top: int  # how many of the likeliest first answer tokens it returns
    limit: str  # its name for the maximum length of an answer
    temperature: bool = True  # whether it accepts one: many reasoning models do not

    def options(self, decoding: Decoding) -> dict[str, Any]:
        """Return the arguments of a request."""
        found: dict[str, Any] = {self.limit: decoding.max_new_tokens}
        if self.temperature:
            found["temperature"] = 0
        if decoding.method == "sampling":
            found |= {"temperature": decoding.temperature, "seed": decoding.draw}  # type: ignore[attr-defined]
        if self.top:
            found |= {"logprobs": True, "top_logprobs": self.top}
        if self.level == "full":
            found["extra_body"] = {
                "prompt_logprobs": 0,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            }
        return found


class PromptLayout(NamedTuple):
    """What surrounds the user's words in a request.

    The fields, with their names, are part of every key.
    """

    system: str | None  # the system turn
    before: str  # the text before the user's words in their turn
    start: Sequence[int] = ()  # the tokens before the user's words, at level `full`
    end: Sequence[int] = ()  # those behind them
    told: str = ""  # what we ask for: rows with less, or more, are not reused

    def messages(self, text: str) -> list[dict[str, str]]:
        """Return the turns of a request."""
        turns = (
            [{"role": "system", "content": self.system}]
            if self.system is not None
            else []
        )
        return [*turns, {"role": "user", "content": self.before + text}]


@dataclass(frozen=True)
class ServedModel:
    """A model by a service's name for it.

    After an `@` stands a revision that the user states.
    """

    tokenizer: ClassVar[None] = None  # only the server knows its control tokens
    model: str

    @property
    def name(self) -> str:
        """The model's part of system names."""
        return slugify_model(self.model) + SERVED_SUFFIX

    @property
    def weights_id(self) -> str:
        """What identifies weights that we cannot see: the name and the stated revision,
        on whatever server.
        """
        return f"served {self.model}"

    @property
    def served_as(self) -> str:
        """The server's name for the model, without a revision.

        A leading `@` is part of the name.
        """
        return self.model.rpartition("@")[0] or self.model

    def served_context(
        self, layout: PromptLayout, telling: Capabilities, decoding: Decoding
    ) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        layout = layout._replace(told=f"{telling.level} {telling.top}")
        return PromptContext(
            self.weights_id,
            SERVED_DTYPE,
            json.dumps(layout._asdict(), sort_keys=True),
            "",
            decoding,
        )


@dataclass(frozen=True)
class ServerBackend(ServedModel):
    """A served model, as `trace_store.query_model` asks it."""

    base_url: str
    concurrency: int = 16  # requests that may be under way at the same time
    per_minute: int = 0  # requests that may begin in a minute; 0: no limit
    argument: str = ""  # the parameter `model` that named it
    faults: Counter[str] = field(
        default_factory=Counter, repr=False, compare=False
    )  # of the last run, by kind

    @cached_property
    def client(self) -> "openai.OpenAI":
        """The library's client, which leaves retrying to `_asked`."""
        try:
            import openai
        except ImportError as error:
            raise ModelError(
                "asking a server needs the package openai; run: python -m pip install"
                " 'paraguard-utils[endpoints]'"
            ) from error
        key = _key()
        if not (
            key.isascii() and key.isprintable()
        ):  # a library's error might quote it
            raise ModelError(
                f"the key in {API_KEY_VARIABLE} holds a character that no key has; set"
                " it again"
            )
        patience = openai.Timeout(ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT)
        return openai.OpenAI(
            base_url=self.base_url,
            api_key=key or "none",
            max_retries=0,
            timeout=patience,
        )

    @cached_property
    def telling(self) -> Capabilities:
        """What the server returns: the first rung of `PROBES` that it answers in full.

        None raises `ModelError`.
        """
        reason, limits = "", ("max_tokens", "max_completion_tokens")
        rungs = [
            Capabilities(level, top, limit) for limit in limits for level, top in PROBES
        ]
        while rungs:
            try:
                reply = self._asked(
                    PromptLayout(None, "").messages(_PROBE_TEXTS[0]),
                    rungs[0].options(Decoding(1)),
                )
            except UnusableAnswer as error:
                if error.status not in DECLINED_STATUSES:
                    raise self._unusable(error) from None
                reason = str(error)
                if rungs[0].temperature and "temperature" in reason.lower():
                    rungs = [
                        rung._replace(temperature=False) for rung in rungs
                    ]  # the same rung again
                    continue
            else:
                if _holds(reply, rungs[0]):
                    return rungs[0]
            rungs.pop(0)
        raise ModelError(
            f"the server {self.base_url} takes no request for {self.model}: {reason}"
        )

    def framing(self, system_prompt_text: str) -> PromptLayout:
        """Return where the system prompt goes: the system turn, or the user's turn
        where the server drops the former.

        Without a system prompt it is the shorter rendering, as in
        `prompting.render_system_prompt`. A server that declines a request without a system
        turn raises `ModelError`.
        """
        plain, system = PromptLayout(None, ""), PromptLayout(system_prompt_text, "")
        options, sizes = self.telling.options(Decoding(1)), {}
        for one in (plain, system):
            try:
                reply = self._asked(one.messages(_PROBE_TEXTS[0]), options)
            except UnusableAnswer as error:
                if one is plain or error.status not in DECLINED_STATUSES:
                    raise self._unusable(error) from None
                continue
            sizes[one] = 0  # the number of tokens that the server reads, if it says so
            with contextlib.suppress(*_NOT_TOLD):
                sizes[one] = int(reply["usage"]["prompt_tokens"])
        if system_prompt_text:
            # A template that drops the system turn makes a prompt as long; one with a
            # default system text, a shorter.
            kept = system in sizes and (
                not sizes[plain] or sizes[system] != sizes[plain]
            )
            found = system if kept else PromptLayout(None, f"{system_prompt_text}\n\n")
        else:
            found = min(sizes, key=lambda one: sizes[one])
        if self.telling.level != "full":
            return found
        first, second = (
            self._asked(found.messages(text), options)["prompt_token_ids"]
            for text in _PROBE_TEXTS
        )
        end = count_shared(first[::-1], second[::-1])
        return found._replace(
            start=first[: count_shared(first, second)], end=first[len(first) - end :]
        )

    def context(self, system_prompt_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        framing = self.framing(system_prompt_text)
        if not self.telling.temperature:
            if decoding.method != Decoding.method:
                raise ModelError(
                    f"{self.model} takes no temperature, so that nothing can be drawn"
                    " at one"
                )
            decoding = replace(decoding, method=OWN_TEMPERATURE)
        return self.served_context(framing, self.telling, decoding)

    def answers(
        self,
        corpus: Corpus,
        context: PromptContext,
        system: str,
        known: set[str],
        batch: int,
        shard: Shard = WHOLE,
    ) -> Iterator[Traces]:
        """Ask the prompts that are not known, `concurrency` at a time.

        Yield trace rows as answers come.

        Of a shard (i, n) we ask every n-th prompt from the i-th on. A prompt that
        failed `MAX_ATTEMPTS` times has a null response and the finish reason `error`. A
        server that refuses every request (key, model), or fails on `MAX_FAILURES`
        prompts one after another, raises `ModelError`.
        """
        self.faults.clear()
        corpus = corpus.iloc[shard[0] - 1 :: shard[1]]
        open_ = corpus[~corpus["prompt_id"].isin(known)]
        if open_.empty:
            return
        framing, pace, failed = (
            PromptLayout(**json.loads(context.prefix)),
            _Pace(self.per_minute),
            0,
        )
        around = sum(len(turn["content"]) for turn in framing.messages(""))
        cost = describe_cost(open_["text"], context.decoding, around)
        print(
            f"{self.model} at {self.base_url} tells: {self.telling.level}; {cost}",
            file=sys.stderr,
        )
        if not self.telling.temperature:
            said = (
                "takes no temperature: it is asked at its own, and answers may differ"
                " from call to call"
            )
            print(f"{self.model} {said}", file=sys.stderr)
        rest, room = open_.itertuples(index=False), self.concurrency + 1
        ask = partial(self._row, framing=framing, context=context, pace=pace)
        pending: set[Future[tuple[dict[str, Any], bool]]] = set()
        pool = ThreadPoolExecutor(self.concurrency)
        try:
            with tqdm(
                total=len(corpus),
                initial=len(corpus) - len(open_),
                desc=system,
                unit="prompt",
            ) as bar:
                # One request waits beside those under way, and no more: a stop leaves
                # little to be asked.
                while pending := pending | {
                    pool.submit(ask, one) for one in islice(rest, room - len(pending))
                }:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    ended = [
                        future.result() for future in done if not future.exception()
                    ]
                    for _, lost in ended:
                        failed = failed + 1 if lost else 0
                    if ended:
                        yield pd.DataFrame([row for row, _ in ended])
                        bar.update(len(ended))
                    for future in done:
                        # Raises what would end every prompt, once the rest is kept
                        future.result()
                    if failed >= MAX_FAILURES:
                        raise ModelError(
                            f"the server {self.base_url} failed on {failed} prompts one"
                            f" after another ({self.summary()}); what it answered is"
                            " kept: run the same command again when it is well"
                        )
        finally:
            pace.over.set()
            pool.shutdown(
                wait=not pending, cancel_futures=True
            )  # after a stop nobody takes the answers
            if self.faults:
                print(f"{system}: {self.summary()}", file=sys.stderr)

    def ask_turns(
        self, turns: list[dict[str, Any]], most: int, more: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the one choice of an answer to chat turns, of at most `most` tokens.

        None where it is refused.

        `more` are fields of the request beyond the usual ones. A server that cannot be
        asked raises `ModelError`.
        """
        options = self.telling._replace(level="answer tokens").options(Decoding(most))
        try:
            return dict(
                self._asked(turns, options | ({"extra_body": more} if more else {}))[
                    "choices"
                ][0]
            )
        except UnusableAnswer as error:
            if error.status in REFUSED_STATUSES:
                return None
            raise self._unusable(error) from None

    def summary(self) -> str:
        """Return the faults of this run in words."""
        return ", ".join(
            f"{count} x {fault}" for fault, count in self.faults.most_common()
        )

    def facts(self, traces: Traces) -> dict[str, Any]:
        """Return what a meta file tells beside the context."""
        told = self.telling
        return {
            "level": told.level,
            "top_tokens": told.top,
            "served_as": self.served_as,
            "faults": dict(self.faults),
        }

    def _row(
        self, prompt: Any, framing: PromptLayout, context: PromptContext, pace: "_Pace"
    ) -> tuple[dict[str, Any], bool]:
        """Ask one prompt; return its trace row and whether the server failed; raise
        only what ends every prompt.
        """
        about = {"prompt_id": prompt.prompt_id, "key": context.key(prompt.text)}
        try:
            reply = self._asked(
                framing.messages(prompt.text),
                self.telling.options(context.decoding),
                pace,
            )
        except UnusableAnswer as error:
            if error.status in (401, 404):  # the key is wrong, or the name of the model
                raise self._unusable(error) from None
            if error.stop:
                return about | blocked_row(error.stop), False
            return about | EMPTY_TRACE, error.status not in REFUSED_STATUSES
        row = about | parse_completion(reply, framing, self.telling)
        if stops.find_stop_in_reason(row["finish_reason"]):
            self.faults[FILTER_FAULT] += 1
        return row, False

    def _asked(
        self,
        messages: list[Any],
        options: Mapping[str, Any],
        pace: "_Pace | None" = None,
    ) -> dict[str, Any]:
        """Send one request, `MAX_ATTEMPTS` times where trying again may help.

        Return the body.
        """
        # The client's `max_retries` retries no unreadable answer, counts no faults and
        # cannot be interrupted.
        send = self.client.chat.completions.with_streaming_response.create
        import openai  # the client says what to do if it is missing

        pace, attempt = pace or _Pace(0), 0
        while True:
            pace.take()
            attempt += 1
            try:
                with send(model=self.served_as, messages=messages, **options) as raw:
                    return _read(raw.http_response)
            except (openai.OpenAIError, UnusableAnswer) as error:
                found = _unusable_answer(error)
                self.faults[found.fault] += 1
                passing = (
                    found.status in (0, 409, 429) or found.status >= 500
                )  # 0: the answer was lost or unusable
                if (
                    attempt == MAX_ATTEMPTS
                    or not passing
                    or pace.over.wait(_pause(error, attempt))
                ):
                    raise found from None

    def _unusable(self, error: UnusableAnswer) -> ModelError:
        return ModelError(
            f"the server {self.base_url} cannot be asked for {self.model}"
            f" ({error.name}: {error}); check base_url, the name of the model and the"
            f" key in {API_KEY_VARIABLE}"
        )


def _key() -> str:
    return os.environ.get(API_KEY_VARIABLE, "").strip()


class _Pace:
    """Lets at most `per_minute` requests begin a minute (0: no limit), and none after
    the event `over` is set.
    """

    def __init__(self, per_minute: int) -> None:
        self.gap = 60 / per_minute if per_minute else 0.0
        self.next, self.lock, self.over = 0.0, threading.Lock(), threading.Event()

    def take(self) -> None:
        """Wait for the next turn."""
        with self.lock:
            begins = max(self.next, time.monotonic())
            self.next = begins + self.gap
        if self.over.wait(max(0.0, begins - time.monotonic())):
            raise UnusableAnswer("the run was stopped")


def backoff_seconds(attempt: int) -> float:
    """Return the seconds to wait after the first, second, ... attempt, where the server
    does not say.
    """
    return min(60.0, 2.0 ** (attempt - 1) + random.random())


def _pause(error: Exception, attempt: int) -> float:
    """Return the seconds to wait after a failed attempt: what Retry-After asks for,
    else `backoff_seconds`.
    """
    asked = getattr(getattr(error, "response", None), "headers", {}).get(
        "retry-after", ""
    )
    if re.fullmatch(r"\d+(\.\d+)?", asked):
        return min(float(asked), MAX_RETRY_AFTER)
    with contextlib.suppress(
        ValueError, TypeError
    ):  # no date either, or one without a time zone
        return min(
            max(
                0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()
            ),
            MAX_RETRY_AFTER,
        )
    return backoff_seconds(attempt)


def _unusable_answer(error: Exception) -> UnusableAnswer:
    """Return an error of the client's, without the key.

    Many services answer a filtered request with an error.
    """
    import openai

    if isinstance(error, UnusableAnswer):
        return error
    said, name = first_error_line(error), type(error).__name__
    said = said.replace(_key(), "***") if _key() else said
    if isinstance(error, openai.APIStatusError):
        stop, status = (
            stops.find_stop_in_error(error.body, error.message),
            error.status_code,
        )
        return UnusableAnswer(
            said, FILTER_FAULT if stop else f"status {status}", name, status, stop
        )
    return UnusableAnswer(
        said,
        "time-out" if isinstance(error, openai.APITimeoutError) else "cut connection",
        name,
    )


def _read(response: Any) -> dict[str, Any]:
    """Read a chat completion, in UTF-8 or as its header says.

    Raise `UnusableAnswer` if it is none.
    """
    body = bytearray()
    reply: Any = None
    try:
        for part in response.iter_bytes():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                break
    except (
        Exception
    ) as error:  # of the library beneath the client, of which there are two
        late = "Timeout" in type(error).__name__
        raise UnusableAnswer(
            "an answer that did not end", "time-out" if late else "cut connection"
        ) from error
    if len(body) > MAX_ANSWER_BYTES:
        raise UnusableAnswer("an answer of more than 32 MB", "too large an answer")
    try:
        try:
            reply = json.loads(body)
        except UnicodeDecodeError:
            reply = json.loads(body.decode(response.charset_encoding or "latin-1"))
        choice = reply["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        if stop := stops.find_stop(reply):  # a filter may leave nothing of an answer
            return {
                "choices": [{"message": {"content": ""}, "finish_reason": stop.reason}]
            }
        # The error's own text would quote the answer.
        raise UnusableAnswer(f"{type(error).__name__} in its answer") from None
    if not isinstance(message, dict) or reason == "error":
        raise UnusableAnswer("a choice without a message")
    return dict(reply)


def blocked_row(stop: Stop) -> dict[str, Any]:
    """Return the columns of a trace whose answer a provider stopped."""
    return EMPTY_TRACE | {"finish_reason": stop.reason, "response": ""}


def parse_completion(
    reply: Mapping[str, Any], framing: PromptLayout, telling: Capabilities
) -> dict[str, Any]:
    """Return all columns of a trace but prompt_id and key from a chat completion whose
    first choice has a message.

    Without log-probabilities of this answer, lists are empty and the tail mass is 1.
    Thinking that the server keeps apart from the answer is left out.
    """
    choice = reply["choices"][0]
    message = choice["message"]
    content = (
        message.get("content") or message.get("refusal") or ""
    )  # "" if it was cut off while thinking
    parts = content if isinstance(content, list) else [{"text": content}]
    text = "".join(
        part["text"]
        for part in parts
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    )
    text = (
        text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()
    )  # half a pair is no character
    stop = stops.find_stop(reply)
    reason = stop.reason if stop else choice.get("finish_reason") or "stop"
    row = EMPTY_TRACE | {"response": text, "finish_reason": str(reason)}
    with contextlib.suppress(*_NOT_TOLD):
        row |= (
            _first_tokens(choice["logprobs"]["content"][0]["top_logprobs"])
            if telling.top
            else {}
        )
    with contextlib.suppress(*_NOT_TOLD):
        row |= _words(reply, framing) if telling.level == "full" else {}
    return row


def _first_tokens(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a trace's columns about the first answer token.

    Of tokens with the same text the likeliest counts.
    """
    found: dict[int, float] = {}
    for one in told:
        number = token_number(one["token"])
        found[number] = max(found.get(number, -np.inf), float(one["logprob"]))
    ids, values = (
        np.array(list(found), np.int32),
        np.array(list(found.values()), np.float32),
    )
    tail = float(max(0.0, 1.0 - np.exp(values.astype(np.float64)).sum()))
    return {"next_ids": ids, "next_logprobs": values, "tail_mass": tail}


def _words(reply: Mapping[str, Any], framing: PromptLayout) -> dict[str, Any]:
    """Return a trace's columns about the prompt.

    A token that spans the user's words and the template is the user's.
    """
    told: list[int] = reply["prompt_token_ids"]
    ids, start = np.array(told, np.int32), count_shared(framing.start, told)
    end = len(ids) - count_shared(framing.end[::-1], told[::-1])
    nll = np.full(len(ids), np.nan, np.float32)
    for place in range(start, end):
        nll[place] = -reply["prompt_logprobs"][place][str(ids[place])]["logprob"]
    return {"token_ids": ids, "token_nll": nll, "user_start": start, "user_end": end}


def token_number(token: str) -> int:
    """Return a token's number, or, of a token given as text, 31 bits of the text's
    hash.
    """
    known = re.fullmatch(r"token_id:(\d+)", token)
    return (
        int(known[1])
        if known
        else int(hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()[:8], 16)
        >> 1
    )


def _holds(reply: Mapping[str, Any], telling: Capabilities) -> bool:
    """Return whether an answer has what we asked for."""
    ids = reply.get("prompt_token_ids")
    ends = (ids[:1], ids[-1:]) if isinstance(ids, list) else ()
    row = parse_completion(reply, PromptLayout(None, "", *ends), telling)
    return (not telling.top or len(row["next_ids"]) > 0) and (
        telling.level != "full" or len(row["token_ids"]) > 2
    )
