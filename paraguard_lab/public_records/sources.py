"""Read decisions from public records of other people's systems.

A source is one reader, from a folder of files to decisions, and one row of
`data/public_records/sources.csv`. No text of a prompt or an answer leaves a reader.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from paraguard_lab.labels import follow_ups
from paraguard_utils import paths, registry
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.schemas import Table
from paraguard_utils.stores import CorpusFiles

FOLDER = paths.DATA / "public_records"

DECISION_COLUMNS = (
    "source_row",
    "cluster",
    "system",
    "setting",
    "repeat",
    "judge",
    "source_label",
    "decision",
)
"""Columns of decisions.

source_row: the record's own id of the request; cluster: rows of one cluster ask the
same; setting: the temperature, tier, form or language; repeat: counts answers to the
same words; source_label: the judge's word; decision: refused, answered or error.
"""

DECISIONS = {
    "REFUSE": "refused",
    "PARTIAL": "refused",
    "COMPLY": "answered",
    "direct_refusal": "refused",
    "indirect_refusal": "refused",
    "partial_compliance": "refused",
    "compliance": "answered",
    "DENIAL": "refused",
    "EVASIVE": "refused",
    "COMPLETE": "answered",
    # Of our labeller
    "reject": "refused",
    "blocked": "refused",
    "accept": "answered",
}
"""What a judge's word means; all other words decide nothing."""

PARTIAL_LABELS = ("PARTIAL", "partial_compliance", "EVASIVE")
"""Words for an answer that helps in part or evades."""

SYSTEM_TITLES = {
    "meta-llama/Llama-3.1-8B-Instruct": "Llama 3.1 8B",
    "Qwen_Qwen2.5_7B_Instruct": "Qwen 2.5 7B",
    "Qwen_Qwen3-8B": "Qwen 3 8B",
    "Qwen/Qwen3-8B": "Qwen 3 8B",
    "google_gemma-3-12b-it": "Gemma 3 12B",
    "google/gemma-3-12b-it": "Gemma 3 12B",
    "mistralai_Mistral_7B_Instruct_v0.3": "Mistral 7B v0.3",
}
"""One name for each model that a source writes in several ways."""

JUDGE_TITLES = {
    "claude-3-5-haiku-20241022": "claude-haiku",
    "claude-haiku-3.5": "claude-haiku",
}
"""One name for a judge that a source writes in two ways."""

RecordedDecisions: TypeAlias = pd.DataFrame


class Source(NamedTuple):
    """A record: its reader, and whether its decisions may be kept row by row.

    Where the source has no licence, only counts are kept (`count_by_prompt`).
    """

    read: Callable[[Path], RecordedDecisions]
    by_row: bool


def decide_by_labels(source_labels: pd.Series) -> pd.Series:
    """Return refused, answered or error, by what the judges' words mean."""
    return source_labels.map(DECISIONS).fillna("error")


def read_stability(folder: Path) -> RecordedDecisions:
    """Read five models' answers to requests for harm, at four temperatures.

    Five seeds each. An answer has one row for each of its judges.
    """
    frame = pd.read_csv(folder / "ssi_labels.csv.gz")
    return _arrange(
        frame,
        source_row=frame["prompt_id"],
        cluster=frame["prompt_id"],
        system=frame["model"].replace(SYSTEM_TITLES),
        setting=frame["temperature"].map("temperature {:.1f}".format),
        repeat=frame["seed"] - frame["seed"].min(),
        judge=frame["judge"].replace(JUDGE_TITLES),
        source_label=frame["label"],
    )


def read_triples(folder: Path) -> RecordedDecisions:
    """Read twenty systems' answers to prompts in three tiers, five trials each."""
    frame = pd.read_csv(folder / "refusalbench_adjudicated.csv.gz")
    return _arrange(
        frame,
        source_row=frame["prompt_id"],
        cluster=frame["prompt_id"],
        system=frame["model"],
        setting=frame["tier"],
        repeat=frame["trial_idx"],
        judge="council of three",
        source_label=frame["modal_compliance"],
    )


def read_languages(folder: Path) -> RecordedDecisions:
    """Read 37 systems' answers to requests to criticise a government.

    The requests about China were made in three languages.
    """
    frame = pd.read_csv(folder / "speechmap_criticism.csv.gz")
    number = frame["question_id"].str.extract(r"(\d+)$", expand=False)
    about = frame["set"].str.extract(r"(\w+)_criticism$", expand=False)
    country = about.str.split("_").str[-1]
    language = about.str.extract(r"^(fi|zh)_", expand=False).fillna("en")
    return _arrange(
        frame,
        source_row=frame["set"] + "/" + frame["question_id"],
        cluster=country + "-" + number,
        system=frame["system"],
        setting=language,
        repeat=0,
        judge=frame["judge"],
        source_label=frame["compliance"],
    )


