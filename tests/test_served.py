"""A model behind a server: what it tells, and that every prompt ends in exactly one row whatever the server does."""

import json
import subprocess
import sys
import threading
import time

import numpy as np
import pandas as pd
import pytest
import tenacity
from pytest_httpserver import HTTPServer
from werkzeug import Response

from paraguard_utils import stores
from paraguard_utils.errors import ModelError
from paraguard_utils.models import prompting, served, trace_store

KEY = "sk-QUOKKA-1234567890"


def reply(text="Sure, here is how.", reason="stop", top=(("Sure", -0.1), ("I", -2.5)), tokens=20):
    """Return a chat completion as servers write it."""
    first = [{"token": token, "logprob": value} for token, value in top]
    content = [{"token": first[0]["token"], "logprob": first[0]["logprob"], "top_logprobs": first}] if first else []
    return {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": reason,
                "logprobs": {"content": content},
            }
        ],
        "usage": {"prompt_tokens": tokens},
    }


def cut():
    """Return an answer that ends before its end."""
    return Response(iter([b'{"choices": [']), headers={"Content-Length": "4000"}, content_type="application/json")


def error(status, message="no", **headers):
    body = json.dumps({"error": {"message": message, "code": headers.pop("code", None)}})
    return Response(body, status=status, headers=headers, content_type="application/json")


def stall():
    GIVEN_UP.wait()
    return reply("too late")


GIVEN_UP = threading.Event()
"""Set when a test is over, so that its server can end."""


FAULTS = {
    "busy": lambda: error(429, "slow down", **{"Retry-After": "0"}),
    "broken": lambda: error(500, "oh"),
    "cut": cut,
    "half": lambda: Response('{"choices": [{"message": {"con', content_type="application/json"),
    "empty": lambda: {"choices": [], "usage": {}},
    "stall": stall,
    "not json": lambda: Response("<html>gateway</html>", content_type="text/html"),
}


class Faulty:
    """A server that does as a script says: for a prompt's words, one answer after another, then a good one."""

    def __init__(self, script, tells=5, drops=False):
        self.script = {words: list(steps) for words, steps in script.items()}
        self.tells, self.drops, self.asked, self.lock = tells, drops, [], threading.Lock()

    def __call__(self, request):
        body = json.loads(request.data)
        if "prompt_logprobs" in body or body.get("top_logprobs", 0) > self.tells:
            return error(400, "top_logprobs is too large")
        words = body["messages"][-1]["content"]
        with self.lock:
            self.asked.append((words, request.headers.get("Authorization")))
            steps = self.script.get(words, [])
            step = steps.pop(0) if steps else None
        turns = body["messages"][-1:] if self.drops else body["messages"]
        tokens = sum(len(turn["content"].split()) + 4 for turn in turns)
        found = step() if callable(step) else reply(tokens=tokens)
        if isinstance(found, Response):
            return found
        return Response(json.dumps(found).encode(), content_type="application/json")

    def prompts(self):
        """How many requests there were, those that find out what the server tells not counted."""
        return sum(words not in served._PROBES for words, _ in self.asked)


@pytest.fixture
def server(monkeypatch, results):
    monkeypatch.setenv(served.KEY, KEY)
    monkeypatch.setattr(served, "WAIT", tenacity.wait_none())
    monkeypatch.setattr(served, "TIMEOUT", 5.0)
    GIVEN_UP.clear()
    with HTTPServer(threaded=True) as http:

        def start(script, concurrency=4, **more):
            handler = Faulty(script, **more)
            http.clear_all_handlers()
            http.expect_request("/v1/chat/completions", method="POST").respond_with_handler(handler)
            return handler, served.Server("made-up", http.url_for("/v1"), concurrency, argument="openai/made-up")

        yield start
        GIVEN_UP.set()


def prompts(*words):
    return pd.DataFrame({"prompt_id": [f"p{i}" for i in range(len(words))], "text": list(words)})


def ask(model, corpus, **more):
    return trace_store.query(
        stores.Store("test"), "mine", corpus, model, "safety", prompting.Decoding(8), progress=False, **more
    )


WORDS = [f"{fault} prompt" for fault in FAULTS]


