"""What remedies that ask a model cost: queries, tokens and seconds a prompt, beside the
untouched model.

`.venv/bin/python benchmarks/remedy_cost.py` writes `benchmarks/remedy_cost.csv`.
Prompts are drawn by seed from the recorded corpus and its twins, and asked in one
batch; all remedies take turns, round by round, so that what else happens on the machine
falls on all of them. What a remedy learns is put in by hand, for the cost does not hang
on it. A tuned model, once merged, costs what the untouched one does, and remedies that
read only what was asked already cost nothing: neither has a row. `ratio` is seconds to
those of the untouched model, in the same run; only that means something on another
machine.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from paraguard_lab.corpus import reword
from paraguard_lab.remedies import inside, splits
from paraguard_lab.remedies.catalogue import (
    UNTOUCHED,
    ablated,
    demonstrations,
    rewritten,
    self_cd,
    self_reminder,
    smooth_llm,
    steered,
)
from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_lab.settings import RemedySettings
from paraguard_utils import paths, registry, settings, stores
from paraguard_utils.models import prompting
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.schemas import Corpus

SYSTEM = "smollm2-135m-instruct-q4_1--safety"


def learned(base: UntouchedSystem) -> dict[str, LocalBackend]:
    """Return models changed inside, with directions drawn by chance."""
    network = base.local.model.network
    shape = len(inside.decoder_layers(network)), network.config.hidden_size
    drawn = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
    first, last = round(shape[0] / 3), round(shape[0] * 2 / 3)
    return {
        "ablated": ablated.AblatedModel(
            base.local, {}, ablated.Ablation(drawn[0], 0, 1.0)
        ),
        "steered": steered.SteeredModel(
            base.local, {}, steered.Steering(drawn, drawn, first, last, 0.0, 0.1)
        ),
        "self-cd": self_cd.ContrastiveModel(base.local, {}, {"alpha": 1.0}),
    }


def ways(
    base: UntouchedSystem, thirds: splits.Splits
) -> dict[str, tuple[LocalBackend, Callable[[Corpus], Corpus]]]:
    """Return what every remedy asks, and of whom."""

    def same(prompts: Corpus) -> Corpus:
        return prompts

    def rewordings(prompts: Corpus) -> Corpus:
        return reword.reword_prompts(prompts)

    asking = {
        "self-reminder": self_reminder,
        "demonstrations": demonstrations,
        "rewritten": rewritten,
    }
    found = {UNTOUCHED: (base.local, same)}
    for name, module in asking.items():
        system = module.apply(base, thirds.train, thirds.validation)
        found[name] = (system.respondent(), same)
    found["paraphrased"] = (
        base.local,
        lambda prompts: rewordings(prompts).drop_duplicates("cluster_id"),
    )
    found["vote"] = (
        base.local,
        lambda prompts: pd.concat([prompts, rewordings(prompts)], ignore_index=True),
    )
    found["smooth-llm"] = (base.local, smooth_llm.copy_prompts)
    return found | {name: (model, same) for name, model in learned(base).items()}


def main() -> None:
    """Measure, print the table and write it with its meta file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "-n", type=int, default=16, help="prompts of each corpus (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument(
        "--new", type=int, default=64, help="new tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_suffix(".csv")
    )
    options = parser.parse_args()
    store = stores.Store(stores.RECORDED)
    corpora = {
        name: store.read("corpus", name) for name in (settings.CORPUS, settings.TWINS)
    }
    config = settings.check_settings(
        {
            "store": stores.RECORDED,
            "corpus": settings.CORPUS,
            "max_new_tokens": options.new,
        },
        RemedySettings,
    )
    base = UntouchedSystem(store, SYSTEM, corpora, config)
    thirds = splits.split_clusters(*corpora.values())
    prompts = pd.concat(
        [side.sample(options.n, random_state=1) for side in thirds.test],
        ignore_index=True,
    )
    text = registry.system_prompts()[base.system_prompt]["text"]
    tokenizer = base.local.reader.tokenizer
    spent: dict[str, list[float]] = defaultdict(list)
    counted = {}
    every = ways(base, thirds)
    for turn in tqdm(range(1 + options.rounds), unit="round"):
        for name, (model, texts) in every.items():
            started = time.perf_counter()
            asked = texts(prompts)
            context = model.context(text, prompting.Decoding(options.new))
            rows = pd.concat(
                model.answers(
                    prompting.Workload(asked, batch=len(asked), title=name), context
                ),
                ignore_index=True,
            )
            if turn:  # the first round loads
                spent[name].append(time.perf_counter() - started)
            out = sum(
                map(
                    len,
                    tokenizer(rows["response"].tolist(), add_special_tokens=False)[
                        "input_ids"
                    ],
                )
            )
            read = rows["token_ids"].map(len).sum()
            if (
                name == "self-cd"
            ):  # reads every prompt a second time, without the system prompt
                plain = prompting.tokenize_prompts(
                    asked,
                    tokenizer,
                    base.local.context("", prompting.Decoding(options.new)),
                )
                read, out = (
                    read + sum(len(request.token_ids) for request in plain),
                    2 * out,
                )
            counted[name] = (len(asked), read, out)
    table = pd.DataFrame(
        [
            {
                "remedy": name,
                "queries": (2 if name == "self-cd" else 1) * queries / len(prompts),
                "tokens_in": read / len(prompts),
                "tokens_out": out / len(prompts),
                "seconds": np.median(spent[name]) / len(prompts),
                "ratio": np.median(np.divide(spent[name], spent[UNTOUCHED])),
            }
            for name, (queries, read, out) in counted.items()
        ]
    )
    meta = {
        "prompts": len(prompts),
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
    }
    stores.write_file(
        options.output,
        table,
        "tables",
        meta | {"torch": torch.__version__, "system": SYSTEM},
    )
    print(table.to_string(index=False, float_format="%.4g"))
    print(f"written to {paths.display_path(options.output)}")


if __name__ == "__main__":
    main()
