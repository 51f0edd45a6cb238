"""A model behind an OpenAI-shaped server: asked over HTTP, with what the server can tell (`docs/method.md`, Asking).

A server tells more or less of what it computes, its *level*: `full`, the log-probabilities of the prompt and of the
first answer token; `answer tokens`, those of the first answer token; `text`, its answers only. What it tells is found
by asking it, once, before the first prompt. The key comes from the environment and is in no message.
"""

import contextlib
import hashlib
import json
import os
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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import tenacity
from tqdm import tqdm

from paraguard_utils import stops
from paraguard_utils.errors import ModelError
from paraguard_utils.models.loading import slug
from paraguard_utils.models.prompting import SERVED, Decoding, PromptContext, check_prompts, price
from paraguard_utils.schemas import Traces
from paraguard_utils.stops import Stop
from paraguard_utils.stores import WHOLE

if TYPE_CHECKING:
    import openai

KEY = "OPENAI_API_KEY"
"""The environment variable with the key; a server that wants none is asked without."""

LEVELS = ("full", "answer tokens", "text")
"""What a server can tell, most first."""

TOP = 64
"""Top tokens that a server is asked for first."""

LADDER = (
    ("full", TOP, False),
    ("full", 20, False),
    ("full", TOP, True),
    ("answer tokens", 20, False),
    ("answer tokens", 5, False),
    ("text", 0, False),
)
"""Level, number of top tokens and whether SGLang is asked, in the order in which a server is asked for them."""

ATTEMPTS = 6
"""How often a prompt is tried before its row says `error`."""

WAIT = tenacity.wait_exponential_jitter(initial=1, max=60)
"""Seconds between attempts, where the server does not say."""

LONGEST_WAIT = 300.0
"""Seconds that a server may ask for by Retry-After."""

TIMEOUT = 600.0
"""Seconds until an answer counts as lost."""

CONNECT = 10.0
"""Seconds until a server counts as not there."""

BREAK = 8
"""Prompts that may fail one after another until asking stops."""

REFUSED = (400, 413, 422)
"""Statuses by which a server refuses one prompt, and would again: they do not mean that it fails."""

OWN_TEMPERATURE = "the server's own temperature"
"""The decoding of a model that takes none."""

LARGEST = 32 * 2**20
"""Bytes of an answer beyond which it counts as none."""

DTYPE = "served"
"""What stands for the number format of weights that nobody sees."""

_TOKEN_ID = re.compile(r"token_id:(\d+)")
_PROBES = ("Hello there", "What now")
"""Two requests that begin and end differently: what their prompts share is the server's template."""


class Lost(Exception):
    """An answer that is none: not JSON, without a choice, too large, cut, or no longer waited for."""

    def __init__(self, said: str, fault: str = "unreadable answer") -> None:
        super().__init__(said)
        self.fault = fault


