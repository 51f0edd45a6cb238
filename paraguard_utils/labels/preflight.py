"""What a run has still to query, and about how long that takes."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from paraguard_utils import stores
from paraguard_utils.labels import labelling
from paraguard_utils.models import prompting
from paraguard_utils.parts import Parts
from paraguard_utils.settings import QueryOptions
from paraguard_utils.stores import RECORDED, CorpusFiles, Store


def print_preflight(
    files: CorpusFiles,
    size: int,
    systems: Sequence[str],
    options: QueryOptions,
    kind: str = "traces",
) -> int:
    """Print on stderr how much is left to query, and return how much is done.

    There are `size` prompts per system. Files of `kind` show what was queried before:
    traces, or labels if only these are kept.
    """
    done = 0
    for system in systems:
        done += _count_answers(files.path(kind, system), kind, options)
    total = size * len(systems)
    line = (
        f"preflight: {total} prompts to ask ({size} x {len(systems)} systems),"
        f" {min(done, total)} already done"
    )
    left = total - done
    if left > 0:
        recorded = CorpusFiles(Store(RECORDED), files.name)
        metas = [stores.read_meta(recorded.path(kind, name)) for name in systems]
        line += _estimate_cost(left, metas, options)
    print(line, file=sys.stderr, flush=True)
    return done


def _count_answers(file: Path, kind: str, options: QueryOptions) -> int:
    """Count the answers in a file and in the parts that are to become it."""
    meta = stores.read_meta(file)
    labeller = meta.get("inputs", {}).get("labeller", labelling.LABELLER)
    places = [*Parts(file, kind).files(), *Parts(file, kind, "labelled").files()]
    if labeller == labelling.LABELLER and _is_alike(meta, options):
        places.append(file)
    count = 0
    for place in places:
        # What is missing or damaged is queried again.
        with contextlib.suppress(OSError, ValueError):
            count += len(_read_ids(place))
    return count


def _is_alike(meta: dict[str, Any], options: QueryOptions) -> bool:
    """Return whether a meta file is of answers that these options would give."""
    decoding = asdict(prompting.Decoding(options.max_new_tokens))
    # A server does not say which dtype it has.
    has_dtype = bool(options.base_url) or meta.get("dtype") == options.dtype
    return has_dtype and meta.get("decoding") == decoding


def _read_ids(file: Path) -> pd.DataFrame:
    """Read the prompts' ids only: the rest of traces is large."""
    columns = ["prompt_id"]
    if file.suffix == ".parquet":
        return pd.read_parquet(file, columns=columns)
    return pd.read_csv(file, usecols=columns)


def _estimate_cost(
    left: int, metas: Sequence[dict[str, Any]], options: QueryOptions
) -> str:
    """Say what the rest takes, if the record has all systems, queried likewise."""
    for meta in metas:
        is_alike = _is_alike(meta, options) and meta["device"] == options.device
        if not (is_alike and meta.get("asked_now")):
            return "; the progress bar tells the minutes after the first batch"
    each = [meta["seconds"] / meta["asked_now"] / 60 for meta in metas]
    minutes = left * sum(each) / len(each)
    memory = max(meta.get("peak_gb", 0) for meta in metas)
    return (
        f", about {minutes:.0f} min and {memory:.1f} GB of memory, as in the recorded"
        " run"
    )
