"""Write requests to an OpenAI-compatible server, and read what it returns.

A server's *level* says what it returns beside its answers: `full`, the
log-probabilities of the prompt and of the first answer token; `answer tokens`, those of
the first answer token; `text`, none.
"""

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from paraguard_lab.core.sampling import Sampling
from paraguard_tools.servers import stops
from paraguard_tools.servers.stops import Stop
from paraguard_utils.models.prompting import Decoding, count_shared
from paraguard_utils.schemas import Traces
from paraguard_utils.text import THINKING_BLOCK

PARTLY_RETURNED = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
)
"""The errors of reading a field that is missing or malformed."""

# The share of answers that have what a server promised, from which its level holds
LEAST_COMPLETE = 0.95

# Where servers put what a model thinks: fields of a message, and types of its parts
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking")
_THOUGHT_TYPES = ("thinking", "reasoning", "redacted_thinking")

# A trace of which nothing was returned
EMPTY_TRACE: dict[str, Any] = {
    "token_ids": np.array([], np.int32),
    "token_nll": np.array([], np.float32),
    "next_ids": np.array([], np.int32),
    "next_logprobs": np.array([], np.float32),
    "response": None,
    "finish_reason": "error",
    "user_start": 0,
    "user_end": 0,
    "tail_mass": 1.0,
}


class Capabilities(NamedTuple):
    """What a server returns, and how to ask for it.

    `top` is how many of the likeliest first answer tokens it returns, `limit` its name
    for the maximum length of an answer. Many reasoning models accept no `temperature`.
    """

    level: str
    top: int
    limit: str
    temperature: bool = True

    def options(self, decoding: Decoding) -> dict[str, Any]:
        """Return the arguments of a request."""
        options: dict[str, Any] = {self.limit: decoding.max_new_tokens}
        if self.temperature:
            options["temperature"] = 0
        if isinstance(decoding, Sampling):
            options["temperature"] = decoding.temperature
            options["seed"] = decoding.draw
        if self.top:
            options["logprobs"] = True
            options["top_logprobs"] = self.top
        if self.level == "full":
            options["extra_body"] = {
                "prompt_logprobs": 0,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            }
        return options


class PromptLayout(NamedTuple):
    """What surrounds the user's words in a request.

    `system` is the system turn, and `before` the text before the user's words in their
    own turn. At the level `full`, `start` and `end` are the tokens around the user's
    words. `told` is what we ask for: rows with less, or more, are not reused. The
    fields, with their names, are part of every key.
    """

    system: str | None
    before: str
    start: Sequence[int] = ()
    end: Sequence[int] = ()
    told: str = ""

    def messages(self, text: str) -> list[dict[str, str]]:
        """Return the turns of a request."""
        turns = [{"role": "user", "content": self.before + text}]
        if self.system is not None:
            turns.insert(0, {"role": "system", "content": self.system})
        return turns


def blocked_row(stop: Stop) -> dict[str, Any]:
    """Return the columns of a trace whose answer a provider stopped."""
    return EMPTY_TRACE | {"finish_reason": stop.reason, "response": ""}


def parse_completion(
    reply: Mapping[str, Any], layout: PromptLayout, capabilities: Capabilities
) -> dict[str, Any]:
    """Return all columns of a trace but prompt_id and key from a chat completion.

    Its first choice has a message. Without log-probabilities of this answer, lists are
    empty and the tail mass is 1. Thinking that the server keeps apart from the answer
    is left out.
    """
    choice = reply["choices"][0]
    stop = stops.find_stop(reply)
    reason = stop.reason if stop else choice.get("finish_reason") or "stop"
    row = EMPTY_TRACE | {
        "response": _read_text(choice["message"]),
        "finish_reason": str(reason),
    }
    if capabilities.top:
        with contextlib.suppress(*PARTLY_RETURNED):
            first = choice["logprobs"]["content"][0]
            row |= _read_first_token(first["top_logprobs"])
    if capabilities.level == "full":
        with contextlib.suppress(*PARTLY_RETURNED):
            row |= _read_prompt(reply, layout)
    return row


def _read_text(message: Mapping[str, Any]) -> str:
    """Return an answer's text; "" if it was cut off while thinking."""
    content = message.get("content") or message.get("refusal")
    parts = [content]
    if isinstance(content, list):
        spoken = [part for part in content if not _is_thought(part)]
        parts = list(stops.values_at(spoken, "text"))
    text = "".join(part for part in parts if isinstance(part, str))
    # Half a pair of surrogates is no character
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


def _is_thought(part: object) -> bool:
    """Return whether a part of an answer's content is thinking."""
    return isinstance(part, Mapping) and part.get("type") in _THOUGHT_TYPES