class Telling(NamedTuple):
    """What a server tells, and how it is asked for it.

    Attributes
    ----------
    level : str
        One of `LEVELS`.
    top : int
        Top tokens of the first answer token's distribution.
    limit : str
        What the server calls the length of an answer.
    sglang : bool
        Whether it is SGLang, whose chat endpoint tells the answer and the prompt's tokens, and `/generate` the rest.
    temperature : bool
        Whether it takes one; many reasoning models are asked at their own only.
    """

    level: str
    top: int
    limit: str
    sglang: bool = False
    temperature: bool = True

    @property
    def told(self) -> str:
        """Level and number of top tokens in words."""
        return f"{self.level} {self.top}"

    def options(self, decoding: Decoding) -> dict[str, Any]:
        """Return the arguments of a request."""
        found: dict[str, Any] = {self.limit: decoding.max_new_tokens}
        if self.temperature:
            found["temperature"] = 0
        if decoding.method == "sampling":
            found |= {"temperature": decoding.temperature, "seed": decoding.draw}  # type: ignore[attr-defined]
        if self.sglang:
            return found | {"extra_body": {"return_prompt_token_ids": True}}
        if self.top:
            found |= {"logprobs": True, "top_logprobs": self.top}
        if self.level == "full":
            more = {"prompt_logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
            found["extra_body"] = more
        return found


class Framing(NamedTuple):
    """How a wrapper stands around the user's words.

    Attributes
    ----------
    system : str or None
        The system turn; None: there is none.
    before : str
        What stands before the user's words in the user's turn.
    start, end : sequence of int
        Tokens of every prompt before and behind the user's words, where the level is `full`; else none.
    told : str
        What is asked for beside the answer: a row that was told less, or more, is not used.
    """

    system: str | None
    before: str
    start: Sequence[int] = ()
    end: Sequence[int] = ()
    told: str = ""

    def messages(self, text: str) -> list[dict[str, str]]:
        """Return the turns of a request."""
        turns = [{"role": "system", "content": self.system}] if self.system is not None else []
        return [*turns, {"role": "user", "content": self.before + text}]


@dataclass(frozen=True)
class Server:
    """A served model, as `trace_store.query` asks it.

    Attributes
    ----------
    model : str
        What the server calls it; behind an `@`, a revision that the user states.
    base_url : str
        Of its API, usually ending in `/v1`.
    concurrency : int
        Requests under way at the same time.
    per_minute : int
        Requests begun a minute at most; 0: no limit.
    argument : str
        The parameter `model` that named it.
    """

    model: str
    base_url: str
    concurrency: int = 16
    per_minute: int = 0
    argument: str = ""
    faults: Counter[str] = field(default_factory=Counter, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name in target names."""
        return slug(self.model) + SERVED

    @property
    def weights_id(self) -> str:
        """What stands for weights that nobody sees: the name and the stated revision, wherever they are served."""
        return f"served {self.model}"

    @property
    def served_as(self) -> str:
        """What the server calls it, without a revision; an `@` that a name begins with is part of it."""
        return self.model.rpartition("@")[0] or self.model

    # Asking

    @cached_property
    def client(self) -> "openai.OpenAI":
        """The library's client; it does not retry, `_asked` does."""
        try:
            import openai
        except ImportError as error:
            raise ModelError(
                "asking a server needs the package openai; run: python -m pip install 'paraguard-utils[endpoints]'"
            ) from error
        key = _key()
        if not (key.isascii() and key.isprintable()):  # a library's error might quote it
            raise ModelError(f"the key in {KEY} holds a character that no key has; set it again")
        patience = openai.Timeout(TIMEOUT, connect=CONNECT)
        return openai.OpenAI(base_url=self.base_url, api_key=key or "none", max_retries=0, timeout=patience)

    @cached_property
    def telling(self) -> Telling:
        """What the server tells: the first rung of `LADDER` that it answers with what was asked for.

        Raises
        ------
        ModelError
            It cannot be asked at all.
        """
        import openai

        reason, temperature = "", True
        rungs = [(limit, *rung) for limit in ("max_tokens", "max_completion_tokens") for rung in LADDER]
        while rungs:
            limit, level, top, sglang = rungs[0]
            telling = Telling(level, top, limit, sglang, temperature)
            try:
                reply = self._asked(Framing(None, "").messages(_PROBES[0]), telling.options(Decoding(1)))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                reason = self.said(error)
                if temperature and "temperature" in reason.lower():
                    temperature = False  # the same rung again
                    continue
            except (openai.OpenAIError, Lost) as error:
                # A gateway may have the chat endpoint only.
                if not (sglang and isinstance(error, openai.NotFoundError)):
                    raise self._unusable(error) from None
            else:
                if _holds(reply, telling):
                    return telling
            rungs.pop(0)
        raise ModelError(f"the server {self.base_url} takes no request for {self.model}: {reason}")

    def framing(self, wrapper_text: str) -> Framing:
        """Return how a wrapper is put to the server: as a system turn, or before the user's words where it drops that.

        Without a wrapper, the shorter prompt is used: no system turn, or an empty one, which keeps a template from
        putting in one of its own.

        Parameters
        ----------
        wrapper_text : str

        Raises
        ------
        ModelError
            The server takes neither.
        """
        import openai

        plain, system = Framing(None, ""), Framing(wrapper_text, "")
        sizes = {}
        for one in (plain, system):
            try:
                sizes[one] = self._size(one)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if one is plain:
                    raise self._unusable(error) from None
            except (openai.OpenAIError, Lost) as error:
                raise self._unusable(error) from None
        if wrapper_text:
            # A template that drops the system turn makes a prompt of the same length; one that has a text of its own
            # may make a shorter one.
            kept = system in sizes and (not sizes[plain] or sizes[system] != sizes[plain])
            found = system if kept else Framing(None, f"{wrapper_text}\n\n")
        else:
            found = min(sizes, key=lambda one: sizes[one])
        found = found._replace(told=self.telling.told)
        return self._counted(found) if self.telling.level == "full" else found

    def _size(self, framing: Framing) -> int:
        """Return how many tokens the server reads; 0 where it does not say."""
        reply = self._asked(framing.messages(_PROBES[0]), self.telling.options(Decoding(1)))
        with contextlib.suppress(*_NOT_TOLD):
            return int(reply["usage"]["prompt_tokens"])
        return 0

    def _counted(self, framing: Framing) -> Framing:
        """Find the tokens around the user's words: those that two unlike requests share."""
        options = self.telling.options(Decoding(1))
        first, second = (self._asked(framing.messages(text), options)["prompt_token_ids"] for text in _PROBES)
        end = _shared(first[::-1], second[::-1])
        return framing._replace(start=first[: _shared(first, second)], end=first[len(first) - end :])

    def context(self, wrapper_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        framing = self.framing(wrapper_text)
        if not self.telling.temperature:
            if decoding.method != Decoding.method:
                raise ModelError(f"{self.model} takes no temperature, so that nothing can be drawn at one")
            decoding = replace(decoding, method=OWN_TEMPERATURE)
        return PromptContext(self.weights_id, DTYPE, json.dumps(framing._asdict(), sort_keys=True), "", decoding)

    def check(self, corpus: pd.DataFrame) -> None:
        """Raise an error where a prompt cannot be asked as it stands; only the server knows its control tokens."""
        check_prompts(corpus)

    def answers(
        self,
        corpus: pd.DataFrame,
        context: PromptContext,
        target: str,
        known: set[str],
        batch: int,
        progress: bool,
        shard: tuple[int, int] = WHOLE,
    ) -> Iterator[Traces]:
        """Ask what is not known, many requests at a time; yield trace rows as answers come.

        Parameters
        ----------
        corpus : DataFrame
            Columns prompt_id, text.
        context : PromptContext
        target : str
            For the progress bar.
        known : set of str
            Prompts that are not asked again.
        batch : int
            Not used: answers come one by one.
        progress : bool
        shard : (int, int)
            (i, n): every n-th prompt only, from the i-th on.

        Yields
        ------
        DataFrame
            Trace rows. A prompt that failed `ATTEMPTS` times has no response and the finish reason `error`.

        Raises
        ------
        ModelError
            The server refuses every request (key, model), or fails on `BREAK` prompts one after another.
        """
        self.faults.clear()
        corpus = corpus.iloc[shard[0] - 1 :: shard[1]]
        open_ = corpus[~corpus["prompt_id"].isin(known)]
        if open_.empty:
            return
        framing, pace = Framing(**json.loads(context.prefix)), _Pace(self.per_minute)
        self.announce(open_, framing, context.decoding)
        ask = partial(self._row, framing=framing, options=self.telling.options(context.decoding), context=context)
        ask, rest, failed = partial(ask, pace=pace), open_.itertuples(index=False), 0
        pending: set[Future[tuple[dict[str, Any], bool]]] = set()
        pool = ThreadPoolExecutor(self.concurrency)
        try:
            with tqdm(
                total=len(corpus), initial=len(corpus) - len(open_), desc=target, unit="prompt", disable=not progress
            ) as bar:
                while True:
                    # What waits is little more than what is under way, so that a stop leaves little to be asked.
                    for prompt in rest:
                        pending.add(pool.submit(ask, prompt))
                        if len(pending) >= self.concurrency + 1:
                            break
                    if not pending:
                        break
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    ended = [future.result() for future in done if not future.exception()]
                    for _, lost in ended:
                        failed = failed + 1 if lost else 0
                    if ended:
                        yield pd.DataFrame([row for row, _ in ended])
                        bar.update(len(ended))
                    for future in done:
                        future.result()  # raises what no further prompt could survive, when the rest is kept
                    if failed >= BREAK:
                        raise ModelError(
                            f"the server {self.base_url} failed on {failed} prompts one after another "
                            f"({self.summary()}); what it answered is kept: run the same command again when it is well"
                        )
        finally:
            pace.over.set()
            pool.shutdown(wait=not pending, cancel_futures=True)  # nobody waits for an answer that nobody takes
            if self.faults:
                print(f"{target}: {self.summary()}", file=sys.stderr)

    def summary(self) -> str:
        """Return the faults of this run in words."""
        return ", ".join(f"{count} x {fault}" for fault, count in self.faults.most_common())

    def facts(self, traces: Traces) -> dict[str, Any]:
        """Return what a meta file tells beside the context."""
        told = self.telling
        return {"level": told.level, "top_tokens": told.top, "served_as": self.served_as, "faults": dict(self.faults)}

    def announce(self, prompts: pd.DataFrame, framing: Framing, decoding: Decoding) -> None:
        """Say on stderr what there is to ask."""
        around = sum(len(turn["content"]) for turn in framing.messages(""))
        cost = price(prompts["text"], decoding, around)
        print(f"{self.model} at {self.base_url} tells: {self.telling.level}; {cost}", file=sys.stderr)
        if not self.telling.temperature:
            print(
                f"{self.model} takes no temperature: it is asked at its own, and answers may differ from call to call",
                file=sys.stderr,
            )

    def _row(
        self,
        prompt: Any,
        *,
        framing: Framing,
        options: Mapping[str, Any],
        context: PromptContext,
        pace: "_Pace",
    ) -> tuple[dict[str, Any], bool]:
        """Ask one prompt; return its trace row, whatever happens to it, and whether the server failed.

        Raises
        ------
        ModelError
            No prompt will ever be answered.
        """
        import openai

        about = {"prompt_id": prompt.prompt_id, "key": context.key(prompt.text)}
        try:
            reply = self._asked(framing.messages(prompt.text), options, pace)
        except (openai.AuthenticationError, openai.NotFoundError) as error:
            raise self._unusable(error) from None
        except (openai.OpenAIError, Lost) as error:
            if stop := _stop(error):
                return about | blocked(stop), False
            return about | NOTHING, getattr(error, "status_code", None) not in REFUSED
        row = about | row_of(reply, framing, self.telling)
        if stops.of_reason(row["finish_reason"]):
            self.faults[FILTERED] += 1
        return row, False

    def _asked(
        self, messages: list[dict[str, str]], options: Mapping[str, Any], pace: "_Pace | None" = None
    ) -> dict[str, Any]:
        """Send one request, again and again where that may help; return the body."""
        import openai

        pace = pace or _Pace(0)
        passing = (
            openai.RateLimitError,
            openai.InternalServerError,
            openai.APIConnectionError,  # a time-out too
            openai.ConflictError,
            Lost,
        )

        def once() -> dict[str, Any]:
            pace.take()
            try:
                with self.client.chat.completions.with_streaming_response.create(
                    model=self.served_as,
                    messages=messages,  # type: ignore[arg-type]
                    **options,
                ) as raw:
                    reply = _read(_within(raw.http_response))
                if "return_prompt_token_ids" in options.get("extra_body", {}):
                    return self._filled(reply, pace)
                return reply
            except (openai.OpenAIError, Lost) as error:
                self.faults[_fault(error)] += 1
                raise

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(passing),
            stop=tenacity.stop_any(tenacity.stop_after_attempt(ATTEMPTS), tenacity.stop_when_event_set(pace.over)),
            sleep=tenacity.sleep_using_event(pace.over),
            wait=_wait,
            reraise=True,
        )
        return retrying(once)

    def _filled(self, reply: dict[str, Any], pace: "_Pace") -> dict[str, Any]:
        """Fill in what SGLang's chat endpoint does not tell of a prompt: ask its own endpoint for the same tokens.

        The first answer token's distribution is asked for here too: the chat endpoint's is divided by the temperature.
        """
        import httpx

        ids = reply["choices"][0].get("prompt_token_ids")
        if not ids:
            return reply
        pace.take()
        more = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": TOP}
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}} | more
        path = self.base_url.rstrip("/").removesuffix("/v1") + "/generate"
        return sglang_in_full(reply, _json(self.client.post(path, cast_to=httpx.Response, body=body)))

    def said(self, error: Exception) -> str:
        """Return an error's first line, without the key."""
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        return line.replace(_key(), "***") if _key() else line

    def _unusable(self, error: Exception) -> ModelError:
        return ModelError(
            f"the server {self.base_url} cannot be asked for {self.model} ({type(error).__name__}: "
            f"{self.said(error)}); check base_url, the name of the model and the key in {KEY}"
        )


