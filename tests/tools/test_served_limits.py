"""A model behind a server that misbehaves slowly: it drips, answers for another model,
repeats the key, returns less than it did, thinks without end, or wants to be paid.
"""

import json
import threading

import pandas as pd
import pytest
from asking import mine, run_here
from test_served import (
    KEY,
    ask,
    error,
    prompts,
    reply,
    server,  # noqa: F401  (a fixture)
)
from werkzeug import Response

from paraguard_lab.labels import first_answers, unread
from paraguard_tools.servers import client, completions, served
from paraguard_utils import stores
from paraguard_utils.errors import DataError, ModelError
from paraguard_utils.labels import systems
from paraguard_utils.settings import QuerySettings, check_settings

LIMIT = 0.4
"""Seconds that a prompt has, where a server would drip for ever."""


class Dripping:
    """An answer that comes a blank at a time until the test is over."""

    def __init__(self):
        self.over = threading.Event()
        self.drops = 0

    def __call__(self):
        def drip():
            while not self.over.wait(0.02):
                self.drops += 1
                yield b" "

        return Response(drip(), content_type="application/json")


@pytest.fixture
def dripping():
    one = Dripping()
    yield one
    one.over.set()


def impatient(model):
    return served.ServerBackend(
        "made-up", model.base_url, 2, argument="openai/made-up", prompt_timeout=LIMIT
    )


@pytest.mark.slow
def test_a_server_that_drips_is_left_after_a_while(server, dripping):  # noqa: F811
    _, model = server({"slow one": [dripping] * 9})
    model = impatient(model)
    traces = ask(model, prompts("slow one", "quick one"))
    assert traces["finish_reason"].tolist() == ["error", "stop"]
    assert dripping.drops > 2, "it never was silent"
    assert model.faults == {"no answer": 1}


@pytest.mark.slow
def test_headers_that_drip_are_no_answer_either(monkeypatch):
    """A server of a socket: no library writes half a header."""
    import socket

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with listening.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                number = 0
                while not over.wait(0.02):
                    number += 1
                    try:
                        connection.sendall(f"X-{number}: x\r\n".encode())
                    except OSError:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listening.getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1"
        model = served.ServerBackend("m", url, prompt_timeout=LIMIT)
        with pytest.raises(ModelError, match="no whole answer within"):
            model.capabilities  # noqa: B018
        over.set()
        thread.join(10)
        assert not thread.is_alive()


def named(model, **more):
    return lambda: reply(**more) | {"model": model}


@pytest.mark.slow
def test_answers_by_another_model_are_counted_and_told(server, capsys):  # noqa: F811
    script = {
        "one": [named("made-up-2026-01-01")],
        "two": [named("cheaper\x1b[2J")],
        "three": [named("cheaper\x1b[2J")],
    }
    _, model = server(script)
    ask(model, prompts(*script, "four"))
    told = capsys.readouterr().err
    assert "2 of 4 answers are by another model than made-up: cheaper" in told
    assert "\x1b[2J" not in told and "2026-01-01" not in told
    path = stores.Store("test").path("traces", "mine", f"{model.name}--safety")
    known = stores.read_meta(path)["answered_as"]
    assert sorted(known.values()) == [1, 2] and known["made-up-2026-01-01"] == 1


@pytest.mark.parametrize(
    ("asked", "answered", "same"),
    [
        ("gpt-x", "gpt-x-2026-01-01", True),
        ("gpt-x", "gpt-x-20260101", True),
        ("gpt-x", "gpt-x-0613", True),
        ("org/gpt-x", "gpt-x", True),
        ("GPT-X", "gpt-x", True),
        ("x-latest", "x-20260101", True),
        ("llama", "llama:latest", True),
        ("g-pro", "g-pro-preview-05-06", True),
        ("gpt-x", "gpt-x-mini", False),
        ("gpt-x", "gpt-xl", False),
        ("gpt-x", "gpt-x-mini-2026-01-01", False),
        ("llama-3", "llama-3-8b", False),
        ("org/m", "other/m", False),
        ("gpt-x-mini", "gpt-x", False),
    ],
)
def test_a_date_makes_no_other_model(asked, answered, same):
    assert completions.is_same_model(asked, answered) == same


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"your key {KEY} is", "your key *** is"),
        (f"your key {KEY[:12]}... is", "your key ***... is"),
        (f"{KEY[:8]}|{KEY[:7]}", f"***|{KEY[:7]}"),
        (f"{KEY}{KEY}", "******"),
        ("nothing", "nothing"),
    ],
)
def test_a_key_and_its_beginnings_are_masked(monkeypatch, text, masked):
    monkeypatch.setenv(client.API_KEY_VARIABLE, KEY)
    assert client.mask_key(text) == masked


