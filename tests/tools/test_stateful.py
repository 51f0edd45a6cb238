"""Models with another state are queried one by one, and answer as transformers does."""

import families
import numpy as np
import pytest
import tiny
from asking import mine
from transformers import GenerationConfig

from paraguard_lab.models.families import keeps_other_state
from paraguard_tools.servers import stateful
from paraguard_utils import stores
from paraguard_utils.models import loading, prompting, trace_store
from paraguard_utils.settings import QueryOptions
from paraguard_utils.stores import CorpusFiles

torch = tiny.torch

TOKENS = 12
FOUR = ("Mamba", "Jamba", "LFM2", "Qwen3-Next")
LONG = ("Jamba", "Qwen3-Next")
"""Those that take longest to import, and whose kinds of state the others have too."""


def options_of(folder, **more):
    return QueryOptions(model=str(folder), system_prompts=["safety"], **more)


def query(model, prompts, store="test"):
    files = CorpusFiles(stores.Store(store), "mine")
    decoding = prompting.Decoding(TOKENS)
    return trace_store.query_model(
        model, trace_store.Query(files, prompts, "safety", decoding, batch=5)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=pytest.mark.weekly if one in LONG else ())
        for one in FOUR
    ],
)
def test_answers_are_those_of_transformers(results, tmp_path, name, capsys):
    folder = families.FAMILIES[name](tmp_path / "tiny")
    options = options_of(folder)
    assert stateful.takes(options)
    (source,) = stateful.resolve(options)
    prompts = families.make_prompts(24)
    traces = query(source.open(options), prompts)
    assert "one prompt at a time" in capsys.readouterr().err
    plain = loading.load_model(loading.resolve_model(str(folder)))
    for row, text in zip(traces.itertuples(), prompts["text"], strict=True):
        user = slice(row.user_start, row.user_end)
        assert plain.tokenizer.decode(row.token_ids[user]) == text
        own = families.generate(plain.network, plain.tokenizer, row.token_ids, TOKENS)
        assert row.response == own
        ids = torch.tensor([row.token_ids.tolist()])
        with torch.inference_mode():
            scores = torch.log_softmax(plain.network(ids).logits[0].double(), -1)
        # The token at place n is predicted at place n - 1
        before = scores[row.user_start - 1 : row.user_end - 1]
        nll = -before.gather(1, ids[0, user, None])[:, 0].numpy()
        np.testing.assert_allclose(row.token_nll[user], nll, atol=1e-4)
        first = scores[-1][torch.tensor(row.next_ids.tolist())].numpy()
        np.testing.assert_allclose(row.next_logprobs, first, atol=1e-4)
    meta = stores.read_meta(mine().path("traces", f"{source.name}--safety"))
    assert meta["engine"] == "transformers generate"


@pytest.mark.slow
def test_traces_are_those_of_the_engine(results, prompts, tmp_path):
    """A model that both can query gets the same traces, whatever its makers recommend."""
    folder = tiny.write(tmp_path / "tiny")
    settings = GenerationConfig.from_pretrained(folder)
    settings.update(repetition_penalty=5.0, max_length=7)
    settings.save_pretrained(folder)
    model = loading.load_model(loading.resolve_model(str(folder)))
    assert model.network.generation_config.repetition_penalty == 5.0
    batched = query(model, prompts)
    single = query(stateful.StatefulBackend(model), prompts, store="other")
    assert list(single["response"]) == list(batched["response"])
    assert list(single["finish_reason"]) == list(batched["finish_reason"])
    for one, other in zip(single.itertuples(), batched.itertuples(), strict=True):
        assert one.key == other.key
        np.testing.assert_allclose(one.token_nll, other.token_nll, atol=1e-4)
        np.testing.assert_allclose(one.tail_mass, other.tail_mass, atol=1e-4)


def test_a_stop_token_ends_an_answer_and_is_not_part_of_it(tmp_path):
    model = loading.load_model(loading.resolve_model(str(tiny.write(tmp_path / "m"))))

    class Stops(prompting.Decoding):
        def choose(self, logits, keys, step):
            return torch.tensor([40 if step < 2 else 1])

    generator = stateful.Generator(model, Stops(9))
    request = prompting.Request("p", "k", (5, 6, 7, 8), 1, 3)
    (row,) = generator.ask([request])
    assert row["response"] == model.tokenizer.decode([40, 40]).strip()
    assert row["finish_reason"] == "stop"


@pytest.mark.slow
def test_an_interrupted_run_asks_only_what_is_missing(
    results, prompts, tmp_path, monkeypatch
):
    folder = families.FAMILIES["Mamba"](tmp_path / "tiny")
    (source,) = stateful.resolve(options_of(folder))
    model = source.open(options_of(folder))
    asked = []
    real = stateful.Generator._ask_one

    def ask_one(self, request):
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(request.prompt_id)
        return real(self, request)

    monkeypatch.setattr(stateful.Generator, "_ask_one", ask_one)
    with pytest.raises(KeyboardInterrupt):
        query(model, prompts)
    done = set(asked)
    asked.clear()
    monkeypatch.setattr(
        stateful.Generator,
        "_ask_one",
        lambda self, request: asked.append(request.prompt_id) or real(self, request),
    )
    traces = query(model, prompts)
    assert list(traces["prompt_id"]) == list(prompts["prompt_id"])
    assert len(done) == 3 and not done & set(asked)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*families.STATEFUL, "Llama", "BERT", "Qwen2-VL"])
def test_only_models_with_another_state_are_taken(tmp_path, name):
    folder = families.FAMILIES[name](tmp_path / "tiny")
    assert stateful.takes(options_of(folder)) == (name in families.STATEFUL)


def test_what_is_not_queried_here_is_not_taken(tmp_path):
    folder = families.FAMILIES["Mamba"](tmp_path / "tiny")
    assert not stateful.takes(options_of(folder, device="ray"))
    assert not stateful.takes(options_of("openai/x", base_url="http://127.0.0.1:1/v1"))
    assert not stateful.takes(options_of("smollm2-135m-instruct"))
    assert not stateful.takes(QueryOptions(system_prompts=["safety"]))
    assert keeps_other_state(stateful._read_config(str(folder)))
