"""Say before the first prompt what a run of several notebooks will query."""

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paraguard_lab.corpus.xstest import read_xstest_prompts
from paraguard_lab.parameters import FILE_SCHEME
from paraguard_lab.settings import RunSettings
from paraguard_utils import registry, stores, unsafe
from paraguard_utils.errors import Missing, UserError
from paraguard_utils.models import loading
from paraguard_utils.settings import TWINS
from paraguard_utils.stores import RECORDED, CorpusFiles, Store

_BILLIONS = {
    "smollm2-135m-instruct": 0.135,
    "qwen2.5-coder-0.5b-instruct": 0.494,
    "qwen2.5-coder-1.5b-instruct": 1.544,
}
"""Parameters of the models whose time for a prompt is recorded."""

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}  # of one parameter
_GGUF_BYTES = 0.6  # of one parameter, at four to five bits


def describe_queries(
    config: RunSettings, parameters: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return one line: prompts and minutes of all notebooks of a run that query.

    `parameters` has those of each notebook by its number, defaults included.
    """
    store = config.open_store()
    if store.recorded:
        return ""
    parts = []
    if "02" in parameters:
        counts = _count_of_query(store, config, parameters["02"])
        prompts = sum(counts.values())
    if "02" in parameters and prompts:
        named = [f"{count:,} {name}" for name, count in counts.items() if count]
        time = _minutes(config, prompts, parameters["02"])
        parts.append(f"02 queries {' and '.join(named)} prompts{time}")
    if "05" in parameters:
        parts.append(_describe_guards(store, config))
    if "07" in parameters:
        remedies = parameters["07"].get("remedies") or []
        also = f", and applies {', '.join(remedies)}" if remedies else ""
        parts.append(
            "07 queries rewordings of what is refused under the safety instruction,"
            f" which nobody can count before{also}"
        )
    if not parts:
        return ""
    return f"preflight: {'; '.join(parts)}; what was answered before is not asked again"


def read_defaults(inspected: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters that a notebook of the project has, with their values."""
    return {
        name: ast.literal_eval(about["default"]) for name, about in inspected.items()
    }


def _count_of_query(
    store: Store, config: RunSettings, given: Mapping[str, Any]
) -> dict[str, int]:
    """Return how many prompts 02 queries, by what they are."""
    models = 1 if config.model else len(registry.list_default_models())
    systems = models * len(given["system_prompts"])
    harmful = models * len(given["twins_system_prompts"] or given["system_prompts"])
    try:
        corpus = store.read_earlier("corpus", config.corpus)
    except Missing:  # the first notebook says of which
        return {}
    n_prompts = min(given["limit"] or len(corpus), len(corpus))
    counts = {"harmless": n_prompts * systems, "harmful": 0}
    if (
        given["limit"]
        or given["stop"]
        or str(given["base_url"]).startswith(FILE_SCHEME)
    ):
        return counts
    counts["harmful"] = _count_twins(store, config, corpus) * harmful
    if given["xstest"]:
        counts["XSTest's"] = (
            len(read_xstest_prompts(given["xstest"], "unsafe")) * harmful
        )
    return counts


def _count_twins(store: Store, config: RunSettings, corpus: Any) -> int:
    if not config.twins or config.twins == config.corpus:
        return 0
    try:
        twins = store.read_earlier("corpus", config.twins)
    except Missing:
        return 0
    if config.twins == TWINS and unsafe.select_twins(corpus, twins).empty:
        return 0
    return len(twins)


def _describe_guards(store: Store, config: RunSettings) -> str:
    """Say how many guards 05 runs, and of how many it has scores."""
    names = config.asked_guards("guard", "refusal")
    files = CorpusFiles(store, config.corpus)
    recorded = CorpusFiles(Store(RECORDED), config.corpus)
    known = [name for name in names if _has_scores(files, recorded, name)]
    new = [name for name in names if name not in known]
    line = f"05 has recorded scores of {len(known)} guards"
    if not new:
        return line
    return f"{line} and runs {len(new)} on all prompts ({', '.join(new)})"


def _has_scores(files: CorpusFiles, recorded: CorpusFiles, name: str) -> bool:
    return files.has("guards", name) or recorded.has("guards", name)


def _minutes(config: RunSettings, prompts: int, given: Mapping[str, Any]) -> str:
    """Say how long so many prompts take by local weights on a processor, if known."""
    if given["device"] != "cpu" or given["base_url"]:
        return ", for how long the progress bar says after the first batch"
    try:
        names = [config.model] if config.model else registry.list_default_models()
        billions = np.mean([_count_billions(name) for name in names])
    except UserError:  # loading says it
        return ""
    seconds = _seconds_of_prompt(float(billions))
    if np.isnan(seconds):
        return ""
    minutes = prompts * seconds / 60
    if minutes < 1:
        return " (about a minute on two processor cores)"
    return f" (about {minutes:,.0f} minutes on two processor cores)"


def _count_billions(name: str) -> float:
    """Return about how many billions of parameters a model's files hold."""
    if name in _BILLIONS:
        return _BILLIONS[name]
    path = loading.resolve_model(name).path
    if path.suffix == ".gguf":
        return path.stat().st_size / _GGUF_BYTES / 1e9
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return size / _BYTES.get(_read_dtype(path), 2) / 1e9


def _read_dtype(folder: Path) -> str:
    """Return the name of the dtype in which a folder keeps weights; "" if unknown."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(config.get("dtype") or config.get("torch_dtype") or "")


def _seconds_of_prompt(billions: float) -> float:
    """Return the seconds for a prompt, on a line through the recorded models.

    NaN if fewer than two of them are there.
    """
    sizes: list[float] = []
    seconds: list[float] = []
    recorded = Store(RECORDED)
    for system, row in registry.published_systems("chat").iterrows():
        meta = stores.read_meta(recorded.path("traces", "paraguard_mini", str(system)))
        if row["model"] in _BILLIONS and meta.get("asked_now"):
            sizes.append(_BILLIONS[row["model"]])
            seconds.append(meta["seconds"] / meta["asked_now"])
    if len(sizes) < 2:
        return np.nan
    slope, start = np.polyfit(sizes, seconds, 1)
    return float(start + slope * billions)
