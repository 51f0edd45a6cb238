"""A model behind a server: what it returns, and that every prompt ends in exactly one
row whatever the server does.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from asking import mine, texts_in
from http_server import HTTPServer
from werkzeug import Response

from paraguard_lab.core.sampling import Sampling
from paraguard_lab.labels.harmful import ask_harmful_requests
from paraguard_lab.labels.withheld import keep_labels
from paraguard_tools.servers import client, completions, served
from paraguard_utils import settings, stores
from paraguard_utils.errors import ModelError, SettingsError
from paraguard_utils.labels import systems
from paraguard_utils.models import prompting, trace_store
from paraguard_utils.parts import Parts

KEY = "sk-QUOKKA-1234567890"

KILLS = min(20, int(os.environ.get("PARAGUARD_KILLS", "1")))
"""Times that a client is killed; each starts a process that imports for seconds."""


def reply(
    text="Sure, here is how.",
    reason="stop",
    top=(("Sure", -0.1), ("I", -2.5)),
    tokens=20,
):
    """Return a chat completion as servers write it."""
    first = [{"token": token, "logprob": value} for token, value in top]
    content = (
        [
            {
                "token": first[0]["token"],
                "logprob": first[0]["logprob"],
                "top_logprobs": first,
            }
        ]
        if first
        else []
    )
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
    return Response(
        iter([b'{"choices": [']),
        headers={"Content-Length": "4000"},
        content_type="application/json",
    )


def error(status, message="no", **headers):
    body = json.dumps(
        {"error": {"message": message, "code": headers.pop("code", None)}}
    )
    return Response(
        body, status=status, headers=headers, content_type="application/json"
    )


def stall():
    GIVEN_UP.wait()
    return reply("too late")


GIVEN_UP = threading.Event()
"""Set when a test is over, so that its server can end."""


FAULTS = {
    "busy": lambda: error(429, "slow down", **{"Retry-After": "0"}),
    "broken": lambda: error(500, "oh"),
    "cut": cut,
    "half": lambda: Response(
        '{"choices": [{"message": {"con', content_type="application/json"
    ),
    "empty": lambda: {"choices": [], "usage": {}},
    "stall": stall,
    "not json": lambda: Response("<html>gateway</html>", content_type="text/html"),
}


class Faulty:
    """A server that does as a script says: for a prompt's words, one answer after
    another, then a good one.
    """

    def __init__(self, script, tells=5, drops=False, ignores=False):
        self.script = {words: list(steps) for words, steps in script.items()}
        self.tells, self.drops, self.ignores, self.asked, self.lock = (
            tells,
            drops,
            ignores,
            [],
            threading.Lock(),
        )
        self.names = set()

    def __call__(self, request):
        body = json.loads(request.data)
        if not self.ignores and (
            "prompt_logprobs" in body or body.get("top_logprobs", 0) > self.tells
        ):
            return error(400, "top_logprobs is too large")
        words = body["messages"][-1]["content"]
        with self.lock:
            self.asked.append((words, request.headers.get("Authorization")))
            self.names.add(body["model"])
            steps = self.script.get(words, [])
            step = steps.pop(0) if steps else None
        turns = body["messages"][-1:] if self.drops else body["messages"]
        tokens = sum(len(turn["content"].split()) + 4 for turn in turns)
        found = step() if callable(step) else reply(tokens=tokens)
        if isinstance(found, Response):
            return found
        return Response(json.dumps(found).encode(), content_type="application/json")

    def prompts(self):
        """How many requests there were, those that find out what the server tells not
        counted.
        """
        return sum(words not in served.PROBE_TEXTS for words, _ in self.asked)


@pytest.fixture
def server(monkeypatch, results):
    monkeypatch.setenv(client.API_KEY_VARIABLE, KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)
    monkeypatch.setattr(client, "ANSWER_TIMEOUT", 5.0)
    GIVEN_UP.clear()
    with HTTPServer(threaded=True) as http:

        def start(script, concurrency=4, **more):
            handler = Faulty(script, **more)
            http.clear_all_handlers()
            http.expect_request(
                "/v1/chat/completions", method="POST"
            ).respond_with_handler(handler)
            return handler, served.ServerBackend(
                "made-up", http.url_for("/v1"), concurrency, argument="openai/made-up"
            )

        yield start
        GIVEN_UP.set()


def prompts(*words):
    return pd.DataFrame(
        {"prompt_id": [f"p{i}" for i in range(len(words))], "text": list(words)}
    )


def ask(model, corpus, **more):
    decoding = prompting.Decoding(8)
    query = trace_store.Query(mine(), corpus, "safety", decoding, **more)
    return trace_store.query_model(model, query)


def nested():
    return Response(
        '{"choices": ' + "[" * 100_000 + "]" * 100_000 + "}",
        content_type="application/json",
    )


FAULTS |= {"nested": nested}
PASSING = ("busy", "broken", "cut", "stall")
"""Faults after which the same request is sent again in the same run."""

WORDS = [f"{fault} prompt" for fault in FAULTS]


@pytest.mark.slow
def test_every_fault_passes_and_every_prompt_has_one_row(server, capsys):
    handler, model = server(
        {f"{name} prompt": [fault] for name, fault in FAULTS.items()}
    )
    good = "Sure, here is how."
    traces = ask(model, prompts(*WORDS, "a good one"))
    assert traces["prompt_id"].tolist() == [f"p{i}" for i in range(len(WORDS) + 1)]
    passed = [fault in PASSING for fault in FAULTS]
    assert (traces["response"] == good).tolist() == [*passed, True]
    assert model.faults == {"repeated request": 4, "unreadable answer": 4}
    assert "4 x unreadable answer" in capsys.readouterr().err
    asked = len(handler.asked)
    again = ask(
        served.ServerBackend("made-up", model.base_url), prompts(*WORDS, "a good one")
    )
    assert (again["response"] == good).all() and len(again) == len(traces)
    twice = {words for words, _ in handler.asked[asked:]} - set(served.PROBE_TEXTS)
    assert twice == {f"{fault} prompt" for fault in FAULTS if fault not in PASSING}


@pytest.mark.slow
def test_what_fails_for_good_is_a_row_and_is_asked_again(server):
    fails = [FAULTS["broken"]] * client.MAX_ATTEMPTS
    handler, model = server({"p one": fails})
    traces = ask(model, prompts("p one", "p two"))
    assert traces["finish_reason"].tolist() == ["error", "stop"] and traces[
        "response"
    ].isna().tolist() == [True, False]
    asked = len(handler.asked)
    traces = ask(
        served.ServerBackend("made-up", model.base_url), prompts("p one", "p two")
    )
    assert traces["finish_reason"].tolist() == ["stop", "stop"] and len(traces) == 2
    assert [
        words for words, _ in handler.asked[asked:] if words not in served.PROBE_TEXTS
    ] == ["p one"]


@pytest.mark.slow
def test_blocked_and_refused_requests(server):
    script = {
        "stopped": [lambda: reply("", "content_filter")],
        "filtered": [
            lambda: error(400, "The prompt was filtered", code="content_filter")
        ],
        "too long": [lambda: error(400, "maximum context length")],
        "thinking": [lambda: reply(None, "length")],
    }
    traces = ask(server(script)[1], prompts(*script)).set_index("prompt_id")
    assert traces["finish_reason"].tolist() == [
        "content_filter",
        "content_filter",
        "error",
        "length",
    ]
    assert traces["response"].fillna("none").tolist() == ["", "", "none", ""]


@pytest.mark.slow
@pytest.mark.parametrize(
    "usage", [None, [], "many", {"prompt_tokens": "many"}, {"prompt_tokens": None}]
)
def test_a_usage_that_is_none_costs_nothing(server, usage):
    odd = reply() | {"usage": usage}
    probes = {words: [lambda: odd] * 8 for words in served.PROBE_TEXTS}
    assert ask(server(probes)[1], prompts("a prompt"))["response"].tolist() == [
        "Sure, here is how."
    ]


@pytest.mark.slow
def test_a_model_that_takes_no_temperature_is_asked_without(server, capsys):
    handler, model = server({})

    class Strict(Faulty):
        def __call__(self, request):
            body = json.loads(request.data)
            if "temperature" in body:
                return error(
                    400,
                    "Unsupported value: 'temperature' does not support 0 with this"
                    " model.",
                )
            return super().__call__(request)

    handler.__class__ = Strict
    traces = ask(model, prompts("a prompt"))
    assert traces["response"].tolist() == ["Sure, here is how."]
    assert "takes no temperature" in capsys.readouterr().err
    meta = stores.read_meta(
        stores.Store("test").path("traces", "mine", f"{model.name}--safety")
    )
    assert meta["decoding"] == {"max_new_tokens": 8, "method": served.OWN_TEMPERATURE}
    usual = server({})[1].context("", prompting.Decoding(8))
    assert model.context("", prompting.Decoding(8)).key("a prompt") != usual.key(
        "a prompt"
    )
    with pytest.raises(ModelError, match="takes no temperature"):
        model.context("", Sampling(8))


@pytest.mark.slow
@pytest.mark.parametrize("charset", ["utf-8", "latin-1", "utf-16"])
def test_a_body_in_another_encoding(server, charset):
    body = json.dumps(reply("Café, naïvely."), ensure_ascii=False).encode(charset)
    script = {
        "x y": [
            lambda: Response(body, content_type=f"application/json; charset={charset}")
        ]
    }
    assert ask(server(script)[1], prompts("x y"))["response"].tolist() == [
        "Café, naïvely."
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "name"), [(401, "AuthenticationError"), (404, "NotFoundError")]
)
def test_a_wrong_key_or_model_ends_it_at_once(server, status, name, capsys, results):
    def late():
        time.sleep(0.3)
        return error(status, f"Incorrect API key provided: {KEY}")

    handler, model = server({"second": [late]}, concurrency=1)
    with pytest.raises(ModelError, match=name) as caught:
        ask(model, prompts("first", "second", "third"))
    assert KEY not in str(caught.value) and "OPENAI_API_KEY" in str(caught.value)
    assert [words for words, _ in handler.asked].count("second") == 1
    traces = ask(
        served.ServerBackend("made-up", model.base_url),
        prompts("first", "second", "third"),
    )
    assert (
        len(traces) == 3 and [words for words, _ in handler.asked].count("first") == 1
    ), "the first was kept"
    assert any(header == f"Bearer {KEY}" for _, header in handler.asked)
    for path in results.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
    assert KEY not in "".join(capsys.readouterr())


@pytest.mark.slow
def test_a_server_that_is_down_stops_the_run(server):
    words = [f"prompt {i}" for i in range(40)]
    handler, model = server(
        {one: [FAULTS["broken"]] * 99 for one in words[3:]}, concurrency=2
    )
    with pytest.raises(ModelError, match=r"prompts one after another .*kept") as caught:
        ask(model, prompts(*words))
    assert "\n" not in str(caught.value)
    tried = {one for one, _ in handler.asked if one in words}
    assert len(tried) <= 3 + served.MAX_FAILURES + 2 * 2 + 1


@pytest.mark.slow
def test_what_a_server_tells(server):
    told = [server({}, tells=tells)[1].capabilities for tells in (0, 5, 20)]
    assert [(one.level, one.top) for one in told] == [
        ("text", 0),
        ("answer tokens", 5),
        ("answer tokens", 20),
    ]
    ignoring = server({}, ignores=True)[1].capabilities
    assert (ignoring.level, ignoring.top) == (
        "answer tokens",
        20,
    ), "it skips what it does not know, as SGLang does"


def test_the_columns_of_an_answer():
    telling, top = (
        completions.Capabilities("answer tokens", 5, "max_tokens"),
        [("token_id:7", np.log(0.5)), (" no", np.log(0.2))],
    )
    row = completions.parse_completion(
        reply(top=top), completions.PromptLayout(None, ""), telling
    )
    assert (
        row["next_ids"][0] == 7
        and 0 <= row["next_ids"][1] == completions.token_number(" no") < 2**31
    )
    assert row["tail_mass"] == pytest.approx(0.3)  # 1 - 0.5 - 0.2
    assert len(row["token_ids"]) == 0
    halves = [("\ufffd", np.log(0.4)), ("No", np.log(0.3)), ("\ufffd", np.log(0.1))]
    row = completions.parse_completion(
        reply(top=halves), completions.PromptLayout(None, ""), telling
    )
    assert row["next_ids"].tolist() == [
        completions.token_number(one) for one in ("\ufffd", "No")
    ]
    assert np.exp(row["next_logprobs"]).tolist() == pytest.approx([0.4, 0.3]) and row[
        "tail_mass"
    ] == pytest.approx(0.3)
    full = reply() | {
        "prompt_token_ids": [5, 6, 7, 8, 9],
        "prompt_logprobs": [
            None,
            {"6": {"logprob": -1}},
            {"7": {"logprob": -2}},
            {"8": {"logprob": -3}},
            None,
        ],
    }
    row = completions.parse_completion(
        full,
        completions.PromptLayout(None, "", start=(5, 6), end=(9,)),
        telling._replace(level="full"),
    )
    assert (row["user_start"], row["user_end"]) == (2, 4)
    np.testing.assert_array_equal(
        row["token_nll"], np.array([np.nan, np.nan, 2, 3, np.nan], np.float32)
    )


@pytest.mark.slow
def test_a_system_prompt_that_the_template_drops_stands_before_the_words(server):
    _, model = server({})
    framing = model.find_layout("Be careful.")
    assert framing.messages("x") == [
        {"role": "system", "content": "Be careful."},
        {"role": "user", "content": "x"},
    ]
    assert model.find_layout("").messages("x") == [{"role": "user", "content": "x"}], (
        "an empty turn is longer"
    )
    _, model = server({}, drops=True)
    assert model.find_layout("Be careful.").messages("x") == [
        {"role": "user", "content": "Be careful.\n\nx"}
    ]


def test_the_pace_is_kept(monkeypatch):
    clock, slept = [100.0], []
    monkeypatch.setattr(client.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(client.time, "sleep", slept.append)
    pace = client.Pace(120)  # one every half a second
    for _ in range(3):
        pace.take()
    clock[0] += 10
    pace.take()
    assert slept == [0.0, 0.5, 1.0, 0.0]
    client.Pace(0).take()  # no limit, no pause


PARTS = [
    {"type": "thinking", "thinking": [{"text": "Hm"}]},
    {"type": "text", "text": "Sure, "},
    {"text": "so."},
]


def told_oddly(**more):
    """Return an answer whose choice differs from `reply`'s."""
    found = reply()
    found["choices"][0] |= more
    return found


