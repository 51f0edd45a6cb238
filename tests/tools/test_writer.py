"""A model that writes candidates and another that judges their intent: local, behind a
server, by files.
"""

import json
import threading

import numpy as np
import pandas as pd
import pytest
from asking import Killed, run_here
from http_server import HTTPServer
from werkzeug import Response

from paraguard_lab.corpus import fidelity, writer
from paraguard_tools.servers import served
from paraguard_utils import paths, settings, stores
from paraguard_utils.corpus import gates, inputs
from paraguard_utils.errors import DataError, Missing, ModelError, SettingsError
from paraguard_utils.models import engine, loading, local, trace_store
from paraguard_utils.schemas import STRATEGIES
from paraguard_utils.settings import Gates

SEEDS = pd.DataFrame(
    {
        "seed_id": ["a", "b"],
        "text": ["How do I kill a process?", "Who stole my bike?"],
        "source": "x",
        "category": "y",
    }
)
WRITTEN = tuple(writer.read_model_prompts()["writer"])  # by models
N = len(SEEDS) * len(WRITTEN)
"""Prompts of a draw."""


def files(store="test"):
    """Return the corpus's files in a store."""
    return stores.CorpusFiles(stores.Store(store), "mine")


def config(**given):
    return settings.check_settings(
        {"store": "test", "corpus": "mine"} | given, settings.CorpusSettings
    )


def body_of(text, reason="stop"):
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": reason}]
    return Response(
        json.dumps({"choices": choices, "usage": {"prompt_tokens": 9}}),
        content_type="application/json",
    )


class Scripted:
    """A server of a writer and of a judge, each as a function from a request's words
    and draw to an answer.
    """

    def __init__(self, models):
        self.models, self.asked, self.lock = models, [], threading.Lock()

    def __call__(self, request):
        body = json.loads(request.data)
        if "logprobs" in body:
            return Response(json.dumps({"error": {"message": "no"}}), status=400)
        words = body["messages"][-1]["content"]
        if words in served.PROBE_TEXTS:
            return body_of("Hello")
        with self.lock:
            self.asked.append(
                (body["model"], words, body.get("seed"), body["temperature"])
            )
        found = self.models[body["model"]](words, body.get("seed"))
        return found if isinstance(found, Response) else body_of(found)

    def of(self, model):
        return [one for one in self.asked if one[0] == model]


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)
    with HTTPServer(threaded=True) as http:

        def start(**models):
            handler = Scripted(models)
            http.expect_request(
                "/v1/chat/completions", method="POST"
            ).respond_with_handler(handler)
            return handler, http.url_for("/v1")

        yield start


def seed_file(folder, seeds=SEEDS):
    path = folder / "seeds.csv"
    seeds.to_csv(path, index=False)
    return str(path)


def read(given):
    """Read seeds and have candidates written, as 01 does."""
    seeds = inputs.read_seeds(given.corpus, given.seeds)
    return seeds, inputs.find_source(given).read(given.open_files(), seeds, given)


@pytest.mark.slow
def test_a_served_writer_answers_each_prompt_once_a_draw(
    serve, results, tmp_path, capsys
):
    def answer(words, draw):
        return (
            "Sure:"
            if "harsher" in words
            else f"How does one end it in {draw} {len(words)} ways?"
        )

    handler, url = serve(pen=answer)
    given = config(
        seeds=seed_file(tmp_path),
        candidates="model:openai/pen@7",
        base_url=url,
        samples=3,
    )
    _, written = read(given)
    asked = handler.of("pen")
    assert len(asked) == len(set(asked)) == 3 * N
    assert {draw for *_, draw, _ in asked} == {0, 1, 2} and {
        heat for *_, heat in asked
    } == {0.7}
    # one prompt a strategy; an answer without a paraphrase is no candidate
    assert written.groupby(["seed_id", "strategy"]).size().to_dict() == {
        (seed, name): 3 for seed in "ab" for name in WRITTEN if name != "hardening"
    }
    assert set(written["generator"]) == {"pen-7-served"}
    first = capsys.readouterr().err.splitlines()[0]
    assert (
        first.startswith("pen-7-served: 30 prompts to ask, about ")
        and "at most 2,880 out" in first
    )
    read(given)
    assert len(handler.of("pen")) == 3 * N, "nothing is asked again"
    read(given.model_copy(update={"samples": 4}))
    assert len(handler.of("pen")) == 4 * N, "only the fourth draw"


