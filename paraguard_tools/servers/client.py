"""Send requests to an OpenAI-compatible server.

The package openai repeats what may be answered later. The API key comes from the
environment and appears in no message.
"""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
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
ANSWER_TIMEOUT = 600.0  # seconds until we count an answer as lost
CONNECT_TIMEOUT = 10.0  # seconds until we count a server as absent


class UnusableAnswer(Exception):
    """An answer that cannot be used, or the client's error.

    `status` is the server's, 0 if it sent none, and `stop` the provider's stop behind
    it.
    """

    def __init__(self, message: str, status: int = 0, stop: Stop | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.stop = stop


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

    `faults` counts what went wrong, by kind.
    """

    base_url: str
    model: str
    faults: Counter[str] = field(default_factory=Counter)

    @cached_property
    def library(self) -> "openai.OpenAI":
        """The client of the package openai."""
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
            max_retries=MAX_ATTEMPTS - 1,
            timeout=openai.Timeout(ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT),
        )

    def send(self, messages: list[Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request; return the body of the answer.

        Raise `UnusableAnswer` if there is none after `MAX_ATTEMPTS` attempts.
        """
        create = self.library.chat.completions.with_raw_response.create
        import openai  # `library` says what to do if it is missing

        try:
            raw = create(model=self.model, messages=messages, **options)
            if raw.retries_taken:
                self.faults["repeated request"] += raw.retries_taken
            return _read_completion(raw.text)
        except openai.APIStatusError as error:
            stop = stops.find_stop_in_error(error.body, error.message)
            fault = FILTER_FAULT if stop else f"status {error.status_code}"
            unusable = UnusableAnswer(_describe(error), error.status_code, stop)
        except openai.OpenAIError as error:
            fault = "no answer"
            unusable = UnusableAnswer(_describe(error))
        except UnusableAnswer as error:
            fault = "unreadable answer"
            unusable = error
        self.faults[fault] += 1
        raise unusable

    def explain(self, error: UnusableAnswer) -> ModelError:
        """Return the error to raise about a server that cannot be used at all."""
        return ModelError(
            f"the server {self.base_url} cannot be asked for {self.model} ({error});"
            f" check base_url, the name of the model and the key in {API_KEY_VARIABLE}"
        )

    def summarize_faults(self) -> str:
        """Return the faults of this run in words."""
        counts = self.faults.most_common()
        return ", ".join(f"{count} x {fault}" for fault, count in counts)


def _read_key() -> str:
    return os.environ.get(API_KEY_VARIABLE, "").strip()


def _describe(error: Exception) -> str:
    """Describe an error of the library's, without the key."""
    message = f"{type(error).__name__}: {first_error_line(error)}"
    key = _read_key()
    return message.replace(key, "***") if key else message


def _read_completion(body: str) -> dict[str, Any]:
    """Read a chat completion; raise `UnusableAnswer` if it is none."""
    reply: Any = None
    try:
        reply = json.loads(body)
        choice = reply["choices"][0]
        if (
            isinstance(choice["message"], dict)
            and choice.get("finish_reason") != "error"
        ):
            return dict(reply)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        stop = stops.find_stop(reply)
        if stop:  # a filter may leave nothing of an answer
            choice = {"message": {"content": ""}, "finish_reason": stop.reason}
            return {"choices": [choice]}
    # An error's own text would quote the answer
    raise UnusableAnswer("no chat completion")
