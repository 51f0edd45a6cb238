"""What is promoted to the record, what is kept there, and which system a figure is
about.
"""

import os
import signal
import time
from dataclasses import replace

import nbformat
import pandas as pd
import psutil
import pytest
from recorded import recorded_systems

from paraguard_lab import record, run
from paraguard_tools.pages import ending
from paraguard_utils import paths, registry, settings, stores
from paraguard_utils.errors import SettingsError, UserError
from paraguard_utils.guards import panel
from paraguard_utils.labels import systems
from paraguard_utils.models import loading

CHAT = list(registry.published_systems("chat").index)
OPTIONAL = list(registry.published_systems("chat").query("default == 'no'").index)
NEW = set(registry.published_systems("chat", "guard", "refusal").index)
NEW -= {*recorded_systems("chat", "guard", "refusal")}  # which wait for their record
OPTIONAL_GUARDS = [
    name
    for name in registry.published_systems("guard", "refusal")
    .query("default == 'no'")
    .index
    if name not in NEW
]


def put(folder, text, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def put_defaults(live):
    """Stand for a live run of every system that is asked by default, or is new."""
    for kind, product in (
        ("chat", "traces"),
        ("guard", "guards"),
        ("refusal", "guards"),
    ):
        for name, default in registry.published_systems(kind)["default"].items():
            if default == "no" and name not in NEW:
                continue
            put(
                live.writes,
                "x",
                f"{product}/paraguard_mini/{name}.parquet",
                f"{product}/paraguard_mini/{name}.csv",
            )
            put(live.writes, "x", f"labels/paraguard_mini/{name}.csv")


def test_promoting_replaces_removes_and_keeps(tmp_path):
    live, data = tmp_path / "live" / "traces", tmp_path / "data" / "traces"
    asked, kept = (
        f"paraguard_mini/{CHAT[0]}.parquet",
        f"paraguard_mini/{OPTIONAL[0]}.parquet",
    )
    strangers = ["paraguard_mini/stranger--safety.parquet", f"mine/{CHAT[0]}.parquet"]
    put(live, "new", asked, f"{asked}.meta.json", kept, f"{asked}.lock", *strangers)
    put(
        data,
        "old",
        asked,
        kept,
        f"{kept}.meta.json",
        "paraguard_mini/gone--safety.parquet",
    )
    record._replace(live, data, CHAT, kept=[OPTIONAL[0]])
    found = {
        str(path.relative_to(data)): path.read_text()
        for path in data.rglob("*")
        if path.is_file()
    }
    assert found == {
        asked: "new",
        f"{asked}.meta.json": "new",
        kept: "old",
        f"{kept}.meta.json": "old",
    }


def test_requests_that_ask_for_harm_are_promoted_and_never_removed(tmp_path):
    live, data = tmp_path / "live", tmp_path / "data"
    twins, outside = (
        f"{settings.TWINS}/{CHAT[0]}.csv",
        f"{settings.XSTEST}/{CHAT[0]}.csv",
    )
    put(live / "labels", "new", twins, f"{settings.TWINS}/stranger--safety.csv")
    put(data / "labels", "old", twins, outside, "mine/x.csv")
    put(
        data / "corpus",
        "old",
        f"{settings.TWINS}.csv",
        f"{settings.TWINS}.csv.meta.json",
        "mine.csv",
    )
    for folder in ("labels", "corpus"):
        record._replace(live / folder, data / folder, CHAT)
    found = {
        path.relative_to(data).as_posix(): path.read_text()
        for path in data.rglob("*")
        if path.is_file()
    }
    corpus = f"corpus/{settings.TWINS}.csv"
    assert found == {
        f"labels/{twins}": "new",
        f"labels/{outside}": "old",
        corpus: "old",
        f"{corpus}.meta.json": "old",
    }


def test_an_answer_to_a_request_that_asks_for_harm_is_not_promoted(results):
    live = stores.Store("live")
    labels = stores.Store("recorded").read("labels", "paraguard_mini", CHAT[0]).head(3)
    live.write(
        "labels", settings.TWINS, CHAT[0], frame=labels.assign(response=None), meta={}
    )
    record._check_withheld(live)
    live.write("labels", settings.TWINS, CHAT[0], frame=labels, meta={})
    with pytest.raises(
        UserError,
        match=(
            r"labels/paraguard_twins/\S+ holds answers, of which only labels are kept"
        ),
    ):
        record._check_withheld(live)


def test_input_files_among_the_labels_stay(tmp_path, monkeypatch):
    live, data = tmp_path / "live" / "labels", tmp_path / "data" / "labels"
    monkeypatch.setattr(record, "INPUTS", (data / "readings.csv",))
    put(live, "new", f"paraguard_mini/{CHAT[0]}.csv")
    put(data, "old", "readings.csv", "gone.csv")
    record._replace(live, data, CHAT)
    assert sorted(path.name for path in data.rglob("*.csv")) == sorted(
        ["readings.csv", f"{CHAT[0]}.csv"]
    )


def test_a_kept_systems_token_vectors_are_kept_too(tmp_path):
    live, data = tmp_path / "live" / "vectors", tmp_path / "data" / "vectors"
    model = OPTIONAL[0].rpartition("--")[0]
    put(live, "new", f"{model}/tokens.parquet")
    put(data, "old", f"{model}/tokens.parquet")
    record._replace(live, data, CHAT, kept=OPTIONAL)
    assert (data / model / "tokens.parquet").read_text() == "old"


def test_only_what_is_asked_on_request_may_stay_behind(results):
    live, recorded = stores.Store("live"), stores.Store("recorded")
    with pytest.raises(
        UserError,
        match=f"the live store lacks answers of {CHAT[0]}, .* run make reproduce",
    ):
        record._kept(live, recorded)
    put_defaults(live)
    assert record._kept(live, recorded) == [*OPTIONAL, *OPTIONAL_GUARDS]
    put(
        live.writes, "x", f"traces/paraguard_mini/{OPTIONAL[1]}.parquet"
    )  # asked, but not labelled
    with pytest.raises(
        UserError, match=f"lacks answers of {OPTIONAL[1]}, .* run make optional-models"
    ):
        record._kept(live, recorded)


def test_a_system_kept_from_another_corpus_is_refused(results, recorded_corpus):
    live = stores.Store("live")
    put_defaults(live)
    live.write(
        "corpus", "paraguard_mini", frame=recorded_corpus.assign(risk=0.5), meta={}
    )
    with pytest.raises(
        UserError,
        match=f"the corpus has changed, and {OPTIONAL[0]} was not asked again",
    ):
        record._kept(live, stores.Store("recorded"))


@pytest.mark.parametrize(
    ("names", "model", "expected"),
    [
        (CHAT, "", "smollm2-135m-instruct-q4_1--safety"),
        (
            CHAT,
            "qwen2.5-coder-0.5b-instruct",
            "qwen2.5-coder-0.5b-instruct-q4_k_m--safety",
        ),
        ([*CHAT, "mine--none", "mine--safety"], "mine-folder", "mine--safety"),
        ([*CHAT, "mine--none", "mine--strict"], "mine-folder", "mine--none"),
        (OPTIONAL, "", OPTIONAL[1]),
    ],
)
def test_the_focus_is_the_users_model_or_the_default_one(names, model, expected):
    assert systems.choose_focus(names, model) == expected


def test_a_wanted_focus_must_be_there():
    assert systems.choose_focus(CHAT, wanted=CHAT[0]) == CHAT[0]
    with pytest.raises(SettingsError, match="no system 'nobody'"):
        systems.choose_focus(CHAT, wanted="nobody")


def test_a_system_that_was_asked_but_not_labelled_is_not_scored(results):
    store = stores.Store("mine")
    put(
        store.writes,
        "x",
        f"traces/c/{CHAT[0]}.parquet",
        f"labels/c/{CHAT[0]}.csv",
        f"traces/c/{OPTIONAL[0]}.parquet",
    )
    config = settings.freeze({"store": "mine", "corpus": "c"}, settings.StudySettings)
    assert systems.list_systems_to_score(config.open_files()) == [CHAT[0]]


def test_the_default_models_do_not_include_the_optional_ones():
    assert registry.list_default_models() == ["smollm2-135m-instruct"]
    given = pd.read_csv(paths.DATA / "systems.csv", keep_default_na=False).query(
        "kind == 'chat'"
    )
    assert run.list_optional_models() == list(
        dict.fromkeys(given.loc[given["default"] == "no", "model"])
    )
    assert {run.JUDGE_MODEL, *run.list_optional_models()} <= set(
        loading.PACKAGED_MODELS
    ) - set(registry.list_default_models())


def write_notebook(path, code):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(notebook, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise KeyError('none')", "b: KeyError: 'none'"),
        ("import os; os._exit(1)", "b stopped: its kernel died"),
    ],
)
def test_a_notebook_that_fails_ends_the_run(code, message, tmp_path, results):
    before = {child.pid for child in psutil.Process().children()}
    cells = {"a": "1", "b": code, "c": "1"}
    notebooks = [
        write_notebook(tmp_path / f"{name}.ipynb", cell) for name, cell in cells.items()
    ]
    with pytest.raises(UserError, match=message):
        run.run_all("mine", notebooks)
    assert {child.pid for child in psutil.Process().children()} <= before
    made = {path.stem for path in (results / "mine" / "notebooks").iterdir()}
    assert "a" in made and "c" not in made