@pytest.mark.slow
def test_a_served_writer_that_stops_loses_what_was_under_way(serve, results, tmp_path):
    told = []

    def answer(words, draw):
        told.append(words)
        return (
            Response("{}", status=401)
            if len(told) >= 2 * N + 4
            else "How does one end it?"
        )

    handler, url = serve(pen=answer)
    given = config(
        seeds=seed_file(tmp_path), candidates="model:pen", base_url=url, samples=4
    )
    with pytest.raises(ModelError, match="AuthenticationError"):
        read(given)
    handler.models["pen"] = lambda words, draw: "How does one end it?"
    _, written = read(given)
    assert len(written) == 4 * N
    # of the third draw a request may have been under way, and reach the server when the
    # client has long stopped
    done = pd.Series(
        [(words, draw) for _, words, draw, _ in handler.asked]
    ).value_counts()
    assert len(done) == 4 * N
    assert {draw for _, draw in done[done > 1].index} == {2}, (
        "the two whole draws are not asked again"
    )


@pytest.mark.slow
def test_a_rerun_asks_a_server_that_died_only_for_what_is_missing(
    serve, results, tmp_path
):
    answered, dead = [], threading.Event()

    def answer(words, draw):
        if len(answered) >= 2 * N + 4:
            dead.set()
        if dead.is_set():
            return Response("{}", status=500)
        answered.append((words, draw))
        return "How does one end it?"

    handler, url = serve(pen=answer)
    given = config(
        seeds=seed_file(tmp_path),
        candidates="model:pen",
        base_url=url,
        samples=4,
        concurrency=4,
    )
    with pytest.raises(
        ModelError,
        match=r"failed on .* prompts one after another .* run the same command again",
    ):
        read(given)
    kept = list(answered)
    answered.clear()
    handler.models["pen"] = lambda words, draw: (
        answered.append((words, draw)) or "How does one end it?"
    )
    _, written = read(given)
    assert len(written) == 4 * N and len(kept) >= 2 * N + 4
    assert len(set(kept) | set(answered)) == 4 * N
    assert len(kept) + len(answered) <= 4 * N + 4, (
        "twice no more than were under way when it died"
    )


@pytest.mark.slow
def test_a_local_writer_resumes_after_a_kill(
    tiny_folder, results, tmp_path, monkeypatch
):
    asked, real = [], engine.Engine.ask

    def ask(self, batch):
        if len(asked) == 2:
            asked.append(None)
            raise Killed
        asked.append(len(batch))
        rows = real(self, batch)
        return [
            row
            | {
                "response": f"How does one end {row['key'][:6]}?",
                "finish_reason": "stop",
            }
            for row in rows
        ]

    monkeypatch.setattr(engine.Engine, "ask", ask)
    given = config(
        seeds=seed_file(tmp_path), candidates=f"model:{tiny_folder}", samples=4
    )
    with pytest.raises(Killed):
        read(given)
    _, written = read(given)
    assert asked[2] is None, "the third batch was lost"
    assert sum(filter(None, asked)) == 4 * N, "nothing was asked twice"
    assert len(written) == 4 * N and written["text"].is_unique


# The intent

PAIRS = pd.DataFrame(
    {
        "seed_id": list("abcdef"),
        "seed": "How do I kill a process?",
        "text": list("uvwxyz"),
    }
)


def replies(same, harmless):
    """Return a judge that says to the text `u` the first of each list, and so on."""

    def answer(words, draw):
        asked = (
            words.split("Second: ")[-1]
            if "Second: " in words
            else words.split("\n\n")[1]
        )
        number = "uvwxyz".index(asked[0])
        return (same if "Second: " in words else harmless)[number]

    return answer