def test_every_fault_passes_and_every_prompt_has_one_row(server, capsys):
    handler, model = server({f"{name} prompt": [fault] for name, fault in FAULTS.items()})
    traces = ask(model, prompts(*WORDS, "a good one"))
    assert traces["prompt_id"].tolist() == [f"p{i}" for i in range(len(WORDS) + 1)]
    assert (traces["response"] == "Sure, here is how.").all()
    assert model.faults == {
        "status 429": 1, "status 500": 1, "cut connection": 1, "unreadable answer": 3, "time-out": 1,
    }  # fmt: skip
    assert "1 x status 429" in capsys.readouterr().err
    asked = len(handler.asked)
    again = ask(served.Server("made-up", model.base_url), prompts(*WORDS, "a good one"))
    assert len(again) == len(traces)
    assert {words for words, _ in handler.asked[asked:]} <= set(served._PROBES), "nothing is asked twice"


def test_what_fails_for_good_is_a_row_and_is_asked_again(server):
    fails = [FAULTS["broken"]] * served.ATTEMPTS
    handler, model = server({"p one": fails})
    traces = ask(model, prompts("p one", "p two"))
    assert traces["finish_reason"].tolist() == ["error", "stop"] and traces["response"].isna().tolist() == [True, False]
    asked = len(handler.asked)
    traces = ask(served.Server("made-up", model.base_url), prompts("p one", "p two"))
    assert traces["finish_reason"].tolist() == ["stop", "stop"] and len(traces) == 2
    assert [words for words, _ in handler.asked[asked:] if words not in served._PROBES] == ["p one"]


def test_blocked_and_refused_requests(server):
    script = {
        "stopped": [lambda: reply("", "content_filter")],
        "filtered": [lambda: error(400, "The prompt was filtered", code="content_filter")],
        "too long": [lambda: error(400, "maximum context length")],
        "thinking": [lambda: reply(None, "length")],
    }
    traces = ask(server(script)[1], prompts(*script)).set_index("prompt_id")
    assert traces["finish_reason"].tolist() == ["content_filter", "content_filter", "error", "length"]
    assert traces["response"].fillna("none").tolist() == ["", "", "none", ""]


@pytest.mark.parametrize("charset", ["utf-8", "latin-1", "utf-16"])
def test_a_body_in_another_encoding(server, charset):
    body = json.dumps(reply("Café, naïvely."), ensure_ascii=False).encode(charset)
    script = {"x y": [lambda: Response(body, content_type=f"application/json; charset={charset}")]}
    assert ask(server(script)[1], prompts("x y"))["response"].tolist() == ["Café, naïvely."]


@pytest.mark.parametrize(("status", "name"), [(401, "AuthenticationError"), (404, "NotFoundError")])
def test_a_wrong_key_or_model_ends_it_at_once(server, status, name, capsys, results):
    def late():
        time.sleep(0.3)
        return error(status, f"Incorrect API key provided: {KEY}")

    handler, model = server({"second": [late]}, concurrency=1)
    with pytest.raises(ModelError, match=name) as caught:
        ask(model, prompts("first", "second", "third"))
    assert KEY not in str(caught.value) and "OPENAI_API_KEY" in str(caught.value)
    assert [words for words, _ in handler.asked].count("second") == 1
    traces = ask(served.Server("made-up", model.base_url), prompts("first", "second", "third"))
    assert len(traces) == 3 and [words for words, _ in handler.asked].count("first") == 1, "the first was kept"
    assert any(header == f"Bearer {KEY}" for _, header in handler.asked)
    for path in results.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
    assert KEY not in "".join(capsys.readouterr())


def test_a_server_that_is_down_stops_the_run(server):
    words = [f"prompt {i}" for i in range(40)]
    handler, model = server({one: [FAULTS["broken"]] * 99 for one in words[3:]}, concurrency=2)
    with pytest.raises(ModelError, match=r"prompts one after another .*kept") as caught:
        ask(model, prompts(*words))
    assert "\n" not in str(caught.value)
    tried = {one for one, _ in handler.asked if one in words}
    assert len(tried) <= 3 + served.BREAK + 2 * 2 + 1


def test_what_a_server_tells(server):
    told = [server({}, tells=tells)[1].telling for tells in (0, 5, 20)]
    assert [(one.level, one.top) for one in told] == [("text", 0), ("answer tokens", 5), ("answer tokens", 20)]