def test_notebooks_run_after_those_whose_files_they_read(tmp_path):
    every = run.list_notebooks()
    own = tmp_path / "A9_mine.ipynb"
    numbers = [run.number_of(path) for path in run.order_to_run([*every, own])]
    assert sorted(numbers) == sorted([*map(run.number_of, every), "A9"])
    assert numbers[:6] == ["01", "02", "A0", "03", "04", "05"]
    assert numbers[-2:] == ["A9", "00"]
    assert set(run.RUN_ORDER) == {*numbers} - {"A9"}


@pytest.mark.slow
def test_a_corpus_without_twins_leaves_the_veto_out(
    results, recorded_corpus, monkeypatch, capsys
):
    ran = []
    monkeypatch.setattr(
        run,
        "run_all",
        lambda name, chosen, given: ran.extend(path.stem[:2] for path in chosen),
    )
    stores.Store("mine").write("corpus", "mine", frame=recorded_corpus.head(6), meta={})
    run.run_notebooks((), {"store": "mine", "corpus": "mine"})
    assert "07" not in ran and "05" in ran
    assert (
        "07_remedies is left out: no cluster of mine has a harmful twin"
        in capsys.readouterr().out
    )
    ran.clear()
    run.run_notebooks((), {"store": "mine"})
    assert "07" in ran


