"""Read what evaluation harnesses write.

They are lm-evaluation-harness, garak, promptfoo and HELM; none has a light reader of
its own.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paraguard_tools.logs.formats.fields import (
    Object,
    Row,
    find_error_reason,
    flatten_columns,
    join_texts,
    mapping_at,
    read_conversation,
    value_at,
)
from paraguard_tools.logs.formats.sources import LogSource, decode
from paraguard_utils.errors import DataError

_Records = Iterable[tuple[int, Object]]


def is_lm_eval(item: Object) -> bool:
    """Return whether a record is a sample of lm-evaluation-harness."""
    return {"doc", "resps", "arguments"} <= set(item)


def read_lm_eval(
    records: _Records, named: frozenset[str], source: LogSource
) -> Iterator[Row]:
    """Yield the generations of lm-evaluation-harness.

    A sample is there once for each filter; its generations are the same. `target` is
    the gold answer, and no system.
    """
    system = _find_lm_eval_model(Path(source.name))
    seen: dict[Any, Any] = {}
    for number, item in records:
        chosen = seen.setdefault(item.get("doc_id"), item.get("filter"))
        if chosen != item.get("filter"):
            continue
        doc = mapping_at(item, "doc")
        columns = flatten_columns(doc, named=named)
        answers = item["resps"]
        while isinstance(answers, list) and len(answers) == 1:
            answers = answers[0]
        several = answers if isinstance(answers, list) else [answers]
        if not all(isinstance(one, str) for one in several):
            raise DataError(
                f"{source.name}, {source.place(number)}: these samples are"
                " log-likelihoods, and no answers; pass those of a task that generates"
            )
        found = {"text": _find_lm_eval_text(item, columns), "model": system}
        for place, answer in enumerate(several):
            repeat = {"repeat": place} if len(several) > 1 else {}
            own = {"answer": answer, "id": item.get("doc_id")}
            yield Row(number, columns, found | own | repeat)


def _find_lm_eval_text(item: Object, columns: Object) -> str | None:
    """Return what was asked: the document's text if the prompt holds it."""
    sent = item["arguments"]
    while isinstance(sent, list | Mapping) and sent:
        sent = next(iter(sent.values())) if isinstance(sent, Mapping) else sent[0]
    if not isinstance(sent, str):
        return None
    for name in ("text", "prompt", "question", "request"):
        own = columns.get(name)
        if isinstance(own, str) and own and own in sent:
            return own
    messages = decode(sent) if sent.startswith("[") else None
    return read_conversation(messages)[0] or sent


def _find_lm_eval_model(file: Path) -> str | None:
    """Return the model, as the results beside the samples or their folder name it."""
    time = re.search(r"\d{4}-\d\d-\d\dT[\d.\-]+\d", file.name)
    results = sorted(file.parent.glob("results_*.json"))
    if time:
        results = [one for one in results if time[0] in one.name] or results
    if len(results) == 1:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            said = json.loads(results[0].read_text(encoding="utf-8"))
            for path in ("model_name", "config.model"):
                name = value_at(said, path)
                if isinstance(name, str) and name:
                    return name
    is_made = file.name.startswith("samples_") and file.parent.name not in ("", ".")
    return file.parent.name.replace("__", "/") if is_made else None


def is_garak(item: Object) -> bool:
    """Return whether a record is one of garak's report or hit log."""
    is_hit = {"probe", "detector", "attempt_id"} <= set(item)
    return is_hit or "garak_version" in item or "probe_classname" in item


