"""The real default model on a slice of the corpus, against its recorded answers."""

import shutil

import numpy as np
import pytest
import test_engine
import tiny
from asking import run_here

from paraguard_lab.labels import judge
from paraguard_lab.models import gguf
from paraguard_utils import paths, stores, unsafe
from paraguard_utils.errors import WeightsError
from paraguard_utils.labels import labelling
from paraguard_utils.models import loading, trace_store, weights


def has_model():
    try:
        return bool(weights.locate_weights(weights.SMOLLM2_FILE))
    except WeightsError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not has_model(), reason="the default model's weights package is not installed"
    ),
]


def test_a_real_judge_answers_once(results, recorded_corpus):
    labels = stores.Store("recorded").read(
        "labels", "paraguard_mini", "smollm2-135m-instruct-q4_1--safety"
    )
    answers = labels[["prompt_id", "response"]].iloc[::400].assign(finish_reason="stop")
    model = loading.load_model(loading.resolve_model("smollm2-135m-instruct"))
    replies = stores.CorpusFiles(stores.Store("test"), "judged")
    first = judge.judge_answers(replies, model, answers)
    again = judge.judge_answers(replies, model, answers.iloc[::-1])
    assert set(first["label"]) <= {"accept", "reject", "unparsed"}
    assert again["response"].tolist() == first["response"].tolist()[::-1]
    meta = stores.read_meta(
        stores.Store("test").path("traces", "judged", f"{model.name}--judge")
    )
    assert meta["asked_now"] == len(answers), "the second time nothing was asked"


