"""Query a local model in batches, greedily or by sampling (`docs/method.md`, Asking).

One prefill of the prompt gives the loss on the user's tokens and the distribution of
the first answer token; decoding continues from the same cache. Prompts are left-padded,
and the part that all share is computed once. Generation does not stop at refusal cues:
the label rule must not decide what is generated.
"""

import copy
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from transformers import DynamicCache
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from paraguard_utils.errors import ModelError
from paraguard_utils.models.cpu import FittedThreads
from paraguard_utils.models.loading import LoadedModel
from paraguard_utils.models.prompting import Request, count_shared

# Token positions in one prefill: the products are large enough, and the CPU's caches
# too. A GPU wants few and large products.
PREFILL_POSITIONS = 320
GPU_PREFILL_POSITIONS = 8192
# Token positions in the cache of one batch; longer prompts come in smaller batches
BATCH_POSITIONS = 32_768
# First answer tokens kept in a trace; the probability of all others is `tail_mass`
TOP_TOKENS = 64
# Finished rows leave a batch when at most this share still goes on: leaving copies the
# whole cache
_SHRINK_SHARE = 7 / 8
_NO_TARGET = -100  # the token of logits without a loss

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
        those of padding and of the answers included, but one row at least.
    max_new_tokens : int
        Most tokens of an answer.

    Returns
    -------
    list of list of Request
    """
    left = sorted(requests, key=lambda r: (-len(r.token_ids), r.prompt_id))
    batches = []
    while left:
        positions = len(left[0].token_ids) + max_new_tokens
        rows = max(1, min(size, BATCH_POSITIONS // positions))
        batches.append(left[:rows])
        left = left[rows:]
    return batches


class RoomyLayer(DynamicLayer):
    """A cache layer with free room behind its keys and values.

    The library's own layer copies all keys and values to append some. This one keeps
    them at the beginning of `buffers`, and `keys` and `values` are views of these.
    """

    room = 64
    keys: Tensor
    values: Tensor
    returned: Tensor | None = None  # the keys that `update` returned last
    buffers: tuple[Tensor, ...] = ()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values, shape (batch, heads, tokens, dimensions).

        Return all so far.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys = key_states[..., :0, :]
            self.values = value_states[..., :0, :]
        old = self.keys.shape[-2]
        new = old + key_states.shape[-2]
        # The cache may have been reindexed since the last update: then the buffers are
        # no longer those of its keys
        is_ours = self.keys is self.returned
        if not is_ours or self.buffers[0].shape[-2] < new:
            is_prefill = key_states.shape[-2] > 1
            self._grow(key_states, value_states, new if is_prefill else new + self.room)
        for buffer, states in zip(
            self.buffers, (key_states, value_states), strict=True
        ):
            buffer[..., old:new, :] = states
        self.keys, self.values = (buffer[..., :new, :] for buffer in self.buffers)
        self.returned = self.keys
        return self.keys, self.values

    def _grow(self, key_states: Tensor, value_states: Tensor, size: int) -> None:
        """Copy what the layer holds into buffers of `size` tokens."""
        self.buffers = (
            _new_buffer(key_states, len(key_states), size),
            _new_buffer(value_states, len(value_states), size),
        )
        old = self.keys.shape[-2]
        for buffer, states in zip(self.buffers, (self.keys, self.values), strict=True):
            buffer[..., :old, :] = states

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows, and free the buffers at once, as large as the cache."""
        super().batch_select_indices(indices)
        self.returned = None
        self.buffers = ()


def _new_buffer(states: Tensor, rows: int, tokens: int) -> Tensor:
    _, heads, _, dimensions = states.shape
    return states.new_empty(rows, heads, tokens, dimensions)


@dataclass
class Step:
    """New tokens of some rows: their ids and positions, and the mask of all so far."""

    ids: Tensor
    mask: Tensor
    positions: Tensor


