"""A model asked by files: requests out, results in, in any order; every prompt ends in
one row.
"""

import json

import numpy as np
import pandas as pd
import pytest
from asking import mine

from paraguard_lab.labels.harmful import ask_harmful_requests
from paraguard_lab.labels.withheld import keep_labels
from paraguard_lab.served import SERVED_DTYPE
from paraguard_tools.servers import batch_files, completions, served
from paraguard_utils import settings, stores
from paraguard_utils.errors import DataError
from paraguard_utils.labels import systems
from paraguard_utils.models import backends, prompting, trace_store

PROMPTS = pd.DataFrame(
    {"prompt_id": ["p1", "p2", "p3"], "text": ["One thing?", "Another?", "The last?"]}
)


def ask(folder, corpus=PROMPTS, system_prompt="safety", **more):
    model = batch_files.BatchFiles("made-up@3", folder, "openai/made-up@3")
    decoding = prompting.Decoding(8)
    query = trace_store.Query(mine(), corpus, system_prompt, decoding, **more)
    return trace_store.query_model(model, query)


def requests(folder):
    return [
        json.loads(line)
        for file in folder.glob("*.requests.jsonl")
        for line in file.read_text().splitlines()
    ]


def result(request, text, status=200, error=None):
    first = {
        "token": "Sure",
        "logprob": -0.5,
        "top_logprobs": [{"token": "Sure", "logprob": -0.5}],
    }
    choice = {
        "message": {"content": text},
        "finish_reason": "stop",
        "logprobs": {"content": [first]},
    }
    body = {"choices": [choice]} if status == 200 else {"error": {"code": error}}
    return {
        "id": "x",
        "custom_id": request["custom_id"],
        "response": {"status_code": status, "body": body},
    }


