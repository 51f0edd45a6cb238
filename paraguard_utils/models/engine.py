"""Query a local model in batches (`docs/method.md`, Asking).

One prefill of the prompt gives the loss on the user's tokens and the distribution of
the first answer token; decoding continues from the same cache. Prompts are left-padded,
and the part that all share is computed once. Generation does not stop at refusal cues:
the label rule must not decide what is generated.
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache

from paraguard_utils import seams
from paraguard_utils.models.loading import LoadedModel
from paraguard_utils.models.prompting import Decoding, Request, count_shared

# Token positions in the cache of one batch; longer prompts come in smaller batches
BATCH_POSITIONS = 32_768
# The users' tokens in one batch: each has logits of the whole vocabulary
USER_POSITIONS = 2048
# First answer tokens kept in a trace; the probability of all others is `tail_mass`
TOP_TOKENS = 64

TraceRow: TypeAlias = dict[str, Any]  # by column


def count_shared_tokens(requests: Sequence[Request]) -> int:
    """Return how many leading tokens all requests share.

    The token that predicts a user's first word is not among them.
    """
    first_user_token = min(request.user_start for request in requests)
    prefix = requests[0].token_ids[: max(first_user_token - 1, 0)]
    return min(count_shared(prefix, request.token_ids) for request in requests)


def split_into_batches(
    requests: Sequence[Request], size: int, max_new_tokens: int = 0
) -> list[list[Request]]:
    """Split requests into batches of similar length.

    The longest come first, so that memory trouble shows at once.

    Parameters
    ----------
    requests : Sequence of Request
    size : int
        Most rows of a batch. It also has at most `BATCH_POSITIONS` token positions,
        those of padding and of the answers included, and `USER_POSITIONS` of users'
        tokens, but one row at least.
    max_new_tokens : int
        Most tokens of an answer.

    Returns
    -------
    list of list of Request
    """
    left = sorted(requests, key=lambda r: (-len(r.token_ids), r.prompt_id))
    batches = []
    while left:
        longest = left[0]
        rows = min(
            size,
            BATCH_POSITIONS // (len(longest.token_ids) + max_new_tokens),
            USER_POSITIONS // (longest.user_end - longest.user_start),
        )
        rows = max(rows, 1)
        batches.append(left[:rows])
        left = left[rows:]
    return batches


class Engine:
    """Answers batches of requests with one loaded model.

    Parameters
    ----------
    model : LoadedModel
        It must keep no state but keys and values.
    prefix : Sequence of int
        The leading tokens that all requests share. They are computed once, unless the
        model derives distances from places in the cache (a sliding window, no position
        ids): padding would be between the prefix and the rest.
    decoding : Decoding
        How an answer is generated, and how many tokens it has at most.

    Raises
    ------
    ModelError
        The model keeps another state.
    """

    def __init__(
        self,
        model: LoadedModel,
        prefix: Sequence[int],
        decoding: Decoding,
    ) -> None:
        self.network = model.network
        self.tokenizer = model.tokenizer
        self.device = model.network.device
        self.decoding = decoding
        self.stops = self._tensor(find_stop_tokens(model))
        seams.load_extension("loaders", "model_state")(model.network.config)
        self.cache = DynamicCache(config=model.network.config)
        parameters = inspect.signature(self.network.forward).parameters
        self.has_positions = "position_ids" in parameters
        self.prefix: tuple[int, ...] = ()
        if self.has_positions and not any(self.cache.is_sliding):
            self.prefix = tuple(prefix)
        if self.prefix:
            ids = self._tensor([self.prefix])
            with torch.inference_mode():
                self._forward(ids, torch.ones_like(ids), self.cache)

    def ask(self, batch: Sequence[Request]) -> list[TraceRow]:
        """Answer a batch, not empty, of requests that start with the prefix.

        Returns
        -------
        list of TraceRow
            In the order given. A row has the fields of the request and the columns of
            `schemas.SCHEMAS["traces"]`.
        """
        cache = copy.deepcopy(self.cache)
        with torch.inference_mode():
            logits, mask = self._prefill(batch, cache)
            rows = []
            for request, own in zip(batch, logits, strict=True):
                rows.append(make_row(request, own))
            ends = torch.stack([own[-1] for own in logits])
            del logits
            keys = [request.key for request in batch]
            answers = self._decode(keys, ends, mask, cache)
        for row, (tokens, finish_reason) in zip(rows, answers, strict=True):
            row["response"] = self.read_tokens(tokens)
            row["finish_reason"] = finish_reason
        return rows

    def read_tokens(self, tokens: list[int]) -> str:
        """Return an answer as text, without control tokens and white space around."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True)).strip()

    def _tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def _prefill(
        self, requests: Sequence[Request], cache: DynamicCache
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Run prompts, left-padded after the shared prefix.

        Returns
        -------
        sequence of Tensor, shape (user tokens + 1, vocabulary)
            For each prompt the logits that predict its user tokens, then its answer.
        Tensor, shape (rows, tokens)
            The mask, 0 at padding.
        """
        shared = len(self.prefix)
        if shared:
            cache.batch_repeat_interleave(len(requests))
        width = max(len(request.token_ids) for request in requests)
        ids = []
        mask = []
        shape = (len(requests), width - shared)
        needed = torch.zeros(shape, dtype=torch.bool, device=self.device)
        needed[:, -1] = True
        for row, request in enumerate(requests):
            size = len(request.token_ids)
            padding = [0] * (width - size)
            ids.append(padding + list(request.token_ids[shared:]))
            mask.append([1] * shared + padding + [1] * (size - shared))
            start = width - size - shared - 1
            needed[row, start + request.user_start : start + request.user_end] = True
        attention = self._tensor(mask)
        logits = self._forward(self._tensor(ids), attention, cache, needed)
        counts = [request.user_end - request.user_start + 1 for request in requests]
        return logits.split(counts), attention

    def _forward(
        self, ids: Tensor, mask: Tensor, cache: DynamicCache, keep: Tensor | int = 1
    ) -> Tensor:
        """Run the model on new tokens; return the logits of the tokens in `keep`.

        `mask` is of all tokens so far.
        """
        options = {}
        if self.has_positions:
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            options["position_ids"] = positions[:, -ids.shape[1] :]
        return self.network(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
            **options,
        ).logits

    def _decode(
        self, keys: Sequence[str], logits: Tensor, mask: Tensor, cache: DynamicCache
    ) -> list[tuple[list[int], str]]:
        """Continue from the logits of the first tokens, shape (rows, vocabulary).

        Return the tokens and the finish reason of each row.
        """
        answers: list[list[int]] = [[] for _ in keys]
        reasons = ["stop"] * len(keys)
        # Which answer each row of the batch belongs to; finished rows leave it
        rows = list(range(len(keys)))
        for step in range(self.decoding.max_new_tokens):
            running_keys = [keys[row] for row in rows]
            token = self.decoding.choose(logits, running_keys, step)
            running = ~torch.isin(token, self.stops)
            if not running.all():
                kept = running.nonzero()[:, 0]
                rows = [rows[place] for place in kept.tolist()]
                token = token[kept]
                mask = mask[kept]
                cache.batch_select_indices(kept)
            for row, value in zip(rows, token.tolist(), strict=True):
                answers[row].append(value)
            if not rows or step == self.decoding.max_new_tokens - 1:
                break
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            logits = self._forward(token[:, None], mask, cache)[:, -1]
        for row in rows:
            reasons[row] = "length"
        return list(zip(answers, reasons, strict=True))


def find_stop_tokens(model: LoadedModel) -> list[int]:
    """Return the tokens that end an answer, sorted.

    The model's generation settings and its tokenizer name them.
    """
    ids = model.network.generation_config.eos_token_id
    stops = set(ids if isinstance(ids, list) else [ids])
    stops.add(model.tokenizer.eos_token_id)
    return sorted(stops - {None})


def make_row(request: Request, logits: Tensor) -> TraceRow:
    """Return a trace row without its answer.

    The logits predict the user tokens, then the answer: shape (user tokens + 1,
    vocabulary).
    """
    user = slice(request.user_start, request.user_end)
    targets = torch.tensor(request.token_ids[user], device=logits.device)
    losses = cross_entropy(logits[:-1].float(), targets, reduction="none")
    nll = np.full(len(request.token_ids), np.nan, np.float32)
    nll[user] = losses.cpu().numpy()
    top = torch.log_softmax(logits[-1].cpu().double(), dim=-1).topk(
        min(TOP_TOKENS, logits.shape[-1])
    )
    logprobs = top.values.numpy()
    return {
        **vars(request),
        "token_ids": np.array(request.token_ids, np.int32),
        "token_nll": nll,
        "next_ids": top.indices.numpy().astype(np.int32),
        "next_logprobs": logprobs.astype(np.float32),
        "tail_mass": float(max(0.0, 1.0 - np.exp(logprobs).sum())),
    }
