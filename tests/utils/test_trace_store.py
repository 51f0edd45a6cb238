import pandas as pd
import pytest
import tiny
from asking import Killed, ask, dies, mine, same

from paraguard_utils import registry, stores
from paraguard_utils.errors import DataError, ModelError
from paraguard_utils.labels import labelling
from paraguard_utils.models import engine, loading, local, prompting, trace_store


def test_what_was_asked_is_not_asked_again(results, prompts, tiny_model, monkeypatch):
    first = ask(prompts, tiny_model)
    monkeypatch.setattr(engine.Engine, "ask", lambda *_: pytest.fail("asked again"))
    same(first, ask(prompts, tiny_model))
    # fewer prompts, in another order: still nothing to ask
    same(
        first.iloc[[4, 2]].reset_index(drop=True), ask(prompts.iloc[[4, 2]], tiny_model)
    )


def test_a_damaged_meta_file_costs_no_answers(
    results, prompts, tiny_model, monkeypatch
):
    first = ask(prompts, tiny_model)
    monkeypatch.setattr(engine.Engine, "ask", lambda *_: pytest.fail("asked again"))
    system = prompting.make_system_name(tiny_model.name, "safety")
    meta = stores.meta_path(mine().path("traces", system))
    meta.write_text('{"decoding": ')
    with pytest.raises(DataError, match=r"meta\.json cannot be read.*remove it"):
        ask(prompts, tiny_model)
    meta.unlink()  # as the line says
    same(first, ask(prompts, tiny_model))
    same(first, trace_store.read_traces(mine(), system, prompts))


def test_a_changed_prompt_or_system_prompt_is_asked_again(
    results, prompts, tiny_model, monkeypatch
):
    first = ask(prompts, tiny_model)
    asked = []
    real = engine.Engine.ask
    monkeypatch.setattr(
        engine.Engine,
        "ask",
        lambda self, batch: (
            asked.extend(r.prompt_id for r in batch) or real(self, batch)
        ),
    )
    prompts.loc[3, "text"] = "something else"
    second = ask(prompts, tiny_model)
    assert asked == ["p3"]
    assert (first["key"] != second["key"]).tolist() == [i == 3 for i in range(9)]
    system_prompts = registry.system_prompts()
    system_prompts["safety"]["text"] += " Be brief."
    monkeypatch.setattr(registry, "system_prompts", lambda: system_prompts)
    ask(prompts, tiny_model)
    assert len(asked) == 1 + 9


@pytest.mark.slow
def test_going_back_to_an_earlier_decoding_asks_nothing_again(
    results, prompts, tiny_model, monkeypatch
):
    first = ask(prompts, tiny_model, tokens=4)
    system = prompting.make_system_name(tiny_model.name, "safety")
    real = trace_store.TraceParts.compact

    monkeypatch.setattr(trace_store.TraceParts, "compact", dies)
    with pytest.raises(Killed):
        ask(prompts, tiny_model, tokens=6)
    monkeypatch.setattr(trace_store.TraceParts, "compact", real)
    monkeypatch.setattr(engine.Engine, "ask", lambda *_: pytest.fail("asked again"))
    same(first, ask(prompts, tiny_model, tokens=4))
    assert (
        stores.read_meta(mine().path("traces", system))["decoding"]["max_new_tokens"]
        == 4
    )


def test_recorded_traces_name_the_part_of_the_key_that_differs(
    results, prompts, tiny_model, monkeypatch
):
    ask(prompts, tiny_model)
    system = prompting.make_system_name(tiny_model.name, "safety")

    def read(frame, decoding=None):
        return trace_store.read_traces(mine(), system, frame, decoding)

    assert read(prompts)["prompt_id"].tolist() == prompts["prompt_id"].tolist()
    with pytest.raises(DataError, match="decoding differs"):
        read(prompts, prompting.Decoding(7))
    with pytest.raises(DataError, match="dtype differs: float32 there, bfloat16"):
        trace_store.read_traces(mine(), system, prompts, dtype="bfloat16")
    with pytest.raises(DataError, match="prompt p1 is not in it, or had another text"):
        read(prompts.assign(text=prompts["text"].replace(prompts["text"][1], "x")))
    with pytest.raises(DataError, match="prompt new is not in it"):
        read(pd.concat([prompts, pd.DataFrame({"prompt_id": ["new"], "text": ["x"]})]))
    meta = stores.read_meta(mine().path("traces", system))
    drawn = meta | {"decoding": meta["decoding"] | {"temperature": 0.7, "draw": 0}}
    with pytest.raises(DataError, match="x: its answers were not decoded greedily"):
        trace_store.context_from_meta(drawn, "x")
    system_prompts = registry.system_prompts()
    system_prompts["safety"]["text"] = "Other."
    monkeypatch.setattr(registry, "system_prompts", lambda: system_prompts)
    with pytest.raises(DataError, match="'safety' has another text"):
        read(prompts)


@pytest.mark.parametrize("text", [" spaced", "a <|im_end|> b"])
def test_prompts_that_cannot_be_asked_as_they_are(results, prompts, tiny_model, text):
    prompts.loc[4, "text"] = text
    with pytest.raises(DataError, match="prompt p4"):
        ask(prompts, tiny_model)