def test_a_short_key_is_no_secret(monkeypatch):
    """Local servers are given words, such as none: answers keep them."""
    monkeypatch.setenv(client.API_KEY_VARIABLE, "none")
    assert client.mask_key("none of it") == "none of it"


@pytest.mark.slow
def test_no_part_of_the_key_is_kept_or_shown(server, results, capsys):  # noqa: F811
    start = KEY[:10]
    escaped = json.dumps(reply()).replace(
        "Sure, here is how.", "Sure: " + "".join(f"\\u{ord(c):04x}" for c in KEY)
    )
    script = {
        "answer": [lambda: reply(f"Sure, your key is {KEY}.")],
        "escaped": [lambda: Response(escaped, content_type="application/json")],
        "reason": [lambda: reply(reason=f"stop {start}")],
        "name": [named(f"m-{KEY}")],
        "error": [lambda: error(400, f"content_filter {start}...", code=KEY)],
        "too long": [lambda: error(400, f"too long for {start}")],
    }
    _, model = server(script)
    traces = ask(model, prompts(*script)).set_index("prompt_id")
    assert traces["response"].iloc[0] == "Sure, your key is ***."
    assert traces["response"].iloc[1] == "Sure: ***"
    kept = traces[["response", "finish_reason"]].to_csv()
    kept += "".join(capsys.readouterr())
    for path in results.rglob("*.json"):
        kept += path.read_text()
    assert start not in kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTP_PROXY", "gopher://there:1"),
        ("ALL_PROXY", "http://[::1"),
        ("SSL_CERT_FILE", "/no/such/file.pem"),
    ],
)
def test_an_odd_proxy_or_certificate_is_one_line(server, monkeypatch, variable, value):  # noqa: F811
    _, model = server({})
    monkeypatch.setenv(variable, value)
    with pytest.raises(ModelError, match=r"HTTPS_PROXY.*SSL_CERT_FILE") as caught:
        ask(model, prompts("x y"))
    assert "\n" not in str(caught.value)


def full(words, with_tokens=True):
    """Return what a server of the level `full` returns: 1 2, the words, 3 4."""
    numbers = [1, 2, *(10 + len(word) for word in words.split()), 3, 4]
    found = reply(tokens=len(numbers))
    if with_tokens:
        logs = [{str(number): {"logprob": -1.0}} for number in numbers]
        found |= {"prompt_token_ids": numbers, "prompt_logprobs": [None, *logs[1:]]}
    return found


class Replicas:
    """Two servers behind one address: `is_full` says which request the fuller gets."""

    def __init__(self, is_full):
        self.is_full = is_full
        self.asked = 0
        self.lock = threading.Lock()

    def __call__(self, request):
        body = json.loads(request.data)
        with self.lock:
            self.asked += 1
            number = self.asked
        wants = "prompt_logprobs" in body
        words = body["messages"][-1]["content"]
        found = full(words, wants and self.is_full(number))
        return Response(json.dumps(found), content_type="application/json")


@pytest.fixture
def replicas(server):  # noqa: F811
    """Put `Replicas` in the place of the scripted server."""

    def start(is_full):
        handler, model = server({})
        both = Replicas(is_full)
        handler.__class__ = type("Both", (type(handler),), {"__call__": both_call})
        handler.both = both
        return both, model

    def both_call(self, request):
        return self.both(request)

    return start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_full", "level", "told"),
    [
        # Probe and count take two requests, then two are about the tokens around
        (lambda number: True, "full", ""),
        (lambda number: number <= 3, "answer tokens", "at the level 'answer tokens'"),
        (lambda number: number <= 5 or number % 2, "answer tokens", "lack"),
    ],
    ids=["always", "once", "in turns"],
)
def test_a_server_that_returns_less_half_way_has_a_lower_level(
    replicas, capsys, is_full, level, told
):
    _, model = replicas(is_full)
    words = [f"words {'x' * number}" for number in range(1, 9)]
    traces = ask(model, prompts(*words))
    assert traces["finish_reason"].eq("stop").all()
    path = stores.Store("test").path("traces", "mine", f"{model.name}--safety")
    assert stores.read_meta(path)["level"] == level
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("with_words", "with_first", "level"),
    [
        (100, 100, "full"),
        (95, 100, "full"),
        (94, 100, "answer tokens"),
        (100, 94, "text"),
        (0, 100, "answer tokens"),
    ],
)
def test_a_level_holds_from_95_of_100_answers_on(with_words, with_first, level):
    rows = pd.DataFrame(
        {
            "response": ["Sure."] * 100 + [None] * 50,
            "token_ids": [[1]] * with_words + [[]] * (150 - with_words),
            "next_ids": [[1]] * with_first + [[]] * (150 - with_first),
        }
    )
    assert completions.find_level(rows, "full") == level