def _key() -> str:
    return os.environ.get(KEY, "").strip()


class _Pace:
    """Lets requests begin no faster than so many a minute, and none when it is over."""

    def __init__(self, per_minute: int) -> None:
        self.gap = 60 / per_minute if per_minute else 0.0
        self.next, self.lock, self.over = 0.0, threading.Lock(), threading.Event()

    def take(self) -> None:
        """Wait for the next turn."""
        pause = 0.0
        if self.gap:
            with self.lock:
                self.next = max(self.next, time.monotonic()) + self.gap
                pause = max(0.0, self.next - self.gap - time.monotonic())
        if self.over.wait(pause):
            raise Lost("the run was stopped")


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds until the next attempt: what the server asks for, else `WAIT`."""
    error = state.outcome.exception() if state.outcome else None
    asked = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
    if re.fullmatch(r"\d+(\.\d+)?", asked):
        return min(float(asked), LONGEST_WAIT)
    with contextlib.suppress(ValueError, TypeError):  # no date either, or one without a zone
        return min(max(0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()), LONGEST_WAIT)
    return WAIT(state)


def _fault(error: Exception) -> str:
    """Return what kind of fault an error is, in words."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return FILTERED if _stop(error) else f"status {error.status_code}"
    if isinstance(error, openai.APITimeoutError):
        return "time-out"
    return error.fault if isinstance(error, Lost) else "cut connection"


