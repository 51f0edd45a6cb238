"""Make examples to tune a model on from its own answers.

(`docs/method.md`, What CI adds; Remedies)
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from paraguard_lab.analysis.nearest import pair_with_nearest_accepted
from paraguard_lab.labels import substance
from paraguard_utils import stores, unsafe
from paraguard_utils.analysis.system import System
from paraguard_utils.schemas import Corpus, Labels

# JSON allows these inside a string, but many readers end a line there.
_LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}


def make_tuning_examples(
    system: System, longer: pd.DataFrame | None, system_prompt: str
) -> list[dict[str, Any]]:
    """Pair rejected phrasings with the model's own answers to accepted ones, as chats.

    Nobody has judged whether an answer is right.

    Parameters
    ----------
    system : System
        With traces and pairs.
    longer : DataFrame or None
        Long answers (`labels.follow_ups`).
    system_prompt : str
        The text of the system prompt, "" for none.

    Returns
    -------
    list of dict
        One example for each rejected prompt with a fit answer in its cluster, in corpus
        order: messages, system, cluster_id, prompt_id, answered_as (the id of the
        accepted prompt, the most similar one).

    Raises
    ------
    DataError
        If the corpus asks for harm.
    """
    unsafe.refuse_unsafe(system.prompts, "examples to tune on")
    assert system.traces is not None and system.pairs is not None
    finished = system.traces["finish_reason"].to_numpy()
    answers = system.labels.assign(finish_reason=finished, declined_later=False)
    if longer is not None:
        answers = pd.concat([answers, longer])
    requests = system.prompts.set_index("prompt_id")["text"]
    responses = _fit_to_tune(answers, requests).set_index("prompt_id")
    is_fit = system.pairs["neighbour_id"].isin(responses.index)
    nearest = pair_with_nearest_accepted(system.pairs[is_fit])
    answered_as = nearest.set_index("centre_id")["neighbour_id"]

    opening = []
    if system_prompt:
        opening.append({"role": "system", "content": system_prompt})
    examples = []
    for prompt in system.prompts.itertuples():
        answered = answered_as.get(prompt.prompt_id)
        if answered is None:
            continue
        messages = [
            *opening,
            {"role": "user", "content": prompt.text},
            {"role": "assistant", "content": responses.at[answered, "response"]},
        ]
        example = {
            "messages": messages,
            "system": system.name,
            "cluster_id": prompt.cluster_id,
            "prompt_id": prompt.prompt_id,
            "answered_as": answered,
        }
        examples.append(example)
    return examples


def _fit_to_tune(answers: pd.DataFrame, requests: pd.Series) -> pd.DataFrame:
    """Select at most one answer per prompt that a model may learn from.

    Such an answer ended by itself, is accepted as a whole, and is no apology, loop or
    echo. `requests` are texts by prompt_id.
    """
    accepted = answers["label"] == "accept"
    is_whole = (answers["finish_reason"] == "stop") & ~answers["declined_later"]
    beginnings = answers["response"].str[:60]
    apologizes = beginnings.str.contains("sorry|apolog", case=False, na=True)
    answers = answers[accepted & is_whole & ~apologizes].drop_duplicates("prompt_id")
    asked = requests.loc[answers["prompt_id"]].tolist()
    kinds = substance.degenerate_answers(answers["response"].tolist(), asked)
    return answers[kinds == "on_topic"]


def write_jsonl(
    path: Path, examples: Sequence[dict[str, Any]], meta: dict[str, Any]
) -> None:
    """Write objects as JSON lines in one step, with a meta file.

    If that fails, it raises DataError and leaves the file as it was.
    """
    lines = []
    for example in examples:
        line = json.dumps(example, ensure_ascii=False, allow_nan=False)
        lines.append(line.translate(_LINE_ENDS) + "\n")
    stores.write_text(path, "".join(lines))
    stores.write_meta(path, meta)


def pair_answers(
    corpus: Corpus, labels: Labels, answers: pd.DataFrame, brittle: bool
) -> pd.DataFrame:
    """Pair phrasings with complete answers of the system's own, in corpus order.

    Parameters
    ----------
    corpus, labels : Corpus, Labels
        With rows in the same order.
    answers : DataFrame
        prompt_id, label, response, finish_reason, declined_later; one or several rows
        per prompt.
    brittle : bool
        If true, each refused phrasing is paired with every usable answer to an accepted
        phrasing of its cluster; if not, each accepted phrasing with its own usable
        answer.

    Returns
    -------
    DataFrame
        prompt_id, text, response.
    """
    usable = _fit_to_tune(answers, corpus.set_index("prompt_id")["text"])
    responses = usable[["prompt_id", "response"]]
    prompts = corpus[["prompt_id", "cluster_id", "text"]]
    label = labels["label"].to_numpy()
    if brittle:
        by_cluster = prompts[["prompt_id", "cluster_id"]].merge(responses)
        by_cluster = by_cluster[["cluster_id", "response"]]
        pairs = prompts[label == "reject"].merge(by_cluster, on="cluster_id")
    else:
        pairs = prompts[label == "accept"].merge(responses, on="prompt_id")
    return pairs[["prompt_id", "text", "response"]]
