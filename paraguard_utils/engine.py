"""Asking a local model: traces and greedy answers in batches (`paper.md`, Querying and labelling).

One prefill of the wrapped prompt gives everything a trace holds: the loss on the user's own tokens and the distribution
of the first answer token. Decoding continues from the same cache. Prompts are left-padded, the part that all of them
share is computed once, and there is no stop at refusal cues: the label rule must not decide what is generated.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

SHRINK = 7 / 8
"""Rows leave a batch when this share of it or less is still going: leaving copies the whole cache."""

TOP = 64
"""Next-token candidates kept in a trace; the mass of all others is `tail_mass`."""


@dataclass(frozen=True)
class Request:
    """One rendered prompt, tokenized.

    Attributes
    ----------
    prompt_id, key : str
    token_ids : tuple of int
        The whole rendered prompt.
    user_start, user_end : int
        Half-open range of the user's own words in `token_ids`.
    """

    prompt_id: str
    key: str
    token_ids: tuple
    user_start: int
    user_end: int


def shared_prefix(requests):
    """Return how many leading tokens all requests share, short of any user's first word.

    The token before the user's first word is left out, because it predicts that word.

    Parameters
    ----------
    requests : sequence of Request, not empty

    Returns
    -------
    int, >= 0
    """
    first = requests[0].token_ids
    length = min(request.user_start for request in requests) - 1
    for request in requests:
        ids = request.token_ids
        while length > 0 and ids[:length] != first[:length]:
            length -= 1
    return max(length, 0)


def batches(requests, size):
    """Split requests into batches of similar length, longest first, so that memory trouble shows at once.

    Parameters
    ----------
    requests : sequence of Request
    size : int, > 0

    Returns
    -------
    list of list of Request
    """
    ordered = sorted(requests, key=lambda request: (-len(request.token_ids), request.prompt_id))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


class RoomyLayer(DynamicLayer):
    """A cache layer that writes into room kept free behind its keys and values, instead of copying all of them."""

    room = 64

    def update(self, key_states, value_states, *args, **kwargs):
        """Append keys and values, shape (batch, heads, tokens, dimensions); return all so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
            self.buffers = None
        old, new = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if self.buffers is None or self.buffers[0].shape[-2] < new:
            shape = (*key_states.shape[:2], new + self.room)
            self.buffers = tuple(states.new_empty(*shape, states.shape[-1]) for states in (key_states, value_states))
            self.buffers[0][..., :old, :], self.buffers[1][..., :old, :] = self.keys, self.values
        self.buffers[0][..., old:new, :], self.buffers[1][..., old:new, :] = key_states, value_states
        self.keys, self.values = (buffer[..., :new, :] for buffer in self.buffers)
        return self.keys, self.values

    def replace(self, keys, values):
        """Take other keys and values, for example of fewer or more rows."""
        self.keys, self.values, self.buffers = keys, values, None


