"""Send requests to an OpenAI-compatible server.

The package openai repeats what may be answered later. The API key comes from the
environment; it is masked in all that comes back.
"""

import asyncio
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from paraguard_tools.servers import stops
from paraguard_tools.servers.stops import Stop
from paraguard_utils.errors import ModelError
from paraguard_utils.models.loading import first_error_line
from paraguard_utils.models.prompting import count_shared

if TYPE_CHECKING:
    import openai

# The environment variable with the API key; without it we send no key
API_KEY_VARIABLE = "OPENAI_API_KEY"
FILTER_FAULT = "content filter"  # the kind of fault that a provider's stop counts as
MAX_ATTEMPTS = 6  # attempts at a prompt before its row says `error`
ANSWER_TIMEOUT = 600.0  # seconds of silence until we count an answer as lost
CONNECT_TIMEOUT = 10.0  # seconds until we count a server as absent
# Seconds for a prompt with all its attempts, however its answers drip in
PROMPT_TIMEOUT = 1200.0
# Characters from which the beginning of a key is masked
SECRET_CHARS = 8

# A key, a name or an unpaid bill: the next request would get the same answer
_ACCOUNT_STATUSES = (401, 402, 404)
_FORBIDDEN = 403
# A prompt that is refused as such may be in the error, with words like these
_ECHOING_STATUSES = (413, 422)

# What services call an account without money or a key that is none
_ACCOUNT_WORDS = re.compile(
    r"insufficient[\s_-]*(?:account[\s_-]*)?(?:quota|balance|credit|fund)"
    r"|credit balance|not enough (?:balance|credit)|payment required"
    r"|exceeded_current_quota|billing[\s_](?:hard|not)|arrearage|overdue"
    r"|(?:invalid|incorrect|expired)[\s_-]*(?:x-)?api[\s_-]*key"
    r"|api[\s_-]*key (?:is )?(?:not valid|invalid|expired)"
    r"|account[^.]{0,40}(?:suspend|deactivat|disabled|not active)",
    re.IGNORECASE,
)

# A service that forbids may speak of one prompt: that is no fault of the account
_CONTENT_WORDS = re.compile(
    r"content|flagged|moderat|safety|harmful|inappropriate|violat|sensitive|blocked",
    re.IGNORECASE,
)

_Answer = TypeVar("_Answer")
_loop_lock = threading.Lock()


