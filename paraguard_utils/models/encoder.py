"""Embed texts as unit vectors with the sentence encoder E, all-MiniLM-L6-v2
(`docs/method.md`, The idea).
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd

from paraguard_utils.core.vectors import normalize_rows
from paraguard_utils.errors import Missing
from paraguard_utils.models import weights
from paraguard_utils.stores import Store

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Embed: TypeAlias = Callable[
    [Sequence[str]], np.ndarray
]  # texts to sentence vectors, a row for each text

ENCODER_NAME, ENCODER_DIMENSIONS = "all-minilm-l6-v2", 384


def hash_text(text: str) -> str:
    """Return the 16 hex digits of SHA-256 that name a text in tables and files of
    vectors.
    """
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


@cache
def _model() -> "SentenceTransformer":
    folder = weights.locate_weights(weights.MINILM_FILE).parent
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from sentence_transformers import (
        SentenceTransformer,
    )  # seconds to import: only where texts are embedded
    from transformers.utils import logging

    logging.disable_progress_bar()
    return SentenceTransformer(
        str(folder), device="cpu", local_files_only=True, trust_remote_code=False
    )


def encode_texts(texts: Sequence[str]) -> np.ndarray:
    """Embed texts with the packaged encoder, as float16 unit vectors of shape
    (len(texts), 384).

    They are rounded as they are stored, so that numbers computed now and from the store
    are the same. A missing or altered package of the encoder raises `WeightsError`.
    """
    if not len(texts):
        return np.empty((0, ENCODER_DIMENSIONS), np.float16)
    found = _model().encode(
        list(texts),
        batch_size=64,
        normalize_embeddings=True,
        show_progress_bar=len(texts) > 1000,
    )
    return found.astype(np.float16)


def memoize_embedding(embed: Embed) -> Embed:
    """Return a function from texts to vectors that calls `embed` once for each text."""
    known: dict[str, np.ndarray] = {}

    def remembered(texts: Sequence[str]) -> np.ndarray:
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            known.update(zip(new, embed(new), strict=True))
        return np.stack([known[text] for text in texts]) if len(texts) else embed([])

    return remembered


def stored_vectors(
    store: Store, name: str, texts: Sequence[str], earlier: bool = False
) -> np.ndarray:
    """Return the vectors of texts of the corpus `name` as a store has them, float16 of
    shape (len(texts), 384).

    A live store embeds and keeps what is missing; the recorded one raises `Missing`. If
    an `earlier` notebook made the vectors, recorded ones will do.
    """
    hashes, read = (
        [hash_text(text) for text in texts],
        (store.read_earlier if earlier else store.read),
    )
    known = pd.Series(dtype=object)
    with contextlib.suppress(Missing):
        known = read("sentences", name, ENCODER_NAME).set_index("text_hash")["vector"]
    if store.recorded and known.empty:
        raise Missing(
            f"the corpus {name!r} has no recorded vectors; name a live store, for"
            " example store=live"
        )
    missing = {
        key: text
        for key, text in zip(hashes, texts, strict=True)
        if key not in known.index
    }
    if missing and store.recorded:
        lacking = f"{len(missing)} texts of {name} have no recorded vector"
        raise Missing(f"{lacking}; run 01_corpus_building with a live store")
    if missing:
        new = pd.Series(
            list(encode_texts(list(missing.values()))),
            index=list(missing),
            dtype=object,
        )
        known = pd.concat([known, new])
        frame = known.rename_axis("text_hash").rename("vector").reset_index()
        meta = {"encoder": ENCODER_NAME, "weights": weights.MINILM_FILE.sha256}
        store.write("sentences", name, ENCODER_NAME, frame=frame, meta=meta)
    return np.stack(known.loc[hashes].to_list()).astype(np.float16, copy=False)


def encode_tokens(texts: Sequence[str]) -> list[np.ndarray]:
    """Return the contextual unit vectors of each text's tokens, shapes (tokens, 384),
    without the two marks around.
    """
    found = _model().encode(
        list(texts),
        batch_size=64,
        output_value="token_embeddings",
        show_progress_bar=len(texts) > 1000,
    )
    return [normalize_rows(vectors.float().cpu().numpy()[1:-1]) for vectors in found]