@pytest.mark.slow
def test_an_odd_answer_is_a_row_and_stops_nothing(server):
    script = {
        "parts": [lambda: reply(PARTS)],
        "half a character": [lambda: reply("Sure \ud83d")],
        "no words": [lambda: reply({"a": 1})],
        "no logprobs": [lambda: told_oddly(logprobs=None)],
        "a list": [lambda: told_oddly(logprobs=[1])],
        "no token": [
            lambda: told_oddly(
                logprobs={"content": [{"top_logprobs": [{"logprob": -1}]}]}
            )
        ],
        "a null": [lambda: reply(top=[("Sure", None)])],
        "an error": [lambda: told_oddly(finish_reason="error")],
    }
    traces = ask(server(script)[1], prompts(*script)).set_index("prompt_id")
    usual = "Sure, here is how."
    assert traces["response"].fillna("none").tolist() == [
        "Sure, so.",
        "Sure \ufffd",
        "",
        usual,
        usual,
        usual,
        usual,
        "none",
    ]
    assert traces["next_ids"].map(len).tolist() == [2, 2, 2, 0, 0, 0, 0, 0]
    assert traces["tail_mass"].tolist()[3:7] == [1.0] * 4


@pytest.mark.slow
def test_a_refused_request_is_no_failing_server(server):
    """What is too long is refused each time it is asked: it must not keep the rest from
    being asked.
    """
    statuses = {400: 4, 413: 3, 422: 3}
    words = [f"{status} prompt {i}" for status, n in statuses.items() for i in range(n)]
    refuse = {
        one: [lambda one=one: error(int(one[:3]), "too long", code=int(one[:3]))] * 2
        for one in words
    }
    _, model = server(refuse, concurrency=2)
    for _ in range(2):
        traces = ask(model, prompts(*words, "a good one"))
        assert traces["finish_reason"].tolist() == ["error"] * len(words) + ["stop"]
        assert model.faults == {
            f"status {status}": n for status, n in statuses.items()
        }, "of this run"