class UnusableAnswer(Exception):
    """An answer that cannot be used, or the client's error.

    `status` is the server's, 0 if it sent none, and `stop` the provider's stop behind
    it. `ends_run` says that every other prompt would get the same error.
    """

    def __init__(
        self,
        message: str,
        status: int = 0,
        stop: Stop | None = None,
        ends_run: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.stop = stop
        self.ends_run = ends_run


class Pace:
    """Lets at most `per_minute` requests begin a minute (0: no limit)."""

    def __init__(self, per_minute: int = 0) -> None:
        self.gap = 60 / per_minute if per_minute else 0.0
        self.next = 0.0
        self.lock = threading.Lock()

    def take(self) -> None:
        """Wait for the next turn."""
        with self.lock:
            begins = max(self.next, time.monotonic())
            self.next = begins + self.gap
        time.sleep(max(0.0, begins - time.monotonic()))


@dataclass(frozen=True)
class Client:
    """Sends requests to a server for one model, by the server's name for it.

    `faults` counts what went wrong, by kind. A request ends after `prompt_timeout`
    seconds, with all its attempts.
    """

    base_url: str
    model: str
    faults: Counter[str] = field(default_factory=Counter)
    prompt_timeout: float = PROMPT_TIMEOUT

    @cached_property
    def library(self) -> "openai.AsyncOpenAI":
        """The client of the package openai, whose requests `wait` runs."""
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
        try:
            return openai.AsyncOpenAI(
                base_url=self.base_url,
                api_key=key or "none",
                max_retries=MAX_ATTEMPTS - 1,
                timeout=openai.Timeout(ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT),
            )
        # The library reads proxies and certificates from the environment, and raises
        # what parsing and opening them raises
        except Exception as error:
            raise ModelError(
                f"no connection can be made to {self.base_url} ({_describe(error)});"
                " check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and"
                " SSL_CERT_DIR"
            ) from None

    def wait(self, request: Awaitable[_Answer]) -> _Answer:
        """Run a request of `library` to its end.

        Raise TimeoutError if there is no whole answer after `prompt_timeout` seconds.
        """
        limited = asyncio.wait_for(request, self.prompt_timeout)
        return asyncio.run_coroutine_threadsafe(limited, _event_loop()).result()

    def send(self, messages: list[Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request; return the body of the answer.

        Raise `UnusableAnswer` if there is none after `MAX_ATTEMPTS` attempts.
        """
        create = self.library.chat.completions.with_raw_response.create
        import openai  # `library` says what to do if it is missing

        try:
            raw: Any = self.wait(create(model=self.model, messages=messages, **options))
            if raw.retries_taken:
                self.faults["repeated request"] += raw.retries_taken
            return _read_completion(raw.text)
        except openai.APIStatusError as error:
            unusable = _read_error(error)
            fault = FILTER_FAULT if unusable.stop else f"status {error.status_code}"
        except openai.OpenAIError as error:
            fault = "no answer"
            unusable = UnusableAnswer(_describe(error))
        except TimeoutError:
            fault = "no answer"
            unusable = UnusableAnswer(
                f"no whole answer within {self.prompt_timeout:.0f} seconds"
            )
        except UnusableAnswer as error:
            fault = "unreadable answer"
            unusable = error
        self.faults[fault] += 1
        raise unusable

    def explain(self, error: UnusableAnswer) -> ModelError:
        """Return the error to raise about a server that cannot be used at all."""
        return ModelError(
            f"the server {self.base_url} cannot be asked for {self.model} ({error});"
            f" check base_url, the name of the model, the key in {API_KEY_VARIABLE} and"
            " the account behind it; answers that came are kept"
        )

    def summarize_faults(self) -> str:
        """Return the faults of this run in words."""
        counts = self.faults.most_common()
        return ", ".join(f"{count} x {fault}" for fault, count in counts)


@cache
def _make_event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="requests", daemon=True).start()
    return loop


def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of all requests, which runs in a thread of its own.

    Only there can a request be ended while a server keeps it alive byte by byte.
    """
    with _loop_lock:
        return _make_event_loop()


def _read_key() -> str:
    return os.environ.get(API_KEY_VARIABLE, "").strip()


def mask_key(text: str) -> str:
    """Return a text with `***` for the key and for its beginnings.

    They count from `SECRET_CHARS` characters on; a shorter key is no secret.
    """
    key = _read_key()
    if len(key) < SECRET_CHARS:
        return text
    parts = []
    start = 0
    while (found := text.find(key[:SECRET_CHARS], start)) >= 0:
        parts += [text[start:found], "***"]
        start = found + count_shared(key, text[found : found + len(key)])
    return "".join([*parts, text[start:]])


def _mask_strings(value: Any) -> Any:
    """Return decoded JSON with the key masked in all its texts (`mask_key`)."""
    if isinstance(value, str):
        return mask_key(value)
    if isinstance(value, list):
        return [_mask_strings(item) for item in value]
    if isinstance(value, dict):
        return {name: _mask_strings(item) for name, item in value.items()}
    return value


def _describe(error: Exception) -> str:
    """Describe an error of the library's, without the key."""
    message = f"{type(error).__name__}: {first_error_line(error)}"
    key = _read_key()
    if key:
        message = message.replace(key, "***")
    return mask_key(message)


def _read_error(error: "openai.APIStatusError") -> UnusableAnswer:
    """Read an error that a server returned: a stop, a fault, or the end of the run."""
    body: Any = error.body
    is_json = False
    with suppress(ValueError, RecursionError):
        body = json.loads(error.response.text)
        is_json = True
    with suppress(RecursionError):
        body = _mask_strings(body)
    message = _describe(error)
    status = error.status_code
    stop = stops.find_stop_in_error(body, mask_key(error.message))
    if stop:
        return UnusableAnswer(message, status, stop)
    words = f"{error.message} {body}"
    is_forbidden = status == _FORBIDDEN and is_json and not _CONTENT_WORDS.search(words)
    ends_run = (
        status in _ACCOUNT_STATUSES
        or is_forbidden
        or (status not in _ECHOING_STATUSES and bool(_ACCOUNT_WORDS.search(words)))
    )
    return UnusableAnswer(message, status, ends_run=ends_run)


def _read_completion(body: str) -> dict[str, Any]:
    """Read a chat completion; raise `UnusableAnswer` if it is none."""
    reply: Any = None
    with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        reply = _mask_strings(json.loads(body))
        choice = reply["choices"][0]
        if (
            isinstance(choice["message"], dict)
            and choice.get("finish_reason") != "error"
        ):
            return dict(reply)
    stop = stops.find_stop(reply)
    if stop is None:
        for place in ("error", "choices.error"):
            error = stops.first_at(reply, place)
            stop = stop or (stops.find_stop_in_error(error) if error else None)
    if stop:  # a filter may leave nothing of an answer
        choice = {"message": {"content": ""}, "finish_reason": stop.reason}
        return {"choices": [choice]}
    # An error's own text would quote the answer
    has_choices = isinstance(reply, dict) and "choices" in reply
    if not has_choices and _ACCOUNT_WORDS.search(body):
        raise UnusableAnswer("an error about the account", ends_run=True)
    raise UnusableAnswer("no chat completion")