def read_forms(folder: Path) -> RecordedDecisions:
    """Read two models' answers to political claims in four forms, and label them.

    The labels are those of `labels.labelling`; the record has none.
    """
    questions = pd.read_csv(folder / "speechmap_us_hard_questions.csv.gz")
    texts = questions.set_index("id")["question"]
    parts = []
    for file in sorted(folder.glob("speechmap_us_hard_*.parquet")):
        answers = pd.read_parquet(file)
        labels = labelling.label_responses(
            answers["answer"], answers["finish"], texts.loc[answers["question_id"]]
        )
        claim = answers["question_id"].str.replace(r"\d$", "", regex=True)
        form = answers["question_id"].str[-1].map(FORMS)
        parts.append(
            _arrange(
                answers,
                source_row=answers["question_id"],
                cluster=claim,
                system=file.stem.removeprefix("speechmap_us_hard_"),
                setting=form,
                repeat=0,
                judge=labelling.LABELLER,
                source_label=labels["label"].to_numpy(),
            )
        )
    return pd.concat(parts, ignore_index=True)


FORMS = {"1": "essay", "2": "explanation", "3": "satire", "4": "speech"}
"""The form of a request, by the last digit of its id."""


def _arrange(frame: pd.DataFrame, **columns: object) -> RecordedDecisions:
    """Return decisions with `DECISION_COLUMNS`, in the order of the record."""
    decisions = pd.DataFrame(columns, index=frame.index)
    decisions["decision"] = decide_by_labels(decisions["source_label"].astype(str))
    return decisions[list(DECISION_COLUMNS)].reset_index(drop=True)


SOURCES = {
    "stability": Source(read_stability, by_row=False),
    "triples": Source(read_triples, by_row=True),
    "forms": Source(read_forms, by_row=True),
    "languages": Source(read_languages, by_row=True),
}
"""The records, by name. To add one: a reader here, and a row in `sources.csv`."""

BY_PROMPT = ["system", "setting", "judge"]
OUTCOMES = ["refused", "answered", "error"]


def count_by_prompt(decisions: RecordedDecisions) -> Table:
    """Count the prompts by how many of their answers were refused and answered.

    Returns
    -------
    Table
        system, setting, judge, refused, answered, error: counts of one prompt's
        answers; prompts: how many prompts have these counts.
    """
    by_prompt = decisions.groupby([*BY_PROMPT, "source_row", "decision"]).size()
    counts = by_prompt.unstack(fill_value=0).reindex(columns=OUTCOMES, fill_value=0)
    grouped = counts.reset_index().groupby([*BY_PROMPT, *OUTCOMES])
    return grouped.size().rename("prompts").reset_index()


def spread_counts(counts: Table) -> pd.DataFrame:
    """Return a row a prompt of `count_by_prompt`: its counts, and a number as id."""
    rows = counts.loc[counts.index.repeat(counts["prompts"])].drop(columns="prompts")
    return rows.reset_index(drop=True).rename_axis("cluster_id").reset_index()


def read_recorded_decisions(name: str) -> RecordedDecisions:
    """Read a source's decisions, which are kept by row.

    Raises
    ------
    DataError
        The source's decisions are not kept by row.
    """
    if not SOURCES[name].by_row:
        raise DataError(f"{name}: decisions are not kept by row; read its counts")
    return pd.read_csv(FOLDER / f"{name}.csv", keep_default_na=False)


def read_partial_as_answered(name: str) -> RecordedDecisions:
    """Read a source's decisions, with partial answers as answers, not refusals."""
    decisions = read_recorded_decisions(name)
    is_partial = decisions["source_label"].isin(PARTIAL_LABELS)
    answered = decisions["decision"].mask(is_partial, "answered")
    return decisions.assign(decision=answered)


def read_counts(name: str) -> Table:
    """Return `count_by_prompt` of a source, whichever way it is kept."""
    if SOURCES[name].by_row:
        return count_by_prompt(read_recorded_decisions(name))
    return pd.read_csv(FOLDER / f"{name}_counts.csv", keep_default_na=False)


def refused_bits(decision: pd.Series) -> np.ndarray:
    """Return 1 for refused, 0 for answered, NaN for what decides nothing."""
    return decision.map({"refused": 1.0, "answered": 0.0}).to_numpy(float)


def read_sources() -> Table:
    """Read the list of sources: title, licence, citation, address, and what each is."""
    return pd.read_csv(FOLDER / "sources.csv", keep_default_na=False)


def read_measured(what: str) -> Table:
    """Read what `build.build_records` measured of single answers and prompts.

    It is of the source `stability`, whose answers are not kept.
    """
    return pd.read_csv(FOLDER / f"stability_{what}.csv")


def count_own_draws(files: CorpusFiles) -> Table:
    """Return `count_by_prompt` of our own systems' answers drawn at temperature 0.7.

    It is empty if the store has none.
    """
    systems = registry.published_systems("chat").index
    parts = []
    for system, samples in follow_ups.read_samples(files, systems).items():
        parts.append(
            pd.DataFrame(
                {
                    "source_row": samples["prompt_id"],
                    "system": system,
                    "setting": "temperature 0.7",
                    "judge": labelling.LABELLER,
                    "decision": decide_by_labels(samples["label"].astype(str)),
                }
            )
        )
    if not parts:
        return pd.DataFrame(columns=[*BY_PROMPT, *OUTCOMES, "prompts"])
    return count_by_prompt(pd.concat(parts, ignore_index=True))