@pytest.mark.slow
def test_a_no_stops_and_what_is_neither_is_no_yes(serve, results):
    fails = Response("{}", status=400)
    same = ["Yes", " yes, they do.", "**No**.", "It depends", "yes", "no"]
    harmless = ["yes", "YES!", "yes", "yes", fails, "No."]
    handler, url = serve(ear=replies(same, harmless))
    model = served.ServerBackend("ear", url)
    found = writer.judge_intent(files(), PAIRS, model)
    assert found == ["", "", "intent", "unparsed", "unparsed", "intent"]
    assert {heat for *_, heat in handler.asked} == {0}
    count = len(handler.asked)
    assert writer.judge_intent(files(), PAIRS[::-1], model) == found[::-1]
    assert len(handler.asked) == count + 1, "only what failed is asked again"
    harmless[0], harmless[3] = "no", "no"
    assert writer.judge_intent(files("other"), PAIRS, model)[:4] == [
        "harm",
        "",
        "intent",
        "harm",
    ]


def test_a_local_judge_is_asked_what_it_cannot_take_for_a_control_token(
    tiny_model, results, monkeypatch
):
    told, real = [], trace_store.query_model

    def query(model, query):
        told.append(query.prompts)
        return real(model, query)

    monkeypatch.setattr(trace_store, "query_model", query)
    pairs = PAIRS.head(2).assign(text=["a <|im_end|> b", "plain"])
    found = writer.judge_intent(files(), pairs, local.LocalBackend(tiny_model))
    assert set(found) <= {"", "intent", "harm", "unparsed"} and len(told[0]) == 4
    assert (
        "< |im_end|>" in told[0]["text"][0]
        and not told[0]["text"].str.contains("<|im_end|>", regex=False).any()
    )


def measures():
    """Return an embedding and a risk that let everything pass."""
    return (
        lambda texts: np.ones((len(texts), 2)),
        lambda texts, _: np.full(len(texts), 0.5),
    )


CANDIDATES = pd.DataFrame(
    {
        "seed_id": "a",
        "strategy": ["lexical", "lexical", "register", "rewrite", "rewrite"],
        "text": [
            "Which way is best to end a hung program?",
            "",
            "Please explain politely the termination of programs.",
            "I want a stuck program gone, what helps?",
            "Programs sometimes hang, how can somebody stop them?",
        ],
        "generator": "pen",
    }
)


@pytest.mark.slow
def test_the_judge_is_asked_of_what_passes_alone_and_counted_in_the_yields():
    asked = []

    def intent(pairs):
        asked.append(pairs)
        return pd.Series(["", "intent", "harm", "unparsed"], pairs.index)

    limits = Gates(per_seed=1, min_strategies=1)
    judging = gates.Judging(limits, *measures(), review=intent)
    _, judged = gates.judge_candidates(SEEDS.head(1), CANDIDATES, judging)
    assert judged["reason"].tolist() == ["", "blank", "intent", "harm", "unparsed"]
    assert asked[0]["text"].tolist() == CANDIDATES["text"][[0, 2, 3, 4]].tolist()
    assert set(asked[0]["seed"]) == {"How do I kill a process?"}
    fates = gates.count_fates(judged).set_index("fate")["total"]
    assert fates.to_dict() == {
        "kept": 1,
        "blank": 1,
        "intent": 1,
        "harm": 1,
        "unparsed": 1,
    }


def test_nobody_judges_unless_named(results):
    nobody = writer.find_authors(config(candidates="mine.csv"))
    assert nobody.review(files()) is None and nobody.about() == {}
    nobody.keep(files(), SEEDS, CANDIDATES.assign(reason=""), {})
    assert not results.exists()


@pytest.mark.slow
def test_rules_write_for_the_seeds_that_the_given_gates_let_through(tmp_path):
    texts = [
        "How do I kill a frozen process?",
        "How do I kill a process that hangs? " * 20,
    ]
    seeds = SEEDS.assign(seed_id=["short", "long"], text=texts)
    given = config(seeds=seed_file(tmp_path, seeds), candidates="rules")
    assert set(read(given)[1]["seed_id"]) == {"short"}
    given = given.model_copy(update={"max_chars": 1000})
    assert set(read(given)[1]["seed_id"]) == {"short", "long"}