@pytest.mark.slow
@pytest.mark.parametrize("status", [402, 403])
def test_an_account_that_gets_no_answer_any_more_ends_the_run_at_once(server, status):
    words = [f"prompt {i}" for i in range(3 * served.MAX_FAILURES)]
    handler, model = server(
        {one: [lambda: error(status, "pay first")] for one in words[1:]}, concurrency=1
    )
    with pytest.raises(ModelError, match=rf"{status} - pay first.*kept"):
        ask(model, prompts(*words))
    # The one, and the one under way behind it
    assert handler.prompts() <= 3


@pytest.mark.slow
def test_faults_are_those_of_the_system(server, capsys):
    _, model = server({"a prompt": [FAULTS["broken"]]})
    ask(model, prompts("a prompt"))
    assert "1 x repeated request" in capsys.readouterr().err
    decoding = prompting.Decoding(8)
    query = trace_store.Query(mine(), prompts("a prompt"), "none", decoding)
    trace_store.query_model(model, query)
    assert "repeated" not in capsys.readouterr().err and model.faults == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("m", "m"),
        ("org/m@refs/pr/3", "org/m"),
        ("@cf/meta/m", "@cf/meta/m"),
        ("@cf/m@2", "@cf/m"),
    ],
)
def test_what_a_server_calls_the_model(server, model, name):
    handler, one = server({})
    ask(served.ServerBackend(model, one.base_url), prompts("x y"))
    assert handler.names == {name}


