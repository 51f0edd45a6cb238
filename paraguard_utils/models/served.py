"""A model behind an OpenAI-shaped server: asked over HTTP, with what the server can tell (`docs/method.md`, Asking).

A server tells more or less of what it computes, its *level*: `full`, the log-probabilities of the prompt and of the
first answer token; `answer tokens`, those of the first answer token; `text`, its answers only. What it tells is found
by asking it, once, before the first prompt. The key comes from the environment and is in no message.
"""

import hashlib
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import tenacity
from tqdm import tqdm

from paraguard_utils.errors import ModelError
from paraguard_utils.models.loading import slug
from paraguard_utils.models.prompting import SERVED, Decoding, PromptContext, check_prompts, price
from paraguard_utils.schemas import Traces
from paraguard_utils.stores import WHOLE

if TYPE_CHECKING:
    import openai

KEY = "OPENAI_API_KEY"
"""The environment variable with the key; a server that wants none is asked without."""

LEVELS = ("full", "answer tokens", "text")
"""What a server can tell, most first."""

LADDER = (("full", 64), ("full", 20), ("answer tokens", 20), ("answer tokens", 5), ("text", 0))
"""Level and number of top tokens, in the order in which a server is asked for them."""

ATTEMPTS = 6
"""How often a prompt is tried before its row says `error`."""

WAIT = tenacity.wait_exponential_jitter(initial=1, max=60)
"""Seconds between attempts, where the server does not say."""

LONGEST_WAIT = 300.0
"""Seconds that a server may ask for by Retry-After."""

TIMEOUT = 600.0
"""Seconds until an answer counts as lost."""

BREAK = 8
"""Prompts that may fail one after another until asking stops."""

DTYPE = "served"
"""What stands for the number format of weights that nobody sees."""

_TOKEN_ID = re.compile(r"token_id:(\d+)")
_PROBES = ("Hello there", "What now")
"""Two requests that begin and end differently: what their prompts share is the server's template."""