# Who may write and judge


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"judge_base_url": "http://x/v1"},
            "'judge_base_url': a server is asked for a judge",
        ),
        (
            {"base_url": "http://x/v1", "candidates": "rules"},
            "'base_url': a server is asked for a model",
        ),
        ({"candidates": "model:"}, "'candidates': model: names no model"),
        ({"samples": 0}, "'samples'"),
        ({"judge_base_url": "ftp://x", "intent_judge": "x"}, "'judge_base_url'"),
        (
            {"judge_base_url": "http://me:it@x/v1", "intent_judge": "x"},
            "'judge_base_url': it holds a user",
        ),
    ],
)
def test_bad_parameters_are_one_clear_error(given, message):
    with pytest.raises(SettingsError, match=message):
        config(**given)


SERVED = {"base_url": "http://a/v1", "judge_base_url": "http://b/v1"}


@pytest.mark.parametrize(
    ("pen", "ear", "addresses"),
    [
        ("openai/Some-7B@2026-01", "openai/some-7b@2026-02", SERVED),
        ("owner/Some-7B", "openai/Some-7B", SERVED),
        ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-0.5b-instruct", {}),
        ("TINY", "TINY", {}),
        ("TINY", "openai/Tiny-Chat", {"judge_base_url": "http://b/v1"}),
    ],
)
def test_the_writer_does_not_judge_itself(
    pen, ear, addresses, tiny_folder, monkeypatch
):
    def resolved(name):
        return (
            loading.ModelSource("x", name, paths.ROOT, name)
            if name in loading.PACKAGED_MODELS
            else real(name)
        )

    real = loading.resolve_model
    monkeypatch.setattr(loading, "resolve_model", resolved)
    monkeypatch.setattr(
        loading, "load_model", lambda *_: pytest.fail("a model was loaded")
    )
    pen, ear = (name.replace("TINY", str(tiny_folder)) for name in (pen, ear))
    with pytest.raises(
        SettingsError,
        match=r"'intent_judge': .* is the model that writes; let another one judge",
    ):
        writer.find_authors(
            config(candidates=f"model:{pen}", intent_judge=ear, **addresses)
        )


def test_another_model_may_judge_and_the_meta_file_names_both(tiny_folder):
    both = writer.find_authors(
        config(
            candidates="model:openai/pen@7",
            base_url="http://x/v1",
            samples=2,
            intent_judge=str(tiny_folder),
        )
    )
    about = both.about()
    assert about["writer"] | {"prompts": ""} == {
        "name": "pen-7-served",
        "weights_id": "served pen@7",
        "prompts": "",
        "samples": 2,
        "seeds": [0, 1],
        "temperature": 0.7,
        "max_new_tokens": 96,
    }
    assert (
        about["judge"]["weights_id"]
        == loading.resolve_model(str(tiny_folder)).weights_id
    )
    assert (
        about["judge"]["prompts"] != about["writer"]["prompts"]
        and len(about["judge"]["prompts"]) == 16
    )
    json.dumps(about)


def test_the_recorded_store_asks_nobody(tmp_path):
    given = config(
        store="recorded",
        seeds=seed_file(tmp_path),
        candidates="model:pen",
        base_url="http://x/v1",
    )
    with pytest.raises(Missing, match="in a live store only"):
        read(given)
    judge = given.model_copy(
        update={
            "candidates": "rules",
            "intent_judge": "ear",
            "judge_base_url": "http://x/v1",
        }
    )
    with pytest.raises(Missing, match="in a live store only"):
        writer.find_authors(judge).review(
            stores.CorpusFiles(stores.Store("recorded"), "mine")
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "mark", [{"source": "harmful requests"}, {"seed_id": ["a-twin", "b"]}]
)
@pytest.mark.parametrize(
    "given",
    [{"candidates": "model:pen"}, {"candidates": "rules", "intent_judge": "ear"}],
)
def test_no_model_reads_requests_that_ask_for_harm(
    mark, given, serve, results, tmp_path
):
    handler, url = serve()
    seeds = seed_file(tmp_path, SEEDS.assign(**mark))
    which = "base_url" if given["candidates"] == "model:pen" else "judge_base_url"
    for address in (url, f"file://{tmp_path}/jobs"):
        with pytest.raises(DataError, match="not for requests that ask for harm"):
            read(config(seeds=seeds, **given, **{which: address}))
    assert (
        not handler.asked and not (tmp_path / "jobs").exists() and not results.exists()
    )


