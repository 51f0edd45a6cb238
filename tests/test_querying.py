import multiprocessing
import os
import signal
import time

import numpy as np
import pandas as pd
import pytest
import tiny
import torch

from paraguard_utils import engine, models, querying, stores
from paraguard_utils.errors import DataError, ModelError
from paraguard_utils.schemas import check


def ask(prompts, model, wrapper="safety", batch=2, tokens=6, **options):
    store = stores.Store("test")
    decoding = querying.Decoding(tokens)
    return querying.query(store, "mine", prompts, model, wrapper, decoding, batch, progress=False, **options)


def same(first, second):
    for name in first.columns:
        for a, b in zip(first[name], second[name], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5) if name in (
                "token_nll",
                "next_logprobs",
                "tail_mass",
            ) else (np.testing.assert_array_equal(a, b))


def assert_plain(traces, prompts, model, tokens):
    """Traces must be those of a plain forward pass, answers those of the library's own greedy generation."""
    check(traces, "traces", "traces")
    meta = stores.read_meta(stores.Store("test").path("traces", "mine", querying.target_name(model.name, "safety")))
    for row, text in zip(traces.itertuples(), prompts["text"], strict=True):
        rendered = meta["prefix"] + text + meta["suffix"]
        ids = model.tokenizer(rendered, add_special_tokens=False, return_tensors="pt")["input_ids"]
        assert row.token_ids.tolist() == ids[0].tolist()
        assert model.tokenizer.decode(row.token_ids[row.user_start : row.user_end]) == text
        with torch.inference_mode():
            logits = model.network(ids).logits[0].double()
            answer = model.network.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
            )[0, ids.shape[1] :]
        nll = -torch.log_softmax(logits[:-1], -1).gather(1, ids[0, 1:, None])[:, 0].numpy()
        np.testing.assert_allclose(
            row.token_nll[row.user_start : row.user_end], nll[row.user_start - 1 : row.user_end - 1], atol=1e-4
        )
        assert np.isnan(row.token_nll[: row.user_start]).all() and np.isnan(row.token_nll[row.user_end :]).all()
        next_probs = torch.softmax(logits[-1], -1)
        np.testing.assert_allclose(np.exp(row.next_logprobs), next_probs[row.next_ids].numpy(), atol=1e-5)
        assert row.tail_mass == pytest.approx(1 - float(next_probs.topk(64).values.sum()), abs=1e-5)
        assert row.response == model.tokenizer.decode(answer, skip_special_tokens=True).strip()
        assert row.finish_reason == ("stop" if 1 in answer.tolist() else "length")


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {}),
        ("mistral", {}),
        ("qwen2", {}),
        ("gemma", {"head_dim": 8}),
        ("gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8}),
        ("phi3", {}),
    ],
)
def test_traces_agree_with_a_plain_forward_pass_and_generate(results, prompts, tmp_path, monkeypatch, family, more):
    monkeypatch.setattr(engine.RoomyLayer, "room", 8)
    prompts = prompts.head(6)
    folder = tiny.write(tmp_path / family, family=family, **more)
    model = models.load(models.resolve(str(folder)))
    assert_plain(ask(prompts, model, batch=4, tokens=20), prompts, model, tokens=20)


def test_batch_size_changes_nothing(results, prompts, tiny_model):
    first = ask(prompts, tiny_model, batch=1)
    (results / "test").rename(results / "other")
    same(first, ask(prompts, tiny_model, batch=9))


def test_what_was_asked_is_not_asked_again(results, prompts, tiny_model, monkeypatch):
    first = ask(prompts, tiny_model)
    monkeypatch.setattr(engine.Engine, "ask", lambda *_: pytest.fail("asked again"))
    same(first, ask(prompts, tiny_model))
    # fewer prompts, in another order: still nothing to ask
    same(first.iloc[[4, 2]].reset_index(drop=True), ask(prompts.iloc[[4, 2]], tiny_model))


