"""Embed the texts of a log without clusters, resumably: what was embedded before a kill is kept."""

from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from paraguard_utils import stores
from paraguard_utils.errors import DataError
from paraguard_utils.logs.decisions import Decisions

PART_ROWS = 4096
"""Texts embedded in each part: what a kill can lose."""


def embed_log(decisions: Decisions, out: Path) -> np.ndarray:
    """Return the sentence vectors of a log's rows, and keep them in a folder; DataError if the log has no texts."""
    from paraguard_utils.models import encoder  # seconds to import: only where texts are embedded

    rows = decisions.texts(decisions.rows.index.to_numpy()).tolist()
    if not any(rows):
        raise DataError(
            f"{decisions.name}: there are neither clusters nor texts; name one of them, with --cluster or --text"
        )
    hashes = [encoder.hash_text(text) for text in rows]
    out.mkdir(parents=True, exist_ok=True)
    with stores.Parts(out / "vectors.parquet", "sentences") as parts:
        known = {row.text_hash: row.vector for frame in parts.read() for row in frame.itertuples()}
        missing = {key: text for key, text in zip(hashes, rows, strict=True) if key not in known}
        for start in tqdm(range(0, len(missing), PART_ROWS), desc="embedding", disable=not missing):
            chunk = list(missing)[start : start + PART_ROWS]
            vectors = list(encoder.encode_texts([missing[key] for key in chunk]))
            parts.add(pd.DataFrame({"text_hash": chunk, "vector": vectors}))
            known |= dict(zip(chunk, vectors, strict=True))
    return np.stack([np.asarray(known[key], np.float16) for key in hashes])