@pytest.mark.parametrize(
    "url",
    [
        "http://me:QUOKKA@host/v1",
        "https://host/v1?api-key=QUOKKA",
        "http://QUOKKA@h:1/v1",
    ],
)
def test_a_secret_in_the_address_is_refused_and_not_repeated(url):
    with pytest.raises(SettingsError, match="OPENAI_API_KEY") as caught:
        settings.check_settings(
            {"store": "test", "corpus": "mine", "model": "openai/m", "base_url": url},
            settings.QuerySettings,
        )
    assert "QUOKKA" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://host:80:90/v1", "http://[::1/v1", "http://me:QUO/KKA@host/v1"]
)
def test_an_address_that_is_none_is_one_line(url):
    with pytest.raises(SettingsError, match="base_url") as caught:
        settings.check_settings(
            {"store": "test", "corpus": "mine", "model": "openai/m", "base_url": url},
            settings.QuerySettings,
        )
    assert "QUO" not in str(caught.value)


def test_a_folder_may_have_any_name():
    for url in ("file:///home/me@work/a#b", "file://C:/jobs", "file://a:b/[c]"):
        given = {
            "store": "test",
            "corpus": "mine",
            "model": "openai/m",
            "base_url": url,
        }
        assert settings.check_settings(given, settings.QuerySettings).base_url == url