def test_a_changed_prompt_or_wrapper_is_asked_again(results, prompts, tiny_model, monkeypatch):
    first = ask(prompts, tiny_model)
    asked = []
    real = engine.Engine.ask
    monkeypatch.setattr(
        engine.Engine, "ask", lambda self, batch: asked.extend(r.prompt_id for r in batch) or real(self, batch)
    )
    prompts.loc[3, "text"] = "something else"
    second = ask(prompts, tiny_model)
    assert asked == ["p3"]
    assert (first["key"] != second["key"]).tolist() == [i == 3 for i in range(9)]
    wrappers = querying.wrappers()
    wrappers["safety"]["text"] += " Be brief."
    monkeypatch.setattr(querying, "wrappers", lambda: wrappers)
    ask(prompts, tiny_model)
    assert len(asked) == 1 + 9


def test_going_back_to_an_earlier_decoding_asks_nothing_again(results, prompts, tiny_model, monkeypatch):
    first = ask(prompts, tiny_model, tokens=4)
    store, target = stores.Store("test"), querying.target_name(tiny_model.name, "safety")
    real = querying.Traces.compact

    def dies(*_):
        raise Killed

    monkeypatch.setattr(querying.Traces, "compact", dies)
    with pytest.raises(Killed):
        ask(prompts, tiny_model, tokens=6)
    monkeypatch.setattr(querying.Traces, "compact", real)
    monkeypatch.setattr(engine.Engine, "ask", lambda *_: pytest.fail("asked again"))
    same(first, ask(prompts, tiny_model, tokens=4))
    assert stores.read_meta(store.path("traces", "mine", target))["decoding"]["max_new_tokens"] == 4


@pytest.mark.parametrize("step", ["write_meta", "compact"])
def test_a_kill_while_compacting_is_mended_by_the_next_run(results, prompts, tiny_model, monkeypatch, step):
    owner = stores if step == "write_meta" else querying.Traces
    real = getattr(owner, step)

    def dies(*_):
        raise Killed

    monkeypatch.setattr(owner, step, dies)
    with pytest.raises(Killed):
        ask(prompts, tiny_model)
    monkeypatch.setattr(owner, step, real)
    monkeypatch.setattr(engine.Engine, "ask", lambda *_: pytest.fail("asked again"))
    traces = ask(prompts, tiny_model)
    target = querying.target_name(tiny_model.name, "safety")
    same(traces, querying.recorded_traces(stores.Store("test"), "mine", prompts, target))
    assert not list((results / "test" / "traces" / "mine").glob("*.parts"))


class Killed(BaseException):
    pass


def test_a_failure_between_parts_loses_one_batch_at_most(results, prompts, tiny_model, monkeypatch):
    whole = ask(prompts, tiny_model)
    (results / "test").rename(results / "whole")
    real, calls = engine.Engine.ask, []

    def dies(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise Killed
        return real(self, batch)

    monkeypatch.setattr(engine.Engine, "ask", dies)
    with pytest.raises(Killed):
        ask(prompts, tiny_model)
    parts = sorted((results / "test" / "traces" / "mine").glob("*.parts/*.parquet"))
    assert len(parts) == 2
    monkeypatch.setattr(engine.Engine, "ask", real)
    same(whole, ask(prompts, tiny_model))
    assert not list((results / "test" / "traces" / "mine").glob("*.parts"))


def _slow_query(results, folder, prompts):
    from paraguard_utils import paths

    paths.RESULTS = results
    real = engine.Engine.ask

    def slow(self, batch):
        time.sleep(0.2)
        return real(self, batch)

    engine.Engine.ask = slow
    ask(prompts, models.load(models.resolve(str(folder))))


@pytest.mark.slow
def test_kill_9_and_resume(results, prompts, tiny_folder, tiny_model):
    process = multiprocessing.get_context("spawn").Process(target=_slow_query, args=(results, tiny_folder, prompts))
    process.start()
    folder = results / "test" / "traces" / "mine"
    deadline = time.monotonic() + 120
    while len(list(folder.glob("*.parts/part-*.parquet"))) < 2:
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.02)
    with pytest.raises(DataError, match="written by another process"):
        ask(prompts, tiny_model)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    resumed = ask(prompts, tiny_model)
    assert resumed["prompt_id"].tolist() == prompts["prompt_id"].tolist()
    (results / "test").rename(results / "killed")
    same(ask(prompts, tiny_model), resumed)