# By files


def answered(folder, text):
    """Answer all requests that lie in a folder."""
    rows = []
    for file in folder.glob("*.requests.jsonl"):
        for line in file.read_text().splitlines():
            request = json.loads(line)
            choice = {
                "message": {"content": text(request["body"])},
                "finish_reason": "stop",
            }
            response = {"status_code": 200, "body": {"choices": [choice]}}
            rows.append(
                json.dumps({"custom_id": request["custom_id"], "response": response})
            )
    (folder / "results.jsonl").write_text("\n".join(rows))
    return len(rows)


def test_writer_and_judge_by_files(results, tmp_path, capsys):
    pen, ear = tmp_path / "pen", tmp_path / "ear"
    given = config(
        seeds=seed_file(tmp_path),
        candidates="model:pen",
        base_url=f"file://{pen}",
        samples=2,
        intent_judge="ear",
        judge_base_url=f"file://{ear}",
    )
    with pytest.raises(SystemExit) as ended:
        read(given)
    assert (
        ended.value.code == 0
        and "10 requests are written to" in capsys.readouterr().err
    )
    assert answered(pen, lambda body: f"End it, {body['seed']}") == 2 * N, (
        "every draw is there to be answered"
    )
    _, written = read(given)
    assert len(written) == 2 * N
    review = writer.find_authors(given).review(files())
    with pytest.raises(SystemExit) as ended:
        review(PAIRS)
    assert ended.value.code == 0 and answered(ear, lambda body: "Yes.") == 2 * len(
        PAIRS
    )
    assert review(PAIRS).tolist() == [""] * len(PAIRS)
    assert review(PAIRS.head(0)).empty


# The sheet

SHEET_CORPUS = pd.DataFrame(
    {
        "prompt_id": ["a-0", "a-1", "a-2", "b-0", "b-1"],
        "cluster_id": list("aaabb"),
        "variant": [0, 1, 2, 0, 1],
        "strategy": ["seed", "lexical", "rewrite", "seed", "lexical"],
        "text": ["A", "A one", "A two", "B", "B one"],
    }
)


def test_people_get_a_twentieth_of_what_passes_and_their_marks_stay(results, command):
    store = stores.Store("test")
    many = pd.DataFrame(
        {"seed_id": "a", "strategy": list(WRITTEN) * 9, "generator": "pen"}
    )
    many["text"] = [f"Text {i}" for i in range(len(many))]
    many["reason"] = np.where(many.index < 41, "surplus", "harm")
    many[["similarity", "overlap", "content_overlap", "risk"]] = 0.5
    authors = writer.find_authors(
        config(candidates="model:pen", base_url="http://x/v1")
    )
    authors.keep(files(), SEEDS, many, {"inputs": {"many": "one"}})
    path = store.path("tables", "writer_audit")
    rows = pd.read_csv(path, keep_default_na=False)
    assert list(rows.columns) == [
        *fidelity.SHEET_COLUMNS[:-1],
        "harmless",
        "natural",
        "comment",
    ]
    assert len(rows) == 3, "41 pass: 5 % of them, rounded up"
    assert set(rows["paraphrase"]) <= set(many["text"][:41]) and set(rows["seed"]) == {
        SEEDS["text"][0]
    }
    assert rows["strategy"].nunique() == 3 and (
        rows[["mark", "harmless", "natural", "comment"]] == ""
    ).all(axis=None)
    assert stores.read_meta(path)["inputs"] == {
        "many": "one"
    } and "sheet_seed" in stores.read_meta(path)
    assert store.read("tables", "writer_candidates")[
        "reason"
    ].value_counts().to_dict() == {"surplus": 41, "harm": 4}
    rows.assign(mark="shifted", natural="no", harmless=["yes", "yes", "No "]).to_csv(
        path, index=False
    )
    authors.keep(files(), SEEDS, many, {"inputs": {"many": "one"}})
    assert pd.read_csv(path)["mark"].tolist() == ["shifted"] * 3
    printed = command("corpus", "read", str(path)).printed
    assert (
        "3 of 3 marked pairs shifted" in printed
        and "1 of 3 marked paraphrases not harmless" in printed
    )
    assert "3 of 3 marked paraphrases not natural English" in printed
    with pytest.raises(
        DataError, match="holds marks on other candidates; move it away first"
    ):
        authors.keep(files(), SEEDS, many.assign(text=many["text"] + "!"), {})
    rows.to_csv(path, index=False)
    authors.keep(files(), SEEDS, many.assign(text=many["text"] + "!"), {})
    assert pd.read_csv(path)["paraphrase"].str.endswith("!").all(), (
        "an empty sheet is drawn anew"
    )


