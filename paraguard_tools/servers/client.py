"""Send requests to an OpenAI-compatible server, again where that may help.

The API key comes from the environment and appears in no message.
"""

import contextlib
import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paraguard_tools.servers import stops
from paraguard_tools.servers.stops import Stop
from paraguard_utils.errors import ModelError
from paraguard_utils.models.loading import first_error_line

if TYPE_CHECKING:
    import openai

# The environment variable with the API key; without it we send no key
API_KEY_VARIABLE = "OPENAI_API_KEY"
FILTER_FAULT = "content filter"  # the kind of fault that a provider's stop counts as
MAX_ATTEMPTS = 6  # attempts at a prompt before its row says `error`
# Most seconds that we wait because a server asks for it by Retry-After
MAX_RETRY_AFTER = 300.0
ANSWER_TIMEOUT = 600.0  # seconds until we count an answer as lost
CONNECT_TIMEOUT = 10.0  # seconds until we count a server as absent
MAX_ANSWER_BYTES = 32 * 2**20  # above which an answer counts as unreadable
# No answer that can be used, a conflict, too many requests
_PASSING_STATUSES = (0, 409, 429)


class UnusableAnswer(Exception):
    """An answer that cannot be used, or the client's error.

    It is not JSON, without a choice, too large, cut off or no longer waited for.
    `fault` is the kind that is counted, `name` the error's, `status` the server's, 0 if
    it sent none, and `stop` the provider's stop behind it.
    """

    def __init__(
        self,
        message: str,
        fault: str = "unreadable answer",
        name: str = "UnusableAnswer",
        status: int = 0,
        stop: Stop | None = None,
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.name = name
        self.status = status
        self.stop = stop

    @property
    def may_pass(self) -> bool:
        """Whether the same request may be answered later."""
        return self.status in _PASSING_STATUSES or self.status >= 500


class Pace:
    """Lets at most `per_minute` requests begin a minute (0: no limit).

    None begins after the event `over` is set.
    """

    def __init__(self, per_minute: int = 0) -> None:
        self.gap = 60 / per_minute if per_minute else 0.0
        self.next = 0.0
        self.lock = threading.Lock()
        self.over = threading.Event()

    def take(self) -> None:
        """Wait for the next turn."""
        with self.lock:
            begins = max(self.next, time.monotonic())
            self.next = begins + self.gap
        if self.over.wait(max(0.0, begins - time.monotonic())):
            raise UnusableAnswer("the run was stopped")


@dataclass(frozen=True)
class Client:
    """Sends requests to a server for one model, by the server's name for it.

    `faults` counts what went wrong, by kind.
    """

    base_url: str
    model: str
    faults: Counter[str] = field(default_factory=Counter)

    @cached_property
    def library(self) -> "openai.OpenAI":
        """The client of the package openai.

        It does not retry: its `max_retries` retries no unreadable answer, counts no
        faults and cannot be interrupted.
        """
        try:
            import openai
        except ImportError as error:
            raise ModelError(
                "asking a server needs the package openai; run: python -m pip install"
                " 'paraguard-utils[endpoints]'"
            ) from error
        key = _read_key()
        # A library's error might quote it
        if not (key.isascii() and key.isprintable()):
            raise ModelError(
                f"the key in {API_KEY_VARIABLE} holds a character that no key has; set"
                " it again"
            )
        return openai.OpenAI(
            base_url=self.base_url,
            api_key=key or "none",
            max_retries=0,
            timeout=openai.Timeout(ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT),
        )

    def send(
        self,
        messages: list[Any],
        options: Mapping[str, Any],
        pace: Pace | None = None,
    ) -> dict[str, Any]:
        """Send one request, up to `MAX_ATTEMPTS` times; return the body of the answer.

        Raise `UnusableAnswer` if there is none.
        """
        create = self.library.chat.completions.with_streaming_response.create
        import openai  # `library` says what to do if it is missing

        pace = pace or Pace()
        attempt = 0
        while True:
            pace.take()
            attempt += 1
            try:
                with create(model=self.model, messages=messages, **options) as raw:
                    return _read_completion(raw.http_response)
            except (openai.OpenAIError, UnusableAnswer) as error:
                unusable = _unusable_answer(error)
                self.faults[unusable.fault] += 1
                if attempt == MAX_ATTEMPTS or not unusable.may_pass:
                    raise unusable from None
                if pace.over.wait(seconds_to_wait(error, attempt)):
                    raise unusable from None

    def explain(self, error: UnusableAnswer) -> ModelError:
        """Return the error to raise about a server that cannot be used at all."""
        return ModelError(
            f"the server {self.base_url} cannot be asked for {self.model}"
            f" ({error.name}: {error}); check base_url, the name of the model and the"
            f" key in {API_KEY_VARIABLE}"
        )

    def summarize_faults(self) -> str:
        """Return the faults of this run in words."""
        counts = self.faults.most_common()
        return ", ".join(f"{count} x {fault}" for fault, count in counts)


def _read_key() -> str:
    return os.environ.get(API_KEY_VARIABLE, "").strip()


def backoff_seconds(attempt: int) -> float:
    """Return the seconds to wait after the first, second, ... attempt.

    That is if the server does not say how long.
    """
    return min(60.0, 2.0 ** (attempt - 1) + random.random())


def seconds_to_wait(error: Exception, attempt: int) -> float:
    """Return the seconds to wait after a failed attempt.

    They are what the header Retry-After asks for, and else `backoff_seconds`.
    """
    response = getattr(error, "response", None)
    wanted = getattr(response, "headers", {}).get("retry-after", "")
    if re.fullmatch(r"\d+(\.\d+)?", wanted):
        return min(float(wanted), MAX_RETRY_AFTER)
    # No date either, or one without a time zone
    with contextlib.suppress(ValueError, TypeError):
        wait = parsedate_to_datetime(wanted) - datetime.now(UTC)
        return min(max(0.0, wait.total_seconds()), MAX_RETRY_AFTER)
    return backoff_seconds(attempt)


def _unusable_answer(error: Exception) -> UnusableAnswer:
    """Return an error of the client's, without the key.

    Many services answer a filtered request with an error.
    """
    import openai

    if isinstance(error, UnusableAnswer):
        return error
    name = type(error).__name__
    message = first_error_line(error)
    if _read_key():
        message = message.replace(_read_key(), "***")
    if isinstance(error, openai.APIStatusError):
        stop = stops.find_stop_in_error(error.body, error.message)
        fault = FILTER_FAULT if stop else f"status {error.status_code}"
        return UnusableAnswer(message, fault, name, error.status_code, stop)
    is_late = isinstance(error, openai.APITimeoutError)
    return UnusableAnswer(message, _name_break(is_late), name)


def _name_break(is_late: bool) -> str:
    return "time-out" if is_late else "cut connection"


def _read_completion(response: Any) -> dict[str, Any]:
    """Read a chat completion, in UTF-8 or as its header says.

    Raise `UnusableAnswer` if it is none.
    """
    body = _read_body(response)
    reply: Any = None
    try:
        try:
            reply = json.loads(body)
        except UnicodeDecodeError:
            encoding = response.charset_encoding or "latin-1"
            reply = json.loads(body.decode(encoding))
        choice = reply["choices"][0]
        message = choice["message"]
        reason = choice.get("finish_reason")
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        stop = stops.find_stop(reply)
        if stop:  # a filter may leave nothing of an answer
            choice = {"message": {"content": ""}, "finish_reason": stop.reason}
            return {"choices": [choice]}
        # The error's own text would quote the answer
        raise UnusableAnswer(f"{type(error).__name__} in its answer") from None
    if not isinstance(message, dict) or reason == "error":
        raise UnusableAnswer("a choice without a message")
    return dict(reply)


def _read_body(response: Any) -> bytearray:
    body = bytearray()
    try:
        for part in response.iter_bytes():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                break
    # Of the library beneath the client, of which there are two
    except Exception as error:
        is_late = "Timeout" in type(error).__name__
        raise UnusableAnswer(
            "an answer that did not end", _name_break(is_late)
        ) from error
    if len(body) > MAX_ANSWER_BYTES:
        raise UnusableAnswer("an answer of more than 32 MB", "too large an answer")
    return body
