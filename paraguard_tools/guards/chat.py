"""Guards made here: a chat model that answers a question, and nearness to exemplars.

Each maker takes an entry of `data/guards.yaml`. Models are loaded when the first text
is scored.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.guards.entries import GuardEntry, parse_guard_entry
from paraguard_tools.guards.notes import GuardNotes
from paraguard_utils import paths, registry
from paraguard_utils.core.vectors import cosine_similarity
from paraguard_utils.guards.contract import Guard, GuardOptions
from paraguard_utils.models import encoder, loading, prompting, weights


class YesNoEntry(GuardEntry):
    """A chat model, and the system prompt that asks it the question."""

    model: str
    instruction: str = "moderation"


class ExemplarsEntry(GuardEntry):
    """A CSV file of `data/` with harmful texts."""

    exemplars: str


def make_yes_no_guard(
    name: str, fields: Mapping[str, Any], options: GuardOptions
) -> Guard:
    """Make a guard of a chat model that answers one question with yes or no.

    The question is a system prompt of `data/system_prompts.yaml`; another name raises
    SettingsError. The probability is that of "yes" against "no" as the first word of
    the answer, however they are written. It is NaN if neither is among the likeliest
    tokens (`engine.TOP_TOKENS`), or the text contains a control token of the model.
    """
    entry = parse_guard_entry(name, fields, YesNoEntry)
    question = registry.read_system_prompt(entry.instruction)
    notes = GuardNotes()
    packaged = loading.PACKAGED_MODELS.get(entry.model)
    if packaged:  # its digest is known without its package
        weights_id = packaged.sha256
    else:
        weights_id = loading.resolve_model(entry.model).weights_id

    @cache
    def load() -> loading.LoadedModel:
        return loading.load_model(loading.resolve_model(entry.model))

    def score(texts: Sequence[str]) -> np.ndarray:
        from paraguard_lab.core.batches import ask_in_batches

        model = load()
        tokenizer = model.tokenizer
        scores = np.full(len(texts), np.nan)
        stripped = pd.Series(texts, dtype=str).str.strip()
        askable = stripped != ""
        for token in tokenizer.all_special_tokens:
            askable &= ~stripped.str.contains(token, regex=False)
        prompts = pd.DataFrame(
            {"prompt_id": stripped.index.astype(str), "text": stripped}
        )[askable]
        if prompts.empty:
            return scores
        before, after = prompting.render_system_prompt(tokenizer, question)
        context = prompting.PromptContext(
            weights_id, model.dtype, before, after, prompting.Decoding(1)
        )
        requests = prompting.tokenize_prompts(prompts, tokenizer, context)
        for row in ask_in_batches(model, requests, 32, 1):
            yes, no = _read_yes_no(tokenizer, row)
            place = int(row["prompt_id"])
            notes.masses[texts[place]] = yes + no
            if yes or no:
                scores[place] = yes / (yes + no)
        return scores

    version = entry.version or _version(weights_id, question.encode())
    return Guard(
        name=name, version=version, score=score, notes=notes, **entry.described
    )


def _read_yes_no(tokenizer: Any, row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the probabilities of "yes" and "no" in one row of a trace."""
    words = [
        str(tokenizer.decode([token])).strip().lower() for token in row["next_ids"]
    ]
    probabilities = pd.Series(np.exp(row["next_logprobs"], dtype=float))
    by_word = probabilities.groupby(words).sum()
    return by_word.get("yes", 0.0), by_word.get("no", 0.0)


def make_exemplar_guard(
    name: str, fields: Mapping[str, Any], options: GuardOptions
) -> Guard:
    """Make the guard that scores a text by its highest cosine to harmful texts.

    A negative cosine counts as 0.
    """
    entry = parse_guard_entry(name, fields, ExemplarsEntry)
    file = paths.DATA / entry.exemplars

    @cache
    def exemplars() -> np.ndarray:
        return encoder.encode_texts(pd.read_csv(file)["text"].tolist())

    def score(texts: Sequence[str]) -> np.ndarray:
        cosines = cosine_similarity(encoder.encode_texts(texts), exemplars())
        return cosines.max(axis=1).clip(0.0, 1.0)

    version = _version(weights.MINILM_FILE.sha256, file.read_bytes())
    version = entry.version or version
    return Guard(name=name, version=version, score=score, **entry.described)


def _version(weights_id: str, content: bytes) -> str:
    return f"{weights_id[:12]}-{hashlib.sha256(content).hexdigest()[:12]}"
