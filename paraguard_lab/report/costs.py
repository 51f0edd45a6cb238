"""Say what queries of models take."""

import pandas as pd

from paraguard_utils import stores
from paraguard_utils.models.prompting import Decoding

CHARACTERS_PER_TOKEN = 4  # about, in English


def query_cost(
    files: stores.CorpusFiles, system: str, n_prompts: int
) -> dict[str, float]:
    """Return what a query of so many prompts takes, by a system's last run.

    It is the time in `minutes` and the memory in `gb`; {} if nothing is known.
    """
    meta = stores.read_meta(files.path("traces", system))
    if not meta.get("asked_now"):
        return {}
    minutes = meta["seconds"] / meta["asked_now"] * n_prompts / 60
    return {"minutes": minutes, "gb": meta["peak_gb"]}


def describe_cost(
    texts: pd.Series, decoding: Decoding, around: int = 0, times: int = 1
) -> str:
    """Say in words how many prompts and tokens a query of texts takes.

    Each text is sent `times` times, with `around` more characters in a prompt.
    """
    prompts = times * len(texts)
    characters = times * texts.str.len().sum() + around * prompts
    thousands = max(round(characters / CHARACTERS_PER_TOKEN, -3), 1000)
    return (
        f"{prompts:,} prompts to ask, about {thousands:,.0f} tokens in"
        f" and at most {decoding.max_new_tokens * prompts:,} out"
    )
