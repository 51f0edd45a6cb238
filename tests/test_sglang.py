"""SGLang's two requests: what its chat endpoint and its own tell of a prompt is what a local model knows.

No SGLang runs here. `Served` answers in the form of its source (0.5.23: `entrypoints/openai/protocol.py`,
`managers/tokenizer_manager.py`) with the numbers of a tiny model.
"""

import json
import threading

import pytest
import tenacity
import torch
from asking import ask, same
from pytest_httpserver import HTTPServer
from werkzeug import Response

from paraguard_utils.models import served


def error(status, **body):
    return Response(json.dumps(body), status=status, content_type="application/json")


class Served:
    """A tiny model behind the two endpoints; fields that they do not know are passed over, as there.

    What a script has is answered to one prompt after another, not to the requests that find out what is told.
    """

    def __init__(self, model, script=(), ids=True):
        self.model, self.script, self.ids = model, list(script), ids
        self.lock, self.generated, self.authorized = threading.Lock(), [], set()

    def logits(self, ids):
        with torch.inference_mode():
            return torch.log_softmax(self.model.network(torch.tensor([ids])).logits[0].double(), -1)

    def top(self, values, count):
        found = values.topk(count)
        return [
            [value, token, None] for value, token in zip(found.values.tolist(), found.indices.tolist(), strict=True)
        ]

    def chat(self, request):
        body = json.loads(request.data)
        own = self.model.tokenizer
        text = own.apply_chat_template(body["messages"], add_generation_prompt=True, tokenize=False)
        ids = own(text, add_special_tokens=False)["input_ids"]
        with self.lock, torch.inference_mode():
            answer = self.model.network.generate(
                torch.tensor([ids]), max_new_tokens=body["max_tokens"], do_sample=False, pad_token_id=1
            )[0, len(ids) :].tolist()
            first = self.logits(ids)[-1] if body.get("logprobs") else None
        message = {"role": "assistant", "content": own.decode(answer, skip_special_tokens=True)}
        choice = {"index": 0, "message": message | {"reasoning_content": None}, "matched_stop": None, "logprobs": None}
        choice["finish_reason"] = "stop" if 1 in answer else "length"
        if first is not None:
            top = self.top(first, body["top_logprobs"])
            named = [{"token": own.decode(token), "bytes": [], "logprob": value} for value, token, _ in top]
            choice["logprobs"] = {"content": [named[0] | {"top_logprobs": named}]}
        if self.ids and body.get("return_prompt_token_ids"):
            choice["prompt_token_ids"] = ids
        return error(200, object="chat.completion", choices=[choice], usage={"prompt_tokens": len(ids)})

    def generate(self, request):
        body = json.loads(request.data)
        assert body["return_logprob"] and body["sampling_params"] == {"max_new_tokens": 1, "temperature": 0}
        with self.lock:
            self.authorized.add(request.headers["Authorization"])
            self.generated.append(body["input_ids"])
            probe = any(words in self.model.tokenizer.decode(body["input_ids"]) for words in served._PROBES)
            step = self.script.pop(0) if self.script and not probe else None
            if isinstance(step, Response):
                return step
            known, ids, start = self.logits(body["input_ids"]), body["input_ids"], body["logprob_start_len"]
        told = [[None, ids[start], None]]
        told += [[known[place - 1, ids[place]].item(), ids[place], None] for place in range(start + 1, len(ids))]
        tops = [None, *(self.top(row, body["top_logprobs_num"]) for row in known[start:-1])]
        last = self.top(known[-1], body["top_logprobs_num"])
        about = {
            "id": "1",
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": len(ids),
            "input_token_logprobs": told,
            "output_token_logprobs": [last[0]],
            "output_token_logprobs_length": 1,
            "input_top_logprobs": tops,
            "output_top_logprobs": [last],
        }
        if step:
            step(about)
        return error(200, text="", output_ids=[last[0][1]], meta_info=about)


@pytest.fixture
def sglang(monkeypatch, results, tiny_model):
    monkeypatch.setenv(served.KEY, "sk-QUOKKA")
    monkeypatch.setattr(served, "WAIT", tenacity.wait_none())
    with HTTPServer(threaded=True) as http:

        def start(native=True, **more):
            handler = Served(tiny_model, **more)
            http.clear_all_handlers()
            http.expect_request("/v1/chat/completions", method="POST").respond_with_handler(handler.chat)
            if native:
                http.expect_request("/generate", method="POST").respond_with_handler(handler.generate)
            else:
                http.expect_request("/generate").respond_with_data("{}", 404)
            return handler, served.Server("tiny", http.url_for("/v1"), 4, argument="openai/tiny")

        yield start


@pytest.mark.parametrize("wrapper", ["none", "safety"])
def test_rows_are_those_of_the_local_model(sglang, tiny_model, prompts, wrapper):
    handler, model = sglang()
    assert model.telling == served.Telling("full", 64, "max_tokens", sglang=True)
    there, here = ask(prompts, model, wrapper), ask(prompts, tiny_model, wrapper)
    same(there.drop(columns="key"), here[there.columns].drop(columns="key"))
    assert handler.authorized == {"Bearer sk-QUOKKA"}
    asked = len(handler.generated)
    assert len(ask(prompts, model, wrapper)) == len(prompts)
    assert not {tuple(ids) for ids in handler.generated[asked:]} & {tuple(ids) for ids in here["token_ids"]}


def test_faults_of_the_second_request_pass(sglang, tiny_model, prompts):
    script = [
        error(500, error={"message": "oh"}),
        Response("<html>", content_type="text/html"),
        lambda about: about["input_token_logprobs"].pop(),
        lambda about: about["input_token_logprobs"][1].__setitem__(0, None),
        lambda about: about.pop("output_top_logprobs"),
    ]
    handler, model = sglang()
    assert model.telling.sglang
    handler.script[:] = script
    there = ask(prompts, model)
    same(there.drop(columns="key"), ask(prompts, tiny_model)[there.columns].drop(columns="key"))
    assert model.faults == {"status 500": 1, "unreadable answer": 4}


@pytest.mark.parametrize("less", [{"native": False}, {"ids": False}], ids=["behind a gateway", "an older one"])
def test_where_only_the_chat_endpoint_tells_its_answer_tokens_are_read(sglang, prompts, less):
    handler, model = sglang(**less)
    assert (model.telling.level, model.telling.top, model.telling.sglang) == ("answer tokens", 20, False)
    traces = ask(prompts.head(2), model)
    assert traces["next_ids"].map(len).between(5, 20).all() and not handler.generated
