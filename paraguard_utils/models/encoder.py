"""Embed texts as unit vectors with the sentence encoder E.

E is all-MiniLM-L6-v2 (`docs/method.md`, The idea).
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd

from paraguard_utils.errors import Missing
from paraguard_utils.models import weights
from paraguard_utils.stores import CorpusFiles

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# From texts to sentence vectors, a row for each text
Embed: TypeAlias = Callable[[Sequence[str]], np.ndarray]

ENCODER_NAME = "all-minilm-l6-v2"
ENCODER_DIMENSIONS = 384
BATCH = 64
LONG_RUN = 1000  # texts above which a progress bar is shown


def hash_text(text: str) -> str:
    """Return the 16 hex digits of SHA-256 that name a text in files of vectors."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


@cache
def load_encoder() -> "SentenceTransformer":
    """Load the packaged encoder, on the CPU and from local files only."""
    folder = weights.locate_weights(weights.MINILM_FILE).parent
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Takes seconds to import: only where texts are embedded
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    return SentenceTransformer(
        str(folder), device="cpu", local_files_only=True, trust_remote_code=False
    )


def encode_texts(texts: Sequence[str]) -> np.ndarray:
    """Embed texts with the packaged encoder, equal ones once.

    Returns float16 unit vectors, shape (len(texts), 384): rounded as they are stored,
    so that numbers computed now and from the store are equal. A missing or altered
    package of the encoder raises `WeightsError`.
    """
    if not len(texts):
        return np.empty((0, ENCODER_DIMENSIONS), np.float16)
    codes, distinct = pd.factorize(np.array(texts, object))
    vectors = load_encoder().encode(
        distinct.tolist(),
        batch_size=BATCH,
        normalize_embeddings=True,
        show_progress_bar=len(distinct) > LONG_RUN,
    )
    return vectors.astype(np.float16)[codes]


def stored_vectors(
    files: CorpusFiles, texts: Sequence[str], earlier: bool = False
) -> np.ndarray:
    """Return the vectors of a corpus's texts; a live store embeds what it lacks.

    Parameters
    ----------
    files : CorpusFiles
        A live store keeps what it embeds.
    texts : Sequence of str
        Texts of the corpus, in any order.
    earlier : bool
        Whether an earlier notebook made the vectors, so that recorded ones will do.

    Returns
    -------
    array of float16, shape (len(texts), 384)

    Raises
    ------
    Missing
        The recorded store lacks a vector.
    """
    hashes = [hash_text(text) for text in texts]
    read = files.read_earlier if earlier else files.read
    known: dict[str, np.ndarray] = {}
    with contextlib.suppress(Missing):
        stored = read("sentences", ENCODER_NAME)
        known = dict(zip(stored["text_hash"], stored["vector"], strict=True))
    by_hash = dict(zip(hashes, texts, strict=True))
    missing = [key for key in by_hash if key not in known]
    if missing and files.recorded:
        raise Missing(
            f"{len(missing)} texts of {files.name} have no recorded vector; run"
            " 01_corpus_building with a live store"
        )
    if missing:
        vectors = encode_texts([by_hash[key] for key in missing])
        known |= dict(zip(missing, vectors, strict=True))
        frame = pd.DataFrame({"text_hash": list(known), "vector": list(known.values())})
        meta = {"encoder": ENCODER_NAME, "weights": weights.MINILM_FILE.sha256}
        files.write("sentences", ENCODER_NAME, frame=frame, meta=meta)
    return np.stack([known[key] for key in hashes])