@pytest.mark.slow
@pytest.mark.parametrize("key", ["sk-QUOKKA-\u20ac", "sk-QUOKKA\n-1"])
def test_a_key_that_no_header_can_carry_is_one_line(server, monkeypatch, key):
    monkeypatch.setenv(client.API_KEY_VARIABLE, key)
    with pytest.raises(ModelError, match="OPENAI_API_KEY") as caught:
        ask(server({})[1], prompts("x y"))
    assert "QUOKKA" not in str(caught.value)


@pytest.mark.slow
def test_a_line_end_behind_the_key_is_no_part_of_it(server, monkeypatch):
    monkeypatch.setenv(client.API_KEY_VARIABLE, f"{KEY}\r\n")
    handler, model = server({})
    ask(model, prompts("x y"))
    assert {header for _, header in handler.asked} == {f"Bearer {KEY}"}


@pytest.mark.slow
def test_many_parts_with_a_row_twice_are_kept(server, results):
    """A prompt that failed in one run and was answered in the next has two rows when
    parts are put together.
    """
    words = ["bad", *(f"prompt {i}" for i in range(6))]
    script = {
        "bad": [FAULTS["broken"]] * client.MAX_ATTEMPTS,
        "prompt 1": [lambda: error(401)] * 2,
    }
    handler, model = server(script, concurrency=1)
    with pytest.raises(ModelError):
        ask(model, prompts(*words))
    with pytest.raises(ModelError):
        ask(model, prompts(*words))
    ask(model, prompts(*words))
    # One stop is at prompt 1 with prompt 2 under way; where that was kept, the other
    # one finds prompt 3 under way.
    counts = {
        one: [words for words, _ in handler.asked].count(one)
        for one in words
        if one not in words[2:5]
    }
    assert counts == dict.fromkeys(counts, 1) | {"bad": client.MAX_ATTEMPTS + 1}, (
        "but for what was under way at the stop"
    )
    assert not list(results.rglob("*.corrupt"))


