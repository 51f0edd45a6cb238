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

The answers that were read had not been kept. `python benchmarks/languages.py again
STORE` decodes them again, resumably, in the live store STORE, and keeps them in
`languages/answers.csv`; all answer harmless requests. If `refusal_cues.csv` labels one
as it labelled the earlier answer, it is taken for the answer that was read, and the
longer lists of logs (`data/refusal_cues_languages.csv`) are compared with the readings
on it. After the comparison one Spanish rule of those lists was changed (`docs/labels.md`).
"""

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_lab.core.inference import estimate_kappa
from paraguard_tools.answers.labelling import label_logs_by_cues
from paraguard_utils import settings, stores, unsafe
from paraguard_utils.analysis import confusion, wording
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.labels import labelling
from paraguard_utils.models import backends, trace_store

FOLDER = Path(__file__).with_suffix("")
LANGUAGES = ("german", "spanish")
MODELS = ("qwen2.5-coder-0.5b-instruct-q4_k_m", "qwen2.5-coder-1.5b-instruct-q4_k_m")
SYSTEM_PROMPTS = ("none", "safety", "strict")
ANSWER = ["language", "system", "prompt_id"]  # the columns that name an answer
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
            for system_prompt in SYSTEM_PROMPTS:
                system = f"{model}--{system_prompt}"
                traces = store.read("traces", f"paraguard_{language}", system)
                label = label_answers(language, traces, prompts)
                rows.append(
                    traces[["prompt_id"]].assign(
                        language=language, system=system, label=label
                    )
                )
    table = pd.concat(rows)[[*ANSWER, "label"]]
    table.to_csv(FOLDER / "decisions.csv", index=False)
    return table


def query_again(name):
    """Query the annotated prompts again in a live store, resumably.

    Write the answers: language, system, prompt_id, finish_reason, response.
    """
    store, kept = stores.Store(name), []
    readings = pd.read_csv(FOLDER / "readings.csv")
    for model in MODELS:
        options = settings.QueryOptions(
            model=model.removesuffix("-q4_k_m"), system_prompts=SYSTEM_PROMPTS
        )
        (source,) = backends.resolve_backends(options)
        backend = source.open(options)
        for language in LANGUAGES:
            prompts = read_prompts(language)
            unsafe.refuse_unsafe(prompts, f"the prompts in {language}")
            files = stores.CorpusFiles(store, f"paraguard_{language}_read")
            for system_prompt in SYSTEM_PROMPTS:
                system = f"{model}--{system_prompt}"
                read = readings[
                    readings["language"].eq(language) & readings["system"].eq(system)
                ]
                wanted = prompts[prompts["prompt_id"].isin(read["prompt_id"])]
                query = trace_store.Query(
                    files, wanted.reset_index(drop=True), system_prompt
                )
                traces = trace_store.query_model(backend, query)
                kept.append(traces.assign(language=language, system=system))
    answers = pd.concat(kept)[[*ANSWER, "finish_reason", "response"]]
    answers = readings[ANSWER].merge(answers, on=ANSWER)
    answers.to_csv(FOLDER / "answers.csv", index=False)


def label_again(language, decisions):
    """Label the answers that were decoded again by both lists.

    Returns ANSWER, `label` as the earlier answer had it, `again` by the same list, and
    `longer` by the list of logs.
    """
    answers = pd.read_csv(FOLDER / "answers.csv").query("language == @language")
    labelled = []
    for system, found in answers.groupby("system", sort=False):
        prompts = read_prompts(language).merge(found[["prompt_id"]], on="prompt_id")
        traces = prompts[["prompt_id", "text"]].merge(found, on="prompt_id")
        logs = traces[["text", "finish_reason"]].assign(answer=traces["response"])
        labelled.append(
            traces[["language", "prompt_id"]].assign(
                system=system,
                again=label_answers(language, traces, prompts),
                longer=label_logs_by_cues(logs)["label"],
            )
        )
    return pd.concat(labelled).merge(decisions, on=ANSWER)


def compare(groups, read, one, other):
    """Return the agreement of two columns of decisions: kappa, and counts.

    `refused` counts the refusals of the second one, `found` those that the first one
    rejects too, and `false` what only the first one rejects.
    """
    known = read.dropna(subset=[one, other])
    clusters = known["prompt_id"].str.rpartition("-")[0]
    rejects = [known[name].isin(["reject", "blocked"]) for name in (one, other)]
    counts = {
        "n": len(known),
        "refused": rejects[1].sum(),
        "found": (rejects[0] & rejects[1]).sum(),
        "false": (rejects[0] & ~rejects[1]).sum(),
        "unparsed": known[one].eq("unparsed").sum(),
    }
    return counts | to_columns({"kappa": estimate_kappa(groups, clusters, *rejects)})


def compare_with_readers(language, decisions, groups):
    """Return rows of agreement in one language."""
    readings = pd.read_csv(FOLDER / "readings.csv").query("language == @language")
    readers = ["first", "second"]
    readings[readers] = readings[readers].apply(lambda column: column.map(REFUSED))
    read = readings.merge(decisions, on=ANSWER)
    rows = [
        {"about": f"label and {reader}"} | compare(groups, read, "label", reader)
        for reader in readers
    ]
    rows.append({"about": "two readers"} | compare(groups, read, "first", "second"))
    again = label_again(language, decisions)
    same = again[again["again"] == again["label"]].merge(readings, on=ANSWER)
    rows.append({"about": "decoded again", "n": len(again), "same": len(same)})
    for name, column in (("label", "label"), ("longer list", "longer")):
        for reader in readers:
            about = {"about": f"{name} and {reader}, same answers"}
            rows.append(about | compare(groups, same, column, reader))
    return [{"language": language, **row} for row in rows]


def main(name=""):
    """Compare decisions with readings, and estimate FRR and DR."""
    decisions = decide(name) if name else pd.read_csv(FOLDER / "decisions.csv")
    rows = []
    for language in LANGUAGES:
        prompts = read_prompts(language)
        own = decisions[decisions["language"] == language]
        groups = ClusterBootstrap(prompts["cluster_id"])
        rows += compare_with_readers(language, own, groups)
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
    if sys.argv[1:2] == ["again"]:
        query_again(*sys.argv[2:])
        main()
    else:
        main(*sys.argv[1:])
