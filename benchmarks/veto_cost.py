"""What a veto costs at decision time: a rejected prompt is reworded, asked again and
decided, one prompt at a time.

`.venv/bin/python benchmarks/veto_cost.py` writes `benchmarks/veto_cost.csv`. The
prompts are drawn from those of the recorded corpus that the recorded system rejects;
the guards get the same ones, since what a decision costs does not hang on what it is.
All systems take turns prompt by prompt, so that what else happens on the machine falls
on all of them. A system's rows are its steps: the first answer, rewording the prompt
(by rules, the same for all), asking its rewordings in one batch, deciding on what comes
back, and the last three together. `queries` and `ms` are means a prompt, one without
rewordings included; `ratio` is to the first answer of the same system. A guard whose
package is missing is left out and named on stderr. Only the ratios mean something on
another machine.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from paraguard_lab.corpus import reword
from paraguard_utils import paths, registry, settings, stores
from paraguard_utils.errors import Missing
from paraguard_utils.guards import panel
from paraguard_utils.labels import labelling
from paraguard_utils.models import loading, prompting
from paraguard_utils.models.engine import Engine, count_shared_tokens

MODEL, SYSTEM_PROMPT = "smollm2-135m-instruct", "safety"
GUARDS = ("alt-profanity-check", "metatronnanoguard")
"""A cheap one, words counted, and one that is a network."""

FIRST, REWORDING, ASKING, DECIDING = (
    "first answer",
    "rewording",
    "asking again",
    "deciding",
)
VETO = "veto, all three"


class System(NamedTuple):
    """What answers prompts, and how its answers become decisions.

    Attributes
    ----------
    answer : callable
        Prompts (columns prompt_id, text) to answers.
    decide : callable
        Prompts and their answers to decisions.
    """

    answer: Callable[[pd.DataFrame], Any]
    decide: Callable[[pd.DataFrame, Any], object]


def chat(
    model: loading.LoadedModel, system_prompt: str, new: int, prompts: pd.DataFrame
) -> System:
    """Return a chat model under a system prompt, which is computed once for all prompts, as
    in 02.

    Parameters
    ----------
    model : loading.LoadedModel
    system prompt : str
        A key of `registry.system prompts()`.
    new : int
        Tokens of an answer.
    prompts : DataFrame
        Columns prompt_id, text.
    """
    rendered = prompting.render_system_prompt(
        model.tokenizer, registry.system_prompts()[system_prompt]["text"]
    )
    context = prompting.PromptContext(
        model.weights_id, model.dtype, *rendered, prompting.Decoding(new)
    )
    known = prompting.tokenize_prompts(prompts, model.tokenizer, context)
    engine = Engine(
        model, known[0].token_ids[: count_shared_tokens(known)], prompting.Decoding(new)
    )

    def answer(asked: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(
            engine.ask(prompting.tokenize_prompts(asked, model.tokenizer, context))
        )

    def decide(asked: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
        return labelling.label_responses(
            answers["response"], answers["finish_reason"], asked["text"]
        )

    return System(answer, decide)


def guard(name: str) -> System:
    """Return a guard of the panel.

    Parameters
    ----------
    name : str
    """
    loaded = panel.load_guard(name)
    return System(
        lambda asked: np.asarray(loaded.score(asked["text"].tolist())),
        lambda _, scores: scores >= loaded.threshold,
    )


@contextmanager
def clock(spent: dict[str, float], step: str) -> Iterator[None]:
    """Add the seconds of a `with` block to a step's."""
    started = time.perf_counter()
    yield
    spent[step] += time.perf_counter() - started


def measure(systems: Mapping[str, System], prompts: pd.DataFrame) -> pd.DataFrame:
    """Return one row a step of every system.

    One whose package is missing is left out and named on stderr.

    Parameters
    ----------
    systems : dict of str to System
    prompts : DataFrame
        Columns prompt_id, text.

    Returns
    -------
    DataFrame
        system, step, queries and ms (means a prompt), ratio (to the first answer).
    """
    usable = {}
    for name, system in systems.items():
        try:  # the first call loads, and is not what is measured
            system.decide(prompts.head(1), system.answer(prompts.head(1)))
            usable[name] = system
        except Missing as error:
            print(f"left out: {error}", file=sys.stderr)
    reword.reword_prompts(prompts.head(1))
    rewording: dict[str, float] = defaultdict(float)
    spent: dict[str, dict[str, float]] = {name: defaultdict(float) for name in usable}
    queries = 0
    for i in tqdm(range(len(prompts)), unit="prompt"):
        prompt = prompts.iloc[[i]]
        with clock(rewording, REWORDING):
            again = reword.reword_prompts(prompt)
        queries += len(again)
        for name, system in usable.items():
            with clock(spent[name], FIRST):
                system.answer(prompt)
            if again.empty:  # the rules know no other words for it
                continue
            with clock(spent[name], ASKING):
                answers = system.answer(again)
            with clock(spent[name], DECIDING):
                system.decide(again, answers)
    rows = []
    for name, own in spent.items():
        own |= rewording
        own[VETO] = own[REWORDING] + own[ASKING] + own[DECIDING]
        asked = {FIRST: len(prompts), ASKING: queries, VETO: queries}
        rows += [
            {
                "system": name,
                "step": step,
                "queries": asked.get(step, 0) / len(prompts),
                "ms": 1000 * own[step] / len(prompts),
                "ratio": own[step] / own[FIRST],
            }
            for step in (FIRST, REWORDING, ASKING, DECIDING, VETO)
        ]
    return pd.DataFrame(rows)


def rejected(store: stores.Store, system: str, n: int) -> pd.DataFrame:
    """Return prompts of the recorded corpus that a system rejects, drawn by seed, in
    corpus order.

    Parameters
    ----------
    store : stores.Store
    system : str
    n : int
        How many; all where there are fewer.
    """
    corpus, labels = (
        store.read("corpus", settings.CORPUS),
        store.read("labels", settings.CORPUS, system),
    )
    found = corpus[
        corpus["prompt_id"].isin(labels.loc[labels["label"] == "reject", "prompt_id"])
    ]
    return found.sample(min(n, len(found)), random_state=1).sort_index()[
        ["prompt_id", "text"]
    ]


def main() -> None:
    """Measure, print the table and write it with its meta file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "-n", type=int, default=60, help="how many prompts (default: %(default)s)"
    )
    parser.add_argument(
        "--new", type=int, default=64, help="new tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_suffix(".csv")
    )
    options = parser.parse_args()
    source = loading.resolve_model(MODEL)
    system = prompting.make_system_name(source.name, SYSTEM_PROMPT)
    prompts = rejected(stores.Store(stores.RECORDED), system, options.n)
    systems = {
        system: chat(loading.load_model(source), SYSTEM_PROMPT, options.new, prompts)
    }
    table = measure(systems | {name: guard(name) for name in GUARDS}, prompts)
    meta = {
        "prompts": len(prompts),
        "new_tokens": options.new,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    stores.write_file(options.output, table, "tables", meta)
    print(table.to_string(index=False, float_format="%.4g"))
    print(f"written to {paths.display_path(options.output)}")


if __name__ == "__main__":
    main()
