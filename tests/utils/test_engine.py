"""The engine against the library's own forward pass and generation, on every
architecture it is meant for.
"""

import numpy as np
import pytest
import tiny
from asking import ask, same

from paraguard_utils import stores
from paraguard_utils.errors import ModelError
from paraguard_utils.models import engine, loading, prompting
from paraguard_utils.models.prompting import Decoding, Request
from paraguard_utils.schemas import check_schema

torch = tiny.torch

FAMILIES = [
    ("llama", {}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 24}),
    ("qwen2", {}),
    ("qwen3", {"head_dim": 8}),
    ("gemma", {"head_dim": 8}),
    ("gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 24}),
    ("gemma3_text", {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 24}),
    ("phi", {}),
    ("phi3", {}),
    ("gpt2", {}),
    ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2}),
]
"""Windows of 24 tokens are shorter than the prompts; MPT tells distances from places in
the cache.
"""


def assert_plain(traces, prompts, model, tokens):
    """Traces must be those of a plain forward pass, answers those of the library's own
    greedy generation.
    """
    check_schema(traces, "traces", "traces")
    meta = stores.read_meta(
        stores.Store("test").path(
            "traces", "mine", prompting.make_system_name(model.name, "safety")
        )
    )
    for row, text in zip(traces.itertuples(), prompts["text"], strict=True):
        rendered = meta["prefix"] + text + meta["suffix"]
        ids = model.tokenizer(rendered, add_special_tokens=False, return_tensors="pt")[
            "input_ids"
        ]
        assert row.token_ids.tolist() == ids[0].tolist()
        assert (
            model.tokenizer.decode(row.token_ids[row.user_start : row.user_end]) == text
        )
        with torch.inference_mode():
            logits = model.network(ids).logits[0].double()
            answer = model.network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
            )[0, ids.shape[1] :]
        nll = (
            -torch.log_softmax(logits[:-1], -1)
            .gather(1, ids[0, 1:, None])[:, 0]
            .numpy()
        )
        np.testing.assert_allclose(
            row.token_nll[row.user_start : row.user_end],
            nll[row.user_start - 1 : row.user_end - 1],
            atol=1e-4,
        )
        assert (
            np.isnan(row.token_nll[: row.user_start]).all()
            and np.isnan(row.token_nll[row.user_end :]).all()
        )
        next_probs = torch.softmax(logits[-1], -1)
        np.testing.assert_allclose(
            np.exp(row.next_logprobs), next_probs[row.next_ids].numpy(), atol=1e-5
        )
        assert row.tail_mass == pytest.approx(
            1 - float(next_probs.topk(64).values.sum()), abs=1e-5
        )
        assert (
            row.response
            == model.tokenizer.decode(answer, skip_special_tokens=True).strip()
        )
        assert row.finish_reason == ("stop" if 1 in answer.tolist() else "length")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "more"), FAMILIES)
def test_traces_agree_with_a_plain_forward_pass_and_generate(
    results, prompts, tmp_path, family, more
):
    prompts = prompts.head(6)
    folder = tiny.write(tmp_path / family, family=family, **more)
    model = loading.load_model(loading.resolve_model(str(folder)))
    assert_plain(ask(prompts, model, batch=6, tokens=20), prompts, model, tokens=20)


def test_batch_size_changes_nothing(results, prompts, tiny_model):
    first = ask(prompts, tiny_model, batch=1)
    (results / "test").rename(results / "other")
    same(first, ask(prompts, tiny_model, batch=9))


def test_answers_come_back_in_the_order_asked(tiny_model):
    requests = [
        Request(f"p{n}", "k", tuple(range(2, 2 + n)), 2, n) for n in (5, 9, 3, 7)
    ]
    running = engine.Engine(tiny_model, requests[0].token_ids[:1], Decoding(4))
    assert [row["prompt_id"] for row in running.ask(requests)] == [
        "p5",
        "p9",
        "p3",
        "p7",
    ]


def test_batches_are_bounded_in_rows_and_positions(monkeypatch):
    requests = [
        Request(f"p{n:03d}", "k", tuple(range(n)), 1, n) for n in range(10, 110)
    ]
    # 109 + 11 = 120 positions a row: 1000 // 120 = 8 rows; then 101 + 11 = 112: 8 rows;
    # ...
    monkeypatch.setattr(engine, "BATCH_POSITIONS", 1000)
    found = engine.split_into_batches(requests, 16, 11)
    assert [len(batch) for batch in found[:2]] == [8, 8] and len(found[-1]) <= 16
    assert max(len(batch) for batch in found) == 16
    for batch in found:
        assert (
            len(batch) * (max(len(request.token_ids) for request in batch) + 11) <= 1000
        )
    assert sorted(r.prompt_id for batch in found for r in batch) == [
        r.prompt_id for r in requests
    ]
    # a prompt longer than the bound is asked alone
    monkeypatch.setattr(engine, "BATCH_POSITIONS", 5)
    assert [len(batch) for batch in engine.split_into_batches(requests[:3], 16)] == [
        1,
        1,
        1,
    ]
    # users' tokens are bounded too: each has logits of the whole vocabulary
    monkeypatch.undo()
    monkeypatch.setattr(engine, "USER_POSITIONS", 250)
    found = engine.split_into_batches(requests, 16)
    assert [len(batch) for batch in found[:2]] == [2, 2]  # 108 and 106 user tokens


@pytest.mark.slow
def test_no_tensor_forgets_the_models_device(results, prompts, tiny_model):
    # Where nothing else is said, tensors now land on a device without data, and mixing
    # devices fails.
    with torch.device("meta"):
        traces = ask(prompts, tiny_model)
    (results / "test").rename(results / "other")
    same(traces, ask(prompts, tiny_model))


@pytest.mark.slow
def test_bfloat16_stays_near_float32(results, prompts, tiny_folder, tiny_model):
    half = loading.load_model(loading.resolve_model(str(tiny_folder)), "bfloat16")
    low = ask(prompts, half)
    meta = stores.read_meta(
        stores.Store("test").path(
            "traces", "mine", prompting.make_system_name(half.name, "safety")
        )
    )
    assert meta["dtype"] == "bfloat16" and meta["device"] == "cpu"
    (results / "test").rename(results / "other")
    full = ask(prompts, tiny_model)
    assert not set(low["key"]) & set(full["key"])
    low, full = (np.concatenate(list(traces["token_nll"])) for traces in (low, full))
    np.testing.assert_allclose(low, full, atol=0.5)  # 8 bits of mantissa
    assert not np.array_equal(low, full, equal_nan=True)


def test_a_state_that_is_not_keys_and_values_is_refused(results, prompts, tmp_path):
    folder = tiny.write(
        tmp_path / "lfm2", family="lfm2", layer_types=["conv", "full_attention"]
    )
    model = loading.load_model(loading.resolve_model(str(folder)))
    with pytest.raises(ModelError, match="lfm2 keeps a state other than keys"):
        ask(prompts, model)