@pytest.mark.slow
def test_recorded_scores_of_guards_are_taken_for_a_users_model(
    results, recorded_corpus, monkeypatch
):
    files = stores.CorpusFiles(stores.Store("mine"), "paraguard_mini")
    run.take_recorded_guard_scores(files.store, ["paraguard_mini", ""])
    guard = panel.load_guard("better-profanity")
    asked = []

    def score(texts):
        asked.extend(texts)
        return guard.score(texts)

    found = panel.score_with_guard(files, recorded_corpus, replace(guard, score=score))
    recorded = stores.Store("recorded").read("guards", "paraguard_mini", guard.name)
    pd.testing.assert_frame_equal(found, recorded)
    assert not asked
    # Another text is scored, and no other
    changed = recorded_corpus.copy()
    changed.loc[3, "text"] += " again"
    panel.score_with_guard(files, changed, replace(guard, score=score))
    assert asked == [changed.loc[3, "text"]]


def test_a_cleaned_notebook_has_one_stream_a_cell_and_none_of_stderr():
    outputs = [nbformat.v4.new_output("stream", name=name, text=text) for name, text in
               (("stdout", "a\n"), ("stderr", "w"), ("stdout", "b\n"))]  # fmt: skip
    cell = nbformat.v4.new_code_cell(
        "print()", outputs=outputs, metadata={"papermill": {}, "tags": ["t"]}
    )
    injected = nbformat.v4.new_code_cell(
        "k = 1", metadata={"tags": ["injected-parameters"]}
    )
    made = record.clean_notebook(nbformat.v4.new_notebook(cells=[cell, injected]))
    (kept,) = made.cells
    assert [output.text for output in kept.outputs] == ["a\nb\n"] and kept.metadata == {
        "tags": ["t"]
    }


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
def test_links_work_where_the_executed_notebook_is_read(store_name, in_place, tmp_path):
    notebook = tmp_path / "one.ipynb"
    link = "[x](../docs/method.md)"
    code = (
        "from paraguard_utils import stores\n"
        "from paraguard_utils.report import sentences\n"
        f"sentences.show(stores.Store('{store_name}'), '{link}')"
    )
    cells = [nbformat.v4.new_markdown_cell(link), nbformat.v4.new_code_cell(code)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(made, notebook)
    run.run_notebook(notebook, store_name, in_place=in_place)
    folder = paths.RESULTS / store_name / "notebooks"
    read_in = tmp_path if in_place else folder
    executed = nbformat.read(folder / "one.ipynb", as_version=4)
    prose, cell = executed.cells[-2:]  # parameters are put before them
    for text in (prose.source, cell.outputs[0].data["text/markdown"]):
        target = text.partition("](")[2].rstrip(")")
        assert (read_in / target).resolve() == paths.ROOT / "docs" / "method.md"


@pytest.mark.parametrize(
    "given",
    [{"limit": 6}, {"shard": "1/2"}, {"stop": 0.8}],
    ids=lambda given: str(given),
)
def test_a_try_ends_after_02_and_says_so(given, results, monkeypatch, command):
    ran = []

    def execute(notebook, output, parameters, folder):
        ran.append(run.number_of(notebook))
        output.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(nbformat.v4.new_notebook(), output)

    monkeypatch.setattr(run, "execute_notebook", execute)
    ((name, value),) = given.items()
    done = command("run", "--model", "m", "--store", "mine", "-p", f"{name}={value}")
    assert ran == ["02"] and not done.error
    last = done.printed.splitlines()[-2:]
    assert f"{name}={value} queries a part" in last[0]
    assert f"the same command without {name}" in last[1]
    assert not (results / "mine" / "tables").exists()


@pytest.mark.parametrize(
    ("numbers", "opened", "advises"),
    [(["02"], "02_querying", False), (["02", "03"], "03_scoring", True)],
)
def test_the_last_line_names_what_is_there(
    numbers, opened, advises, results, monkeypatch, command
):
    def execute(notebook, output, parameters, folder):
        output.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(nbformat.v4.new_notebook(), output)

    monkeypatch.setattr(run, "execute_notebook", execute)
    folder = "a model; rm"
    done = command("run", *numbers, "--model", folder, "--store", "mine")
    last = done.printed.splitlines()[-1]
    assert f"{opened}.ipynb" in last
    advice = f"paraguard remedy --model '{folder}' --store mine"
    assert (advice in last) == advises


def test_an_interruption_is_the_last_line(results, monkeypatch, command, capsys):
    def execute(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)  # the signal arrives in between

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(run, "execute_notebook", execute)
    done = command("run", "02", "--model", "m", "--store", "mine")
    assert done.status == 130
    assert done.error.splitlines()[-1] == "interrupted; the same command goes on"
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_is_read_from_the_record_is_said_once(results, monkeypatch, capsys):
    monkeypatch.setattr(run, "_rewrite_links", lambda *_: None)
    read = []

    def execute(*_):
        read.append(stores.Store("mine").read_earlier("corpus", "paraguard_mini"))

    monkeypatch.setattr(run, "execute_notebook", execute)
    run.run_notebooks(["02", "03", "04"], {"model": "m", "store": "mine"})
    said = capsys.readouterr()
    assert len(read) == 3
    assert (said.out + said.err).count("record") == 1
    assert stores.IS_SAID not in os.environ


def test_a_guard_of_ones_own_is_told_on_the_terminal(results):
    store = stores.Store("mine")
    table = stores.Store("recorded").read("tables", "table3_guards")
    own = table[table["axis"] != "model"].head(1).assign(system="mine-1", frr=0.25)
    store.write("tables", "table3_guards", frame=pd.concat([table, own]), meta={})
    (line,) = ending._describe_guards(store)
    assert "mine-1 rejects a share of 0.25" in line


def test_a_reproduction_says_first_what_it_queries(results):
    live = stores.Store("live")
    parameters = run._parameters_of_reproduction(live)
    first, second = run._announce_reproduction(parameters)
    # 1,200 prompts under three system prompts, and 1,200 twins under one
    assert "3,600 harmless and 1,200 harmful prompts" in first
    assert f"{len(parameters['05']['guards'])} guards" in second and "minutes" in second
