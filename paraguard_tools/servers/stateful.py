"""Query a model that keeps another state than keys and values, such as Mamba.

State-space models and hybrids cannot be queried in padded batches: padding would enter
their state. So `generate` of transformers answers one prompt at a time, more slowly.
What a trace holds is the same.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PretrainedConfig,
)

from paraguard_lab.models import families, gguf
from paraguard_utils.models import backends, engine, loading, local
from paraguard_utils.models.local import Batch
from paraguard_utils.models.prompting import Decoding, PromptContext, Request
from paraguard_utils.schemas import Traces
from paraguard_utils.settings import RAY_DEVICE, QueryOptions


def takes(options: QueryOptions) -> bool:
    """Return whether the parameters name local weights that keep another state."""
    is_elsewhere = options.base_url or options.device == RAY_DEVICE
    is_packaged = not options.model or options.model in loading.PACKAGED_MODELS
    if is_elsewhere or is_packaged:
        return False
    config = _read_config(options.model)
    return config is not None and families.keeps_other_state(config)


@cache
def _read_config(model: str) -> PretrainedConfig | None:
    """Read the configuration of a model without its weights.

    It is None if transformers knows no causal language model of that kind; whoever
    loads the model says so.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        folder = gguf.convert_gguf(loading.resolve_model(model))
    try:
        config = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception:  # of many kinds, by what is wrong with the file
        return None
    return config if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else None


def resolve(options: QueryOptions) -> list[backends.BackendSource]:
    """Find the weights of the model that the parameters name."""
    return [
        StatefulSource(**vars(source), dtype=options.dtype)
        for source in backends.resolve_models(options)
    ]


class StatefulSource(backends.LocalSource):
    """A model with another state whose weights are on this machine."""

    def open(self, options: QueryOptions) -> "StatefulBackend":
        """Load the weights onto the device."""
        backend = StatefulBackend(self.load(options))
        print(
            f"{self.name} keeps a state other than keys and values: it is queried one"
            " prompt at a time, which is slower than in batches",
            file=sys.stderr,
        )
        return backend


class StatefulBackend(local.LocalBackend):
    """A loaded model that is queried one prompt at a time."""

    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what the meta file of traces records beside the context."""
        return {**super().facts(traces), "engine": "transformers generate"}

    def answer_batches(
        self, batches: Sequence[Batch], prefix: tuple[int, ...], context: PromptContext
    ) -> Iterator[Traces]:
        """Query prompts one after another, and yield each as it is answered."""
        generator = Generator(self.model, context.decoding)
        for batch in batches:
            for request in batch:
                yield local.make_traces(generator.ask([request]), context)


class Generator:
    """Answers requests one by one with `generate` of transformers.

    Parameters
    ----------
    model : LoadedModel
        Its own settings of generation, such as a penalty of repetition, are set aside,
        as `engine.Engine` does.
    decoding : Decoding
        How an answer is generated, and how many tokens it has at most.
    """

    def __init__(self, model: loading.LoadedModel, decoding: Decoding) -> None:
        self.network: Any = model.network
        self.tokenizer = model.tokenizer
        self.decoding = decoding
        self.stops = engine.find_stop_tokens(model)
        self.network.generation_config = GenerationConfig(
            eos_token_id=self.stops, pad_token_id=min(self.stops, default=0)
        )

    def ask(self, batch: Batch) -> list[engine.TraceRow]:
        """Answer requests, in the order given (rows as in `engine.Engine.ask`)."""
        with torch.inference_mode():
            return [self._ask_one(request) for request in batch]

    def _ask_one(self, request: Request) -> engine.TraceRow:
        ids = torch.tensor([request.token_ids], device=self.network.device)
        mask = torch.ones_like(ids)
        logits = self.network(input_ids=ids, attention_mask=mask).logits[0]
        predicts_user = logits[request.user_start - 1 : request.user_end - 1]
        row = engine.make_row(request, torch.cat([predicts_user, logits[-1:]]))
        chosen = _Choice(self.decoding, request)
        generated = self.network.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=self.decoding.max_new_tokens,
            do_sample=False,
            logits_processor=LogitsProcessorList([chosen]),
        )
        tokens = generated[0, ids.shape[1] :].tolist()
        has_ended = tokens[-1] in self.stops
        if has_ended:
            tokens = tokens[:-1]
        text = str(self.tokenizer.decode(tokens, skip_special_tokens=True))
        row["response"] = text.strip()
        row["finish_reason"] = "stop" if has_ended else "length"
        return row


class _Choice(LogitsProcessor):
    """Leave the one token that a decoding chooses."""

    def __init__(self, decoding: Decoding, request: Request) -> None:
        self.decoding = decoding
        self.request = request

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - len(self.request.token_ids)
        token = self.decoding.choose(scores, [self.request.key], step)
        only = torch.full_like(scores, -torch.inf)
        return only.scatter(1, token[:, None], 0.0)
