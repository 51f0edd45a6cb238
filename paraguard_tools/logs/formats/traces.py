"""Read exports of Langfuse and LangSmith, as JSON or as tables."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from paraguard_tools.logs.formats.fields import (
    Object,
    Row,
    find_error_reason,
    flatten_columns,
    join_texts,
    mapping_at,
    read_conversation,
    read_responses,
    value_at,
)
from paraguard_tools.logs.formats.sources import decode

_Records = Iterable[tuple[int, Object]]

_LANGFUSE_MARKS = ("traceId", "trace_id", "sessionId", "session_id", "observations")
_MODEL_NAMES = ("model", "providedModelName", "provided_model_name", "internalModel")


def is_langfuse(item: Object) -> bool:
    """Return whether a record is a trace or an observation of Langfuse."""
    if isinstance(item.get("trace"), Mapping) and "observations" in item:
        return True
    has_marks = any(name in item for name in _LANGFUSE_MARKS)
    return {"input", "output"} <= set(item) and has_marks


def read_langfuse(records: _Records, named: frozenset[str]) -> Iterator[Row]:
    """Yield the generations of Langfuse; traces if there are none."""
    listed = list(
        itertools.chain.from_iterable(itertools.starmap(_list_langfuse, records))
    )
    kinds = {str(item.get("type", "")).upper() for _, item in listed}
    for number, item in listed:
        if "GENERATION" in kinds and str(item.get("type", "")).upper() != "GENERATION":
            continue
        asked, came = _load(item.get("input")), _load(item.get("output"))
        inside = {"metadata": _load(item.get("metadata"))}
        columns = flatten_columns(item, inside, named=named)
        fields = _read_pair(asked, came)
        models = (item.get(name) for name in _MODEL_NAMES)
        fields["model"] = next(filter(None, models), None)
        if str(item.get("level", "")).upper() == "ERROR" and not fields["answer"]:
            said = item.get("statusMessage") or item.get("status_message")
            fields["finish_reason"] = find_error_reason(said or "error")
        fields["id"] = item.get("id")
        left = {"input", "output", "type", "level"} - named
        kept = {name: columns[name] for name in columns if name not in left}
        yield Row(number, kept, fields)


def _list_langfuse(number: int, item: Object) -> Iterator[tuple[int, Object]]:
    """Yield the observations of a downloaded trace, or the record itself."""
    inside = _load(item.get("observations"))
    rows = [one for one in inside or () if isinstance(one, Mapping)]
    about = item.get("trace") if isinstance(item.get("trace"), Mapping) else {}
    if not rows:
        yield number, about or item
    for one in rows:
        own = _load(one.get("metadata"))
        shared = _load(mapping_at({"trace": about}, "trace").get("metadata"))
        both: dict[str, Any] = {}
        for part in (shared, own):
            if isinstance(part, Mapping):
                both |= part
        yield number, {**one, "metadata": both}


def is_langsmith(item: Object) -> bool:
    """Return whether a record is a run of LangSmith, or an example of an experiment."""
    return {"inputs", "outputs"} <= set(item)


def read_langsmith(records: _Records, named: frozenset[str]) -> Iterator[Row]:
    """Yield the runs of LangSmith; only those of models if their types are known."""
    listed = list(records)
    kinds = {item.get("run_type") for _, item in listed}
    for number, item in listed:
        if "llm" in kinds and item.get("run_type") != "llm":
            continue
        asked, came = _load(item.get("inputs")), _load(item.get("outputs"))
        extra = _load(item.get("extra"))
        about = mapping_at({"extra": extra}, "extra.metadata")
        columns = flatten_columns(item, {"metadata": about}, named=named)
        fields = _read_pair(asked, came)
        names = (
            about.get("ls_model_name"),
            value_at(extra, "invocation_params.model"),
            value_at(extra, "invocation_params.model_name"),
            fields["model"],
        )
        fields["model"] = next(filter(None, names), None)
        if item.get("error") and not fields["answer"]:
            fields["finish_reason"] = find_error_reason(item["error"])
        fields["id"] = item.get("id")
        left = {"inputs", "outputs", "error", "run_type"} - named
        kept = {name: columns[name] for name in columns if name not in left}
        yield Row(number, kept, fields)


def _load(value: Any) -> Any:
    """Return what JSON in a cell says; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        found = decode(value)
        return value if found is None else found
    return value


def _read_pair(asked: Any, came: Any) -> dict[str, Any]:
    """Return the fields of what went into a model, and what came out."""
    fields: dict[str, Any] = {"text": _find_text(asked), "answer": None, "model": None}
    if isinstance(came, Mapping):
        found = next(read_responses(came), None)
        if found:
            return fields | found
    fields["answer"] = _find_answer(came)
    return fields


def _find_text(asked: Any) -> str | None:
    """Return the last thing that a user said in what went into a model."""
    if isinstance(asked, Mapping):
        for name in ("messages", "input", "question", "prompt", "prompts", "query"):
            if name in asked:
                return _find_text(asked[name])
        texts = [one for one in asked.values() if isinstance(one, str)]
        return texts[0] if len(texts) == 1 else None
    if isinstance(asked, list):
        inside = asked[0] if asked and isinstance(asked[0], list) else asked
        messages = [_plain_message(one) for one in inside]
        text = read_conversation(messages)[0]
        if text is None and inside and isinstance(inside[-1], str):
            return inside[-1]
        return text
    return asked if isinstance(asked, str) else None


def _plain_message(message: Any) -> Any:
    """Return a message of LangChain's as one with role and content."""
    if not isinstance(message, Mapping):
        return message
    inside = message.get("kwargs") or message.get("data")
    if isinstance(inside, Mapping):
        kinds = message.get("id")
        kind = kinds[-1] if isinstance(kinds, list) and kinds else inside.get("type")
        kind = kind or message.get("type")
        return {"role": _role(kind), "content": inside.get("content")}
    if "role" not in message and "type" in message:
        return {"role": _role(message["type"]), "content": message.get("content")}
    return message


def _role(kind: Any) -> str:
    said = str(kind).lower()
    if said.startswith("human"):
        return "user"
    return "assistant" if said.startswith("ai") else said


def _find_answer(came: Any) -> str | None:
    """Return the text of what came out of a model."""
    if isinstance(came, list):
        messages = [_plain_message(one) for one in came]
        return join_texts(messages[-1]) if messages else None
    if not isinstance(came, Mapping):
        return join_texts(came)
    generations = came.get("generations")
    while isinstance(generations, list) and generations:
        generations = generations[0]
    if isinstance(generations, Mapping):
        message = _plain_message(generations.get("message"))
        return join_texts(generations.get("text")) or join_texts(message)
    for name in (
        "output",
        "answer",
        "response",
        "content",
        "text",
        "result",
        "messages",
    ):
        if came.get(name) is not None:
            return _find_answer(came[name])
    texts = [one for one in came.values() if isinstance(one, str)]
    return texts[0] if len(texts) == 1 else None