def _cache(config):
    """Return an empty cache for a model; layers with a window keep the library's own class."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class Engine:
    """Answers batches of requests with one loaded model.

    Parameters
    ----------
    model : paraguard_utils.models.Model
    prefix : sequence of int
        Leading tokens shared by every request that will be asked; may be empty.
    max_new_tokens : int
    prefill_size : int
        Rows per prefill, which bounds the memory of the output layer.
    """

    def __init__(self, model, prefix=(), max_new_tokens=64, prefill_size=16):
        self.network = model.network
        self.tokenizer = model.tokenizer
        self.max_new_tokens = max_new_tokens
        self.prefill_size = prefill_size
        self.prefix = tuple(prefix)
        self.stops = _stop_ids(model)
        self.cache = _cache(self.network.config)
        if self.prefix:
            with torch.inference_mode():
                self.network(
                    input_ids=torch.tensor([self.prefix]),
                    past_key_values=self.cache,
                    use_cache=True,
                    logits_to_keep=1,
                )

    @torch.inference_mode()
    def ask(self, batch):
        """Answer one batch.

        Parameters
        ----------
        batch : sequence of Request, not empty
            All start with the engine's prefix.

        Returns
        -------
        list of dict
            One trace row per request, in the order given, with the columns of `schemas.SCHEMAS["traces"]`.
        """
        width = max(len(request.token_ids) for request in batch) - len(self.prefix)
        rows, caches, masks = [], [], []
        for start in range(0, len(batch), self.prefill_size):
            part = batch[start : start + self.prefill_size]
            traced, cache, mask = self._prefill(part, width)
            rows += traced
            caches.append(cache)
            masks.append(mask)
        answers = self._decode(_joined(caches), torch.cat(masks), [row["next_ids"][0] for row in rows])
        for row, (tokens, finish_reason) in zip(rows, answers, strict=True):
            row["response"] = self.tokenizer.decode(tokens, skip_special_tokens=True).strip()
            row["finish_reason"] = finish_reason
        return rows

    def _prefill(self, part, width):
        shared = len(self.prefix)
        suffixes = [request.token_ids[shared:] for request in part]
        ids = torch.zeros(len(part), width, dtype=torch.long)
        mask = torch.zeros(len(part), shared + width, dtype=torch.long)
        mask[:, :shared] = 1
        for row, suffix in enumerate(suffixes):
            ids[row, width - len(suffix) :] = torch.tensor(suffix)
            mask[row, shared + width - len(suffix) :] = 1
        keep = max(len(request.token_ids) - request.user_start for request in part) + 1
        cache = copy.deepcopy(self.cache)
        if shared:
            _rearrange(cache, lambda states: states.expand(len(part), *states.shape[1:]))
        logits = self.network(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, shared:],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        ).logits
        rows = [_trace(request, logits[row]) for row, request in enumerate(part)]
        return rows, cache, mask

    def _decode(self, cache, mask, first):
        """Continue greedily from the first answer tokens; return (tokens, finish_reason) per row."""
        answers = [[] for _ in first]
        reasons = ["length"] * len(first)
        rows = torch.arange(len(first))  # which answer each row of the batch belongs to
        going = torch.ones(len(first), dtype=torch.bool)
        token = torch.tensor(first)
        for step in range(self.max_new_tokens):
            going &= ~torch.isin(token, self.stops)
            for row, value, goes in zip(rows.tolist(), token.tolist(), going.tolist(), strict=True):
                if goes:
                    answers[row].append(value)
                else:
                    reasons[row] = "stop"
            if step == self.max_new_tokens - 1 or not going.any():
                break
            if going.sum() <= len(going) * SHRINK:
                kept = torch.nonzero(going).squeeze(1)
                rows, token, mask, going = rows[kept], token[kept], mask[kept], going[kept]
                _rearrange(cache, lambda states, kept=kept: states[kept])
            position = mask.sum(1, keepdim=True)
            mask = torch.cat([mask, torch.ones_like(position)], dim=1)
            logits = self.network(
                input_ids=token[:, None],
                attention_mask=mask,
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
            token = logits[:, -1].argmax(-1)
        return list(zip(answers, reasons, strict=True))


def _stop_ids(model):
    ids = model.network.generation_config.eos_token_id
    ids = set(ids if isinstance(ids, list) else [ids]) | {model.tokenizer.eos_token_id}
    return torch.tensor(sorted(ids - {None}), dtype=torch.long)


def _rearrange(cache, change):
    """Apply a change to the keys and to the values of every layer."""
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.replace(change(layer.keys), change(layer.values))
        else:
            layer.keys, layer.values = change(layer.keys), change(layer.values)


def _joined(caches):
    """Stack caches of equal length along the batch dimension."""
    keys = [[cache.layers[i].keys for cache in caches] for i in range(len(caches[0].layers))]
    values = [[cache.layers[i].values for cache in caches] for i in range(len(caches[0].layers))]
    parts = iter([part for pair in zip(keys, values, strict=True) for part in pair])
    _rearrange(caches[0], lambda _: torch.cat(next(parts)))
    return caches[0]


def _trace(request, logits):
    """Read a trace row off the trailing logits of one prompt, shape (keep, vocabulary)."""
    length = len(request.token_ids)
    # Column -1 predicts the first answer token, so column j - length - 1 predicts prompt token j.
    user = logits[request.user_start - length - 1 : request.user_end - length - 1].float()
    targets = torch.tensor(request.token_ids[request.user_start : request.user_end])
    nll = np.full(length, np.nan, np.float32)
    nll[request.user_start : request.user_end] = torch.nn.functional.cross_entropy(
        user, targets, reduction="none"
    ).numpy()
    top = torch.log_softmax(logits[-1].double(), dim=-1).topk(min(TOP, logits.shape[-1]))
    return {
        "prompt_id": request.prompt_id,
        "key": request.key,
        "token_ids": np.array(request.token_ids, np.int32),
        "token_nll": nll,
        "user_start": request.user_start,
        "user_end": request.user_end,
        "next_ids": top.indices.numpy().astype(np.int32),
        "next_logprobs": top.values.numpy().astype(np.float32),
        "tail_mass": float(max(0.0, 1.0 - top.values.exp().sum())),
    }