def read_garak(
    records: _Records, named: frozenset[str], notes: list[str]
) -> Iterator[Row]:
    """Yield the outputs of garak's attempts; several are runs of one prompt.

    An attempt is written again once it was judged: only the last counts.
    """
    system = None
    attempts: dict[Any, tuple[int, Object]] = {}
    hits: dict[Any, tuple[int, Object]] = {}
    for number, item in records:
        for name in ("target_name", "model_name", "target_type", "model_type"):
            system = system or item.get(f"plugins.{name}")
        if item.get("entry_type") == "attempt":
            attempts[item.get("uuid", number)] = number, item
        elif "attempt_id" in item:
            key = item["attempt_id"], item.get("attempt_idx")
            hits.setdefault(key, (number, item))
    if hits:
        notes.append(
            "A hit log has only the answers that a detector flagged, so its rates say"
            " nothing of the system: pass the report instead (*.report.jsonl)."
        )
    for number, item in attempts.values():
        outputs = item.get("outputs")
        several = outputs if isinstance(outputs, list) else [outputs]
        columns = flatten_columns(item, mapping_at(item, "notes"), named=named)
        found = {"text": _read_garak_text(item.get("prompt")), "model": system}
        for place, output in enumerate(several):
            own = {"answer": join_texts(output), "repeat": place}
            own["id"] = item.get("uuid")
            yield Row(number, _drop(columns, "prompt"), found | own)
    for number, item in hits.values():
        found = {"text": _read_garak_text(item.get("prompt"))}
        own = {"answer": join_texts(item.get("output")), "id": item["attempt_id"]}
        own["model"] = item.get("generator")
        own["repeat"] = item.get("attempt_idx")
        yield Row(
            number, _drop(flatten_columns(item, named=named), "prompt"), found | own
        )


def _drop(columns: Object, name: str) -> Object:
    return {one: columns[one] for one in columns if one != name}


def _read_garak_text(prompt: Any) -> str | None:
    """Return the last thing asked, of a prompt as any version writes it."""
    turns = prompt.get("turns") if isinstance(prompt, Mapping) else None
    return read_conversation(turns)[0] if turns else join_texts(prompt)


def is_promptfoo(item: Object) -> bool:
    """Return whether a record is an export of promptfoo, or a line of one."""
    results = item.get("results")
    if isinstance(results, Mapping):
        return "evalId" in item or bool({"results", "table"} & set(results))
    return _is_promptfoo_result(item)


def _is_promptfoo_result(item: Object) -> bool:
    return {"vars", "provider", "prompt"} <= set(item) and (
        "response" in item or "gradingResult" in item or "error" in item
    )


def read_promptfoo(records: _Records, named: frozenset[str]) -> Iterator[Row]:
    """Yield the results of promptfoo, as JSON of any version or as lines."""
    for number, item in records:
        results = item.get("results")
        inside = results.get("results") if isinstance(results, Mapping) else None
        if isinstance(inside, list):
            for place, one in enumerate(inside):
                if isinstance(one, Mapping):
                    yield _read_promptfoo_result(place, one, named)
        elif isinstance(results, Mapping):
            yield from _read_promptfoo_table(mapping_at(results, "table"), named)
        elif _is_promptfoo_result(item):
            yield _read_promptfoo_result(number, item, named)


def _read_promptfoo_result(number: int, item: Object, named: frozenset[str]) -> Row:
    response = mapping_at(item, "response")
    answer = response.get("output")
    if isinstance(answer, Mapping | list):
        answer = json.dumps(answer)
    reason = response.get("finishReason")
    if value_at(response, "guardrails.flagged") is True and not answer:
        reason = "content_filter"
    elif response.get("isRefusal") is True and not answer:
        reason = "refusal"
    elif answer is None and (response.get("error") or item.get("error")):
        reason = find_error_reason(response.get("error") or item.get("error"))
    inside = (mapping_at(item, "vars"), item, mapping_at(item, "testCase"))
    columns = flatten_columns(*inside, named=named)
    left = {"response", "error", "success", "score", "failureReason", "prompt"}
    columns = {name: columns[name] for name in columns if name not in left - named}
    found = {
        "text": _read_prompt(item.get("prompt")),
        "answer": answer,
        "finish_reason": reason,
        "model": _name_provider(item.get("provider")),
        "id": item.get("id"),
    }
    repeat = value_at(item, "testCase.options.repeatIndex")
    if isinstance(repeat, int):
        found["repeat"] = repeat
    return Row(number, columns, found)


