"""Say what the last queries of systems took."""

from paraguard_utils import stores


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