def test_the_columns_of_an_answer():
    telling, top = served.Telling("answer tokens", 5, "max_tokens"), [("token_id:7", np.log(0.5)), (" no", np.log(0.2))]
    row = served.row_of(reply(top=top), served.Framing(None, ""), telling)
    assert row["next_ids"][0] == 7 and 0 <= row["next_ids"][1] == served.token_number(" no") < 2**31
    assert row["tail_mass"] == pytest.approx(0.3)  # 1 - 0.5 - 0.2
    assert len(row["token_ids"]) == 0
    halves = [("\ufffd", np.log(0.4)), ("No", np.log(0.3)), ("\ufffd", np.log(0.1))]
    row = served.row_of(reply(top=halves), served.Framing(None, ""), telling)
    assert row["next_ids"].tolist() == [served.token_number(one) for one in ("\ufffd", "No")]
    assert np.exp(row["next_logprobs"]).tolist() == pytest.approx([0.4, 0.3]) and row["tail_mass"] == pytest.approx(0.3)
    full = reply() | {
        "prompt_token_ids": [5, 6, 7, 8, 9],
        "prompt_logprobs": [None, {"6": {"logprob": -1}}, {"7": {"logprob": -2}}, {"8": {"logprob": -3}}, None],
    }
    row = served.row_of(full, served.Framing(None, "", start=2, end=1), telling._replace(level="full"))
    assert (row["user_start"], row["user_end"]) == (2, 4)
    np.testing.assert_array_equal(row["token_nll"], np.array([np.nan, np.nan, 2, 3, np.nan], np.float32))


def test_a_wrapper_that_the_template_drops_stands_before_the_words(server):
    _, model = server({})
    framing = model.framing("Be careful.")
    assert framing.messages("x") == [{"role": "system", "content": "Be careful."}, {"role": "user", "content": "x"}]
    assert model.framing("").messages("x") == [{"role": "user", "content": "x"}], "an empty turn is longer"
    _, model = server({}, drops=True)
    assert model.framing("Be careful.").messages("x") == [{"role": "user", "content": "Be careful.\n\nx"}]


def test_the_pace_is_kept(monkeypatch):
    clock, slept = [100.0], []
    monkeypatch.setattr(served.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(served.time, "sleep", slept.append)
    pace = served._Pace(120)  # one every half a second
    for _ in range(3):
        pace.take()
    clock[0] += 10
    pace.take()
    assert slept == [0.0, 0.5, 1.0, 0.0]
    served._Pace(0).take()
    assert len(slept) == 4, "no limit, no pause"


CLIENT = """
import sys
from pathlib import Path
import pandas as pd
from paraguard_utils import paths, stores
from paraguard_utils.models import prompting, served, trace_store
paths.RESULTS = Path(sys.argv[1])
corpus = pd.DataFrame({"prompt_id": [f"p{i}" for i in range(300)], "text": [f"prompt {i}" for i in range(300)]})
trace_store.query(stores.Store("test"), "mine", corpus, served.Server("made-up", sys.argv[2], 4), "safety",
    prompting.Decoding(8), progress=False)
"""


@pytest.mark.slow
def test_a_client_killed_ten_times_loses_only_what_was_under_way(server, results):
    handler, model = server({})
    chance = np.random.default_rng(1)
    command = [sys.executable, "-c", CLIENT, str(results), model.base_url]
    parts = stores.Parts(results / "test/traces/mine/made-up-served--safety.parquet", "traces")
    for kills in range(1, 11):
        before, more = handler.prompts(), int(chance.integers(1, 28))
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as client:
            while handler.prompts() < before + more and client.poll() is None:
                time.sleep(0.001)
            client.kill()
        # Under way: four requests, one that waits, and what these five have brought since rows were last written.
        kept = pd.concat(parts.read())["prompt_id"] if parts.files() else []
        assert len(set(kept)) >= handler.prompts() - 10 * kills, "answers were lost"
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    traces = stores.Store("test").read("traces", "mine", "made-up-served--safety")
    assert sorted(traces["prompt_id"]) == sorted(f"p{i}" for i in range(300))
    assert handler.prompts() <= 300 + 10 * 10
    assert not parts.files()