@dataclass
class Prefill:
    """What a prefill leaves of some prompts, one row each.

    `ends` are the logits of the first answer token, shape (rows, vocabulary), or none
    under greedy decoding, which does not need them. `mask` is 0 at padding, shape
    (rows, tokens).
    """

    rows: list[TraceRow]
    ends: Tensor
    cache: DynamicCache
    mask: Tensor


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
    max_new_tokens : int
        Most tokens of an answer.
    temperature : float
        At 0 decoding is greedy; else each token is drawn, seeded by the request's key.
    raw : bool
        Whether an answer keeps white space around it and control tokens in it, except
        the token that ends it.

    Raises
    ------
    ModelError
        The model keeps another state.
    """

    def __init__(
        self,
        model: LoadedModel,
        prefix: Sequence[int],
        max_new_tokens: int,
        temperature: float = 0,
        raw: bool = False,
    ) -> None:
        self.network = model.network
        self.tokenizer = model.tokenizer
        self.device = model.network.device
        self.threads = FittedThreads(self.device)
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.raw = raw
        self.stops = self._tensor(find_stop_tokens(model))
        self.cache = _make_cache(model)
        parameters = inspect.signature(self.network.forward).parameters
        self.has_positions = "position_ids" in parameters
        self.prefix: tuple[int, ...] = ()
        if self.has_positions and not _has_windows(self.cache):
            self.prefix = tuple(prefix)
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

        Returns
        -------
        list of TraceRow
            In the order given. A row has the fields of the request and the columns of
            `schemas.SCHEMAS["traces"]`.
        """
        order = sorted(range(len(batch)), key=lambda i: -len(batch[i].token_ids))
        with torch.inference_mode(), self.threads:
            prefilled = self._prefill([batch[i] for i in order])
            keys = [row["key"] for row in prefilled.rows]
            likeliest = [row["next_ids"][0] for row in prefilled.rows]
            chances = None
            first = self._tensor(likeliest)
            if self.temperature:
                chances = _chances(keys, self.max_new_tokens).to(self.device)
                first = self._draw(prefilled.ends, chances[:, 0])
            answers = self._decode(prefilled, first, chances)
        rows: list[TraceRow] = [{}] * len(batch)
        for place, row, answer in zip(order, prefilled.rows, answers, strict=True):
            tokens, finish_reason = answer
            row["response"] = self._read(tokens)
            row["finish_reason"] = finish_reason
            rows[place] = row
        return rows

    def _read(self, tokens: list[int]) -> str:
        """Return an answer's text."""
        text = str(self.tokenizer.decode(tokens, skip_special_tokens=not self.raw))
        return text if self.raw else text.strip()

    def _tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def _prefill(self, requests: list[Request]) -> Prefill:
        """Run prompts, the longest first, some at a time, and put them together."""
        on_cpu = self.device.type == "cpu"
        positions = PREFILL_POSITIONS if on_cpu else GPU_PREFILL_POSITIONS
        rows: list[TraceRow] = []
        ends = []
        masks = []
        cache: DynamicCache | None = None
        while len(rows) < len(requests):
            left = requests[len(rows) :]
            width = len(left[0].token_ids) - len(self.prefix)
            part = self._prefill_part(left[: max(1, positions // width)], width)
            if cache is None:
                cache = part.cache
            _merge(cache, part.cache, len(rows), len(requests))
            rows += part.rows
            ends.append(part.ends)
            masks.append(part.mask)
        assert cache is not None  # a batch is not empty
        widest = masks[0].shape[1]
        padded = [pad(mask, (widest - mask.shape[1], 0)) for mask in masks]
        return Prefill(rows, torch.cat(ends), cache, torch.cat(padded))

    def _prefill_part(self, part: list[Request], width: int) -> Prefill:
        """Run prompts, left-padded to `width` after the shared prefix."""
        shared = len(self.prefix)
        ids = []
        mask = []
        # The output layer is needed where the next token is one of the user's, and at
        # the end
        keep = torch.zeros(len(part), width, dtype=torch.bool, device="cpu")
        keep[:, -1] = True
        for row, request in enumerate(part):
            own = len(request.token_ids) - shared
            ids.append([0] * (width - own) + list(request.token_ids[shared:]))
            mask.append([1] * shared + [0] * (width - own) + [1] * own)
            start = width - len(request.token_ids) - 1
            keep[row, start + request.user_start : start + request.user_end] = True
        cache = copy.deepcopy(self.cache)
        if shared:
            cache.batch_repeat_interleave(len(part))
        attention = self._tensor(mask)
        positions = (attention.cumsum(1) - 1).clamp(min=0)[:, shared:]
        step = Step(self._tensor(ids), attention, positions)
        logits = self._forward(step, cache, keep.to(self.device))
        counts = [request.user_end - request.user_start + 1 for request in part]
        ends = logits[torch.tensor(counts, device=self.device).cumsum(0) - 1]
        rows = _traces(part, logits, ends)
        return Prefill(rows, ends if self.temperature else ends[:0], cache, attention)

    def _forward(self, step: Step, cache: DynamicCache, keep: Tensor | int) -> Tensor:
        """Run the model on new tokens; return the logits of the tokens in `keep`."""
        self.threads.fit()
        options = {"position_ids": step.positions} if self.has_positions else {}
        return self.network(
            input_ids=step.ids,
            attention_mask=step.mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
            **options,
        ).logits

    def _draw(self, logits: Tensor, chances: Tensor) -> Tensor:
        """Draw a token for each row.

        It is the first whose cumulated probability exceeds the row's number in [0, 1).
        """
        probabilities = torch.softmax(logits.float() / self.temperature, dim=-1)
        cumulated = probabilities.cumsum(-1, dtype=torch.float64)
        # The sum is 1 but for rounding
        wanted = chances[:, None] * cumulated[:, -1:]
        return torch.searchsorted(cumulated, wanted, right=True)[:, 0]

    def _decode(
        self, prefill: Prefill, token: Tensor, chances: Tensor | None
    ) -> list[tuple[list[int], str]]:
        """Continue from the first answer tokens.

        Return the tokens and the finish reason of each row.
        """
        answers: list[list[int]] = [[] for _ in token]
        reasons = ["length"] * len(token)
        cache = prefill.cache
        mask = prefill.mask
        # Which answer each row of the batch belongs to
        rows = torch.arange(len(token), device=self.device)
        running = torch.ones_like(rows, dtype=torch.bool)
        for step in range(self.max_new_tokens):
            running &= ~torch.isin(token, self.stops)
            for row, value, runs in zip(
                rows.tolist(), token.tolist(), running.tolist(), strict=True
            ):
                if runs:
                    answers[row].append(value)
                else:
                    reasons[row] = "stop"
            if step == self.max_new_tokens - 1 or not running.any():
                break
            if running.sum() <= len(running) * _SHRINK_SHARE:
                kept = torch.nonzero(running).squeeze(1)
                rows = rows[kept]
                token = token[kept]
                mask = mask[kept]
                running = running[kept]
                cache.batch_select_indices(kept)
            position = mask.sum(1, keepdim=True)
            mask = torch.cat([mask, torch.ones_like(position)], dim=1)
            logits = self._forward(Step(token[:, None], mask, position), cache, 1)
            logits = logits[:, -1]
            if chances is None:
                token = logits.argmax(-1)
            else:
                token = self._draw(logits, chances[rows, step + 1])
        return list(zip(answers, reasons, strict=True))


def _make_cache(model: LoadedModel) -> DynamicCache:
    """Return an empty cache.

    Raise `ModelError` if a layer keeps more than keys and values.
    """
    cache = DynamicCache(config=model.network.config)
    for number, layer in enumerate(cache.layers):
        # Layers with a sliding window keep the library's own class
        if type(layer) is DynamicLayer:
            cache.layers[number] = RoomyLayer()
        elif type(layer) not in (DynamicSlidingWindowLayer, DummyLayer):
            raise ModelError(
                f"a model of type {model.network.config.model_type} keeps a state"
                f" ({type(layer).__name__}) that cannot be asked in padded batches;"
                " only models with keys and values in every layer are supported"
            )
    return cache


def _has_windows(cache: DynamicCache) -> bool:
    return any(isinstance(layer, DynamicSlidingWindowLayer) for layer in cache.layers)


def _chances(keys: Sequence[str], tokens: int) -> Tensor:
    """Return numbers in [0, 1) that depend on a request's key only.

    Their shape is (keys, tokens).
    """
    drawn = [np.random.default_rng(int(key, 16)).random(tokens) for key in keys]
    return torch.tensor(np.stack(drawn))


def find_stop_tokens(model: LoadedModel) -> list[int]:
    """Return the tokens that end an answer, sorted.

    The model's generation settings and its tokenizer name them.
    """
    ids = model.network.generation_config.eos_token_id
    stops = set(ids if isinstance(ids, list) else [ids])
    stops.add(model.tokenizer.eos_token_id)
    return sorted(stops - {None})


def _merge(whole: DynamicCache, part: DynamicCache, row: int, rows: int) -> None:
    """Put the cache of a prefill into the rows of a batch's cache from `row` on.

    It is right-aligned. The first prefill's cache becomes the batch's: it is both.
    """
    # No base class of layers declares what they share
    pairs: Iterable[tuple[Any, Any]] = zip(whole.layers, part.layers, strict=True)
    for target, layer in pairs:
        if layer.keys is None:
            continue
        states = (layer.keys, layer.values)
        if target is layer:
            _make_room(layer, rows)
        for into, new in zip((target.keys, target.values), states, strict=True):
            into = into[row : row + len(new)]
            padding = into.shape[-2] - new.shape[-2]
            # It is masked, but arbitrary memory might hold NaN
            into[..., :padding, :] = 0
            into[..., padding:, :] = new


def _make_room(layer: Any, rows: int) -> None:
    """Give a layer arbitrary memory for the keys and values of more rows."""
    tokens = layer.keys.shape[-2]
    room = layer.room if isinstance(layer, RoomyLayer) else 0
    buffers = (
        _new_buffer(layer.keys, rows, tokens + room),
        _new_buffer(layer.values, rows, tokens + room),
    )
    layer.keys, layer.values = (buffer[..., :tokens, :] for buffer in buffers)
    if room:
        layer.returned = layer.keys
        layer.buffers = buffers


def _traces(part: list[Request], logits: Tensor, ends: Tensor) -> list[TraceRow]:
    """Return trace rows, without answers.

    Parameters
    ----------
    part : list of Request
    logits : Tensor, shape (rows, vocabulary)
        For each prompt those that predict its user tokens, and then its answer.
    ends : Tensor, shape (prompts, vocabulary)
        Those that predict the answers.
    """
    # Nothing is known of the answer yet; leaving its logits out would copy all others
    targets: list[int] = []
    counts = []
    for request in part:
        targets += request.token_ids[request.user_start : request.user_end]
        targets.append(_NO_TARGET)
        counts.append(request.user_end - request.user_start + 1)
    losses = cross_entropy(
        logits.float(),
        torch.tensor(targets, device=logits.device),
        reduction="none",
        ignore_index=_NO_TARGET,
    )
    top = torch.log_softmax(ends.cpu().double(), dim=-1).topk(
        min(TOP_TOKENS, logits.shape[-1])
    )
    rows = []
    for request, loss, ids, logprobs in zip(
        part,
        losses.cpu().split(counts),
        top.indices.numpy().astype(np.int32),
        top.values.numpy(),
        strict=True,
    ):
        nll = np.full(len(request.token_ids), np.nan, np.float32)
        nll[request.user_start : request.user_end] = loss[:-1].numpy()
        row = {
            **vars(request),
            "token_ids": np.array(request.token_ids, np.int32),
            "token_nll": nll,
            "next_ids": ids,
            "next_logprobs": logprobs.astype(np.float32),
            "tail_mass": float(max(0.0, 1.0 - np.exp(logprobs).sum())),
        }
        rows.append(row)
    return rows