def put(folder, name, rows):
    folder.joinpath(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_requests_out_and_results_in(results, tmp_path, capsys):
    folder = tmp_path / "jobs"
    assert ask(folder).empty
    asked = requests(folder)
    assert "3 requests" in capsys.readouterr().err
    assert len({one["custom_id"] for one in asked}) == 3
    body = asked[0]["body"]
    assert (
        body["model"] == "made-up"
        and body["temperature"] == 0
        and body["max_completion_tokens"] == 8
    )
    assert [turn["role"] for turn in body["messages"]] == ["system", "user"]
    assert body["messages"][1]["content"] == "One thing?"
    put(folder, "b.jsonl", [result(asked[2], "third")])
    put(folder, "a.jsonl", [result(asked[0], "first"), result(asked[1], "", 500)])
    traces = ask(folder)
    assert traces["response"].fillna("none").tolist() == ["first", "none", "third"]
    assert traces["finish_reason"].tolist() == ["stop", "error", "stop"]
    assert traces["tail_mass"][0] == pytest.approx(1 - np.exp(-0.5))
    meta = stores.read_meta(
        stores.Store("test").path("traces", "mine", "made-up-3-served--safety")
    )
    assert meta["level"] == "answer tokens" and meta["model"] == "openai/made-up@3"
    # What failed is asked for again, and only that; its second result counts.
    for file in folder.glob("*.requests.jsonl"):
        file.unlink()
    put(folder, "c.jsonl", [result(asked[1], "second")])
    assert ask(folder)["response"].tolist() == [
        "first",
        "second",
        "third",
    ] and not requests(folder)


def test_a_filtered_request_is_blocked(results, tmp_path):
    ask(tmp_path)
    asked = requests(tmp_path)
    put(tmp_path, "a.jsonl", [result(one, "", 400, "content_filter") for one in asked])
    assert set(ask(tmp_path)["finish_reason"]) == {"content_filter"}


def test_what_failed_is_written_as_a_request_again(results, tmp_path):
    ask(tmp_path)
    asked = requests(tmp_path)
    (file,) = tmp_path.glob("*.requests.jsonl")
    file.unlink()
    expired = {
        "custom_id": asked[1]["custom_id"],
        "response": None,
        "error": {"code": "batch_expired"},
    }
    put(
        tmp_path,
        "a.jsonl",
        [result(asked[0], "first"), expired, result(asked[2], "", 503)],
    )
    assert ask(tmp_path)["finish_reason"].tolist() == ["stop", "error", "error"]
    assert requests(tmp_path) == asked[1:]


def test_the_level_is_that_of_all_answers(results, tmp_path):
    """Answers cut at their length tell no more than others, and those of an earlier run
    count too.
    """
    silent = [result(one, "So it goes") for one in requests_of(tmp_path)]
    for one in silent:
        one["response"]["body"]["choices"][0] |= {
            "logprobs": None,
            "finish_reason": "length",
        }
    put(tmp_path, "a.jsonl", silent[:2])
    ask(tmp_path)
    put(tmp_path, "b.jsonl", silent[2:])
    path = stores.Store("test").path("traces", "mine", "made-up-3-served--safety")
    ask(tmp_path)
    assert stores.read_meta(path)["level"] == "text"
    ask(tmp_path, system_prompt="none")
    put(tmp_path, "c.jsonl", [result(one, "Sure") for one in requests(tmp_path)])
    ask(tmp_path, system_prompt="none")
    other = stores.Store("test").path("traces", "mine", "made-up-3-served--none")
    assert stores.read_meta(other)["level"] == "answer tokens", (
        "another system prompt's answers do not count"
    )


def requests_of(folder):
    ask(folder)
    return requests(folder)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_lines_end_at_line_feeds_only(results, tmp_path, encoding):
    """Writers of JSON lines may leave U+2028 and U+0085 as they are, and begin the file
    with a byte order mark.
    """
    texts = ["one\u2028two", "three\u0085four", "five\x0csix \ud83d"]
    rows = [
        result(one, text)
        for one, text in zip(requests_of(tmp_path), texts, strict=True)
    ]
    lines = [
        json.dumps(row, ensure_ascii="six" in text)
        for row, text in zip(rows, texts, strict=True)
    ]
    (tmp_path / "a.jsonl").write_bytes(
        ("\r\n\r\n".join(lines) + "\n\n").encode(encoding)
    )
    assert ask(tmp_path)["response"].tolist() == [*texts[:2], "five\x0csix \ufffd"]


@pytest.mark.parametrize(
    "body", ["no", [], {"choices": [{"message": {"content": ["x", {"text": "y"}]}}]}]
)
def test_an_odd_result_is_a_row(results, tmp_path, body):
    rows = [result(one, "fine") for one in requests_of(tmp_path)]
    rows[1]["response"]["body"], rows[2]["response"] = (
        body,
        {
            "status_code": 400,
            "body": "no",
        },
    )
    put(tmp_path, "a.jsonl", rows)
    found = ask(tmp_path)["response"].fillna("none").tolist()
    assert found == ["fine", "y" if isinstance(body, dict) else "none", "none"]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"id": 1}',
        "null",
        '{"custom_id": "x", "response": "no"}',
        '{"custom_id": ["x"]}',
        '{"custom_id": {"x": 1}}',
        '{"custom_id": null}',
        '{"custom_id": "x", "response": {"status_code": Infinity}}',
        '{"custom_id": "x", "response": {"status_code": [200]}}',
        '{"custom_id": "x", "response": ' + "[" * 100_000,
    ],
    ids=lambda line: line[:60],
)
def test_a_file_that_is_none_is_named(results, tmp_path, line):
    put(tmp_path, "a.jsonl", [])
    (tmp_path / "a.jsonl").write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"a.jsonl: line 1 is no result of a batch"):
        ask(tmp_path)


def test_keys_are_those_of_a_server_that_has_a_system_turn(tmp_path):
    decoding = prompting.Decoding(8)
    framing = completions.PromptLayout("Be careful.", "", told="answer tokens 20")
    prefix = json.dumps(framing._asdict(), sort_keys=True)
    server = served.ServerBackend("made-up", "http://x/v1")
    asked = prompting.PromptContext(
        server.weights_id, SERVED_DTYPE, prefix, "", decoding
    )
    assert (
        batch_files.BatchFiles("made-up", tmp_path).context("Be careful.", decoding)
        == asked
    )


def test_requests_that_ask_for_harm_are_not_asked_by_files(
    results, tmp_path, recorded_corpus, capsys
):
    twins = PROMPTS.assign(cluster_id="c-twin", source="unsafe")
    with pytest.raises(DataError, match="asking by files"):
        ask(tmp_path, twins, keep=keep_labels(twins))
    given = {
        "store": "test",
        "corpus": "paraguard_mini",
        "model": "openai/x",
        "base_url": f"file://{tmp_path}",
    }
    config = settings.check_settings(
        given | {"system_prompts": ["none", "safety"]}, settings.QuerySettings
    )
    assert isinstance(backends.resolve_backends(config)[0], batch_files.BatchFiles)
    files = stores.CorpusFiles(stores.Store("test"), "paraguard_mini")
    assert not systems.ask_systems(files, recorded_corpus, config)
    assert not ask_harmful_requests(files, config)
    assert "not asked by files" in capsys.readouterr().out
    assert len(requests(tmp_path)) == 2 * len(recorded_corpus)