def _stop(error: Exception) -> Stop | None:
    """Return the stop that an error is about: many services answer a filtered request with one."""
    import openai

    return stops.of_error(error.body, error.message) if isinstance(error, openai.APIStatusError) else None


def _read(response: Any) -> dict[str, Any]:
    """Read a chat completion.

    Raises
    ------
    Lost
        It is not an answer.
    """
    body = _json(response)
    try:
        choice = body["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if stop := stops.find(body):  # a filter may leave nothing of an answer
            return {"choices": [{"message": {"content": ""}, "finish_reason": stop.reason}]}
        raise Lost(f"{type(error).__name__} in its answer") from None  # which would quote the answer
    if not isinstance(message, dict) or reason == "error":
        raise Lost("a choice without a message")
    return dict(body)


def _within(response: Any) -> Any:
    """Read a response no further than `LARGEST`.

    Raises
    ------
    Lost
        It is larger, or cut.
    """
    body = bytearray()
    try:
        for part in response.iter_bytes():
            body += part
            if len(body) > LARGEST:
                raise Lost("an answer of more than 32 MB", "too large an answer")
    except Lost:
        raise
    except Exception as error:  # of the library beneath the client, of which there are two
        late = "Timeout" in type(error).__name__
        raise Lost("an answer that did not end", "time-out" if late else "cut connection") from error
    return SimpleNamespace(content=bytes(body), charset_encoding=response.charset_encoding)


def _json(response: Any) -> Any:
    """Read a body as JSON, in UTF-8, or else as its head says.

    Raises
    ------
    Lost
        It is not JSON.
    """
    try:
        try:
            return json.loads(response.content)
        except UnicodeDecodeError:
            return json.loads(response.content.decode(response.charset_encoding or "latin-1"))
    except (ValueError, LookupError, RecursionError) as error:
        raise Lost(f"{type(error).__name__} in its answer") from None  # which would quote the answer


NOTHING: dict[str, Any] = {
    "response": None,
    "finish_reason": "error",
    "token_ids": np.array([], np.int32),
    "token_nll": np.array([], np.float32),
    "user_start": 0,
    "user_end": 0,
    "next_ids": np.array([], np.int32),
    "next_logprobs": np.array([], np.float32),
    "tail_mass": 1.0,
}
"""The columns of a trace of which a server tells nothing."""

FILTERED = "content filter"
"""What a provider's stop is called among the faults."""

_NOT_TOLD = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading something that is not there, or is something else, may raise."""


def blocked(stop: Stop) -> dict[str, Any]:
    """Return what a provider's stop leaves of a trace."""
    return NOTHING | {"finish_reason": stop.reason, "response": ""}


def row_of(reply: Mapping[str, Any], framing: Framing, telling: Telling) -> dict[str, Any]:
    """Read the columns of a trace off a chat completion.

    Parameters
    ----------
    reply : mapping
        The body, with a first choice that has a message.
    framing : Framing
    telling : Telling

    Returns
    -------
    dict
        All columns of a trace but prompt_id and key. Lists are empty, and the tail is 1, where the server does not
        tell, or not of this answer. Where a server gives tokens as text and not as numbers, a number made of the text
        stands for it. What the model thinks before it answers is left out.
    """
    choice = reply["choices"][0]
    message = choice["message"]
    content = message.get("content") or message.get("refusal") or ""  # "" too where it was cut while it was thinking
    parts = content if isinstance(content, list) else [{"text": content}]
    text = "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()  # half a pair is no character
    stop = stops.find(reply)
    reason = stop.reason if stop else choice.get("finish_reason") or "stop"
    row = NOTHING | {"response": text, "finish_reason": str(reason)}
    with contextlib.suppress(*_NOT_TOLD):
        row |= _first_tokens(choice["logprobs"]["content"][0]["top_logprobs"]) if telling.top else {}
    with contextlib.suppress(*_NOT_TOLD):
        row |= _words(reply, framing) if telling.level == "full" else {}
    return row


def _first_tokens(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a trace has of the first answer token; of tokens with one text the likeliest."""
    found: dict[int, float] = {}
    for one in told:
        number = token_number(one["token"])
        found[number] = max(found.get(number, -np.inf), float(one["logprob"]))
    ids, values = np.array(list(found), np.int32), np.array(list(found.values()), np.float32)
    tail = float(max(0.0, 1.0 - np.exp(values.astype(np.float64)).sum()))
    return {"next_ids": ids, "next_logprobs": values, "tail_mass": tail}


def _words(reply: Mapping[str, Any], framing: Framing) -> dict[str, Any]:
    """Return what a trace has of the prompt; a token that runs from the user's words into the template is theirs."""
    told: list[int] = reply["prompt_token_ids"]
    ids, start = np.array(told, np.int32), _shared(framing.start, told)
    end = len(ids) - _shared(framing.end[::-1], told[::-1])
    nll = np.full(len(ids), np.nan, np.float32)
    for place in range(start, end):
        nll[place] = -reply["prompt_logprobs"][place][str(ids[place])]["logprob"]
    return {"token_ids": ids, "token_nll": nll, "user_start": start, "user_end": end}


def sglang_in_full(reply: Mapping[str, Any], second: Any) -> dict[str, Any]:
    """Put the two answers of SGLang into the form in which `row_of` reads one.

    Written after the source of SGLang 0.5.23 (`entrypoints/openai/protocol.py`, `managers/tokenizer_manager.py`), whose
    chat completions return `prompt_token_ids` since 0.5.16 or a little before; it was not run against such a server,
    which needs a GPU.

    Parameters
    ----------
    reply : mapping
        A chat completion whose first choice has `prompt_token_ids`.
    second : mapping
        What `/generate` answers for these tokens: lists of (log-probability, token, text), the first token's null.

    Returns
    -------
    dict
        The completion with `prompt_token_ids`, `prompt_logprobs` and the first answer token's `top_logprobs`.

    Raises
    ------
    Lost
        The second answer is not one for these tokens.
    """
    choice = reply["choices"][0]
    ids = choice["prompt_token_ids"]
    try:
        about = second["meta_info"]
        told = [float(one[0]) for one in about["input_token_logprobs"][1:]]
        prompt = [{str(number): {"logprob": value}} for number, value in zip(ids[1:], told, strict=True)]
        top = [{"token": f"token_id:{one[1]}", "logprob": float(one[0])} for one in about["output_top_logprobs"][0]]
    except (ValueError, LookupError, TypeError) as error:
        raise Lost(f"{type(error).__name__} in the answer of /generate") from None
    first = choice | {"logprobs": {"content": [{"top_logprobs": top}]}}
    return {**reply, "choices": [first], "prompt_token_ids": ids, "prompt_logprobs": [None, *prompt]}


def token_number(token: str) -> int:
    """Return a token's number, or one of 31 bits made of its text where the server gives only that."""
    known = _TOKEN_ID.fullmatch(token)
    return int(known[1]) if known else int(hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()[:8], 16) >> 1


def _holds(reply: Mapping[str, Any], telling: Telling) -> bool:
    """Return whether an answer has what was asked for."""
    ids = reply.get("prompt_token_ids")
    ends = (ids[:1], ids[-1:]) if isinstance(ids, list) else ()
    row = row_of(reply, Framing(None, "", *ends), telling)
    return (not telling.top or len(row["next_ids"]) > 0) and (telling.level != "full" or len(row["token_ids"]) > 2)


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many leading items two sequences share."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