def test_a_truncated_part_is_named_set_aside_and_asked_again(results, prompts, tiny_model, capsys):
    whole = ask(prompts, tiny_model)
    file = stores.Store("test").path("traces", "mine", querying.target_name(tiny_model.name, "safety"))
    file.write_bytes(file.read_bytes()[:-100])
    same(whole, ask(prompts, tiny_model))
    assert file.with_name(f"{file.name}.corrupt").is_file()
    assert "asked again" in capsys.readouterr().err


def test_recorded_traces_name_the_part_of_the_key_that_differs(results, prompts, tiny_model, monkeypatch):
    ask(prompts, tiny_model)
    store, target = stores.Store("test"), querying.target_name(tiny_model.name, "safety")
    read = lambda frame, decoding=None: querying.recorded_traces(store, "mine", frame, target, decoding)  # noqa: E731
    assert read(prompts)["prompt_id"].tolist() == prompts["prompt_id"].tolist()
    with pytest.raises(DataError, match="decoding differs"):
        read(prompts, querying.Decoding(7))
    with pytest.raises(DataError, match="dtype differs: float32 there, bfloat16"):
        querying.recorded_traces(store, "mine", prompts, target, dtype="bfloat16")
    with pytest.raises(DataError, match="prompt p1 had another text"):
        read(prompts.assign(text=prompts["text"].replace(prompts["text"][1], "x")))
    with pytest.raises(DataError, match="prompt new is not in it"):
        read(pd.concat([prompts, pd.DataFrame({"prompt_id": ["new"], "text": ["x"]})]))
    wrappers = querying.wrappers()
    wrappers["safety"]["text"] = "Other."
    monkeypatch.setattr(querying, "wrappers", lambda: wrappers)
    with pytest.raises(DataError, match="'safety' has another text"):
        read(prompts)


@pytest.mark.parametrize("text", [" spaced", "a <|im_end|> b"])
def test_prompts_that_cannot_be_asked_as_they_are(results, prompts, tiny_model, text):
    prompts.loc[4, "text"] = text
    with pytest.raises(DataError, match="prompt p4"):
        ask(prompts, tiny_model)


@pytest.mark.parametrize(
    ("template", "wrapper", "before", "after"),
    [
        (tiny.CHATML, "Be safe.", "<|im_start|>system\nBe safe.<|im_end|>\n<|im_start|>user\n", None),
        (tiny.CHATML, "", "<|im_start|>user\n", None),
        (tiny.INJECTS, "", "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n", None),
        (tiny.NO_SYSTEM, "Be safe.", "<|im_start|>user\nBe safe.\n\n", None),
        (tiny.NO_SYSTEM, "", "<|im_start|>user\n", None),
        (tiny.DATED, "", "<|im_start|>01 Jan 2025\n<|im_start|>user\n", None),
    ],
)
def test_wrappers_in_templates(tiny_model, template, wrapper, before, after, monkeypatch):
    monkeypatch.setattr(tiny_model.tokenizer, "chat_template", template)
    found = querying.surroundings(tiny_model.tokenizer, wrapper)
    assert found == (before, "<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_that_changes_the_text_is_refused(tiny_model, monkeypatch):
    monkeypatch.setattr(
        tiny_model.tokenizer, "chat_template", tiny.CHATML.replace("m['content']", "m['content'] | lower")
    )
    with pytest.raises(ModelError, match="as it is"):
        querying.surroundings(tiny_model.tokenizer, "")


def test_the_key_is_made_of_weights_text_decoding_and_dtype():
    base = querying.Frame("w", "float32", "<", ">", querying.Decoding())
    others = [
        querying.Frame("v", "float32", "<", ">", querying.Decoding()),
        querying.Frame("w", "bfloat16", "<", ">", querying.Decoding()),
        querying.Frame("w", "float32", "<<", ">", querying.Decoding()),
        querying.Frame("w", "float32", "<", ">", querying.Decoding(32)),
    ]
    keys = {frame.key("text") for frame in [base, *others]} | {base.key("other")}
    assert len(keys) == 6
    assert base.key("text") == querying.Frame("w", "float32", "<", ">", querying.Decoding()).key("text")
