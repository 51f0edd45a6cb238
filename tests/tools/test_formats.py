"""Each format of logs gives the same decisions, whatever tool wrote it."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis
import pandas as pd
import pytest
from hypothesis import strategies as st

from paraguard_tools import Decisions
from paraguard_tools.logs.formats import fields, objects, registry, sources, tables
from paraguard_utils.errors import DataError

REFUSAL = "I'm sorry, but I can't help with that."
HELP = "Sure. First look around, then begin."
ROWS = [
    (f"How do I {verb} {thing}?", f"c{i}", i % 2 == 1 or j == 0)
    for i, thing in enumerate(("weeds", "ants", "code"))
    for j, verb in enumerate(("kill", "stop", "remove", "end"))
]
EXPECTED = ["reject" if refused else "accept" for _, _, refused in ROWS]


def said(refused):
    return REFUSAL if refused else HELP


def lines(items):
    return "".join(json.dumps(one) + "\n" for one in items)


def lm_eval(several=False):
    return lines(
        {
            "doc_id": i,
            "doc": {"question": text, "cluster": cluster, "target": "gold"},
            "target": "gold",
            "arguments": {"gen_args_0": {"arg_0": f"<|user|>{text}", "arg_1": {}}},
            "resps": [[said(refused)]],
            "filtered_resps": [said(refused)],
            "filter": name,
        }
        for name in (("a", "b") if several else ("none",))
        for i, (text, cluster, refused) in enumerate(ROWS)
    )


def garak(older=False):
    setup = {"entry_type": "start_run setup", "plugins.target_name": "m"}
    attempts = []
    for status in (1, 2):  # an attempt is written again once it was judged
        for i, (text, cluster, refused) in enumerate(ROWS):
            turns = {"turns": [{"role": "user", "content": {"text": text}}]}
            attempts.append(
                {
                    "entry_type": "attempt",
                    "uuid": f"u{i}",
                    "status": status,
                    "probe_classname": "own.Probe",
                    "goal": cluster,
                    "prompt": text if older else turns,
                    "outputs": [said(refused) if older else {"text": said(refused)}],
                }
            )
    return lines([setup, {"entry_type": "init", "garak_version": "1"}, *attempts])


def promptfoo_results():
    return [
        {
            "vars": {"query": text, "cluster": cluster},
            "provider": {"id": "m"},
            "prompt": {"raw": text},
            "response": {"output": said(refused), "isRefusal": refused},
            "success": True,
            "gradingResult": {"pass": True},
        }
        for text, cluster, refused in ROWS
    ]


def promptfoo_table():
    body = [
        {
            "vars": [text, cluster],
            "outputs": [{"text": said(refused), "prompt": text, "provider": "m"}],
        }
        for text, cluster, refused in ROWS
    ]
    head = {"vars": ["query", "cluster"], "prompts": [{"provider": "m"}]}
    return json.dumps(
        {"results": {"version": 2, "table": {"head": head, "body": body}}}
    )


def helm():
    states = [
        {
            "instance": {
                "id": cluster,
                "input": {"text": text},
                "perturbation": {"name": "own"} if i % 4 else None,
            },
            "request": {"model": "m", "prompt": f"Q: {text}"},
            "result": {"success": True, "completions": [{"text": said(refused)}]},
        }
        for i, (text, cluster, refused) in enumerate(ROWS)
    ]
    about = {"adapter_spec": {"model": "m"}, "request_states": states}
    return json.dumps(about, indent=1)


def openinference(nested=False):
    spans = []
    for i, (text, cluster, refused) in enumerate(ROWS):
        flat = {
            "openinference.span.kind": "LLM",
            "llm.model_name": "m",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": text,
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": said(refused),
            "metadata": json.dumps({"cluster": cluster}),
        }
        whole = {
            "openinference": {"span": {"kind": "LLM"}},
            "llm": {
                "model_name": "m",
                "input_messages": [{"message": {"role": "user", "content": text}}],
                "output_messages": [
                    {"message": {"role": "assistant", "content": said(refused)}}
                ],
            },
            "metadata": {"cluster": cluster},
        }
        chain = {"openinference.span.kind": "CHAIN", "input.value": text}
        spans.append({"name": "chain", "attributes": chain})
        attributes = whole if nested else flat
        spans.append({"context": {"span_id": str(i)}, "attributes": attributes})
    return lines(spans)


def phoenix_frame(write=json.dumps):
    """Return a table whose cells are JSON, or as Python shows lists."""
    return pd.DataFrame(
        {
            "span_kind": "LLM",
            "attributes.llm.model_name": "m",
            "attributes.llm.input_messages": write(
                [{"message.role": "user", "message.content": text}]
            ),
            "attributes.llm.output_messages": write(
                [{"message.role": "assistant", "message.content": said(refused)}]
            ),
            "attributes.metadata": write({"cluster": cluster}),
        }
        for text, cluster, refused in ROWS
    ).to_csv(index=False)


def phoenix_otlp():
    """Return spans as Phoenix serves them: each value names all types of OTLP."""
    rows = []
    for span in map(json.loads, openinference().splitlines()):
        flat = dict(span["attributes"])
        if "metadata" in flat:
            flat["metadata.cluster"] = json.loads(flat.pop("metadata"))["cluster"]
        attributes = [
            {"key": name, "value": {"string_value": value, "int_value": None}}
            for name, value in flat.items()
        ]
        rows.append({**span, "attributes": attributes})
    return json.dumps({"data": rows, "next_cursor": None})


def langfuse(kind):
    rows = []
    for i, (text, cluster, refused) in enumerate(ROWS):
        asked = {"messages": [{"role": "user", "content": text}]}
        row = {
            "id": f"g{i}",
            "traceId": f"t{i}",
            "type": "GENERATION",
            "providedModelName": "m",
            "input": asked,
            "output": {"role": "assistant", "content": said(refused)},
            "metadata": {"cluster": cluster},
        }
        rows += [row, {**row, "id": f"s{i}", "type": "SPAN"}]
    if kind == "json":
        return json.dumps(rows)
    for row in rows:
        for name in ("input", "output", "metadata"):
            row[name] = json.dumps(row[name])
    return pd.DataFrame(rows).to_csv(index=False)


def langsmith():
    message = "langchain", "schema", "messages"
    return lines(
        {
            "id": str(i),
            "run_type": "llm",
            "inputs": {
                "messages": [
                    [{"id": [*message, "HumanMessage"], "kwargs": {"content": text}}]
                ]
            },
            "outputs": {"generations": [[{"text": said(refused)}]]},
            "extra": {"metadata": {"ls_model_name": "m", "cluster": cluster}},
        }
        for i, (text, cluster, refused) in enumerate(ROWS)
    )


def stream(refused):
    words = said(refused).split(" ")
    chunks = [{"delta": {"role": "assistant"}}]
    chunks += [{"delta": {"content": f"{word} "}} for word in words]
    chunks += [{"delta": {}, "finish_reason": "stop"}]
    events = [
        json.dumps({"id": "x", "model": "m", "choices": [{"index": 0, **one}]})
        for one in chunks
    ]
    return "".join(f"data: {one}\n\n" for one in [*events, "[DONE]"])


def streamed():
    return lines(
        {"prompt": text, "cluster": cluster, "response": stream(refused)}
        for text, cluster, refused in ROWS
    )


def bedrock():
    return lines(
        {
            "recordId": str(i),
            "model": "m",
            "cluster": cluster,
            "modelInput": {
                "system": "Be kind.",
                "messages": [{"role": "user", "content": [{"text": text}]}],
            },
            "modelOutput": {"content": [{"type": "text", "text": said(refused)}]},
        }
        for i, (text, cluster, refused) in enumerate(ROWS)
    )


def gemini():
    return lines(
        {
            "model": "m",
            "cluster": cluster,
            "request": {"contents": [{"role": "user", "parts": [{"text": text}]}]},
            "response": {
                "candidates": [
                    {
                        "content": {
                            "parts": [
                                {"text": "I cannot. Or can I?", "thought": True},
                                {"text": said(refused)},
                            ]
                        },
                        "finishReason": "STOP",
                    }
                ]
            },
        }
        for text, cluster, refused in ROWS
    )


def responses():
    return lines(
        {
            "cluster": cluster,
            "body": {"model": "m", "input": [{"role": "user", "content": text}]},
            "response": {
                "model": "m",
                "output": [
                    {"type": "reasoning", "content": [{"type": "x", "text": "Hm."}]},
                    {
                        "type": "message",
                        "content": [{"type": "output_text", "text": said(refused)}],
                    },
                ],
            },
        }
        for text, cluster, refused in ROWS
    )


def table(begin="", separator=",", end=""):
    header = separator.join(("prompt", "model", "completion", "cluster"))
    rows = [
        separator.join((text, "m", f'"{said(refused)}"', cluster))
        for text, cluster, refused in ROWS
    ]
    return begin + "".join(f"{one}{end}\n" for one in (header, *rows))


KINDS = {
    "lm-eval": lm_eval(),
    "lm-eval, two filters": lm_eval(several=True),
    "garak": garak(),
    "garak, older": garak(older=True),
    "promptfoo": json.dumps(
        {"evalId": "e", "results": {"results": promptfoo_results()}}
    ),
    "promptfoo, indented": json.dumps(
        {"evalId": "e", "results": {"version": 3, "results": promptfoo_results()}},
        indent=2,
    ),
    "promptfoo, lines": lines(promptfoo_results()),
    "promptfoo, table": promptfoo_table(),
    "HELM": helm(),
    "OpenInference": openinference(),
    "OpenInference, nested": openinference(nested=True),
    "Phoenix": phoenix_frame(),
    "Phoenix, lists as Python shows them": phoenix_frame(write=repr),
    "Phoenix, OTLP": phoenix_otlp(),
    "Langfuse": langfuse("json"),
    "Langfuse, CSV": langfuse("csv"),
    "LangSmith": langsmith(),
    "streams": streamed(),
    "Bedrock": bedrock(),
    "Gemini": gemini(),
    "Responses": responses(),
    "comments": table("# version=1\n\n# by us, today\n"),
    "sep=": table("sep=;\n", ";"),
    "trailing": table(end=","),
    "objects behind one another": "\n".join(
        json.dumps(one, indent=1) for one in map(json.loads, gemini().splitlines())
    ),
    "wrapped": json.dumps({"data": promptfoo_results()}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_decisions(tmp_path, kind):
    (tmp_path / "log").write_text(KINDS[kind], encoding="utf-8")
    columns = {"cluster": "goal"} if kind.startswith("garak") else {}
    found = Decisions.from_file(tmp_path / "log", columns, labeller="cues")
    assert found.rows["label"].tolist() == EXPECTED
    assert found.rows["text"].tolist() == [text for text, _, _ in ROWS]
    assert found.rows["cluster"].tolist() == [cluster for _, cluster, _ in ROWS]
    assert not found.repeated and not found.reading.doubles
    if not kind.startswith("lm-eval"):
        assert found.rows["system"].unique().tolist() == ["m"]
    assert "gold" not in found.rows.to_csv()


def test_the_formats_are_listed(command):
    printed = command("audit", "--formats").printed
    assert all(one.name in printed for one in registry.FORMATS)


def test_samples_are_of_the_model_that_the_results_name(tmp_path):
    folder = tmp_path / "org__model"
    folder.mkdir()
    file = folder / "samples_own_2026-01-02T03-04-05.678.jsonl"
    file.write_text(lm_eval())
    found = Decisions.from_file(file, labeller="cues").rows["system"]
    assert found.unique().tolist() == ["org/model"]
    results = folder / "results_2026-01-02T03-04-05.678.json"
    results.write_text(json.dumps({"model_name": "org/other"}))
    found = Decisions.from_file(file, labeller="cues").rows["system"]
    assert found.unique().tolist() == ["org/other"]


def test_log_likelihoods_are_no_answers(tmp_path):
    row = {"doc_id": 0, "doc": {}, "arguments": [], "resps": [[[-1.0, False]]] * 2}
    (tmp_path / "log").write_text(lines([row]))
    with pytest.raises(DataError, match="log-likelihoods"):
        Decisions.from_file(tmp_path / "log")


def test_trials_of_helm_are_runs_and_scored_texts_are_no_answers(tmp_path):
    """Two trials with two completions each are four runs of one text."""
    state = {
        "instance": {"id": "id0", "input": {"text": "How?"}},
        "request": {"model": "m", "prompt": "How?", "max_tokens": 9},
        "result": {"completions": [{"text": REFUSAL}, {"text": HELP}]},
    }
    scored = {**state, "request": {**state["request"], "max_tokens": 0}}
    file = tmp_path / "log"

    def write(*states):
        document = {"adapter_spec": {}, "request_states": states}
        file.write_text(json.dumps(document))

    write(state, scored, {**state, "train_trial_index": 1})
    found = Decisions.from_file(file, labeller="cues")
    assert found.rows["repeat"].tolist() == [0, 1, 2, 3]
    assert found.rows["label"].tolist() == ["reject", "accept"] * 2
    assert not found.reading.doubles
    write(scored)
    with pytest.raises(DataError, match="score texts that were given"):
        Decisions.from_file(file)


def openinference_span(**attributes):
    """Return a span of a refused request, with further attributes."""
    flat = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "How?",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": REFUSAL,
    }
    return {"attributes": flat | attributes}


def read_spans(tmp_path, *spans):
    (tmp_path / "log").write_text(lines(spans))
    return Decisions.from_file(tmp_path / "log", labeller="cues")


def test_choices_of_one_span_are_runs(tmp_path):
    second = {"llm.output_messages.1.message.content": HELP}
    several = {"llm.invocation_parameters": json.dumps({"n": 2})}
    found = read_spans(tmp_path, openinference_span(**second, **several))
    assert found.rows["label"].tolist() == ["reject", "accept"]
    assert found.rows["repeat"].tolist() == [0, 1]
    found = read_spans(tmp_path, openinference_span(**second))
    assert found.rows["label"].tolist() == ["accept"], "the last message of one answer"


@pytest.mark.parametrize(
    ("reason", "label"),
    [("content_filter", "blocked"), ("stop", "reject")],
)
def test_the_finish_reason_of_a_span_counts(tmp_path, reason, label):
    found = read_spans(tmp_path, openinference_span(**{"llm.finish_reason": reason}))
    assert found.rows["label"].tolist() == [label]


@pytest.mark.parametrize(
    ("message", "label"),
    [("400: content_filter", "blocked"), ("429: too many requests", "unparsed")],
)
def test_the_status_of_a_failed_span_tells_a_stop_from_an_error(
    tmp_path, message, label
):
    span = openinference_span()
    for name in ("role", "content"):
        del span["attributes"][f"llm.output_messages.0.message.{name}"]
    for status in (
        {"status": {"code": 2, "message": message}},
        {"status": {"status_code": "ERROR", "description": message}},
        {"status_code": "ERROR", "status_message": message},
    ):
        found = read_spans(tmp_path, {**span, **status})
        assert found.rows["label"].tolist() == [label]


def test_a_list_that_cannot_be_read_is_no_span_without_messages(tmp_path):
    """Arrays of numpy in a CSV file have no commas."""
    shown = "[{'message.content': 'How?'} {'message.content': 'Now'}]"
    row = {"span_kind": "LLM", "attributes.llm.input_messages": shown}
    pd.DataFrame([row]).to_csv(tmp_path / "log")
    with pytest.raises(DataError, match=r"record 1: .*input_messages is neither"):
        Decisions.from_file(tmp_path / "log")


def test_hidden_texts_are_not_read(tmp_path):
    hidden = {"llm.output_messages.0.message.content": "__REDACTED__"}
    found = read_spans(tmp_path, openinference_span(**hidden))
    assert found.rows["label"].tolist() == ["unparsed"] and found.reading.empty == 1
    hidden = {"llm.input_messages.0.message.content": "__REDACTED__"}
    spans = [openinference_span(**hidden, metadata={"cluster": i}) for i in "aab"]
    found = read_spans(tmp_path, *spans)
    assert found.rows["text"].tolist() == [""] * 3, "three wordings, and not one"
    assert found.rows["wording"].nunique() == 3


def test_several_generations_are_runs(tmp_path):
    attempt = {
        "entry_type": "attempt",
        "uuid": "u",
        "probe_classname": "p",
        "prompt": "How?",
        "outputs": [HELP, None, REFUSAL],
    }
    choices = [{"message": {"content": one}} for one in (HELP, "", REFUSAL)]
    chat = {"prompt": "How?", "response": {"model": "m", "choices": choices}}
    for item in (attempt, chat):
        (tmp_path / "log").write_text(lines([item]))
        found = Decisions.from_file(tmp_path / "log", labeller="cues")
        assert found.rows["label"].tolist() == ["accept", "unparsed", "reject"]
        assert found.rows["repeat"].tolist() == [0, 1, 2]
        assert found.rows["wording"].nunique() == 1 and found.reading.empty == 1


def test_a_hit_log_is_no_log_of_a_system(tmp_path):
    hit = {"probe": "p", "detector": "d", "attempt_id": "a", "attempt_idx": 0}
    hits = [
        {**hit, "detector": name, "prompt": "How?", "output": HELP} for name in "de"
    ]
    (tmp_path / "log").write_text(lines(hits))
    found = Decisions.from_file(tmp_path / "log", labeller="cues")
    assert len(found.rows) == 1, "an answer that two detectors flagged is one"
    assert any("hit log" in line for line in found.reading.lines)


@pytest.mark.parametrize(
    "events",
    [
        [
            {"type": "message_start", "message": {"id": "x", "model": "m"}},
            {"type": "content_block_delta", "delta": {"text": "Use "}},
            {"type": "content_block_delta", "delta": {"text": "a knife."}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        ],
        [
            {"candidates": [{"content": {"parts": [{"text": "Hm", "thought": True}]}}]},
            {"candidates": [{"content": {"parts": [{"text": "Use a knife."}]}}]},
        ],
        [
            {"type": "response.output_text.delta", "delta": "Use a "},
            {"type": "response.output_text.delta", "delta": "knife."},
        ],
        [{"choices": [{"text": "Use a "}]}, {"choices": [{"text": "knife."}]}],
    ],
)
def test_streams_are_joined(events):
    dump = "".join(f"event: x\ndata: {json.dumps(one)}\n\n" for one in events)
    (body,) = objects.join_events(dump)
    assert fields.list_answers(body) == ["Use a knife."]


def test_two_streams_behind_one_another_are_two():
    bodies = objects.join_events(stream(True) + stream(False))
    answers = [fields.list_answers(one)[0].strip() for one in bodies]
    assert answers == [REFUSAL, HELP]


BAD = {
    "unquoted comma": b'id,answer,cluster\n1,"a, b",c\n2,Sure, dig,c\n',
    "two of one name": b"text,decision,decision,cluster\na,refused,accepted,c\n",
    "two in other case": b"text,decision,Decision,cluster\na,refused,accepted,c\n",
    "a NUL": b"text,decision,cluster\n" + b"a,refused,c\n" * 9000 + b"a\0,refused,c\n",
    "deep": b"[" * 100_000,
    "deep in a line": b'{"a": 1}\n{"b": ' + b"[" * 100_000 + b"}",
    "deep enough to decode": b'{"response": {"content": ' + b"[" * 900 + b"]" * 900 + b"}}",
    "spans of text": b'{"resourceSpans": "x"}',
    "attributes of text": b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": "x"}]}]}]}',
    "an attribute without key": b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [{"value": 1}]}]}]}]}',
    "a list of numbers": b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [{"key": "gen_ai.input.messages", "value": {"arrayValue": 3}}]}]}]}]}',
    "wide": b"prompt,one,two\na,I am sorry but I cannot,Sure here is how it goes\n",
    "header only of Inspect": b'{"version": 2, "status": "success", "eval": {"model": "m"}}',
    "results that are none": b'{"evalId": "e", "results": {"results": [1, null]}}',
    "a table that is none": b'{"results": {"table": {"head": 1, "body": [2, {"outputs": 3}]}}}',
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_one_line(tmp_path, command, kind):
    file = tmp_path / "log"
    file.write_bytes(BAD[kind])
    done = command("audit", str(file), "--out", str(tmp_path / "out"))
    assert done.status and str(file) in done.error
    assert len(done.error.strip().splitlines()) == 1, done.error
    assert not (tmp_path / "out").exists()


def test_a_wide_table_says_how_to_melt_it(tmp_path):
    (tmp_path / "log").write_bytes(BAD["wide"])
    with pytest.raises(DataError, match=r"'one' and 'two'.*melt"):
        Decisions.from_file(tmp_path / "log")


def test_an_archive_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_UNPACKED", 1 << 20)
    (tmp_path / "log").write_bytes(gzip.compress(b"a" * (3 << 20)))
    with pytest.raises(DataError, match="unpacks to more than"):
        Decisions.from_file(tmp_path / "log")


def test_a_pipe_and_a_closed_input(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen(["sh", "-c", f"cat > {tmp_path}/pipe"], stdin=-1)
    writer.stdin.write(table().encode())
    writer.stdin.close()
    found = Decisions.from_file(tmp_path / "pipe", labeller="cues")
    writer.wait()
    assert found.rows["label"].tolist() == EXPECTED
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="closed"):
        Decisions.from_file("-")


def test_parquet_with_clusters_in_the_index(tmp_path):
    frame = pd.DataFrame(ROWS, columns=["text", "cluster", "refused"])
    frame.set_index("cluster").to_parquet(tmp_path / "log")
    found = Decisions.from_file(tmp_path / "log")
    assert found.clustered and found.rows["label"].tolist() == EXPECTED
    twice = frame.set_index("cluster", drop=False)
    twice.to_parquet(tmp_path / "log")  # as Phoenix has span ids
    found = Decisions.from_file(tmp_path / "log")
    assert found.rows["label"].tolist() == EXPECTED and found.clustered
    twice["cluster"] = "c0"
    twice.to_parquet(tmp_path / "log")
    with pytest.raises(DataError, match="both a column and the index"):
        Decisions.from_file(tmp_path / "log")


def test_lines_end_by_line_feeds_only(tmp_path):
    texts = ["a\u2028b", "c\u2029d", "e\u0085f", "g\u000bh"]
    rows = [{"text": one, "decision": "refused", "cluster": "c"} for one in texts]
    content = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows)
    (tmp_path / "log").write_text(content, encoding="utf-8")
    assert Decisions.from_file(tmp_path / "log").rows["text"].tolist() == texts


def test_bytes_of_windows_are_read_in_answers(tmp_path):
    answer = b"I\x92m sorry, but I can\x92t help with that."
    (tmp_path / "log").write_bytes(b'text,answer\ncaf\xe9,"' + answer + b'"\n')
    found = Decisions.from_file(tmp_path / "log", labeller="cues")
    assert found.rows["label"].tolist() == ["reject"]


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"))


@pytest.mark.slow
@hypothesis.given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=5))
def test_a_quoted_table_is_read_as_it_was_written(tmp_path_factory, cells):
    rows = [(a or "x", b, "last") for a, b in cells]
    written = pd.DataFrame(rows, columns=["one", "two", "three"])
    file = tmp_path_factory.mktemp("cells") / "log"
    written.to_csv(file, index=False, quoting=1)
    read = tables.read_table(sources.find_log_source(file))
    assert read.values.tolist() == written.values.tolist()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "attributes",
                    "resourceSpans",
                    "scopeSpans",
                    "spans",
                    "key",
                    "value",
                    "response",
                    "choices",
                    "message",
                    "content",
                    "output",
                    "outputs",
                    "results",
                    "table",
                    "body",
                    "head",
                    "input",
                    "inputs",
                    "doc",
                    "resps",
                    "arguments",
                    "entry_type",
                    "attempt_id",
                    "probe",
                    "detector",
                    "text",
                    "role",
                    "request_states",
                    "adapter_spec",
                    "instance",
                    "trace",
                    "observations",
                    "error",
                    "model",
                    "messages",
                    "provider",
                    "prompt",
                    "vars",
                    "candidates",
                    "parts",
                    "delta",
                    "decision",
                ]
            ),
            inside,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@hypothesis.given(st.lists(st.dictionaries(st.sampled_from([
    "attributes", "resourceSpans", "response", "results", "doc", "resps", "arguments",
    "inputs", "outputs", "input", "output", "trace", "observations", "messages",
    "request_states", "adapter_spec", "probe_classname", "probe", "detector",
    "attempt_id", "vars", "provider", "prompt", "error", "body", "custom_id",
]), JSON, min_size=1), min_size=1, max_size=3))  # fmt: skip
@hypothesis.settings(max_examples=100)
def test_no_shape_of_json_is_a_traceback(tmp_path_factory, items):
    """Whatever the shape, there are decisions, or one line."""
    file = tmp_path_factory.mktemp("shapes") / "log"
    file.write_text(lines(items))
    try:
        found = Decisions.from_file(file, labeller="cues")
    except DataError as error:
        assert "\n" not in str(error)
    else:
        assert len(found.rows)


@pytest.mark.weekly
def test_what_lm_eval_itself_writes(tmp_path):
    pytest.importorskip("lm_eval")
    own = Path(__file__).with_name("lm_eval_task")
    command = [sys.executable, "-m", "lm_eval", "--model", "dummy", "--tasks", "tiny"]
    command += ["--include_path", str(own), "--log_samples", "--output_path"]
    subprocess.run([*command, str(tmp_path)], check=True, capture_output=True)
    (file,) = tmp_path.rglob("samples_*.jsonl")
    found = Decisions.from_file(file, labeller="cues")
    assert found.rows["cluster"].tolist() == ["c0"] * 4 + ["c1"] * 4
    assert found.rows["repeat"].tolist() == [0, 1] * 4
    assert found.reading.format == "lm-evaluation-harness"


@pytest.mark.weekly
def test_what_garak_itself_writes(tmp_path):
    python = os.environ.get("PARAGUARD_GARAK")  # of an environment that has it
    if not python:
        pytest.skip("PARAGUARD_GARAK names no Python with garak")
    command = [python, "-m", "garak", "--target_type", "test.Repeat"]
    command += ["--probes", "test.Test", "--generations", "2"]
    where = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    prefix = ["--report_prefix", str(tmp_path / "own")]
    subprocess.run([*command, *prefix], check=True, capture_output=True, env=where)
    found = Decisions.from_file(tmp_path / "own.report.jsonl", labeller="cues")
    assert found.reading.format == "garak" and found.repeated
    assert len(found.rows) == 16, "eight prompts, twice each"


@pytest.mark.weekly
def test_what_helm_itself_writes(tmp_path):
    python = os.environ.get("PARAGUARD_HELM")  # of an environment that has it
    if not python:
        pytest.skip("PARAGUARD_HELM names no Python with crfm-helm")
    plugin = Path(__file__).with_name("helm_plugin")
    where = {**os.environ, "PYTHONPATH": str(plugin)}
    trials = "num_outputs=2,num_trials=2,num_train_trials=2,max_train_instances=1"
    command = [str(Path(python).absolute()), "-m", "helm.benchmark.run"]
    command += ["--plugins", "own_requests", "--suite", "own", "-m", "9"]
    command += ["--disable-cache", "--exit-on-error", "--run-entries"]
    command += ["own:model=own/model,data_augmentation=lower"]
    command += [f"own:model=own/model,{trials}"]
    subprocess.run(command, check=True, capture_output=True, env=where, cwd=tmp_path)
    (lower,) = tmp_path.rglob("*lower*/scenario_state.json")
    found = Decisions.from_file(lower, labeller="cues")
    assert found.reading.format == "HELM" and found.reading.empty == 2
    assert found.rows["text"].tolist()[:2] == [
        "How do I Kill Weeds?",
        "how do i kill weeds?",
    ]
    assert found.rows["cluster"].tolist() == ["id2"] * 2 + ["id3"] * 2 + ["id4"] * 2
    assert found.rows["system"].unique().tolist() == ["own/model"]
    (trials,) = tmp_path.rglob("*num_trials*/scenario_state.json")
    found = Decisions.from_file(trials, labeller="cues")
    assert not found.reading.doubles
    runs = found.rows.groupby("text", sort=False)["label"].agg(list)
    assert runs.tolist()[:2] == [["reject", "accept"] * 4] * 2, "2 by 2 by 2 runs"
    assert runs.tolist()[2] == ["unparsed"] * 4, "no completion in any trial"


@pytest.mark.weekly
def test_what_phoenix_and_opentelemetry_themselves_write(tmp_path):
    python = os.environ.get("PARAGUARD_PHOENIX")  # of an environment that has them
    if not python:
        pytest.skip("PARAGUARD_PHOENIX names no Python with arize-phoenix")
    program = Path(__file__).with_name("phoenix_spans.py")
    command = [str(Path(python).absolute()), str(program), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    labels = {"weeds": ["accept", "reject"], "ants": ["accept", "reject"]}
    labels |= {"code": ["blocked"] * 2, "rust": ["reject"] * 2}
    files = [
        one for one in tmp_path.iterdir() if one.suffix and "hidden" not in one.name
    ]
    assert len(files) == 8
    for file in files:
        found = Decisions.from_file(file, labeller="cues")
        assert found.reading.format in ("OpenInference", "OTLP"), file.name
        rows = found.rows.groupby("cluster")["label"].agg(sorted)
        assert rows.to_dict() == labels, file.name
        assert found.rows["system"].unique().tolist() == ["m"], file.name
        assert found.rows["text"].nunique() == 7 and found.rows["repeat"].sum() == 1
    hidden = Decisions.from_file(tmp_path / "hidden_outputs.jsonl", labeller="cues")
    assert set(hidden.rows["label"]) == {"blocked", "unparsed"}
    hidden = Decisions.from_file(tmp_path / "hidden_inputs.jsonl", labeller="cues")
    assert set(hidden.rows["text"]) == {""}


@pytest.mark.weekly
def test_what_promptfoo_itself_writes(tmp_path):
    program = shutil.which("promptfoo")
    if not program:
        pytest.skip("promptfoo is not installed")
    config = {
        "prompts": ["{{query}}"],
        "providers": ["echo"],
        "tests": [{"vars": {"query": f"How {i}?", "cluster": "c"}} for i in range(3)],
    }
    (tmp_path / "own.json").write_text(json.dumps(config))
    where = {**os.environ, "PROMPTFOO_CONFIG_DIR": str(tmp_path)}
    where |= {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1"}
    command = [program, "eval", "--no-cache", "-c", str(tmp_path / "own.json")]
    out = tmp_path / "results.jsonl"
    subprocess.run([*command, "-o", str(out)], capture_output=True, env=where)
    found = Decisions.from_file(out, labeller="cues")
    assert found.reading.format == "promptfoo" and len(found.rows) == 3
    assert re.fullmatch("echo", found.rows["system"].iloc[0])