def has_reasoning(reply: Mapping[str, Any]) -> bool:
    """Return whether a model thought before it answered, as far as an answer shows.

    The first choice of the completion has a message.

    Examples
    --------
    >>> message = {"content": None, "reasoning_content": "Well, the user asks"}
    >>> has_reasoning({"choices": [{"message": message}]})
    True
    """
    message = reply["choices"][0]["message"]
    if any(message.get(field) for field in _THOUGHT_FIELDS):
        return True
    content = message.get("content")
    if isinstance(content, str):
        is_shown = THINKING_BLOCK.match(content) is not None
    else:
        is_shown = isinstance(content, list) and any(map(_is_thought, content))
    spent = stops.first_at(reply, "usage.completion_tokens_details.reasoning_tokens")
    return is_shown or (isinstance(spent, int) and spent > 0)


_DATE = r"\d{4}-?\d{2}-?\d{2}|\d{2}-\d{2}(?:-\d{4})?|\d{2}-\d{4}|\d{3,4}"
_VERSION = re.compile(rf"(?:[-@:.]preview)?(?:[-@:.](?:{_DATE}|latest))?")


def is_same_model(asked: str, answered: str) -> bool:
    """Return whether a server's answer is by the model that it was asked for.

    A name may get a date or a version of three or four digits, and lose the name of
    whoever made the model.

    Examples
    --------
    >>> is_same_model("gpt-x", "gpt-x-2026-01-01")
    True
    >>> is_same_model("gpt-x", "gpt-x-mini")
    False
    """
    names = [asked.casefold(), answered.casefold()]
    if not all("/" in name for name in names):
        names = [name.rpartition("/")[2] for name in names]
    alias, name = (re.sub(r"[-:]latest$", "", name) for name in names)
    version = name.removeprefix(alias)
    return name.startswith(alias) and bool(_VERSION.fullmatch(version))


def _read_first_token(likeliest: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a trace's columns about the first answer token.

    Of tokens with the same text the likeliest counts.
    """
    found = pd.Series(
        [float(token["logprob"]) for token in likeliest],
        [token_number(token["token"]) for token in likeliest],
    )
    found = found.groupby(level=0, sort=False).max()
    mass = np.exp(found.to_numpy(np.float32).astype(float)).sum()
    return {
        "next_ids": found.index.to_numpy(np.int32),
        "next_logprobs": found.to_numpy(np.float32),
        "tail_mass": float(max(0.0, 1.0 - mass)),
    }


def _read_prompt(reply: Mapping[str, Any], layout: PromptLayout) -> dict[str, Any]:
    """Return a trace's columns about the prompt.

    A token that spans the user's words and the template is the user's.
    """
    token_ids: list[int] = reply["prompt_token_ids"]
    start = count_shared(layout.start, token_ids)
    end = len(token_ids) - count_shared(layout.end[::-1], token_ids[::-1])
    nll = np.full(len(token_ids), np.nan, np.float32)
    for place in range(start, end):
        logprobs = reply["prompt_logprobs"][place]
        nll[place] = -logprobs[str(token_ids[place])]["logprob"]
    return {
        "token_ids": np.array(token_ids, np.int32),
        "token_nll": nll,
        "user_start": start,
        "user_end": end,
    }


def token_number(token: str) -> int:
    """Return a token's number.

    Of a token given as text it is 31 bits of the text's hash.
    """
    numbered = re.fullmatch(r"token_id:(\d+)", token)
    if numbered:
        return int(numbered[1])
    digest = hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
    return int(digest[:8], 16) >> 1


def returns_all(reply: Mapping[str, Any], capabilities: Capabilities) -> bool:
    """Return whether an answer has what was asked for."""
    layout = PromptLayout(None, "")
    token_ids = reply.get("prompt_token_ids")
    if isinstance(token_ids, list):
        layout = layout._replace(start=token_ids[:1], end=token_ids[-1:])
    row = parse_completion(reply, layout, capabilities)
    if capabilities.top and len(row["next_ids"]) == 0:
        return False
    return capabilities.level != "full" or len(row["token_ids"]) > 2


def is_complete(row: Mapping[str, Any], capabilities: Capabilities) -> bool:
    """Return whether a trace has the log-probabilities that were asked for."""
    if capabilities.level == "full" and len(row["token_ids"]) == 0:
        return False
    return not capabilities.top or len(row["next_ids"]) > 0


def find_level(traces: Traces, level: str) -> str:
    """Return the level that a server's answers have, at most the one it promised.

    It holds if at least `LEAST_COMPLETE` of the answers with a text have what it says:
    of two servers behind one address, one may return less.
    """
    answered = traces[traces["response"].fillna("") != ""]
    if answered.empty:
        return level
    shares = {
        name: answered[name].map(len).gt(0).mean() for name in ("token_ids", "next_ids")
    }
    if level == "full" and shares["token_ids"] < LEAST_COMPLETE:
        level = "answer tokens"
    if level != "text" and shares["next_ids"] < LEAST_COMPLETE:
        level = "text"
    return level