class Lost(Exception):
    """An answer that is none: not JSON, or without a choice."""


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
    """

    level: str
    top: int
    limit: str

    def options(self, decoding: Decoding) -> dict[str, Any]:
        """Return the arguments of a request."""
        found: dict[str, Any] = {self.limit: decoding.max_new_tokens, "temperature": 0}
        if decoding.method == "sampling":
            found |= {"temperature": decoding.temperature, "seed": decoding.draw}  # type: ignore[attr-defined]
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
    start, end : int
        Tokens of the prompt before and behind the user's words, counted where the level is `full`; else 0.
    """

    system: str | None
    before: str
    start: int = 0
    end: int = 0

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
        return openai.OpenAI(
            base_url=self.base_url, api_key=os.environ.get(KEY) or "none", max_retries=0, timeout=TIMEOUT
        )

    @cached_property
    def telling(self) -> Telling:
        """What the server tells: the first rung of `LADDER` that it answers with what was asked for.

        Raises
        ------
        ModelError
            It cannot be asked at all.
        """
        import openai

        reason = ""
        for limit in ("max_tokens", "max_completion_tokens"):
            for level, top in LADDER:
                telling = Telling(level, top, limit)
                try:
                    reply = self._asked(Framing(None, "").messages(_PROBES[0]), telling.options(Decoding(1)))
                except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                    reason = self.said(error)
                    continue
                except (openai.OpenAIError, Lost) as error:
                    raise self._unusable(error) from None
                if _holds(reply, telling):
                    return telling
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
            # A template that drops the system turn makes a prompt of the same length.
            kept = system in sizes and (not sizes[plain] or sizes[system] > sizes[plain])
            found = system if kept else Framing(None, f"{wrapper_text}\n\n")
        else:
            found = min(sizes, key=lambda one: sizes[one])
        return self._counted(found) if self.telling.level == "full" else found

    def _size(self, framing: Framing) -> int:
        """Return how many tokens the server reads; 0 where it does not say."""
        reply = self._asked(framing.messages(_PROBES[0]), self.telling.options(Decoding(1)))
        return int((reply.get("usage") or {}).get("prompt_tokens") or 0)

    def _counted(self, framing: Framing) -> Framing:
        """Count the tokens around the user's words: those that two unlike requests share."""
        options = self.telling.options(Decoding(1))
        first, second = (self._asked(framing.messages(text), options)["prompt_token_ids"] for text in _PROBES)
        return framing._replace(start=_shared(first, second), end=_shared(first[::-1], second[::-1]))

    def context(self, wrapper_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        framing = self.framing(wrapper_text)
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
        corpus = corpus.iloc[shard[0] - 1 :: shard[1]]
        open_ = corpus[~corpus["prompt_id"].isin(known)]
        if open_.empty:
            return
        framing = Framing(**json.loads(context.prefix))
        self._announce(open_, framing, context.decoding)
        ask = partial(self._row, framing=framing, options=self.telling.options(context.decoding), context=context)
        ask, rest, failed = partial(ask, pace=_Pace(self.per_minute)), open_.itertuples(index=False), 0
        pending: set[Future[dict[str, Any]]] = set()
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
                    rows = [future.result() for future in done if not future.exception()]
                    for row in rows:
                        failed = failed + 1 if row["finish_reason"] == "error" else 0
                    if rows:
                        yield pd.DataFrame(rows)
                        bar.update(len(rows))
                    for future in done:
                        future.result()  # raises what no further prompt could survive, when the rest is kept
                    if failed >= BREAK:
                        raise ModelError(
                            f"the server {self.base_url} failed on {failed} prompts one after another "
                            f"({self.summary()}); what it answered is kept: run the same command again when it is well"
                        )
        finally:
            pool.shutdown(cancel_futures=True)
            if self.faults:
                print(f"{target}: {self.summary()}", file=sys.stderr)

    def summary(self) -> str:
        """Return the faults so far in words."""
        return ", ".join(f"{count} x {fault}" for fault, count in self.faults.most_common())

    def facts(self) -> dict[str, Any]:
        """Return what a meta file tells beside the context."""
        told = self.telling
        return {"level": told.level, "top_tokens": told.top, "served_as": self.model, "faults": dict(self.faults)}

    def _announce(self, prompts: pd.DataFrame, framing: Framing, decoding: Decoding) -> None:
        around = sum(len(turn["content"]) for turn in framing.messages(""))
        cost = price(prompts["text"], decoding, around)
        print(f"{self.model} at {self.base_url} tells: {self.telling.level}; {cost}", file=sys.stderr)

    def _row(
        self,
        prompt: Any,
        *,
        framing: Framing,
        options: Mapping[str, Any],
        context: PromptContext,
        pace: "_Pace",
    ) -> dict[str, Any]:
        """Ask one prompt; return its trace row, whatever happens to it.

        Raises
        ------
        ModelError
            No prompt will ever be answered.
        """
        import openai

        about = {"prompt_id": prompt.prompt_id, "key": context.key(prompt.text)}
        try:
            reply = self._asked(framing.messages(prompt.text), options, pace)
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            raise self._unusable(error) from None
        except openai.BadRequestError as error:
            # Some services answer a filtered request this way.
            filtered = "content_filter" in (error.code or "") or "content_filter" in error.message
            self.faults["content filter" if filtered else "request refused"] += 1
            return about | (NOTHING | {"finish_reason": "content_filter", "response": ""} if filtered else NOTHING)
        except (openai.OpenAIError, Lost):
            return about | NOTHING
        row = about | row_of(reply, framing, self.telling)
        if row["finish_reason"] == "content_filter":
            self.faults["content filter"] += 1
        return row

    def _asked(
        self, messages: list[dict[str, str]], options: Mapping[str, Any], pace: "_Pace | None" = None
    ) -> dict[str, Any]:
        """Send one request, again and again where that may help; return the body."""
        import openai

        passing = (
            openai.RateLimitError,
            openai.InternalServerError,
            openai.APIConnectionError,  # a time-out too
            openai.ConflictError,
            Lost,
        )

        def once() -> dict[str, Any]:
            if pace:
                pace.take()
            try:
                name = self.model.partition("@")[0]
                raw = self.client.chat.completions.with_raw_response.create(model=name, messages=messages, **options)  # type: ignore[arg-type]
                return _read(raw.http_response)
            except passing as error:
                self.faults[_fault(error)] += 1
                raise

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(passing),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=_wait,
            reraise=True,
        )
        return retrying(once)

    def said(self, error: Exception) -> str:
        """Return an error's first line, without the key."""
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        key = os.environ.get(KEY)
        return line.replace(key, "***") if key else line

    def _unusable(self, error: Exception) -> ModelError:
        return ModelError(
            f"the server {self.base_url} cannot be asked for {self.model} ({type(error).__name__}: "
            f"{self.said(error)}); check base_url, the name of the model and the key in {KEY}"
        )


