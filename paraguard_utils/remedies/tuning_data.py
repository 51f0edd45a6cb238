"""Examples to tune a model on, made of its own answers (`docs/method.md`, What CI adds; Remedies)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from paraguard_utils import stores, unsafe
from paraguard_utils.labels import substance
from paraguard_utils.schemas import Corpus, Labels, Pairs, Table, Traces

APOLOGY_CHARS = 60
"""Characters of an answer in which an apology is looked for (ours)."""


def tuning_examples(
    target: str, corpus: Corpus, traces: Traces, labels: Labels, pairs: Pairs, longer: pd.DataFrame | None, wrapper: str
) -> list[dict]:
    """Make chat examples that ask a rejected phrasing and answer as the target answered an accepted one, to the end.

    The answers are the target's own. Kept are those that ended by themselves, that the labeller takes for an answer as
    a whole, that do not decline later, begin with no apology, and are no loop or echo. No one has judged whether they
    are right.

    Parameters
    ----------
    target : str
        A chat target: a guard gives no answers.
    corpus, traces, labels : DataFrame
        Rows in the same order.
    pairs : DataFrame
        The target's pairs.
    longer : DataFrame or None
        The target's long answers (`labels.follow_ups`).
    wrapper : str
        Text of the target's wrapper: the system turn; "" for none.

    Returns
    -------
    list of dict
        One per rejected prompt with such an answer in its cluster, the most similar prompt's, in corpus order: messages
        (system where there is a wrapper, user, assistant), target, cluster_id, prompt_id, answered_as (the accepted
        prompt's id).

    Raises
    ------
    DataError
        The corpus asks for harm.
    """
    unsafe.refuse(corpus, "examples to tune on")
    prompts = corpus.set_index("prompt_id")
    usual = labels.assign(finish_reason=traces["finish_reason"].to_numpy(), declined_later=False)
    found = pd.concat([usual, longer]) if longer is not None else usual
    answers = _fit_to_tune(found, prompts["text"]).set_index("prompt_id")["response"]
    rows = pairs[(pairs["centre_label"] == "reject") & pairs["same_cluster"]]
    rows = rows.assign(answer=rows["neighbour_id"].map(answers)).dropna(subset="answer")
    rows = rows.sort_values(["similarity", "neighbour_id"], ascending=[False, True])
    rows = rows.drop_duplicates("centre_id").set_index("centre_id")
    rows = rows.loc[[name for name in prompts.index if name in rows.index]]
    system = [{"role": "system", "content": wrapper}] if wrapper else []
    return [
        {
            "messages": [
                *system,
                {"role": "user", "content": prompts.at[row.Index, "text"]},
                {"role": "assistant", "content": row.answer},
            ],
            "target": target,
            "cluster_id": prompts.at[row.Index, "cluster_id"],
            "prompt_id": row.Index,
            "answered_as": row.neighbour_id,
        }
        for row in rows.itertuples()
    ]


def _fit_to_tune(answers: pd.DataFrame, requests: pd.Series) -> pd.DataFrame:
    """Return the answers, one a prompt, that may be learned from."""
    fit = (answers["label"] == "accept") & (answers["finish_reason"] == "stop") & ~answers["declined_later"]
    fit &= ~answers["response"].str[:APOLOGY_CHARS].str.contains("sorry|apolog", case=False, na=True)
    answers = answers[fit].drop_duplicates("prompt_id")
    whole = substance.kinds(answers["response"].tolist(), requests.loc[answers["prompt_id"]].tolist()) == "on_topic"
    return answers[whole]


def tuning_counts(examples: Mapping[str, list[dict]], pairs: Mapping[str, Pairs]) -> Table:
    """Count, by target, rejections with an accepted paraphrase and those that became an example.

    Parameters
    ----------
    examples : dict of str to list of dict
        From `tuning_examples`.
    pairs : dict of str to DataFrame

    Returns
    -------
    DataFrame, one row per target
        target, rejections (with an accepted paraphrase), examples, clusters (of the examples).
    """
    rows = []
    for target, made in examples.items():
        own = pairs[target]
        own = own[own["same_cluster"] & (own["centre_label"] == "reject")]
        clusters = {row["cluster_id"] for row in made}
        rows.append(
            {
                "target": target,
                "rejections": own["centre_id"].nunique(),
                "examples": len(made),
                "clusters": len(clusters),
            }
        )
    return pd.DataFrame(rows)


# JSON allows them inside a string, but many readers end a line at them.
_LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}


def write_jsonl(path: Path, examples: Sequence[dict], meta: dict) -> None:
    """Write objects as JSON lines, UTF-8, one a line whatever a text holds, in one step, with a meta file beside them.

    Parameters
    ----------
    path : Path
    examples : sequence of dict
        JSON-able.
    meta : dict
        Parameters and hashes of inputs.

    Raises
    ------
    DataError
        The file cannot be written; it is as it was.
    """
    lines = (json.dumps(example, ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS) for example in examples)
    content = "".join(f"{line}\n" for line in lines)
    stores.write_text(path, content)
    stores.write_meta(path, meta)


def paired(corpus: Corpus, labels: Labels, answers: pd.DataFrame, brittle: bool) -> pd.DataFrame:
    """Pair phrasings with complete answers of the target's own.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.
    answers : DataFrame
        Columns prompt_id, label, response, finish_reason, declined_later: one or several a prompt.
    brittle : bool
        True: every refused phrasing with every fit answer to an accepted phrasing of its cluster. False: every accepted
        phrasing with its own fit answer.

    Returns
    -------
    DataFrame
        prompt_id, text, response; in corpus order.
    """
    fit = _fit_to_tune(answers, corpus.set_index("prompt_id")["text"])[["prompt_id", "response"]]
    prompts = corpus[["prompt_id", "cluster_id", "text"]].assign(label=labels["label"].to_numpy())
    if not brittle:
        return prompts[prompts["label"] == "accept"].merge(fit, on="prompt_id")[["prompt_id", "text", "response"]]
    answered = prompts[["prompt_id", "cluster_id"]].merge(fit, on="prompt_id")[["cluster_id", "response"]]
    return prompts[prompts["label"] == "reject"].merge(answered, on="cluster_id")[["prompt_id", "text", "response"]]
