"""The store under faults: nothing lost beyond one batch, nothing doubled, corruption
named and the rest kept.
"""

import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys

import pandas as pd
import pytest
import tiny
from asking import Killed, ask, dies, identical, mine, same

from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.models import engine, loading, prompting, trace_store

KILLS = int(os.environ.get("PARAGUARD_KILLS", "3"))
"""Kills in a row; fifty take about a minute and a half."""


@pytest.fixture
def many():
    """Forty prompts of many lengths."""
    texts = [
        "how do I " + "kill a process " * (i % 9) + f"number {i}" for i in range(40)
    ]
    return pd.DataFrame({"prompt_id": [f"p{i:02d}" for i in range(40)], "text": texts})


def folder_of(results):
    return results / "test" / "traces" / "mine"


def parts(results):
    return sorted(folder_of(results).glob("*.parts/part-*.parquet"))


CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["transformers.models.llama.modeling_llama", "paraguard_utils.models.engine"]
)


def in_a_process(function, *arguments):
    """Start a function in another process, forked from one that has loaded the
    libraries already.
    """
    process = CONTEXT.Process(target=function, args=arguments)
    process.start()
    return process


def query_there(results, name, prompts, options=None):
    """Ask in a process of its own."""
    paths.RESULTS = results
    model = loading.load_model(loading.resolve_model(str(name)))
    ask(prompts, model, **(options or {}))


def query_to_a_call(results, name, prompts, options, last, report):
    """Ask in a process of its own, killed as by `kill -9` at the given call of any
    function since the first batch.

    Calls into libraries count too, so a kill falls between any two steps of asking and
    of writing. Without a last call, report how many there were.
    """
    real, made = engine.Engine.ask, 0

    def count(frame, event, _):
        nonlocal made
        made += event in ("call", "c_call")
        if made == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(self, batch):
        sys.setprofile(count)
        return real(self, batch)

    model = loading.load_model(loading.resolve_model(str(name)))
    paths.RESULTS = results / "first"
    ask(
        prompts.head(2), model, **options
    )  # what is imported or made once does not count
    paths.RESULTS, engine.Engine.ask = results, counted
    ask(prompts, model, **options)
    sys.setprofile(None)
    report.send(made)


def query_killed(results, name, prompts, options, last=None):
    """Return how many calls asking made, or None where it was killed before."""
    receives, sends = CONTEXT.Pipe(duplex=False)
    process = in_a_process(
        query_to_a_call, results, name, prompts, options, last, sends
    )
    sends.close()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return receives.recv() if process.exitcode == 0 else None


def kill_at_random(results, name, prompts, kills, seed=0, **options):
    """Start a query again and again and kill it at a random call; return the rows that
    stood at each kill.
    """
    chance, stood = random.Random(seed), []
    whole = query_killed(results, name, prompts, options)
    shutil.rmtree(results / "test")
    while len(stood) < kills:
        there = sum(len(pd.read_parquet(file)) for file in parts(results))
        calls = whole * (len(prompts) - there) // len(prompts)
        if (
            calls
            and query_killed(results, name, prompts, options, chance.randint(1, calls))
            is None
        ):
            stood.append(sum(len(pd.read_parquet(file)) for file in parts(results)))
        else:
            shutil.rmtree(
                results / "test"
            )  # it got through, or nothing is left to ask: begin again
    return stood


@pytest.mark.slow
def test_kills_at_random_moments_and_one_resume(results, many, tiny_folder, tiny_model):
    many = many if KILLS > 9 else many.head(12)
    whole = ask(many, tiny_model)
    (results / "test").rename(results / "whole")
    stood = kill_at_random(results, tiny_folder, many, KILLS)
    assert len(set(stood)) > KILLS // 3, "the kills fell at different moments"
    resumed = ask(many, tiny_model)
    identical(whole, resumed)
    assert labelling.label_answers(whole, many).equals(
        labelling.label_answers(resumed, many)
    )
    left = [
        file.name for file in folder_of(results).rglob("*") if file.suffix != ".lock"
    ]
    system = prompting.make_system_name(tiny_model.name, "safety")
    assert sorted(left) == [
        f"{system}.parquet",
        f"{system}.parquet.meta.json",
    ], "neither parts nor temporary files"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["write_meta", "compact"])