class _Pace:
    """Lets requests begin no faster than so many a minute."""

    def __init__(self, per_minute: int) -> None:
        self.gap = 60 / per_minute if per_minute else 0.0
        self.next, self.lock = 0.0, threading.Lock()

    def take(self) -> None:
        """Wait for the next turn."""
        if not self.gap:
            return
        with self.lock:
            self.next = max(self.next, time.monotonic()) + self.gap
            pause = self.next - self.gap - time.monotonic()
        time.sleep(max(0.0, pause))


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds until the next attempt: what the server asks for, else `WAIT`."""
    error = state.outcome.exception() if state.outcome else None
    asked = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
    return min(float(asked), LONGEST_WAIT) if re.fullmatch(r"\d+(\.\d+)?", asked) else WAIT(state)


def _fault(error: Exception) -> str:
    """Return what kind of fault an error is, in words."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return f"status {error.status_code}"
    if isinstance(error, openai.APITimeoutError):
        return "time-out"
    return "unreadable answer" if isinstance(error, Lost) else "cut connection"


def _read(response: Any) -> dict[str, Any]:
    """Read a body as JSON, in UTF-8, or else as its head says.

    Raises
    ------
    Lost
        It is not an answer.
    """
    try:
        try:
            body = json.loads(response.content)
        except UnicodeDecodeError:
            body = json.loads(response.content.decode(response.charset_encoding or "latin-1"))
        message = body["choices"][0]["message"]
    except (ValueError, LookupError, TypeError) as error:
        raise Lost(f"{type(error).__name__} in its answer") from error
    if not isinstance(message, dict):
        raise Lost("a choice without a message")
    return dict(body)


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
        tell. Where a server gives tokens as text and not as numbers, a number made of the text stands for it. What the
        model thinks before it answers is left out.
    """
    choice = reply["choices"][0]
    message = choice["message"]
    text = message.get("content") or message.get("refusal") or ""  # "" too where it was cut while it was thinking
    row = NOTHING | {"response": text.strip(), "finish_reason": choice.get("finish_reason") or "stop"}
    if telling.top and (content := (choice.get("logprobs") or {}).get("content")):
        found = {token_number(one["token"]): one["logprob"] for one in content[0].get("top_logprobs") or []}
        ids, values = np.array(list(found), np.int32), np.array(list(found.values()), np.float32)
        tail = float(max(0.0, 1.0 - np.exp(values.astype(np.float64)).sum()))
        row |= {"next_ids": ids, "next_logprobs": values, "tail_mass": tail}
    if telling.level == "full":
        ids = np.array(reply["prompt_token_ids"], np.int32)
        start, end = framing.start, len(ids) - framing.end
        nll = np.full(len(ids), np.nan, np.float32)
        for place in range(start, end):
            nll[place] = -reply["prompt_logprobs"][place][str(ids[place])]["logprob"]
        row |= {"token_ids": ids, "token_nll": nll, "user_start": start, "user_end": end}
    return row


def token_number(token: str) -> int:
    """Return a token's number, or one of 31 bits made of its text where the server gives only that."""
    known = _TOKEN_ID.fullmatch(token)
    return int(known[1]) if known else int(hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()[:8], 16) >> 1


def _holds(reply: Mapping[str, Any], telling: Telling) -> bool:
    """Return whether an answer has what was asked for."""
    try:
        row = row_of(reply, Framing(None, "", start=1, end=1), telling)
    except (LookupError, TypeError, ValueError):
        return False
    return (not telling.top or len(row["next_ids"]) > 0) and (telling.level != "full" or len(row["token_ids"]) > 2)


def _shared(first: list[int], second: list[int]) -> int:
    """Return how many leading items two lists share."""
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