def _read_prompt(prompt: Any) -> str | None:
    """Return what was asked: a text, or the last message of a chat as JSON."""
    raw = prompt.get("raw") if isinstance(prompt, Mapping) else prompt
    if not isinstance(raw, str):
        return read_conversation(raw)[0]
    messages = decode(raw) if raw.lstrip().startswith("[") else None
    return read_conversation(messages)[0] or raw


def _name_provider(provider: Any) -> Any:
    if isinstance(provider, Mapping):
        return provider.get("label") or provider.get("id")
    return provider


def _read_promptfoo_table(table: Object, named: frozenset[str]) -> Iterator[Row]:
    """Yield the results of the older form: a row a test, a column a provider."""
    names = value_at(table, "head.vars")
    prompts = value_at(table, "head.prompts")
    heads = prompts if isinstance(prompts, list) else []
    body = table.get("body")
    for number, line in enumerate(body if isinstance(body, list) else ()):
        values = line.get("vars") if isinstance(line, Mapping) else None
        pairs = zip(names or (), values or (), strict=False)
        columns = flatten_columns(dict(pairs), named=named)
        outputs = line.get("outputs") if isinstance(line, Mapping) else None
        for place, output in enumerate(outputs if isinstance(outputs, list) else ()):
            one = output if isinstance(output, Mapping) else {"text": output}
            head = heads[place] if place < len(heads) else {}
            head = head if isinstance(head, Mapping) else {}
            found = {
                "text": one.get("prompt") or head.get("raw"),
                "answer": one.get("text"),
                "model": _name_provider(one.get("provider") or head.get("provider")),
            }
            yield Row(number, columns, found)


def is_helm(item: Object) -> bool:
    """Return whether a document is a scenario's state of HELM."""
    return "request_states" in item and "adapter_spec" in item


def read_helm(
    records: _Records, named: frozenset[str], source: LogSource
) -> Iterator[Row]:
    """Yield the completions of HELM.

    Perturbations of one instance are wordings of one request, so its id is the cluster
    where there are any. HELM has a state for each trial of an instance: their
    completions, and several of one state, are runs of one text.
    """
    for _, item in records:
        states = item.get("request_states")
        listed = [one for one in states or () if isinstance(one, Mapping)]
        generated = [one for one in listed if value_at(one, "request.max_tokens") != 0]
        if listed and not generated:
            raise DataError(
                f"{source.name}: these states score texts that were given, and have no"
                " answers; pass those of a scenario that generates"
            )
        perturbed = any(value_at(one, "instance.perturbation") for one in generated)
        default = value_at(item, "adapter_spec.model")
        runs: Counter[tuple[str, ...]] = Counter()
        for number, state in enumerate(generated):
            columns = dict(flatten_columns(mapping_at(state, "instance"), named=named))
            if perturbed and "id" in columns:
                columns["cluster"] = columns["id"]
            text = value_at(state, "instance.input.text")
            sent = read_conversation(value_at(state, "request.messages"))[0]
            found: dict[str, Any] = {
                "text": text or sent or value_at(state, "request.prompt"),
                "model": value_at(state, "request.model") or default,
            }
            result = mapping_at(state, "result")
            completions = result.get("completions")
            several = completions if isinstance(completions, list) else []
            if not several:
                failed = result.get("error") or result.get("success") is False
                found["finish_reason"] = "error" if failed or not result else None
                if result.get("error"):
                    found["finish_reason"] = find_error_reason(result["error"])
            asked = tuple(map(str, (columns.get("id"), found["text"], found["model"])))
            for one in several or [None]:
                own = {"answer": join_texts(one), "repeat": runs[asked]}
                runs[asked] += 1
                own["reasoning"] = bool(value_at(one, "thinking.text"))
                reason = value_at(one, "finish_reason.reason")
                own["finish_reason"] = reason or found.get("finish_reason")
                yield Row(number, columns, found | own)