@pytest.mark.slow
def test_a_stop_is_an_answer_and_is_not_asked_again(server):  # noqa: F811
    script = {
        "stopped": [lambda: reply("", "content_filter")] * 2,
        "filtered": [lambda: error(400, "filtered", code="content_filter")] * 2,
        "failed": [lambda: error(400, "too long")],
    }
    handler, model = server(script)
    corpus = prompts(*script, "good")
    ask(model, corpus)
    traces = ask(served.ServerBackend("made-up", model.base_url), corpus)
    assert traces["finish_reason"].tolist() == ["content_filter"] * 2 + ["stop"] * 2
    counts = {
        word: [w for w, _ in handler.asked].count(word) for word in corpus["text"]
    }
    assert counts == {"stopped": 1, "filtered": 1, "failed": 2, "good": 1}


ACCOUNTS = {
    "no money": lambda: error(402, "Insufficient Balance"),
    "no credit": lambda: error(400, "Your credit balance is too low to access this"),
    "no quota": lambda: error(429, "see your plan", code="insufficient_quota"),
    "no key": lambda: error(401, "invalid x-api-key"),
    "no right": lambda: error(403, "Access to this endpoint is denied"),
    "in a good answer": lambda: {"base_resp": {"status_msg": "insufficient balance"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ACCOUNTS)
def test_an_account_error_ends_the_run_at_once_and_loses_nothing(server, kind):  # noqa: F811
    words = [f"prompt {number}" for number in range(12)]
    script = {"prompt 2": [ACCOUNTS[kind]] * client.MAX_ATTEMPTS}
    handler, model = server(script, concurrency=1)
    with pytest.raises(ModelError, match="account") as caught:
        ask(model, prompts(*words))
    assert "\n" not in str(caught.value)
    assert {word for word, _ in handler.asked} & set(words) <= set(words[:4])
    handler.script.clear()
    ask(served.ServerBackend("made-up", model.base_url), prompts(*words))
    counts = [[w for w, _ in handler.asked].count(word) for word in words[:2]]
    assert counts == [1, 1], "what was answered before is kept"


@pytest.mark.slow
def test_a_rate_limit_is_waited_for_and_a_forbidden_prompt_is_a_row(server):  # noqa: F811
    def forbid():
        return Response("<html>Request blocked</html>", 403, content_type="text/html")

    script = {
        "busy": [lambda: error(429, "Rate limit reached", **{"Retry-After": "0"})] * 3,
        "firewall": [forbid],
        "unsafe": [lambda: error(403, "Your content was found odd")],
    }
    _, model = server(script)
    traces = ask(model, prompts(*script, "good"))
    assert traces["finish_reason"].tolist() == ["stop", "error", "error", "stop"]
    assert model.faults == {"repeated request": 3, "status 403": 2}


def thinks(reason="length"):
    """Return an answer of a model that thinks, and says nothing."""
    found = reply(None, reason)
    found["choices"][0]["message"]["reasoning_content"] = "Well, the user"
    return found


@pytest.mark.slow
def test_a_model_that_only_thinks_is_given_up_after_the_first_answers(server, capsys):  # noqa: F811
    corpus = prompts(*(f"prompt {number}" for number in range(60)))
    settings = query_settings()
    handler, model = server({word: [thinks] for word in corpus["text"]}, concurrency=2)
    settings = query_settings(base_url=model.base_url)
    count = r"[1-3]\d"  # as many as the machine lets through, see below
    given_up = f"the first {count} answers .*{count} cut.*{count} with reasoning"
    given_up += ".*max_new_tokens="
    with pytest.raises(ModelError, match=given_up) as caught:
        systems.ask_systems(mine(), corpus, settings)
    assert "\n" not in str(caught.value)
    asked = handler.prompts()
    # How many more are on their way then depends on the machine: far fewer than all 60
    assert first_answers.FIRST_ANSWERS <= asked < 2 * first_answers.FIRST_ANSWERS
    with pytest.raises(ModelError, match=r"the first 1\d answers .*max_new_tokens="):
        systems.ask_systems(mine(), corpus, settings)
    # Some requests may have been on their way when the first query was given up. To be
    # given up again without what is known takes `FIRST_ANSWERS` more.
    assert handler.prompts() < asked + first_answers.FIRST_ANSWERS
    roomy = query_settings(base_url=model.base_url, max_new_tokens=2048)
    handler.script.clear()
    (traces,) = systems.ask_systems(mine(), corpus, roomy).values()
    assert traces["response"].eq("Sure, here is how.").all()


def query_settings(**more):
    given = {
        "store": "test",
        "corpus": "mine",
        "model": "openai/made-up",
        "base_url": "http://127.0.0.1:1/v1",
        "system_prompts": ["safety"],
        "max_new_tokens": 64,
    }
    return check_settings(given | more, QuerySettings)


@pytest.mark.slow
def test_a_model_that_reasons_is_named_with_what_it_needs(server, capsys):  # noqa: F811
    script = {"one": [thinks], "two": [thinks]}
    _, model = server(script)
    ask(model, prompts(*script, "three"))
    told = capsys.readouterr().err
    assert "2 of 3 answers" in told and "2 ended before" in told
    assert "-p max_new_tokens=2048" in told


@pytest.mark.parametrize(
    ("message", "usage", "reasons"),
    [
        ({"content": "Sure.", "reasoning_content": "Hm"}, {}, True),
        ({"content": "Sure.", "reasoning": "Hm"}, {}, True),
        ({"content": [{"type": "thinking", "thinking": "Hm"}]}, {}, True),
        ({"content": "<think>Hm"}, {}, True),
        ({"content": "Sure."}, {"reasoning_tokens": 9}, True),
        ({"content": "Sure.", "reasoning": None}, {"reasoning_tokens": 0}, False),
        ({"content": "I think so."}, {}, False),
    ],
)
def test_reasoning_is_seen_where_servers_put_it(message, usage, reasons):
    answer = {
        "choices": [{"message": message}],
        "usage": {"completion_tokens_details": usage},
    }
    assert completions.has_reasoning(answer) == reasons


@pytest.mark.slow
def test_an_instruction_in_the_users_turn_is_told(server, capsys):  # noqa: F811
    ask(server({})[1], prompts("one"))
    assert "user's turn" not in capsys.readouterr().err
    ask(server({}, drops=True)[1], prompts("two"))
    assert "user's turn" in capsys.readouterr().err


def test_first_answers_count_stops_and_words_as_answers():
    class Model:
        def facts(self, rows):
            return {}

    def watch(*parts):
        first = first_answers.FirstAnswers("s", Model())
        for responses, reasons in parts:
            first(pd.DataFrame({"response": responses, "finish_reason": reasons}))

    empty = [""] * 15, ["length"] * 15
    watch(empty)
    watch(empty, (["Sure."], ["stop"]))
    watch(empty, ([""], ["content_filter"]))
    watch(empty, ([None] * 20, ["error"] * 20))
    with pytest.raises(ModelError, match=r"16 answers .*15 cut"):
        watch(empty, (["<think>Hm"], ["stop"]))


@pytest.mark.slow
def test_03_says_in_a_line_that_nothing_can_be_scored(server, recorded_corpus):  # noqa: F811
    """Eight prompts are too few to be given up at once; 02 says so at its end, and 03
    does not begin.
    """
    _, model = server({})
    store = stores.Store("test")
    corpus = recorded_corpus.head(8)
    store.write("corpus", "mine", frame=corpus, meta={})
    silent = {word: [thinks] for word in corpus["text"]}
    _, model = server(silent)
    given = {"store": "test", "corpus": "mine", "model": "openai/made-up"}
    line = "none of its 8 answers can be scored.*max_new_tokens=2048"
    with pytest.raises(DataError, match=line) as caught:
        run_here(
            "02_querying",
            **given,
            base_url=model.base_url,
            system_prompts=["safety"],
            twins="",
        )
    assert "\n" not in str(caught.value)
    smollm = stores.Store("recorded")
    name = "smollm2-135m-instruct-q4_1--safety"
    path = smollm.path("traces", "paraguard_mini", name)
    traces = smollm.read("traces", "paraguard_mini", name).head(8)
    store.write("traces", "mine", name, frame=traces, meta=stores.read_meta(path))
    with pytest.raises(DataError, match=line):
        run_here("03_scoring", **given, resamples=100)


def test_some_answers_without_words_are_a_line():
    labels = pd.DataFrame(
        {
            "label": ["accept", "unparsed", "unparsed"],
            "kind": ["", "empty", "error"],
        }
    )
    traces = pd.DataFrame({"finish_reason": ["stop", "length", "error"]})
    line = unread.report_unread("s", labels, traces)
    assert "2 of 3 answers" in line and "1 empty, 1 error, 1 cut" in line
    assert unread.report_unread("s", labels.head(1), traces.head(1)) == ""