def test_a_kill_while_compacting_is_mended_by_the_next_run(
    results, prompts, tiny_model, monkeypatch, step
):
    owner = stores if step == "write_meta" else trace_store.TraceParts
    real = getattr(owner, step)

    monkeypatch.setattr(owner, step, dies)
    with pytest.raises(Killed):
        ask(prompts, tiny_model)
    monkeypatch.setattr(owner, step, real)
    monkeypatch.setattr(engine.Engine, "ask", lambda *_: pytest.fail("asked again"))
    traces = ask(prompts, tiny_model)
    system = prompting.make_system_name(tiny_model.name, "safety")
    same(traces, trace_store.read_traces(mine(), system, prompts))
    assert not list((results / "test" / "traces" / "mine").glob("*.parts"))


@pytest.mark.slow
def test_a_failure_between_parts_loses_one_batch_at_most(
    results, prompts, tiny_model, monkeypatch
):
    whole = ask(prompts, tiny_model)
    (results / "test").rename(results / "whole")
    real, calls = engine.Engine.ask, []

    def dies_third(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise Killed
        return real(self, batch)

    monkeypatch.setattr(engine.Engine, "ask", dies_third)
    with pytest.raises(Killed):
        ask(prompts, tiny_model)
    assert len(parts(results)) == 2
    monkeypatch.setattr(engine.Engine, "ask", real)
    identical(whole, ask(prompts, tiny_model))
    assert not list((results / "test" / "traces" / "mine").glob("*.parts"))


def held(results, name, prompts, begun, go_on):
    """Ask, and after the first batch wait until another process has come in between."""
    real = trace_store.TraceParts.add

    def waits(self, rows):
        real(self, rows)
        begun.set()
        go_on.wait()

    trace_store.TraceParts.add = waits
    query_there(results, name, prompts)


@pytest.mark.slow
def test_two_processes_on_one_store(results, prompts, tiny_folder, tiny_model):
    begun, go_on = CONTEXT.Event(), CONTEXT.Event()
    process = in_a_process(held, results, tiny_folder, prompts, begun, go_on)
    begun.wait()
    with pytest.raises(DataError, match="written by another process"):
        ask(prompts, tiny_model)
    # another system of the same store is free
    ask(prompts, tiny_model, system_prompt="none")
    go_on.set()
    process.join()
    assert process.exitcode == 0
    (results / "test").rename(results / "other")
    there = next((results / "other" / "traces" / "mine").glob("*--safety.parquet"))
    identical(ask(prompts, tiny_model), pd.read_parquet(there))


def on_a_full_disk(results, name, prompts, report):
    """Ask until the third batch finds no room: the kernel itself refuses to let a file
    grow.
    """
    real, calls = engine.Engine.ask, []

    def fills(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        return real(self, batch)

    engine.Engine.ask = fills
    try:
        query_there(results, name, prompts)
    except DataError as error:
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
        report.write_text(str(error))


@pytest.mark.slow
def test_a_full_disk_is_one_clear_line_and_loses_one_batch(
    results, prompts, tiny_folder, tiny_model, tmp_path
):
    report = tmp_path / "report.txt"
    process = in_a_process(on_a_full_disk, results, tiny_folder, prompts, report)
    process.join()
    assert process.exitcode == 0
    text = report.read_text()
    assert (
        "part-000002.parquet cannot be written (" in text
        and "what was written before is kept" in text
    )
    assert len(text.splitlines()) == 1
    assert len(parts(results)) == 2 and not list(folder_of(results).rglob("*.tmp"))
    resumed = ask(prompts, tiny_model)
    (results / "test").rename(results / "filled")
    identical(ask(prompts, tiny_model), resumed)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "emptied", "overwritten"])
