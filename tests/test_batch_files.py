"""A model asked by files: requests out, results in, in any order; every prompt ends in one row."""

import json

import numpy as np
import pandas as pd
import pytest

from paraguard_utils import settings, stores
from paraguard_utils.errors import DataError
from paraguard_utils.models import batch_files, prompting, respondents, served, trace_store
from paraguard_utils.querying import targets

PROMPTS = pd.DataFrame({"prompt_id": ["p1", "p2", "p3"], "text": ["One thing?", "Another?", "The last?"]})


def ask(folder, corpus=PROMPTS, wrapper="safety"):
    model = batch_files.BatchFiles("made-up@3", folder, "openai/made-up@3")
    return trace_store.query(stores.Store("test"), "mine", corpus, model, wrapper, prompting.Decoding(8))


def requests(folder):
    return [json.loads(line) for file in folder.glob("*.requests.jsonl") for line in file.read_text().splitlines()]


def result(request, text, status=200, error=None):
    first = {"token": "Sure", "logprob": -0.5, "top_logprobs": [{"token": "Sure", "logprob": -0.5}]}
    choice = {"message": {"content": text}, "finish_reason": "stop", "logprobs": {"content": [first]}}
    body = {"choices": [choice]} if status == 200 else {"error": {"code": error}}
    return {"id": "x", "custom_id": request["custom_id"], "response": {"status_code": status, "body": body}}


def put(folder, name, rows):
    folder.joinpath(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_requests_out_and_results_in(results, tmp_path, capsys):
    folder = tmp_path / "jobs"
    assert ask(folder).empty
    asked = requests(folder)
    assert "3 requests" in capsys.readouterr().out
    assert len({one["custom_id"] for one in asked}) == 3
    body = asked[0]["body"]
    assert body["model"] == "made-up" and body["temperature"] == 0 and body["max_completion_tokens"] == 8
    assert [turn["role"] for turn in body["messages"]] == ["system", "user"]
    assert body["messages"][1]["content"] == "One thing?"
    put(folder, "b.jsonl", [result(asked[2], "third")])
    put(folder, "a.jsonl", [result(asked[0], "first"), result(asked[1], "", 500)])
    traces = ask(folder)
    assert traces["response"].fillna("none").tolist() == ["first", "none", "third"]
    assert traces["finish_reason"].tolist() == ["stop", "error", "stop"]
    assert traces["tail_mass"][0] == pytest.approx(1 - np.exp(-0.5))
    meta = stores.read_meta(stores.Store("test").path("traces", "mine", "made-up-3-served--safety"))
    assert meta["level"] == "answer tokens" and meta["model"] == "openai/made-up@3"
    # What failed is asked for again, and only that; its second result counts.
    for file in folder.glob("*.requests.jsonl"):
        file.unlink()
    put(folder, "c.jsonl", [result(asked[1], "second")])
    assert ask(folder)["response"].tolist() == ["first", "second", "third"] and not requests(folder)


def test_a_filtered_request_is_blocked(results, tmp_path):
    ask(tmp_path)
    asked = requests(tmp_path)
    put(tmp_path, "a.jsonl", [result(one, "", 400, "content_filter") for one in asked])
    assert set(ask(tmp_path)["finish_reason"]) == {"content_filter"}


@pytest.mark.parametrize("line", ["{", "[]", '{"id": 1}', "null"])
def test_a_file_that_is_none_is_named(results, tmp_path, line):
    put(tmp_path, "a.jsonl", [])
    (tmp_path / "a.jsonl").write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"a.jsonl: line 1 is no result of a batch"):
        ask(tmp_path)


def test_keys_are_those_of_a_server_that_has_a_system_turn(tmp_path):
    decoding = prompting.Decoding(8)
    framing = served.Framing("Be careful.", "")
    prefix = json.dumps(framing._asdict(), sort_keys=True)
    server = served.Server("made-up", "http://x/v1")
    asked = prompting.PromptContext(server.weights_id, served.DTYPE, prefix, "", decoding)
    assert batch_files.BatchFiles("made-up", tmp_path).context("Be careful.", decoding) == asked


def test_requests_that_ask_for_harm_are_not_asked_by_files(results, tmp_path, recorded_corpus, capsys):
    twins = PROMPTS.assign(cluster_id="c-twin", source="unsafe")
    with pytest.raises(DataError, match="asking by files"):
        batch_files.BatchFiles("made-up", tmp_path).check(twins)
    given = {"store": "test", "corpus": "paraguard_mini", "model": "openai/x", "base_url": f"file://{tmp_path}"}
    config = settings.check(given | {"wrappers": ["none", "safety"]})
    assert isinstance(respondents.sources(config)[0], batch_files.BatchFiles)
    with pytest.raises(SystemExit) as ended:
        targets.ask(stores.Store("test"), "paraguard_mini", recorded_corpus, config)
    assert ended.value.code == 0 and "not asked by files" in capsys.readouterr().out
    assert len(requests(tmp_path)) == 2 * len(recorded_corpus)
