"""A system asked in shards: side by side, and equal to the plain run bit for bit."""

import shutil

import pandas as pd
import pytest
from asking import ask, identical, mine

from paraguard_utils import stores
from paraguard_utils.errors import DataError
from paraguard_utils.models import trace_store

PROMPTS = pd.DataFrame(
    {
        "prompt_id": [f"p{i:02d}" for i in range(13)],
        "text": [
            f"how do I kill a process {'again ' * (i * 7 % 5)}{i}" for i in range(13)
        ],
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 3, 9])
def test_shards_put_together_are_the_plain_run_bit_for_bit(tiny_model, results, shards):
    plain = ask(PROMPTS, tiny_model)
    shutil.rmtree(results)
    found = [ask(PROMPTS, tiny_model, shard=(i, shards)) for i in range(1, shards + 1)]
    ids = [name for frame in found for name in frame["prompt_id"]]
    assert sorted(ids) == PROMPTS["prompt_id"].tolist(), "every prompt in one shard"
    assert not list(results.rglob("*--safety.parquet")), "a shard leaves parts only"
    merged = ask(PROMPTS, tiny_model)
    identical(plain, merged)
    assert not list(results.rglob("*.parts"))
    assert stores.read_meta(next(results.rglob("*--safety.parquet")))["asked_now"] == 0


@pytest.mark.slow
def test_a_shard_resumes_and_what_is_missing_is_asked_when_all_are_put_together(
    tiny_model, results
):
    plain = ask(PROMPTS, tiny_model)
    shutil.rmtree(results)
    ask(PROMPTS, tiny_model, shard=(1, 3))
    lost = next(results.rglob("part-000000.parquet"))
    lost.unlink()
    ask(PROMPTS, tiny_model, shard=(1, 3))
    ask(PROMPTS, tiny_model, shard=(3, 3))
    merged = ask(PROMPTS, tiny_model)
    identical(plain, merged)
    asked = stores.read_meta(next(results.rglob("*--safety.parquet")))["asked_now"]
    assert 0 < asked < len(PROMPTS), "the second shard only"


@pytest.mark.slow
def test_an_error_in_a_shard_hides_no_answer(tiny_model, results):
    plain = ask(PROMPTS, tiny_model)
    file = next(results.rglob("*--safety.parquet"))
    place = (mine(), f"{tiny_model.name}--safety")
    with trace_store.TraceParts(*place, (1, 2)) as shard:
        shard.add(plain.assign(response=None, finish_reason="error"))
    identical(plain, ask(PROMPTS, tiny_model))
    assert stores.read_meta(file)["asked_now"] == 0


def test_shards_do_not_wait_for_one_another_and_are_not_put_together_while_they_run(
    tiny_model, results
):
    place = (mine(), f"{tiny_model.name}--safety")
    with (
        trace_store.TraceParts(*place, (1, 2)),
        trace_store.TraceParts(*place, (2, 2)),
        pytest.raises(DataError, match="is being written by another process"),
    ):
        trace_store.TraceParts(*place).__enter__()
    trace_store.TraceParts(*place).__enter__().__exit__()