@pytest.mark.slow
def test_trying_the_first_prompts_loses_nothing(server, results, capsys):
    corpus = prompts(*(f"prompt {i}" for i in range(6)))
    handler, model = server({"prompt 4": [lambda: error(401)]}, concurrency=1)
    with pytest.raises(ModelError):
        ask(model, corpus)
    given = {
        "store": "test",
        "corpus": "mine",
        "model": "openai/made-up",
        "base_url": model.base_url,
    }
    config = settings.check_settings(
        given | {"system_prompts": ["safety"], "max_new_tokens": 8, "limit": 2},
        settings.QuerySettings,
    )
    tried = systems.ask_systems(mine(), corpus.head(2), config)
    assert [len(frame) for frame in tried.values()] == [2]
    systems.label_systems(mine(), corpus.head(2), tried, config)
    assert ask_harmful_requests(mine(), config) == {}, "nor are the twins asked to try"
    assert not list(results.rglob("*.parquet.meta.json")) and not list(
        results.rglob("labels/**/*.csv")
    )
    ask(served.ServerBackend("made-up", model.base_url), corpus)
    assert [
        [words for words, _ in handler.asked].count(one)
        for one in corpus["text"].head(4)
    ] == [1, 1, 1, 1]
    # A failed row among the first ones, asked again to try, does not cut what is there.
    whole = next(results.rglob("*--safety.parquet"))
    rows = pd.read_parquet(whole)
    rows.loc[0, "response"], rows.loc[0, "finish_reason"] = None, "error"
    rows.to_parquet(whole)
    meta = stores.read_meta(whole)
    meta.pop(stores.CONTENT)  # changed on purpose
    Path(f"{whole}.meta.json").write_text(json.dumps(meta))
    again = systems.ask_systems(mine(), corpus.head(2), config)
    assert len(again["made-up-served--safety"]) == 2
    assert len(ask(served.ServerBackend("made-up", model.base_url), corpus)) == 6
    assert [words for words, _ in handler.asked].count("prompt 0") == 2


@pytest.mark.slow
def test_rows_at_another_level_are_not_mixed(server):
    corpus = prompts("one two", "three four")
    ask(server({}, tells=0)[1], corpus)
    handler, model = server({}, tells=5)
    traces = ask(model, corpus)
    assert traces["next_ids"].map(len).tolist() == [2, 2] and handler.prompts() == 2
    assert (
        stores.read_meta(
            stores.Store("test").path("traces", "mine", f"{model.name}--safety")
        )["level"]
        == "answer tokens"
    )


def test_tokens_that_run_into_the_template_are_the_users():
    """Every prompt begins 1 2 and ends 3 4; a mark at the end of the words and the line
    end behind are one token.
    """
    telling = completions.Capabilities("full", 5, "max_tokens")
    framing = completions.PromptLayout(None, "", start=(1, 2), end=(3, 4))

    def spans(ids):
        logs = [None, *({str(one): {"logprob": -one}} for one in ids[1:])]
        row = completions.parse_completion(
            reply() | {"prompt_token_ids": ids, "prompt_logprobs": logs},
            framing,
            telling,
        )
        return row["user_start"], row["user_end"]

    assert spans([1, 2, 8, 9, 3, 4]) == (2, 4)
    assert spans([1, 2, 8, 93, 4]) == (2, 4), "9 and 3 are one token"
    assert spans([1, 28, 9, 3, 4]) == (1, 3), "2 and 8 are one token"
    assert spans([1, 2, 2, 3, 3, 4]) == (
        2,
        4,
    ), "words like the template's are the user's"