@pytest.mark.parametrize("n", [4, pytest.param(12, marks=pytest.mark.weekly)])
def test_some_prompts_live_equal_the_record(n, results, recorded_corpus):
    name = "smollm2-135m-instruct-q4_1--safety"
    sample = recorded_corpus.iloc[:: len(recorded_corpus) // n].head(n)
    model = loading.load_model(loading.resolve_model("smollm2-135m-instruct"))
    files = stores.CorpusFiles(stores.Store("test"), "paraguard_mini")
    query = trace_store.Query(files, sample, "safety", batch=n // 2)
    live = trace_store.query_model(model, query)
    recorded = trace_store.read_traces(
        stores.CorpusFiles(stores.Store("recorded"), "paraguard_mini"), name, sample
    )
    assert live["key"].tolist() == recorded["key"].tolist()
    assert (live["response"] == recorded["response"]).sum() >= n - 1
    assert (
        labelling.label_answers(live, sample)["label"].tolist()
        == labelling.label_answers(recorded, sample)["label"].tolist()
    )
    for a, b in zip(live["token_nll"], recorded["token_nll"], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
    assert set(labelling.label_answers(live, sample)["label"]) <= {"accept", "reject"}


def ask_and_score(system_prompts, scoring=(), **parameters):
    """Run 02 and 03, which takes more parameters of its own; test_commands runs all on a model that nobody has seen, each in a
    kernel of its own.
    """
    run_here(
        "02_querying", **parameters, max_new_tokens=8, system_prompts=system_prompts
    )
    run_here("03_scoring", **parameters, resamples=100, **dict(scoring))


@pytest.mark.weekly
def test_a_model_the_repo_has_never_seen_gets_a_full_table(tiny_folder, results):
    ask_and_score(["safety"], store="test", model=str(tiny_folder))
    table = stores.Store("test").read("tables", "table1_systems")
    (own,) = set(table["system"])  # and no system of the record
    assert own.startswith("tiny-chat-") and own.endswith("--safety")


# test_engine asks every architecture; here one with windows and one that has no
# position ids go through the notebook.
@pytest.mark.parametrize(
    ("family", "more"), [test_engine.FAMILIES[2], test_engine.FAMILIES[11]]
)
def test_02_asks_other_architectures(family, more, tmp_path, recorded_corpus, results):
    store = stores.Store("test")
    store.write("corpus", "small", frame=recorded_corpus.head(12), meta={})
    folder = tiny.write(tmp_path / family, family=family, **more)
    run_here(
        "02_querying",
        store="test",
        corpus="small",
        model=str(folder),
        max_new_tokens=8,
    )
    found = trace_store.find_systems(stores.CorpusFiles(store, "small"), str(folder))
    assert [name.rpartition("--")[2] for name in found] == ["none", "safety", "strict"]
    run_here("A1_labels", store="test", corpus="small", model=str(folder))
    for name in found:
        traces = store.read("traces", "small", name)
        assert (
            traces["prompt_id"].tolist()
            == recorded_corpus["prompt_id"].head(12).tolist()
        )
        assert len(store.read("labels", "small", name)) == 12


@pytest.mark.weekly
def test_converted_weights_that_were_changed_are_made_again(
    tmp_path, monkeypatch, capsys
):
    source = loading.resolve_model("smollm2-135m-instruct")
    kept = gguf.convert_gguf(source)
    first = shutil.copytree(kept, tmp_path / kept.relative_to(paths.CACHE))
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    capsys.readouterr()
    assert (
        gguf.convert_gguf(source) == first
        and "made again" not in capsys.readouterr().err
    )
    file = sorted(first.glob("*.safetensors"))[-1]
    before = weights.hash_file(file)
    with file.open("r+b") as handle:
        handle.seek(-1000, 2)
        handle.write(b"damage")
    gguf.convert_gguf(source)
    assert weights.hash_file(file) == before
    assert "it is made again" in capsys.readouterr().err


def test_another_corpus_stands_alone(tiny_folder, recorded_corpus, results):
    small = recorded_corpus[
        recorded_corpus["cluster_id"].isin(recorded_corpus["cluster_id"].unique()[:4])
    ]
    stores.Store("test").write("corpus", "small", frame=small, meta={})
    given = {"store": "test", "corpus": "small", "model": str(tiny_folder)}
    ask_and_score(["none", "safety", "strict"], {"k": 3}, **given)
    table = stores.Store("test").read("tables", "table1_systems")
    assert (table["n_prompts"] == 24).all()
    run_here("04_cohort_analysis", **given, resamples=100)


@pytest.mark.weekly
def test_four_clusters_with_twins_go_through_the_last_notebooks(
    tiny_folder, recorded_corpus, results
):
    every = stores.Store("recorded").read("corpus", "paraguard_twins")
    of = unsafe.benign_cluster_of(every["cluster_id"])
    ids = sorted(set(of))[:4]
    store = stores.Store("test")
    store.write(
        "corpus",
        "small",
        frame=recorded_corpus[recorded_corpus["cluster_id"].isin(ids)],
        meta={},
    )
    store.write("corpus", "paraguard_twins", frame=every[of.isin(ids)], meta={})
    given = {"store": "test", "corpus": "small", "model": str(tiny_folder)}
    ask_and_score(["safety"], **given)
    later = ("A4_decisions", "A5_what_it_hangs_on", "06_validity")
    for stem in ("04_cohort_analysis", *later, "07_remedies", "A3_more"):
        run_here(stem, **given, resamples=100)
    assert all(
        store.has("tables", name)
        for name in ("predictions", "vetoes", "remedy_map", "by_wording")
    )


def test_seeds_without_candidates_become_a_corpus(tmp_path, results):
    seeds = (
        stores.read_file(paths.DATA / "seeds" / "paraguard_mini.csv", "seeds")
        .iloc[::40]
        .drop(columns="topical")
    )
    seeds["seed_id"] = "mine-" + seeds["seed_id"]  # nobody has read these
    seeds.to_csv(tmp_path / "seeds.csv", index=False)
    given = {
        "store": "test",
        "corpus": "mine",
        "seeds": str(tmp_path / "seeds.csv"),
        "min_strategies": 1,
    }
    run_here("01_corpus_building", **given, candidates="rules")
    run_here("A2_writers", **given, paraphraser="rules")
    store = stores.Store("test")
    corpus = store.read("corpus", "mine")
    assert (corpus.groupby("cluster_id").size() == 6).all() and len(corpus) >= 6
    assert set(corpus["cluster_id"]) <= set(seeds["seed_id"])
    assert set(store.read("generated", "mine")["generator"]) == {"rules"}
    assert set(store.read("tables", "corpus_yield")["generator"]) == {"rules"}
