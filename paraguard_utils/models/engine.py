"""Ask a local model in batches, greedily or by sampling (`docs/method.md`, Asking).

One prefill of the prompt gives the loss on the user's tokens and the distribution of
the first answer token; decoding continues from the same cache. Prompts are left-padded,
and the part that all share is computed once. Generation does not stop at refusal cues:
the label rule must not decide what is generated.
"""

import copy
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from paraguard_utils.errors import ModelError
from paraguard_utils.models.cpu import FittedThreads
from paraguard_utils.models.loading import LoadedModel
from paraguard_utils.models.prompting import Request, count_shared

# Token positions in one prefill: the products are large enough, and the CPU's caches
# too
PREFILL_POSITIONS = 320
GPU_PREFILL_POSITIONS = (
    8192  # in one prefill on a GPU, which wants few and large products
)
# Token positions in the cache of one batch; longer prompts come in smaller batches
BATCH_POSITIONS = 32_768
# First answer tokens kept in a trace; the probability of all others is `tail_mass`
TOP_TOKENS = 64
_NO_SYSTEM = -100  # the system of logits without a loss
_SHRINK_SHARE = (
    7 / 8
    # Finished rows leave a batch when no more of it still goes: leaving copies the whole
    # cache
)
TraceRow: TypeAlias = dict[str, Any]  # by column


def count_shared_tokens(requests: Sequence[Request]) -> int:
    """Return how many leading tokens all requests share, without the token that
    predicts a user's first word.
    """
    first = requests[0].token_ids[
        : max(min(request.user_start for request in requests) - 1, 0)
    ]
    return min(count_shared(first, request.token_ids) for request in requests)


