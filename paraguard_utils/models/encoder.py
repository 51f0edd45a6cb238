"""The sentence encoder E: texts to unit vectors, all-MiniLM-L6-v2 (`docs/method.md`, The idea)."""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd

from paraguard_utils.core.vectors import unit
from paraguard_utils.errors import Missing
from paraguard_utils.models import weights
from paraguard_utils.stores import Store

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Embed: TypeAlias = Callable[[Sequence[str]], np.ndarray]
"""Texts to sentence vectors, one row a text."""

NAME = "all-minilm-l6-v2"
DIMENSIONS = 384


def text_hash(text: str) -> str:
    """Return the 16 hex digits of SHA-256 under which a text's vector is stored, and which stand for it in tables."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


@cache
def _model() -> "SentenceTransformer":
    folder = weights.locate(weights.MINILM).parent
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from sentence_transformers import SentenceTransformer  # seconds to import: only where texts are embedded
    from transformers.utils import logging

    logging.disable_progress_bar()

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True, trust_remote_code=False)


def encode(texts: Sequence[str]) -> np.ndarray:
    """Embed texts with the packaged encoder; many texts show a progress bar on stderr.

    Parameters
    ----------
    texts : sequence of str

    Returns
    -------
    numpy.ndarray, shape (len(texts), 384), float16
        Unit vectors, rounded to the precision in which they are stored, so that a number computed now and a number
        computed from the store are the same.

    Raises
    ------
    WeightsError
        The encoder's package is missing or altered.
    """
    if not len(texts):
        return np.empty((0, DIMENSIONS), np.float16)
    vectors = _model().encode(
        list(texts),
        batch_size=64,
        normalize_embeddings=True,
        show_progress_bar=len(texts) > 1000,
        convert_to_numpy=True,
    )
    return vectors.astype(np.float16)


def memoized(embed: Embed) -> Embed:
    """Return a function from texts to vectors that asks `embed` for each text once.

    Parameters
    ----------
    embed : callable
        Texts to sentence vectors.
    """
    known: dict[str, np.ndarray] = {}

    def remembered(texts: Sequence[str]) -> np.ndarray:
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            known.update(zip(new, embed(new), strict=True))
        return np.stack([known[text] for text in texts]) if len(texts) else embed([])

    return remembered


def vectors(store: Store, name: str, texts: Sequence[str], earlier: bool = False) -> np.ndarray:
    """Return texts' vectors from a store, embedding and keeping what is missing (in a live store only).

    Parameters
    ----------
    store : stores.Store
    name : str
        The corpus the vectors belong to.
    texts : sequence of str
    earlier : bool
        They are an earlier notebook's product: recorded ones will do.

    Returns
    -------
    numpy.ndarray, shape (len(texts), 384), float16

    Raises
    ------
    Missing
        The recorded store lacks vectors.
    """
    hashes = [text_hash(text) for text in texts]
    try:
        read = store.read_earlier if earlier else store.read
        known = read("sentences", NAME, name).set_index("text_hash")["vector"]
    except Missing:
        if store.recorded:
            raise Missing(
                f"the corpus {name!r} has no recorded vectors; name a live store, for example store=live"
            ) from None
        known = pd.Series(dtype=object)
    missing = {key: text for key, text in zip(hashes, texts, strict=True) if key not in known.index}
    if missing and store.recorded:
        raise Missing(
            f"{len(missing)} texts of {name} have no recorded vector; run 01_corpus_building with a live store"
        )
    if missing:
        new = pd.Series(list(encode(list(missing.values()))), index=list(missing), dtype=object)
        known = pd.concat([known, new])
        frame = known.rename_axis("text_hash").rename("vector").reset_index()
        store.write("sentences", NAME, name, frame=frame, meta={"encoder": NAME, "weights": weights.MINILM.sha256})
    return np.stack([np.asarray(known[key], np.float16) for key in hashes])


def token_vectors(texts: Sequence[str]) -> list[np.ndarray]:
    """Return the encoder's contextual vectors of each text's tokens, its two marks left out.

    Parameters
    ----------
    texts : sequence of str

    Returns
    -------
    list of numpy.ndarray, shapes (tokens, 384), float64
        Unit vectors.
    """
    found = _model().encode(
        list(texts), batch_size=64, output_value="token_embeddings", show_progress_bar=len(texts) > 1000
    )
    return [unit(vectors.float().cpu().numpy()[1:-1]) for vectors in found]