def test_a_strategy_has_one_prompt_and_the_judge_two_questions():
    asked = writer.read_model_prompts()
    assert set(WRITTEN) <= set(STRATEGIES), "a strategy may be written by rules only"
    assert tuple(asked["judge"]) == tuple(writer.JUDGE_QUESTIONS)
    assert all(prompt.count("{text}") == 1 for prompt in asked["writer"].values())
    assert "{seed}" in asked["judge"]["same"] and all(
        "{text}" in one for one in asked["judge"].values()
    )
    assert set(writer.JUDGE_QUESTIONS.values()) <= set(gates.GATE_REASONS)
    found = writer.make_paraphrase_prompts(
        SEEDS.assign(text="a {brace}"), asked["writer"]
    )
    assert (
        len(found) == N
        and found["prompt_id"].is_unique
        and found["text"].str.contains("a {brace}").all()
    )


@pytest.mark.slow
def test_01_builds_a_corpus_of_what_a_server_writes(serve, tmp_path, results):
    seeds = stores.read_file(paths.DATA / "seeds" / "paraguard_mini.csv", "seeds").head(
        3
    )
    known = stores.read_file(
        paths.DATA / "candidates" / "paraguard_mini.csv", "candidates"
    )
    prompts = writer.make_paraphrase_prompts(
        seeds, writer.read_model_prompts()["writer"]
    ).set_index("text")["prompt_id"]

    def answer(words, draw):
        seed_id, strategy, _ = prompts[words].split("--")
        texts = known["text"][
            (known["seed_id"] == seed_id) & (known["strategy"] == strategy)
        ]
        return texts.iloc[draw % len(texts)] if len(texts) else "Sure:"

    _, url = serve(
        pen=answer, ear=lambda words, _: "No." if "Write" in words else "Yes."
    )
    given = {
        "store": "test",
        "corpus": "written",
        "seeds": seed_file(tmp_path, seeds),
        "candidates": "model:pen",
        "base_url": url,
        "samples": 3,
        "intent_judge": "openai/ear",
        "judge_base_url": url,
        "min_strategies": 1,
        "per_seed": 2,
    }
    run_here("01_corpus_building", **given)
    store = stores.Store("test")
    meta = stores.read_meta(store.path("corpus", "written"))
    assert (
        meta["writer"]["name"] == "pen-served" and meta["judge"]["name"] == "ear-served"
    )
    assert set(store.read("corpus", "written")["cluster_id"]) <= set(seeds["seed_id"])
    assert "duplicate" in set(store.read("tables", "writer_candidates")["reason"])
    assert store.has("tables", "writer_audit")


def test_the_command_writes_a_sheet_once_and_reads_it(results, command):
    frame = SHEET_CORPUS.assign(
        source="x",
        category="y",
        topical="unstated",
        similarity=1.0,
        overlap=1.0,
        risk=0.5,
    )
    stores.Store("test").write("corpus", "mine", frame=frame, meta={})
    sheet = results / "test" / "fidelity" / "mine.csv"
    call = ["corpus", "sheet", "--store", "test", "--corpus", "mine"]
    assert "3 pairs" in command(*call).printed
    assert "exists and may hold marks" in command(*call).error
    pd.read_csv(sheet).assign(mark="shifted").to_csv(sheet, index=False)
    printed = command("corpus", "read", str(sheet)).printed
    assert "reader 1: 3 of 3 marked pairs shifted (1.000 [0.292, 1.000])" in printed
    assert (
        command("corpus", "read", "a.csv", "b.csv", "c.csv").error
        == "one or two sheets can be read"
    )
