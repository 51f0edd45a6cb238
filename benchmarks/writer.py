"""What a model behind a server writes for the 20 seeds on which 01 compares generators,
and another judges.

`.venv/bin/python benchmarks/writer.py` serves Qwen2.5-Coder-1.5B with vLLM on this
machine (`make servers` and `make optional-models` first), or takes a server that is
there (`--base-url`), and runs 01 in the store `writer`: eight candidates a strategy and
seed, Qwen2.5-Coder-0.5B as the judge. It resumes. `--copy` then copies the table
`writer_candidates` to the live store, from where `make record` takes it.

What `data/generation/writer_readings.csv` holds is drawn from it too:
`results/writer/readings.csv` has 60 candidates that pass alone, 40 that only the judge
stopped (fewer where there are fewer) and 60 by rules that pass, mixed by chance.
"""

import argparse
import runpy
from contextlib import nullcontext

import numpy as np
import pandas as pd

from paraguard_lab import run
from paraguard_lab.corpus import compared, fidelity, fluency, writer
from paraguard_lab.models import gguf
from paraguard_utils import paths, settings, stores
from paraguard_utils.core.estimates import SEED
from paraguard_utils.corpus import gates, inputs
from paraguard_utils.errors import UserError
from paraguard_utils.models import loading

WRITER, JUDGE = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
READ = {"model": 60, "stopped": 40, "rules": 60}
"""Candidates that are read, at most: a model's that pass alone, a model's that only the
judge stopped, and rules'.
"""


def pools(store: stores.Store, seeds: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the candidates from which those that are read are drawn."""
    written = store.read("tables", writer.WRITER_CANDIDATES_TABLE).fillna(
        {"reason": ""}
    )
    recorded = stores.Store(stores.RECORDED)
    rules = recorded.read("generated", settings.CORPUS).query(
        "generator == @RULES_GENERATOR"
    )
    embed = inputs.make_embedder(stores.CorpusFiles(store, "written"))
    judging = gates.Judging(embed=embed, review=fluency.prefer_fluent)
    _, rules = gates.judge_candidates(seeds, rules, judging)
    return {
        "model": written[gates.passes_alone(written)],
        "stopped": written[written["reason"].isin(compared.JUDGE_REASONS)],
        "rules": rules[gates.passes_alone(rules) & (rules["reason"] != "stilted")],
    }


def sheet(store: stores.Store, seeds: pd.DataFrame) -> pd.DataFrame:
    """Draw from all pools, mix, and number the rows."""
    found = []
    for group, pool in pools(store, seeds).items():
        drawn = fidelity.draw_sheet(
            fidelity.pair_with_seeds(seeds, pool), READ[group], SEED
        )
        found.append(drawn.assign(group=group))
    rows = pd.concat(found, ignore_index=True)
    rows = rows.iloc[np.random.default_rng(SEED).permutation(len(rows))].reset_index(
        drop=True
    )
    rows["seed_id"] = rows["prompt_id"].str.rpartition("-")[0]
    return rows.rename_axis("row").reset_index()[
        ["row", "group", "seed_id", "strategy", "seed", "paraphrase"]
    ]


def main() -> None:
    """Serve, run 01 and draw what is to be read."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--samples",
        type=int,
        default=8,
        help="candidates a strategy and seed (default: %(default)s)",
    )
    parser.add_argument(
        "--base-url",
        default="",
        help="of a server that is there; it calls the model " + WRITER,
    )
    parser.add_argument(
        "--copy", action="store_true", help="copy the table to the live store"
    )
    options = parser.parse_args()
    store = stores.Store("writer")
    seeds = compared.sample_compared_seeds(
        stores.read_file(paths.DATA / "seeds" / f"{settings.CORPUS}.csv", "seeds")
    )
    path = store.writes / "seeds.csv"
    stores.write_file(path, seeds, "seeds", {})
    source = loading.resolve_model(WRITER)
    serving = runpy.run_path(str(paths.ROOT / "tests" / "servers.py"))["serving"]
    with (
        nullcontext(options.base_url)
        if options.base_url
        else serving(gguf.convert_gguf(source), WRITER)
    ) as url:
        given = {
            "corpus": "written", "seeds": paths.display_path(path), "base_url": url, "samples": options.samples,
            "candidates": f"model:openai/{WRITER}@{source.weights_id[:12]}", "intent_judge": JUDGE,
        }  # fmt: skip
        try:
            run.run_notebooks(["01"], {"store": store.name} | given)
        except (
            UserError
        ) as error:  # what was written is there even where it makes no complete cluster
            if not store.has("tables", writer.WRITER_CANDIDATES_TABLE):
                raise
            print(error)
    stores.write_file(store.writes / "readings.csv", sheet(store, seeds), "sheet", {})
    if options.copy:
        frame, meta = (
            store.read("tables", writer.WRITER_CANDIDATES_TABLE),
            stores.read_meta(store.path("tables", writer.WRITER_CANDIDATES_TABLE)),
        )
        stores.Store(stores.LIVE).write(
            "tables", writer.WRITER_CANDIDATES_TABLE, frame=frame, meta=meta
        )


if __name__ == "__main__":
    main()
