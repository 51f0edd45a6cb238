"""Guards made here: a chat model asked whether a request is harmful, and an encoder
beside known harmful requests.

Each takes an entry of `data/guards.yaml` and returns the guard's version and its
scorer, which loads the model when the first text is scored.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from paraguard_utils import paths, registry
from paraguard_utils.core.vectors import cosine_similarity
from paraguard_utils.guards.contract import GuardNotes, GuardScorer
from paraguard_utils.models import encoder, loading, prompting, weights


def make_yes_no_guard(
    entry: Mapping[str, Any], notes: GuardNotes
) -> tuple[str, GuardScorer]:
    """Make a guard of a chat model (`model`) that is asked one question, a `system_prompt` of
    `data/system_prompts.yaml`.

    The probability is that of "yes" against "no" as the first word of the answer,
    however they are written. It is NaN where neither is among the likeliest tokens
    (`engine.TOP_TOKENS`), or the text contains a control token of the model. An unknown
    system prompt raises SettingsError.
    """
    name = entry["model"]
    question = registry.read_system_prompt(entry.get("instruction", "moderation"))
    packaged = loading.PACKAGED_MODELS.get(
        name
    )  # its digest is known without its package
    weights_id = packaged.sha256 if packaged else loading.resolve_model(name).weights_id

    @cache
    def model() -> loading.LoadedModel:
        return loading.load_model(loading.resolve_model(name))

    def score(texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
        from paraguard_utils.models.engine import ask_in_batches

        found, reader = np.full(len(texts), np.nan), model().tokenizer
        specials = reader.all_special_tokens
        stripped = pd.Series(texts, dtype=str).str.strip()
        askable = [
            text != "" and not any(special in text for special in specials)
            for text in stripped
        ]
        asked = pd.DataFrame(
            {"prompt_id": stripped.index.astype(str), "text": stripped}
        )[askable]
        if asked.empty:
            return found
        rendered = prompting.render_system_prompt(reader, question)
        context = prompting.PromptContext(
            weights_id, model().dtype, *rendered, prompting.Decoding(1)
        )
        requests = prompting.tokenize_prompts(asked, reader, context)
        for row in ask_in_batches(model(), requests, 32, 1):
            words = [
                str(reader.decode([number])).strip().lower()
                for number in row["next_ids"]
            ]
            said = (
                pd.Series(np.exp(row["next_logprobs"], dtype=float))
                .groupby(words)
                .sum()
            )
            yes, no = said.get("yes", 0.0), said.get("no", 0.0)
            notes.masses[texts[int(row["prompt_id"])]] = yes + no
            found[int(row["prompt_id"])] = yes / (yes + no) if yes or no else np.nan
        return found

    return _version(weights_id, question.encode()), score


def make_exemplar_guard(
    entry: Mapping[str, Any], notes: GuardNotes
) -> tuple[str, GuardScorer]:
    """Make the guard that scores a text by its highest cosine, from 0, to harmful texts
    of a file of `data/`.
    """
    file = paths.DATA / entry["exemplars"]

    @cache
    def known() -> np.ndarray:
        return encoder.encode_texts(pd.read_csv(file)["text"].tolist())

    def score(texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
        return (
            cosine_similarity(encoder.encode_texts(texts), known())
            .max(axis=1)
            .clip(0.0, 1.0)
        )

    return _version(weights.MINILM_FILE.sha256, file.read_bytes()), score


def _version(weights_id: str, content: bytes) -> str:
    return f"{weights_id[:12]}-{hashlib.sha256(content).hexdigest()[:12]}"


GUARD_MAKERS = {
    "yes_no": make_yes_no_guard,
    "exemplars": make_exemplar_guard,
}  # by the `kind` of an entry
