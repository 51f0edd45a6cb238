"""Guards made here: a chat model asked whether a request is harmful, and an encoder beside known harmful requests.

Each takes an entry of `data/guards.yaml` and returns the guard's version and its scorer, which loads the model when the
first text is scored.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from paraguard_utils import paths, registry
from paraguard_utils.core.vectors import cosine
from paraguard_utils.errors import SettingsError
from paraguard_utils.guards.contract import Scorer
from paraguard_utils.models import encoder, loading, prompting, weights

BATCH = 32  # texts a forward pass


def yes_no(entry: Mapping[str, Any]) -> tuple[str, Scorer]:
    """Make a guard of a chat model (`model`) that is asked one question, a `wrapper` of `data/wrappers.yaml`.

    The probability is that of "yes" against "no" as the first word of the answer, however they are written. It is NaN
    where neither is among the likeliest tokens (`engine.TOP`), or the text contains a control token of the model. An
    unknown wrapper raises SettingsError.
    """
    name, wrapper = entry["model"], entry.get("wrapper", "moderation")
    if wrapper not in registry.wrappers():
        raise SettingsError(f"there is no wrapper {wrapper!r}; data/wrappers.yaml has {', '.join(registry.wrappers())}")
    question = registry.wrappers()[wrapper]["text"]
    # A packaged model's digest is known without its package.
    weights_id = loading.PACKAGED[name].sha256 if name in loading.PACKAGED else loading.resolve(name).weights_id

    @cache
    def model() -> loading.Model:
        return loading.load(loading.resolve(name))

    def score(texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
        return _yes_against_no(model(), question, texts)

    return _version(weights_id, question.encode()), score


def _yes_against_no(model: loading.Model, question: str, texts: Sequence[str]) -> np.ndarray:
    from paraguard_utils.models.engine import Engine, batches, shared_prefix

    found = np.full(len(texts), np.nan)
    stripped = pd.Series(texts, dtype=str).str.strip()
    askable = [text != "" and not any(s in text for s in model.tokenizer.all_special_tokens) for text in stripped]
    asked = pd.DataFrame({"prompt_id": stripped.index.astype(str), "text": stripped})[askable]
    if asked.empty:
        return found
    rendered = prompting.render_wrapper(model.tokenizer, question)
    context = prompting.PromptContext(model.weights_id, model.dtype, *rendered, prompting.Decoding(1))
    requests = prompting.requests(asked, model.tokenizer, context)
    engine = Engine(model, requests[0].token_ids[: shared_prefix(requests)], 1)
    for batch in batches(requests, BATCH):
        for row in engine.ask(batch):
            words = [str(model.tokenizer.decode([number])).strip().lower() for number in row["next_ids"]]
            said = pd.Series(np.exp(row["next_logprobs"], dtype=float)).groupby(words).sum()
            yes, no = said.get("yes", 0.0), said.get("no", 0.0)
            found[int(row["prompt_id"])] = yes / (yes + no) if yes or no else np.nan
    return found


def exemplars(entry: Mapping[str, Any]) -> tuple[str, Scorer]:
    """Make the guard that compares texts with harmful requests: the column `text` of `exemplars`, a file of `data/`.

    The score is a text's highest cosine to one of them, 0 where that is negative.
    """
    file = paths.DATA / entry["exemplars"]

    @cache
    def known() -> np.ndarray:
        return encoder.encode(pd.read_csv(file)["text"].tolist())

    def score(texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
        return cosine(encoder.encode(texts), known()).max(axis=1).clip(0.0, 1.0)

    return _version(weights.MINILM.sha256, file.read_bytes()), score


def _version(weights_id: str, content: bytes) -> str:
    return f"{weights_id[:12]}-{hashlib.sha256(content).hexdigest()[:12]}"


KINDS = {"yes_no": yes_no, "exemplars": exemplars}  # the functions that make a guard, by the `kind` of its entry
