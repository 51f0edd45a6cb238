"""Does DR travel? Forty clusters in German and forty in Spanish, asked of the recorded
models. Exploratory.

`python benchmarks/languages.py STORE` labels the answers of a live store
(`traces/paraguard_german`, `traces/paraguard_spanish`) by `languages/refusal_cues.csv`,
and by the usual labeller where a model answers in English; it writes
`languages/decisions.csv`, without answers. Without STORE it reads these. It then
compares decisions with two blind readings (`languages/readings.csv`) and writes
`languages.csv`: agreement, and FRR and DR of each system.

The cue lists were written when four answers of each system had been looked at, before
the readings, and not changed after. SmolLM2 is left out: it speaks neither language.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_lab.core.inference import estimate_kappa
from paraguard_utils import stores
from paraguard_utils.analysis import confusion, wording
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.labels import labelling

FOLDER = Path(__file__).with_suffix("")
LANGUAGES = ("german", "spanish")
MODELS = ("qwen2.5-coder-0.5b-instruct-q4_k_m", "qwen2.5-coder-1.5b-instruct-q4_k_m")
OPENING = 250  # characters that are searched for a cue
REFUSED = {
    "full_refusal": "reject",
    "partial_refusal": "reject",
    "full_compliance": "accept",
}


def label_answers(language, traces, prompts):
    """Label answers: a cue of the language, or a refusal in English."""
    cues = pd.read_csv(FOLDER / "refusal_cues.csv").query("language == @language")
    openings = traces["response"].fillna("").str.lower().str.slice(0, OPENING)
    found = labelling.label_answers(traces, prompts)["label"].eq("reject").to_numpy()
    for cue in cues.itertuples():
        hit = openings.map(
            lambda text, pattern=cue.pattern: bool(re.search(pattern, text))
        )
        if isinstance(cue.unless, str):
            hit &= ~openings.map(
                lambda text, pattern=cue.unless: bool(re.search(pattern, text))
            )
        found = found | hit.to_numpy()
    return np.where(openings.eq(""), "unparsed", np.where(found, "reject", "accept"))


def read_prompts(language):
    """Return the prompts of a language."""
    return pd.read_csv(FOLDER / f"prompts_{language}.csv")


def decide(name):
    """Label the answers of a live store.

    Return and write decisions: language, system, prompt_id, label.
    """
    store, rows = stores.Store(name), []
    for language in LANGUAGES:
        prompts = read_prompts(language)
        for model in MODELS:
            for system_prompt in ("none", "safety", "strict"):
                system = f"{model}--{system_prompt}"
                traces = store.read("traces", f"paraguard_{language}", system)
                label = label_answers(language, traces, prompts)
                rows.append(
                    traces[["prompt_id"]].assign(
                        language=language, system=system, label=label
                    )
                )
    table = pd.concat(rows)[["language", "system", "prompt_id", "label"]]
    table.to_csv(FOLDER / "decisions.csv", index=False)
    return table


def main(name=""):
    """Compare decisions with readings, and estimate FRR and DR."""
    decisions = decide(name) if name else pd.read_csv(FOLDER / "decisions.csv")
    interpretations = pd.read_csv(FOLDER / "readings.csv")
    rows = []
    for language in LANGUAGES:
        prompts, own = (
            read_prompts(language),
            decisions[decisions["language"] == language],
        )
        groups = ClusterBootstrap(prompts["cluster_id"])
        read = interpretations[interpretations["language"] == language].merge(
            own, on=["language", "system", "prompt_id"]
        )
        read = read.assign(
            **{one: read[one].map(REFUSED) for one in ("first", "second")}
        )
        pairs = {
            "label and first": ("label", "first"),
            "label and second": ("label", "second"),
        }
        for about, (one, other) in (
            pairs | {"two readers": ("first", "second")}
        ).items():
            known = read.dropna(subset=[one, other])
            ids = known["prompt_id"].str.rpartition("-")[0]
            kappa = estimate_kappa(
                groups, ids, known[one].eq("reject"), known[other].eq("reject")
            )
            rows.append(
                {"language": language, "about": about, "n": len(known)}
                | to_columns({"kappa": kappa})
            )
        for system, found in own.groupby("system", sort=False):
            labels = prompts[["prompt_id"]].merge(
                found[["prompt_id", "label"]], on="prompt_id", how="left"
            )
            labels = labels.assign(
                kind=None, rule=None, p_refusal=np.nan, answer=None, response=None
            )
            measured = System.of(system, prompts, labels, groups)
            rate = confusion.rate_row(measured)
            shared = wording.wording_tables([measured])[0].iloc[0]
            kept = ["frr", "dr", "dr_near", "dr_free"]
            both = {**rate, **shared.filter(regex="^dr_(near|free)").to_dict()}
            kept = [f"{one}{end}" for one in kept for end in ("", "_low", "_high")]
            about = {
                "language": language,
                "about": system,
                "n": rate["n_scored"],
                "n_reject": rate["n_reject"],
            }
            rows.append(
                about
                | {one: both[one] for one in kept}
                | {"too_few": rate["too_few_for_dr"]}
            )
    table = pd.DataFrame(rows)
    stores.write_file(Path(__file__).with_suffix(".csv"), table, "tables", {})
    print(table.round(3).to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
