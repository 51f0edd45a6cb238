"""Sentence vectors of a log without clusters, resumably: what was embedded before a kill is kept."""

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from paraguard_utils import stores
from paraguard_utils.errors import DataError
from paraguard_utils.logs.decisions import Decisions

FIRST, PART = 256, 4096
"""Texts embedded before the time is told, and in each part after that: what a kill can lose."""


def embed(decisions: Decisions, out: Path) -> np.ndarray:
    """Return the sentence vectors of a log's rows.

    Parameters
    ----------
    decisions : Decisions
        With texts.
    out : Path
        Folder for the vectors.
    """
    from paraguard_utils.models import encoder  # seconds to import: only where texts are embedded

    rows = decisions.texts(decisions.rows.index.to_numpy()).tolist()
    if not any(rows):
        raise DataError(
            f"{decisions.name}: there are neither clusters nor texts; name one of them, with --cluster or --text"
        )
    hashes = [encoder.text_hash(text) for text in rows]
    out.mkdir(parents=True, exist_ok=True)
    with stores.Parts(out / "vectors.parquet", "sentences") as parts:
        known = {row.text_hash: row.vector for frame in parts.read() for row in frame.itertuples()}
        missing = {key: text for key, text in zip(hashes, rows, strict=True) if key not in known}
        for chunk in _parts(missing):
            vectors = list(encoder.encode([missing[key] for key in chunk]))
            parts.add(pd.DataFrame({"text_hash": chunk, "vector": vectors}))
            known |= dict(zip(chunk, vectors, strict=True))
    return np.stack([np.asarray(known[key], np.float16) for key in hashes])


def _parts(missing: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield parts of what is to be embedded, with a progress bar; the first, small one says how long the rest takes."""
    keys = list(missing)
    started = time.monotonic()
    with tqdm(total=len(keys), desc="embedding", unit="row", disable=not keys) as bar:
        for start in (0, *range(FIRST, len(keys), PART)):
            chunk = keys[start : FIRST if not start else start + PART]
            if not chunk:
                return
            yield chunk
            bar.update(len(chunk))
            if not start and len(keys) > FIRST:
                rate = FIRST / (time.monotonic() - started)
                left = (len(keys) - FIRST) / rate / 60
                print(f"{len(keys)} texts to embed, {rate:.0f} a second, about {left:.0f} min", file=sys.stderr)