def test_a_damaged_part_is_named_set_aside_and_asked_again(
    results, prompts, tiny_model, monkeypatch, capsys, damage
):
    whole = ask(prompts, tiny_model)
    (results / "test").rename(results / "whole")
    monkeypatch.setattr(trace_store.TraceParts, "compact", dies)
    with pytest.raises(Killed):
        ask(prompts, tiny_model)
    monkeypatch.undo()
    monkeypatch.setattr(paths, "RESULTS", results)
    part = parts(results)[1]
    content = part.read_bytes()
    part.write_bytes(
        {
            "truncated": content[:-100],
            "emptied": b"",
            "overwritten": b"x" * len(content),
        }[damage]
    )
    asked, real = [], engine.Engine.ask
    monkeypatch.setattr(
        engine.Engine,
        "ask",
        lambda self, batch: asked.extend(batch) or real(self, batch),
    )
    identical(whole, ask(prompts, tiny_model))
    assert len(asked) == 2, "the damaged batch only"
    assert part.name in capsys.readouterr().err
    assert [file.name for file in folder_of(results).glob("*.parts/*")] == [
        f"{part.name}.corrupt"
    ]


def test_a_truncated_trace_file_is_named_set_aside_and_asked_again(
    results, prompts, tiny_model, capsys
):
    whole = ask(prompts, tiny_model)
    file = stores.Store("test").path(
        "traces", "mine", prompting.make_system_name(tiny_model.name, "safety")
    )
    file.write_bytes(file.read_bytes()[:-100])
    identical(whole, ask(prompts, tiny_model))
    assert file.with_name(f"{file.name}.corrupt").is_file()
    assert f"{file.name}: cannot be read" in capsys.readouterr().err


def test_what_a_killed_write_left_behind_is_removed(results, prompts, tiny_model):
    first = ask(prompts, tiny_model)
    system = prompting.make_system_name(tiny_model.name, "safety")
    for name in (
        f".{system}.parquet.abc.tmp",
        f"{system}.parts/.part-000000.parquet.abc.tmp",
    ):
        file = folder_of(results) / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"half")
    same(first, ask(prompts, tiny_model))
    assert not list(folder_of(results).rglob("*.tmp"))


@pytest.mark.slow
def test_a_clock_that_goes_backwards_changes_nothing(
    results, many, tiny_model, monkeypatch
):
    whole = ask(many, tiny_model)
    (results / "test").rename(results / "whole")
    now = [2e9]

    def backwards():
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr("time.time", backwards)
    real = trace_store.TraceParts.add

    def dies_late(self, rows):
        real(self, rows)
        newest = parts(results)[-1]
        os.utime(
            newest, (backwards(), now[0])
        )  # the later the part, the older it looks
        if len(parts(results)) == 5:
            raise Killed

    monkeypatch.setattr(trace_store.TraceParts, "add", dies_late)
    with contextlib.suppress(Killed):
        ask(many, tiny_model)
    assert len(parts(results)) == 5
    monkeypatch.setattr(trace_store.TraceParts, "add", real)
    identical(whole, ask(many, tiny_model))
    meta = stores.read_meta(next(folder_of(results).glob("*.parquet")))
    assert meta["asked_now"] == 40 - 5 * 2 and meta["seconds"] >= 0


@pytest.mark.slow
def test_a_changed_model_file_is_another_system(results, prompts, tmp_path):
    folder = tiny.write(tmp_path / "model")
    first = ask(prompts, loading.load_model(loading.resolve_model(str(folder))))
    tiny.write(folder, seed=1)
    second = ask(prompts, loading.load_model(loading.resolve_model(str(folder))))
    assert (
        not set(first["key"]) & set(second["key"])
        and (first["response"] != second["response"]).any()
    )
    stored = sorted(folder_of(results).glob("*.parquet"))
    assert len(stored) == 2
    old = next(
        pd.read_parquet(file)
        for file in stored
        if pd.read_parquet(file)["key"].equals(first["key"])
    )
    identical(first, old)
