"""Where the time of decoding goes, and how near its matrix products come to what this
processor can do.

`.venv/bin/python benchmarks/decoding.py` decodes one batch of each size under the
profiler of torch and writes `benchmarks/decoding.csv`: shares of the time by kind of
operation, and rates as shares of the peak, the rate of a large square product in the
same process. `shapes_of_peak` is what the same products reach one after another with
nothing between them (every layer's own weights, so that they come from memory as in the
model): more than that decoding cannot reach with these products. Only the shares mean
something on another machine.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from query_throughput import peak
from torch.profiler import ProfilerActivity, profile

from paraguard_utils import paths, registry, stores
from paraguard_utils.models import loading, prompting
from paraguard_utils.models.engine import (
    Engine,
    count_shared_tokens,
    split_into_batches,
)

KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "mkldnn"),
    "attention": ("scaled_dot_product", "flash_attention"),
    "copies": (
        "aten::copy_",
        "aten::cat",
        "aten::index_select",
        "aten::index",
        "aten::repeat",
        "aten::clone",
    ),
}
"""Kinds of operation, by the beginnings of their names or parts of them; what is none
of these is `other`.
"""


class Profiled(Engine):
    """The engine, with torch's profiler on its decoding, and the tokens counted that it
    computes.
    """

    computed = 0

    def _decode(self, *args: Any) -> list[tuple[list[int], str]]:
        self.computed = 0
        with profile(activities=[ProfilerActivity.CPU]) as self.profiler:
            started = time.perf_counter()
            found = super()._decode(*args)
            self.seconds = time.perf_counter() - started
        return found

    def _forward(self, ids: torch.Tensor, *args: Any) -> torch.Tensor:
        self.computed += ids.numel()
        return super()._forward(ids, *args)


def kind(operation: str) -> str:
    """Return which kind an operation is of."""
    return next(
        (
            name
            for name, parts in KINDS.items()
            if any(part in operation for part in parts)
        ),
        "other",
    )


def products(model: loading.LoadedModel) -> list[tuple[torch.nn.Module, int, int]]:
    """Return the layers that multiply by a matrix, each with its columns in and out."""
    found = [
        layer for layer in model.network.modules() if isinstance(layer, torch.nn.Linear)
    ]
    return [(layer, layer.weight.size(1), layer.weight.size(0)) for layer in found]


def own_shapes(model: loading.LoadedModel, rows: int, seconds: float = 2) -> float:
    """Return the rate of a step's products one after another, in GFLOPS."""
    layers = products(model)
    given = {width: torch.randn(rows, 1, width) for _, width, _ in layers}
    best, end = np.inf, time.perf_counter() + seconds
    with torch.inference_mode():
        while time.perf_counter() < end:
            started = time.perf_counter()
            for layer, width, _ in layers:
                layer(given[width])
            best = min(best, time.perf_counter() - started)
    return 2 * rows * sum(width * out for _, width, out in layers) / best / 1e9


def row(
    model: loading.LoadedModel, asked: list[Any], size: int, new: int
) -> dict[str, object]:
    """Decode one batch and return where its time went."""
    running = Profiled(model, asked[0].token_ids[: count_shared_tokens(asked)], new)
    batch = split_into_batches(asked[:size], size, new)[0]
    Engine.ask(running, batch[:1])  # warms up
    best: dict[str, float] = {}
    for _ in range(2):
        before = peak(torch.float32)
        running.ask(batch)
        events = running.profiler.key_averages()
        spent = (
            pd.Series({event.key: event.self_cpu_time_total / 1e6 for event in events})
            .groupby(kind)
            .sum()
        )
        work = (
            2
            * running.computed
            * sum(width * out for _, width, out in products(model))
            / 1e9
        )
        if best and running.seconds >= best["seconds"]:
            continue
        of_peak = max(before, peak(torch.float32))
        best = {"seconds": running.seconds, "peak_gflops": of_peak} | (
            spent / spent.sum()
        ).to_dict()
        best |= {"decoding_of_peak": work / running.seconds / of_peak}
        best |= {"products_of_peak": work / spent["products"] / of_peak}
        best |= {"shapes_of_peak": own_shapes(model, len(batch)) / of_peak}
    return {"batch": len(batch), **best}


def main() -> None:
    """Measure, print the table and write it with its meta file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument(
        "--new", type=int, default=64, help="new tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_suffix(".csv")
    )
    options = parser.parse_args()
    model = loading.load_model(loading.resolve_model(options.model))
    corpus = (
        stores.Store(stores.RECORDED)
        .read("corpus", "paraguard_mini")
        .sample(max(options.sizes), random_state=1)
    )
    decoding = prompting.Decoding(options.new)
    wrapped = prompting.render_system_prompt(
        model.tokenizer,
        registry.read_system_prompt("safety"),
    )
    context = prompting.PromptContext(model.weights_id, model.dtype, *wrapped, decoding)
    asked = prompting.tokenize_prompts(corpus, model.tokenizer, context)
    table = pd.DataFrame(
        [row(model, asked, size, options.new) for size in options.sizes]
    )
    meta = {
        "model": options.model,
        "new_tokens": options.new,
        "threads": torch.get_num_threads(),
    }
    stores.write_file(options.output, table, "tables", meta)
    print(table.to_string(index=False, float_format="%.3g"))
    print(f"written to {paths.display_path(options.output)}")


if __name__ == "__main__":
    main()
