"""What a row of any log may say, and the names under which it says so.

It also finds texts in conversations and in the responses of providers.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from paraguard_tools.servers.stops import values_at

Object: TypeAlias = Mapping[str, Any]

REFUSAL_COLUMNS = [
    "refused",
    "rejected",
    "refusal",
    "is_refusal",
    "is_refused",
    "reject",
    "refuse",
    "flagged",
    "blocked",
]
"""Names of columns in which yes means a refusal."""

COMPLIANCE_COLUMNS = ["complied", "compliance", "is_compliant", "complies"]
"""Names of columns in which yes means an answer."""

BESIDE_ANSWERS = ("label", "verdict", "flagged")
"""Names of columns that may judge the request: they are no decision if there are
answers, unless the user names them.
"""

USUAL_COLUMNS = {
    "text": [
        "text",
        "prompt",
        "request",
        "question",
        "input",
        "instruction",
        "objective",
        "query",
    ],
    "decision": [
        "decision",
        *REFUSAL_COLUMNS[:5],
        *COMPLIANCE_COLUMNS,
        *BESIDE_ANSWERS,
    ],
    "cluster": ["cluster", "cluster_id", "meaning", "group"],
    "system": ["system", "model", "guard"],
    "harmful": ["harmful", "should_refuse", "unsafe"],
    "answer": [
        "response",
        "completion",
        "output",
        "generation",
        "assistant_response",
        "model_response",
        "model_output",
        "answer",
    ],
    "finish_reason": ["finish_reason", "stop_reason"],
    "annotation": ["annotation"],
    "score": ["score", "probability"],
    "error": ["error", "is_error"],
    "conversation": [
        "conversation",
        "conversation_id",
        "dialogue_id",
        "dialog_id",
        "chat_id",
        "thread_id",
        "session_id",
        "sessionid",
        "session.id",
        "gen_ai.conversation.id",
    ],
    "turn": ["turn", "turn_id", "turn_index", "turn_idx", "turn_number"],
    "repeat": [
        "repeat",
        "trial",
        "epoch",
        "seed",
        "run",
        "sample",
        "generation",
        "attempt",
        "iteration",
        "repetition",
        "generation_idx",
        "attempt_idx",
    ],
}
"""Fields of a row, and the usual names of their columns; the first that is there is
taken. A gold `answer` often stands beside the response of a model, so it comes last.
"""

_REASONS = (
    "choices.finish_reason",
    "stop_reason",
    "stopReason",
    "candidates.finishReason",
    "incomplete_details.reason",
    "done_reason",
    "outputs.finish_reason",
    "finish_reason",
)
_THOUGHTS = (
    "choices.message.reasoning_content",
    "choices.message.reasoning",
    "choices.message.thinking",
    "message.thinking",
    "usage.completion_tokens_details.reasoning_tokens",
    "usage.output_tokens_details.reasoning_tokens",
    "usageMetadata.thoughtsTokenCount",
)
_THINKING_TYPES = ("thinking", "redacted_thinking", "reasoning", "reasoning_text")


class Row(NamedTuple):
    """What one answer of a log says.

    `number` is that of its record, from 0. `columns` has what the record says under
    names of its own, `found` the fields that its format itself tells: those of
    `USUAL_COLUMNS`, and `model` (the system, where no column names one), `id`,
    `reasoning` (whether an empty answer came with reasoning) and `after_stop` (whether
    a filter stopped an earlier answer of the conversation).
    """

    number: int
    columns: Object
    found: Object


def read_words(meanings: Mapping[Any, str]) -> dict[str, Any]:
    """Return what each word means, from the words of each meaning.

    Examples
    --------
    >>> read_words({1: "one uno", 2: "two"})
    {'one': 1, 'uno': 1, 'two': 2}
    """
    known: dict[str, Any] = {}
    for meaning, words in meanings.items():
        known |= dict.fromkeys(words.split(), meaning)
    return known


YES_NO = read_words({True: "1 1.0 true yes", False: "0 0.0 false no"})
"""Words for yes and no, in lower case."""


def value_at(item: Any, path: str) -> Any:
    """Return what an object has at a path of keys; None if there is nothing.

    Examples
    --------
    >>> value_at({"a": {"b": [1, 2]}}, "a.b")
    [1, 2]
    """
    for name in path.split("."):
        if not isinstance(item, Mapping) or name not in item:
            return None
        item = item[name]
    return item


def mapping_at(item: Any, path: str) -> Object:
    """Return the object at a path of keys; an empty one if there is none."""
    found = value_at(item, path) if path else item
    return found if isinstance(found, Mapping) else {}


def flatten_columns(*places: Object, named: frozenset[str] = frozenset()) -> Object:
    """Return the columns of a record: what it says itself, or in its metadata.

    The first place that has a value wins. Values that are lists or objects count only
    if the user names them; a name with dots is a path.
    """
    columns: dict[str, Any] = {}
    for place in places:
        inside = place.get("metadata")
        parts = [place, inside] if isinstance(inside, Mapping) else [place]
        for part in parts:
            for name, value in part.items():
                if value is None or name in columns:
                    continue
                if not isinstance(value, dict | list) or name in named:
                    columns[name] = value
    for name in named:
        if name not in columns and "." in name:
            found = (value_at(place, name) for place in places)
            columns[name] = next((one for one in found if one is not None), None)
    return columns


def join_texts(content: Any) -> str | None:
    """Return the text of a message: itself, or its parts', without the thoughts.

    Examples
    --------
    >>> join_texts([{"text": "Hm.", "thought": True}, {"text": "Yes."}])
    'Yes.'
    """
    if isinstance(content, list):
        return "".join(join_texts(one) or "" for one in content)
    if isinstance(content, Mapping):
        if content.get("thought") is True or content.get("type") in _THINKING_TYPES:
            return None
        inside = content.get("text", content.get("parts", content.get("content")))
        return join_texts(content.get("refusal") if inside is None else inside)
    return content if isinstance(content, str) else None


def read_conversation(messages: Any) -> tuple[str | None, str | None]:
    """Return the last thing that a user said, and the answer to it.

    None for what is not there.
    """
    text = answer = None
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, Mapping):
            continue
        role = message.get("role")
        said = {name: message[name] for name in message if name != "type"}
        if role in ("user", "human"):
            text, answer = join_texts(said) or "", None
        elif role in ("assistant", "model") and text is not None:
            answer = join_texts(said)
    return text, answer


def list_answers(body: Object) -> list[str] | None:
    """Return the text of each answer of a provider's response; None if it is none.

    An answer without text is "".

    Examples
    --------
    >>> list_answers({"choices": [{"message": {"content": "a"}}, {"text": "b"}]})
    ['a', 'b']
    """
    if isinstance(body.get("choices"), list):
        return [_choice_text(one) for one in body["choices"]] or [""]
    if isinstance(body.get("candidates"), list):
        parts = [value_at(one, "content.parts") for one in body["candidates"]]
        return [join_texts(one) or "" for one in parts] or [""]
    if isinstance(body.get("promptFeedback"), Mapping):
        return [""]
    if isinstance(body.get("output"), Mapping | list):
        output = body["output"]
        if isinstance(output, Mapping) and isinstance(output.get("choices"), list):
            return list_answers(output)
        message = mapping_at(output, "message") if isinstance(output, Mapping) else {}
        return [join_texts(message or output) or ""]
    if isinstance(body.get("outputs"), list):
        return [join_texts(one) or "" for one in body["outputs"]] or [""]
    if isinstance(body.get("content"), Mapping | list):
        return [join_texts(body["content"]) or ""]
    if isinstance(body.get("message"), Mapping) and "role" in body["message"]:
        return [join_texts({"content": body["message"].get("content")}) or ""]
    return None


def _choice_text(choice: Any) -> str:
    """Return the text of a choice: its content, its refusal, or its plain text."""
    message = mapping_at(choice, "message") if isinstance(choice, Mapping) else {}
    for value in (message.get("content"), message.get("refusal")):
        if text := join_texts(value):
            return text
    return join_texts(value_at(choice, "text")) or ""


def find_reason(body: Object) -> str | None:
    """Return why an answer ended, as its provider says it."""
    for path in _REASONS:
        for value in values_at(body, path):
            if isinstance(value, str) and value:
                return value
    return None


def tells_reasoning(body: Object) -> bool:
    """Return whether a response has reasoning, or was billed for it."""
    if any(any(values_at(body, path)) for path in _THOUGHTS):
        return True
    blocks = [*values_at(body, "content.type"), *values_at(body, "output.type")]
    marks = values_at(body, "candidates.content.parts.thought")
    return any(one in _THINKING_TYPES for one in blocks) or True in list(marks)


def find_error_reason(error: Any) -> str:
    """Return the finish reason of an error: a provider's stop, or "error"."""
    from paraguard_tools.servers import stops

    stop = stops.find_stop_in_error(error, str(error))
    return stop.reason if stop else "error"


def read_responses(body: Object) -> Iterator[dict[str, Any]]:
    """Yield the fields of each answer of a provider's response."""
    from paraguard_tools.servers import stops

    answers = list_answers(body)
    several = answers is not None and len(answers) > 1
    for number, answer in enumerate(answers or [None]):
        part = _keep_choice(body, number) if several else body
        stop = stops.find_stop(part)
        if answer is None and not stop:
            return
        fields: dict[str, Any] = {
            "answer": answer,
            "finish_reason": stop.reason if stop else find_reason(part),
            "model": body.get("model"),
            "id": body.get("id"),
        }
        if not answer:
            fields["reasoning"] = tells_reasoning(part)
        if several:
            fields["repeat"] = number
        yield fields


def _keep_choice(body: Object, number: int) -> Object:
    """Return a response with one of its answers only."""
    kept = {}
    for name in ("choices", "candidates", "outputs"):
        if isinstance(body.get(name), list):
            kept[name] = body[name][number : number + 1]
    return {**body, **kept}