@pytest.mark.parametrize(
    "logs", [None, [], [None, None, None, None], [None, {"6": {"logprob": -1}}]]
)
def test_words_that_a_server_does_not_tell_cost_no_answer(logs):
    row = completions.parse_completion(
        reply() | {"prompt_token_ids": [5, 6, 7, 8], "prompt_logprobs": logs},
        completions.PromptLayout(None, "", start=(5,), end=(8,)),
        completions.Capabilities("full", 5, "max_tokens"),
    )
    assert row["response"] == "Sure, here is how." and len(row["next_ids"]) == 2
    assert len(row["token_ids"]) == len(row["token_nll"]) == 0


def test_the_likeliest_of_tokens_that_look_alike_counts():
    telling = completions.Capabilities("answer tokens", 5, "max_tokens")
    row = completions.parse_completion(
        reply(top=[("\ufffd", -0.1), ("\ufffd", -9), ("x", -9999.0)]),
        completions.PromptLayout(None, ""),
        telling,
    )
    assert row["next_logprobs"].tolist() == pytest.approx([-0.1, -9999])
    assert row["tail_mass"] == pytest.approx(1 - np.exp(-0.1))


@pytest.mark.slow
def test_answers_to_requests_that_ask_for_harm_are_in_no_file_and_no_line(
    server, results, capsys
):
    twins = prompts("one", "two", "three").assign(cluster_id="c-twin", source="unsafe")
    script = {
        "one": [lambda: reply("QUOKKA first")],
        "two": [lambda: error(400, "content_filter: QUOKKA")],
    }
    script["three"] = [lambda: Response("QUOKKA", content_type="text/html")]
    traces = ask(server(script)[1], twins, keep=keep_labels(twins))
    assert traces["finish_reason"].tolist() == ["stop", "content_filter", "error"]
    labels = stores.Store("test").read("labels", "mine", "made-up-served--safety")
    assert labels["label"].tolist()[1:] == ["blocked", "unparsed"]
    assert "QUOKKA" not in "".join(capsys.readouterr())
    assert not any(
        "QUOKKA" in texts_in(path) for path in results.rglob("*") if path.is_file()
    )


CLIENT = """
import sys
from pathlib import Path
import pandas as pd
from paraguard_tools.servers import served
from paraguard_utils import paths, stores
from paraguard_utils.models import prompting, trace_store
paths.RESULTS = Path(sys.argv[1])
texts = [f"prompt {i}" for i in range(120)]
corpus = pd.DataFrame({"prompt_id": [f"p{i}" for i in range(120)], "text": texts})
files = stores.CorpusFiles(stores.Store("test"), "mine")
model = served.ServerBackend("made-up", sys.argv[2], 4)
decoding = prompting.Decoding(8)
trace_store.query_model(model, trace_store.Query(files, corpus, "safety", decoding))
"""


@pytest.mark.slow
def test_a_client_killed_again_and_again_loses_only_what_was_under_way(server, results):
    handler, model = server({})
    chance = np.random.default_rng(1)
    command = [sys.executable, "-c", CLIENT, str(results), model.base_url]
    parts = Parts(results / "test/traces/mine/made-up-served--safety.parquet", "traces")
    for kills in range(1, KILLS + 1):
        before, more = handler.prompts(), int(chance.integers(1, 100 // KILLS))
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as client:
            while handler.prompts() < before + more and client.poll() is None:
                time.sleep(0.001)
            client.kill()
        # Under way: four requests, one that waits, and what these five have brought
        # since rows were last written.
        kept = pd.concat(parts.read())["prompt_id"] if parts.files() else []
        assert len(set(kept)) >= handler.prompts() - 10 * kills, "answers were lost"
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    traces = stores.Store("test").read("traces", "mine", "made-up-served--safety")
    assert sorted(traces["prompt_id"]) == sorted(f"p{i}" for i in range(120))
    assert handler.prompts() <= 120 + 10 * KILLS
    assert not parts.files()
