"""Make examples to tune a model on from its own answers (`docs/method.md`, What CI
adds; Remedies).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from paraguard_utils import stores, unsafe
from paraguard_utils.analysis import confusion
from paraguard_utils.labels import substance
from paraguard_utils.schemas import Corpus, Labels, Pairs, Table, Traces


def make_tuning_examples(
    system: str,
    corpus: Corpus,
    traces: Traces,
    labels: Labels,
    pairs: Pairs,
    longer: pd.DataFrame | None,
    system_prompt: str,
) -> list[dict]:
    """Make chat examples that pair a rejected phrasing with the model's own answer to
    an accepted one.

    Nobody has judged whether an answer is right. Corpus, traces and labels have rows in
    the same order; `longer` are long answers (`labels.follow_ups`), and `system_prompt` is
    the text of the system prompt, "" for none. Returns one example for each rejected
    prompt with a fit answer in its cluster, in corpus order: messages, system,
    cluster_id, prompt_id, answered_as (the id of the accepted prompt, the most similar
    one). Raises DataError if the corpus asks for harm.
    """
    unsafe.refuse_unsafe(corpus, "examples to tune on")
    prompts = corpus.set_index("prompt_id")
    usual = labels.assign(
        finish_reason=traces["finish_reason"].to_numpy(), declined_later=False
    )
    found = pd.concat([usual, longer]) if longer is not None else usual
    answers = _fit_to_tune(found, prompts["text"]).set_index("prompt_id")["response"]
    rows = confusion.pair_with_nearest_accepted(
        pairs[pairs["neighbour_id"].isin(answers.index)]
    )
    rows = rows.assign(answer=rows["neighbour_id"].map(answers)).set_index("centre_id")
    rows = rows.loc[[name for name in prompts.index if name in rows.index]]
    opening = [{"role": "system", "content": system_prompt}] if system_prompt else []
    made = []
    for row in rows.itertuples():
        own = prompts.loc[row.Index]
        said = [
            {"role": "user", "content": own["text"]},
            {"role": "assistant", "content": row.answer},
        ]
        about = {
            "system": system,
            "cluster_id": own["cluster_id"],
            "prompt_id": row.Index,
        }
        made.append(
            {"messages": [*opening, *said], **about, "answered_as": row.neighbour_id}
        )
    return made


def _fit_to_tune(answers: pd.DataFrame, requests: pd.Series) -> pd.DataFrame:
    """Return at most one answer a prompt: one that ended by itself, accepted as a
    whole, no apology, loop or echo.
    """
    fit = (
        (answers["label"] == "accept")
        & (answers["finish_reason"] == "stop")
        & ~answers["declined_later"]
    )
    beginnings = answers["response"].str[:60]
    fit &= ~beginnings.str.contains("sorry|apolog", case=False, na=True)
    answers = answers[fit].drop_duplicates("prompt_id")
    asked = requests.loc[answers["prompt_id"]].tolist()
    return answers[
        substance.degenerate_answers(answers["response"].tolist(), asked) == "on_topic"
    ]


def count_tuning_examples(
    examples: Mapping[str, list[dict]], pairs: Mapping[str, Pairs]
) -> Table:
    """Count, by system, rejections with an accepted paraphrase, examples and their
    clusters.
    """
    rows = []
    for system, made in examples.items():
        own = pairs[system].query("same_cluster and centre_label == 'reject'")
        counts = {"rejections": own["centre_id"].nunique(), "examples": len(made)}
        rows.append(
            {
                "system": system,
                **counts,
                "clusters": len({row["cluster_id"] for row in made}),
            }
        )
    return pd.DataFrame(rows)


# JSON allows these inside a string, but many readers end a line there.
_LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}


def write_jsonl(path: Path, examples: Sequence[dict], meta: dict) -> None:
    """Write objects as JSON lines in one step, with a meta file.

    If that fails, DataError and the file as before.
    """
    lines = (
        json.dumps(example, ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS)
        for example in examples
    )
    stores.write_text(path, "".join(f"{line}\n" for line in lines))
    stores.write_meta(path, meta)


def pair_answers(
    corpus: Corpus, labels: Labels, answers: pd.DataFrame, brittle: bool
) -> pd.DataFrame:
    """Pair phrasings with complete answers of the system's own: prompt_id, text,
    response; in corpus order.

    If `brittle`, these are each refused phrasing with every usable answer to an
    accepted phrasing of its cluster; if not, each accepted phrasing with its own usable
    answer. Corpus and labels have rows in the same order; `answers` has prompt_id,
    label, response, finish_reason, declined_later, one or several rows a prompt.
    """
    fit = _fit_to_tune(answers, corpus.set_index("prompt_id")["text"])[
        ["prompt_id", "response"]
    ]
    prompts = corpus[["prompt_id", "cluster_id", "text"]].assign(
        label=labels["label"].to_numpy()
    )
    columns = ["prompt_id", "text", "response"]
    if not brittle:
        return prompts[prompts["label"] == "accept"].merge(fit, on="prompt_id")[columns]
    answered = prompts[["prompt_id", "cluster_id"]].merge(fit, on="prompt_id")[
        ["cluster_id", "response"]
    ]
    return prompts[prompts["label"] == "reject"].merge(answered, on="cluster_id")[
        columns
    ]