def split_into_batches(
    requests: Sequence[Request], size: int, more: int = 0
) -> list[list[Request]]:
    """Split requests into batches of similar length, longest first, so that memory
    trouble shows at once.

    A batch has at most `size` rows and at most `BATCH_POSITIONS` token positions,
    padding and `more` tokens for each answer included, but one row at least.
    """
    ordered = sorted(
        requests, key=lambda request: (-len(request.token_ids), request.prompt_id)
    )
    found = []
    while ordered:
        rows = max(1, min(size, BATCH_POSITIONS // (len(ordered[0].token_ids) + more)))
        found.append(ordered[:rows])
        ordered = ordered[rows:]
    return found


def ask_in_batches(
    model: LoadedModel,
    requests: Sequence[Request],
    size: int,
    max_new_tokens: int,
    raw: bool = False,
) -> list[TraceRow]:
    """Ask a model greedily, in the batches of `split_into_batches`.

    Return trace rows in the order of the requests.
    """
    if not requests:
        return []
    engine = Engine(
        model,
        requests[0].token_ids[: count_shared_tokens(requests)],
        max_new_tokens,
        raw=raw,
    )
    batches = split_into_batches(requests, size, max_new_tokens)
    rows = {row["prompt_id"]: row for batch in batches for row in engine.ask(batch)}
    return [rows[request.prompt_id] for request in requests]


class RoomyLayer(DynamicLayer):
    """A cache layer that keeps free room behind its keys and values, so that it need
    not copy all to add some.
    """

    room = 64
    keys: Tensor
    values: Tensor
    given: Tensor | None = None
    buffers: tuple[Tensor, ...] = ()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values, shape (batch, heads, tokens, dimensions).

        Return all so far.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
        old, more = self.keys.shape[-2], key_states.shape[-2]
        new = old + more
        # Other keys than those returned last time were selected or repeated since: the
        # room is not theirs.
        if self.keys is not self.given or self.buffers[0].shape[-2] < new:
            shape = (
                *key_states.shape[:2],
                new + (self.room if more == 1 else 0),
            )  # a prefill needs no room
            self.buffers = tuple(
                states.new_empty(*shape, states.shape[-1])
                for states in (key_states, value_states)
            )
            self.buffers[0][..., :old, :], self.buffers[1][..., :old, :] = (
                self.keys,
                self.values,
            )
        self.buffers[0][..., old:new, :], self.buffers[1][..., old:new, :] = (
            key_states,
            value_states,
        )
        self.keys, self.values = (buffer[..., :new, :] for buffer in self.buffers)
        self.given = self.keys
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows, and free the old room at once: it is as large as the cache."""
        super().batch_select_indices(indices)
        self.given, self.buffers = None, ()


class Engine:
    """Answers batches of requests with one loaded model, which must keep no state but
    keys and values (`ModelError`).

    The leading tokens that all requests share, `prefix`, are computed once, unless the
    model derives distances from places in the cache (a sliding window, no position
    ids): padding would lie between the prefix and the rest. At `temperature` 0 decoding
    is greedy; else each token is drawn, seeded by the request's key. With `raw` an
    answer keeps white space around it and control tokens in it, except the token that
    ends it.
    """

    def __init__(
        self,
        model: LoadedModel,
        prefix: Sequence[int],
        max_new_tokens: int,
        temperature: float = 0,
        raw: bool = False,
    ) -> None:
        self.network, self.tokenizer, self.device = (
            model.network,
            model.tokenizer,
            model.network.device,
        )
        self.threads = FittedThreads(self.device)
        self.max_new_tokens, self.temperature, self.raw = (
            max_new_tokens,
            temperature,
            raw,
        )
        self.stops = self._tensor(find_stop_tokens(model))
        self.cache = DynamicCache(config=self.network.config)
        # Layers with a sliding window keep the library's own class.
        self.cache.layers = [
            RoomyLayer() if type(layer) is DynamicLayer else layer
            for layer in self.cache.layers
        ]
        for layer in self.cache.layers:
            if type(layer) not in (RoomyLayer, DynamicSlidingWindowLayer, DummyLayer):
                raise ModelError(
                    f"a model of type {self.network.config.model_type} keeps a state"
                    f" ({type(layer).__name__}) that cannot be asked in padded batches;"
                    " only models with keys and values in every layer are supported"
                )
        self.positions = (
            "position_ids" in inspect.signature(self.network.forward).parameters
        )
        windows = any(
            isinstance(layer, DynamicSlidingWindowLayer) for layer in self.cache.layers
        )
        self.prefix = tuple(prefix) if self.positions and not windows else ()
        if self.prefix:
            with torch.inference_mode():
                self.network(
                    input_ids=self._tensor([self.prefix]),
                    past_key_values=self.cache,
                    use_cache=True,
                    logits_to_keep=1,
                )

    def ask(self, batch: Sequence[Request]) -> list[TraceRow]:
        """Answer a batch, not empty, of requests that start with the prefix.

        Return trace rows in the order given.
        """
        with torch.inference_mode(), self.threads:
            shared = len(self.prefix)
            order = sorted(range(len(batch)), key=lambda i: -len(batch[i].token_ids))
            rows: list[TraceRow] = []
            cache: DynamicCache | None = None
            masks: list[Tensor] = []
            ends: list[Tensor] = []
            while len(rows) < len(batch):
                width = len(batch[order[len(rows)]].token_ids) - shared
                positions = (
                    PREFILL_POSITIONS
                    if self.device.type == "cpu"
                    else GPU_PREFILL_POSITIONS
                )
                part = [
                    batch[i]
                    for i in order[len(rows) : len(rows) + max(1, positions // width)]
                ]
                traced, end, own, mask = self._prefill(part, width)
                cache = _merged(cache, own, len(rows), len(batch))
                rows += traced
                ends.append(end)
                masks.append(mask)
            assert cache is not None  # a batch is not empty
            wide = masks[0].shape[1]
            mask = torch.cat(
                [
                    torch.nn.functional.pad(mask, (wide - mask.shape[1], 0))
                    for mask in masks
                ]
            )
            chance = None
            first = self._tensor([row["next_ids"][0] for row in rows])
            if self.temperature:
                chance = _chances([row["key"] for row in rows], self.max_new_tokens).to(
                    self.device
                )
                first = self._drawn(torch.cat(ends), chance[:, 0])
            answers = self._decode(cache, mask, first, chance)
            for row, (tokens, finish_reason) in zip(rows, answers, strict=True):
                text = str(
                    self.tokenizer.decode(tokens, skip_special_tokens=not self.raw)
                )
                row["response"] = text if self.raw else text.strip()
                row["finish_reason"] = finish_reason
            return [
                row
                for _, row in sorted(
                    zip(order, rows, strict=True), key=lambda pair: pair[0]
                )
            ]

    def _tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def _prefill(
        self, part: list[Request], width: int
    ) -> tuple[list[TraceRow], Tensor, DynamicCache, Tensor]:
        """Run prompts, left-padded to `width` after the shared prefix.

        Return trace rows, last logits, cache, mask.
        """
        shared = len(self.prefix)
        own = [len(request.token_ids) - shared for request in part]
        ids = self._tensor(
            [
                [0] * (width - n) + list(r.token_ids[shared:])
                for r, n in zip(part, own, strict=True)
            ]
        )
        mask = self._tensor([[1] * shared + [0] * (width - n) + [1] * n for n in own])
        # The output layer is needed where the next token is one of the user's, and at
        # the end.
        keep = torch.zeros(len(part), width, dtype=torch.bool, device="cpu")
        for row, request in enumerate(part):
            end = width - len(request.token_ids)
            keep[row, end + request.user_start - 1 : end + request.user_end - 1] = True
        keep[:, -1] = True
        cache = copy.deepcopy(self.cache)
        if shared:
            cache.batch_repeat_interleave(len(part))
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, shared:]
        logits = self._forward(ids, mask, positions, cache, keep.to(self.device))
        counts = torch.tensor(
            [request.user_end - request.user_start + 1 for request in part],
            device=self.device,
        )
        ends = logits[counts.cumsum(0) - 1]
        return (
            _traces(part, logits, ends),
            ends if self.temperature else ends[:0],
            cache,
            mask,
        )

    def _forward(
        self,
        ids: Tensor,
        mask: Tensor,
        positions: Tensor,
        cache: DynamicCache,
        keep: Tensor | int,
    ) -> Tensor:
        """Run the model on new tokens; return the logits of the tokens in `keep`."""
        self.threads.fit()
        more = {"position_ids": positions} if self.positions else {}
        return self.network(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
            **more,
        ).logits

    def _drawn(self, logits: Tensor, chance: Tensor) -> Tensor:
        """Draw a token for each row: the first whose cumulated probability exceeds the
        row's number in [0, 1).
        """
        cumulated = torch.softmax(logits.float() / self.temperature, dim=-1).cumsum(
            -1, dtype=torch.float64
        )
        reached = chance[:, None] * cumulated[:, -1:]  # the sum is 1 but for rounding
        return torch.searchsorted(cumulated, reached, right=True)[:, 0]

    def _decode(
        self, cache: DynamicCache, mask: Tensor, token: Tensor, chance: Tensor | None
    ) -> list[tuple[list[int], str]]:
        """Continue from the first answer tokens.

        Return (tokens, finish_reason) per row.
        """
        answers: list[list[int]] = [[] for _ in token]
        reasons = ["length"] * len(token)
        rows = torch.arange(
            len(token), device=self.device
        )  # which answer each row of the batch belongs to
        going = torch.ones_like(rows, dtype=torch.bool)
        for step in range(self.max_new_tokens):
            going &= ~torch.isin(token, self.stops)
            for row, value, goes in zip(
                rows.tolist(), token.tolist(), going.tolist(), strict=True
            ):
                if goes:
                    answers[row].append(value)
                else:
                    reasons[row] = "stop"
            if step == self.max_new_tokens - 1 or not going.any():
                break
            if going.sum() <= len(going) * _SHRINK_SHARE:
                kept = torch.nonzero(going).squeeze(1)
                rows, token, mask, going = (
                    rows[kept],
                    token[kept],
                    mask[kept],
                    going[kept],
                )
                cache.batch_select_indices(kept)
            position = mask.sum(1, keepdim=True)
            mask = torch.cat([mask, torch.ones_like(position)], dim=1)
            logits = self._forward(token[:, None], mask, position, cache, 1)[:, -1]
            token = (
                logits.argmax(-1)
                if chance is None
                else self._drawn(logits, chance[rows, step + 1])
            )
        return list(zip(answers, reasons, strict=True))


def _chances(keys: Sequence[str], tokens: int) -> Tensor:
    """Return numbers in [0, 1) that depend on a request's key only, shape (keys,
    tokens).
    """
    return torch.tensor(
        np.stack([np.random.default_rng(int(key, 16)).random(tokens) for key in keys])
    )


def find_stop_tokens(model: LoadedModel) -> list[int]:
    """Return the tokens that end an answer by the model's generation settings and its
    tokenizer, sorted.
    """
    ids = model.network.generation_config.eos_token_id
    ids = set(ids if isinstance(ids, list) else [ids]) | {model.tokenizer.eos_token_id}
    return sorted(ids - {None})


def _merged(
    whole: DynamicCache | None, cache: DynamicCache, row: int, rows: int
) -> DynamicCache:
    """Put a prefill, right-aligned, into a batch's cache from `row` on.

    Without one (None) the first makes it.
    """
    whole = cache if whole is None else whole
    pairs: Iterable[tuple[Any, Any]] = zip(
        whole.layers, cache.layers, strict=True
    )  # no base declares what they share
    for into, layer in pairs:
        if layer.keys is None:
            continue
        states = (layer.keys, layer.values)
        if into is layer:
            _, heads, wide, _ = layer.keys.shape
            room = layer.room if isinstance(layer, RoomyLayer) else 0
            buffers = tuple(
                part.new_empty(rows, heads, wide + room, part.shape[-1])
                for part in states
            )
            into.keys, into.values = (buffer[..., :wide, :] for buffer in buffers)
            if room:
                into.given, into.buffers = into.keys, buffers
        for own, part in zip((into.keys, into.values), states, strict=True):
            own = own[row : row + len(part)]
            own[..., : own.shape[-2] - part.shape[-2], :] = (
                0  # masked, but arbitrary memory might hold NaN
            )
            own[..., own.shape[-2] - part.shape[-2] :, :] = part
    return whole


def _traces(part: list[Request], logits: Tensor, ends: Tensor) -> list[TraceRow]:
    """Return trace rows from logits, shape (rows, vocabulary): for each prompt, of its
    user tokens and then its end.
    """
    # A prompt's last logits predict its answer: they have no system, and leaving them
    # out would copy all others.
    systems = [
        (*request.token_ids[request.user_start : request.user_end], _NO_SYSTEM)
        for request in part
    ]
    flat = torch.tensor(
        [token for own in systems for token in own], device=logits.device
    )
    losses = torch.nn.functional.cross_entropy(
        logits.float(), flat, reduction="none", ignore_index=_NO_SYSTEM
    )
    losses = losses.cpu().split([len(own) for own in systems])
    top = torch.log_softmax(ends.cpu().double(), dim=-1).topk(
        min(TOP_TOKENS, logits.shape[-1])
    )
    indices, logprobs = top.indices.numpy().astype(np.int32), top.values.numpy()
    rows = []
    for request, loss, ids, logps in zip(part, losses, indices, logprobs, strict=True):
        nll = np.full(len(request.token_ids), np.nan, np.float32)
        nll[request.user_start : request.user_end] = loss[:-1].numpy()
        prompt = {"token_ids": np.array(request.token_ids, np.int32), "token_nll": nll}
        answer = {"next_ids": ids, "next_logprobs": logps.astype(np.float32)}
        rows.append(
            vars(request)
            | prompt
            | answer
            | {"tail_mass": float(max(0.0, 1.0 - np.exp(logps).sum()))}
        )
    return rows
