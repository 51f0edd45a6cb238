"""How many prompts a second every guard of the panel scores, side by side in one run,
and what batches give.

`.venv/bin/python benchmarks/guard_throughput.py` writes
`benchmarks/guard_throughput.csv` after every guard, and stops a guard after the batch
in which it has had `--limit` seconds. The prompts are those of the recorded corpus and
of its twins, and candidates that the rules make of them, in an order drawn by seed, so
that a guard which is stopped has seen prompts of the same kind. `prompts`, `seconds`
and `per_second` tell of what was scored, and of nothing else. `one_by_one` and
`together` are the seconds of the same first prompts, `ratio` the one by the other. A
guard loads before its clock starts; one whose package is missing is left out and named
on stderr. Only the ratios mean something on another machine.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from tqdm import tqdm

from paraguard_lab.corpus import paraphrase
from paraguard_utils import paths, registry, settings, stores
from paraguard_utils.errors import Missing
from paraguard_utils.guards import panel
from paraguard_utils.guards.contract import Guard

BATCH = 100
"""Prompts that a guard is given at once; the limit is looked at in between."""


def prompts(given: pd.DataFrame, most: int) -> list[str]:
    """Return distinct prompts: those given and then the rules' candidates of them, the
    first `most`, in a drawn order.

    Parameters
    ----------
    given : DataFrame
        Columns prompt_id, text.
    most : int

    Returns
    -------
    list of str
        Fewer than `most` where the rules know no more.
    """
    made = paraphrase.paraphrase_by_rules(
        given.rename(columns={"prompt_id": "seed_id"})[["seed_id", "text"]]
    )
    texts = pd.concat([given["text"], made["text"]]).drop_duplicates().head(most)
    return texts.sample(frac=1, random_state=1).tolist()


def seconds(work: Callable[[], object]) -> float:
    """Return how long a piece of work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measured(
    guard: Guard, texts: Sequence[str], limit: float, compared: int
) -> dict[str, object]:
    """Return a guard's row: what it scored until the limit, and a few prompts one by
    one against all at once.

    Parameters
    ----------
    guard : contract.Guard
    texts : sequence of str
    limit : float
        Seconds; the batch in which they pass is finished and is the last.
    compared : int
        Prompts that are also scored one by one.

    Raises
    ------
    Missing
        The guard's package, or one that it needs, is not installed.
    """
    guard.score(texts[:1])  # loads
    done, spent = 0, 0.0
    with tqdm(total=len(texts), desc=guard.name, unit="prompt") as bar:
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            spent += seconds(partial(guard.score, batch))
            done += len(batch)
            bar.update(len(batch))
            if spent > limit:
                break
    too_few = texts[:compared]
    one_by_one = seconds(lambda: [guard.score([text]) for text in too_few])
    together = seconds(partial(guard.score, too_few))
    return {
        "guard": guard.name,
        "prompts": done,
        "seconds": spent,
        "per_second": done / spent,
        "one_by_one": one_by_one,
        "together": together,
        "ratio": one_by_one / together,
    }


def main() -> None:
    """Measure guard by guard, write the table after each with its meta file, and print
    it.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--guards",
        nargs="+",
        default=list(registry.guard_entries("panel")),
        help="(default: the panel)",
    )
    parser.add_argument(
        "-n", type=int, default=10_000, help="how many prompts (default: %(default)s)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=300,
        help="seconds a guard (default: %(default)s)",
    )
    parser.add_argument(
        "--compared",
        type=int,
        default=100,
        help="prompts one by one too (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_suffix(".csv")
    )
    options = parser.parse_args()
    store = stores.Store(stores.RECORDED)
    texts = prompts(
        pd.concat(
            store.read("corpus", name) for name in (settings.CORPUS, settings.TWINS)
        ),
        options.n,
    )
    meta = {
        "batch": BATCH,
        "compared": min(options.compared, len(texts)),
        "limit": options.limit,
        "prompts": len(texts),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    rows: list[dict[str, object]] = []
    for name in options.guards:
        try:
            rows.append(
                measured(panel.load_guard(name), texts, options.limit, options.compared)
            )
        except Missing as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        stores.write_file(options.output, pd.DataFrame(rows), "tables", meta)
    print(pd.DataFrame(rows).to_string(index=False, float_format="%.4g"))
    print(f"written to {paths.display_path(options.output)}")


if __name__ == "__main__":
    main()