@pytest.mark.parametrize(
    ("template", "system_prompt", "before", "after"),
    [
        (
            tiny.CHATML,
            "Be safe.",
            "<|im_start|>system\nBe safe.<|im_end|>\n<|im_start|>user\n",
            None,
        ),
        (tiny.CHATML, "", "<|im_start|>user\n", None),
        (tiny.INJECTS, "", "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n", None),
        (tiny.NO_SYSTEM, "Be safe.", "<|im_start|>user\nBe safe.\n\n", None),
        (tiny.NO_SYSTEM, "", "<|im_start|>user\n", None),
        (tiny.DATED, "", "<|im_start|>01 Jan 2025\n<|im_start|>user\n", None),
    ],
)
def test_system_prompts_in_templates(
    tiny_model, template, system_prompt, before, after, monkeypatch
):
    monkeypatch.setattr(tiny_model.tokenizer, "chat_template", template)
    found = prompting.render_system_prompt(tiny_model.tokenizer, system_prompt)
    assert found == (before, "<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_that_changes_the_text_is_refused(tiny_model, monkeypatch):
    monkeypatch.setattr(
        tiny_model.tokenizer,
        "chat_template",
        tiny.CHATML.replace("m['content']", "m['content'] | lower"),
    )
    with pytest.raises(ModelError, match="as it is"):
        prompting.render_system_prompt(tiny_model.tokenizer, "")


def test_a_template_that_starts_with_the_users_words_is_refused(
    tiny_model, monkeypatch
):
    monkeypatch.setattr(
        tiny_model.tokenizer, "chat_template", "{{ messages[-1]['content'] }}<|im_end|>"
    )
    with pytest.raises(ModelError, match="nothing before the user's text"):
        prompting.render_system_prompt(tiny_model.tokenizer, "")


@pytest.mark.slow
def test_a_thinking_block_that_the_template_opens_is_part_of_the_answer(
    results, prompts, tiny_model, monkeypatch
):
    plain = ask(prompts, tiny_model, tokens=8)
    assert not plain["response"].str.startswith("<think>").any()
    template = tiny.CHATML.replace(
        "assistant\n{% endif %}", "assistant\n<think>\n{% endif %}"
    )
    monkeypatch.setattr(tiny_model.tokenizer, "chat_template", template)
    thinking = ask(prompts, tiny_model, tokens=8)
    assert thinking["response"].str.startswith("<think>\n").all()
    # 8 tokens of a random model do not close it: there is no answer to label
    labels = labelling.label_answers(thinking, prompts)
    assert set(labels["label"]) == {"unparsed"}
    closed = thinking.assign(
        response=thinking["response"] + "</think>I'm sorry, but I can't help with that."
    )
    assert set(labelling.label_answers(closed, prompts)["label"]) == {"reject"}


def test_the_plain_template_is_for_models_without_one(results, prompts, tmp_path):
    folder = tiny.write(tmp_path / "base", template=None)
    model = loading.load_model(
        loading.resolve_model(str(folder)), without_template="plain"
    )
    assert prompting.render_system_prompt(model.tokenizer, "Be safe.") == (
        "<|im_start|>Be safe.\n\nUser: ",
        "\nAssistant:",
    )
    assert prompting.render_system_prompt(model.tokenizer, "") == (
        "<|im_start|>User: ",
        "\nAssistant:",
    )
    traces = ask(prompts, model)
    asked = [
        model.tokenizer.decode(row.token_ids[row.user_start : row.user_end])
        for row in traces.itertuples()
    ]
    assert [text.strip() for text in asked] == prompts["text"].tolist()


def test_the_key_is_made_of_weights_text_decoding_and_dtype():
    base = prompting.PromptContext("w", "float32", "<", ">", prompting.Decoding())
    others = [
        prompting.PromptContext("v", "float32", "<", ">", prompting.Decoding()),
        prompting.PromptContext("w", "bfloat16", "<", ">", prompting.Decoding()),
        prompting.PromptContext("w", "float32", "<<", ">", prompting.Decoding()),
        prompting.PromptContext("w", "float32", "<", ">", prompting.Decoding(32)),
    ]
    keys = {frame.key("text") for frame in [base, *others]} | {base.key("other")}
    assert len(keys) == 6
    assert base.key("text") == prompting.PromptContext(
        "w", "float32", "<", ">", prompting.Decoding()
    ).key("text")


def test_a_resumed_run_asks_unbroken_batches_as_they_were():
    asked = [
        prompting.Request(f"p{i}", f"k{i}", tuple(range(9 - i)), 1, 2) for i in range(6)
    ]
    whole = engine.split_into_batches(asked, 2)
    # Of the first batch one prompt is known: the other is asked alone, and no batch is
    # filled up with it. A batch that is known is not asked.
    known = {whole[0][0].prompt_id, *(request.prompt_id for request in whole[2])}
    batches = local.find_remaining_batches(whole, known)
    assert batches == [[whole[0][1]], whole[1]]
