"""How fast prompts are asked, side by side in one run: the usual ways against this
project's engine.

`.venv/bin/python benchmarks/query_throughput.py` takes about half an hour on two cores.
Every way answers the same prompts greedily with the same number of tokens; all but
llama.cpp (used where `llama-cpp-python` is installed) also deliver the trace. Labels,
tokens and losses are compared with the usual loop's. Only the ratios mean something on
another machine; the matrix-product peak is measured in the same process.
"""

import argparse
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from paraguard_utils import paths, registry, stores
from paraguard_utils.labels import refusals
from paraguard_utils.models import loading, prompting
from paraguard_utils.models.engine import (
    Engine,
    count_shared_tokens,
    find_stop_tokens,
    split_into_batches,
)

SIZES = (1, 16, 64)
"""Further decode batches whose answers must be the same."""

USUAL = "one at a time, second forward"
GENERATE = "generate, batches of 16, second forward"
ENGINE = "engine, float32, batch 128"


class Watched(Engine):
    """The engine, with a clock on its two halves and the answers' tokens kept."""

    def __init__(self, *args):
        self.prefill_seconds = self.decode_seconds = 0.0
        self.tokens = []
        super().__init__(*args)

    def _prefill(self, *args):
        started = time.perf_counter()
        found = super()._prefill(*args)
        self.prefill_seconds += time.perf_counter() - started
        return found

    def _decode(self, *args):
        started = time.perf_counter()
        found = super()._decode(*args)
        self.decode_seconds += time.perf_counter() - started
        self.tokens = [tokens for tokens, _ in found]
        return found


def peak(dtype, size=2048, seconds=1):
    """Return the best rate of a square matrix product, in GFLOPS."""
    a, b = (torch.randn(size, size, dtype=dtype) for _ in range(2))
    best, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best / 1e9


def user_nll(request, logits):
    """Return the losses on the user's tokens from the logits of the whole prompt, shape
    (tokens, vocabulary).
    """
    start, end = request.user_start, request.user_end
    systems = torch.tensor(request.token_ids[start:end])
    return torch.nn.functional.cross_entropy(
        logits[start - 1 : end - 1].float(), systems, reduction="none"
    ).numpy()


def trimmed(tokens, stops):
    """Return an answer up to its first stop token."""
    return next(
        (tokens[:i] for i, token in enumerate(tokens) if token in stops), tokens
    )


def generated(model, requests, size, new):
    """Ask with the library's `generate`, `size` prompts at a time, and run each batch
    once more for the trace.
    """
    network, pad = model.network, 0
    stops = set(find_stop_tokens(model))
    answers, losses = [], []
    for start in tqdm(range(0, len(requests), size), desc=f"generate {size}"):
        part = requests[start : start + size]
        width = max(len(request.token_ids) for request in part)
        gaps = [width - len(request.token_ids) for request in part]
        ids = torch.tensor(
            [[pad] * gap + list(r.token_ids) for r, gap in zip(part, gaps, strict=True)]
        )
        mask = torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps])
        with torch.inference_mode():
            out = network.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=new,
                do_sample=False,
                pad_token_id=min(stops),
            )
            position_ids = (mask.cumsum(1) - 1).clamp(min=0)
            logits = network(
                input_ids=ids, attention_mask=mask, position_ids=position_ids
            ).logits
        for request, gap, row, own in zip(
            part, gaps, out[:, width:].tolist(), logits, strict=True
        ):
            answers.append(trimmed(row, stops))
            losses.append(user_nll(request, own[gap:]))
            torch.log_softmax(own[-1].double(), dim=-1).topk(64)
    return {"answers": answers, "losses": losses}


def engine(model, requests, size, new):
    """Ask with this project's engine."""
    length = count_shared_tokens(requests)
    running = Watched(model, requests[0].token_ids[:length], new)
    found = {}
    with tqdm(total=len(requests), desc=f"engine {size}") as bar:
        for batch in split_into_batches(requests, size, new):
            rows = running.ask(batch)
            for row, tokens in zip(rows, running.tokens, strict=True):
                found[row["prompt_id"]] = (
                    tokens,
                    row["token_nll"][row["user_start"] : row["user_end"]],
                )
            bar.update(len(rows))
    answers, losses = zip(
        *(found[request.prompt_id] for request in requests), strict=True
    )
    return {
        "answers": list(answers),
        "losses": list(losses),
        "prefill_seconds": running.prefill_seconds,
        "decode_seconds": running.decode_seconds,
    }


def llama_cpp(path, requests, new):
    """Ask llama.cpp one prompt at a time.

    It keeps the cache of the longest common beginning by itself. No trace.
    """
    from llama_cpp import Llama

    llama = Llama(
        str(path), n_ctx=2048, n_threads=torch.get_num_threads(), verbose=False
    )
    stops = {llama.token_eos()}
    answers = []
    for request in tqdm(requests, desc="llama.cpp"):
        tokens = []
        for token in llama.generate(
            list(request.token_ids), temp=0.0, top_k=1, repeat_penalty=1.0
        ):
            if token in stops or len(tokens) == new:
                break
            tokens.append(token)
        answers.append(tokens)
    return {"answers": answers, "losses": None}


def prefill_flops(model, requests):
    """Return the products a prefill needs: linear layers on real tokens, the output
    layer where a trace needs it.
    """
    head = model.network.get_output_embeddings()
    body = sum(
        module.weight.numel()
        for module in model.network.modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    )
    shared = count_shared_tokens(requests)
    tokens = sum(len(request.token_ids) - shared for request in requests)
    ends = sum(request.user_end - request.user_start + 1 for request in requests)
    return 2 * (body * tokens + head.weight.numel() * ends)


def texts(tokenizer, answers):
    """Return answers as a trace holds them."""
    return [
        tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in answers
    ]


def compared(way, found, seconds, usual, tokenizer):
    """Return one row of the table."""
    labels, truth = (
        refusals.label_by_cues(
            texts(tokenizer, run["answers"]), ["length"] * len(run["answers"])
        )["label"]
        for run in (found, usual)
    )
    same = sum(a == b for a, b in zip(found["answers"], usual["answers"], strict=True))
    pairs = (
        zip(found["losses"], usual["losses"], strict=True) if found["losses"] else []
    )
    return {
        "way": way,
        "seconds": seconds,
        "prompts_per_second": len(found["answers"]) / seconds,
        "answers_equal": same,
        "labels_changed": int((labels != truth).sum()),
        "largest_nll_difference": max(
            (float(np.abs(a - b).max()) for a, b in pairs), default=np.nan
        ),
        "prefill_seconds": found.get("prefill_seconds", np.nan),
        "decode_seconds": found.get("decode_seconds", np.nan),
    }


def measure(options, corpus):
    """Run every way and return the table: for the ways that are run in turn more than
    once, the quicker run.
    """
    source = loading.resolve_model(options.model)
    table, usual = [], None
    model = loading.load_model(source)
    frame = prompting.PromptContext(
        source.weights_id,
        "float32",
        *prompting.render_system_prompt(
            model.tokenizer, registry.system_prompts()[options.system_prompt]["text"]
        ),
        prompting.Decoding(options.new),
    )
    requests = prompting.tokenize_prompts(corpus, model.tokenizer, frame)
    flops = prefill_flops(model, requests)
    engine(
        model, requests[:4], 4, 4
    )  # the first calls of a process are slow, and not what is measured

    def timed(way, ask, *args, dtype=torch.float32):
        before = peak(dtype)
        started = time.perf_counter()
        found = ask(*args)
        seconds = time.perf_counter() - started
        row = compared(way, found, seconds, usual or found, model.tokenizer)
        # Other work on the machine comes and goes: the peak is the better of just
        # before and just after.
        table.append(row | {"peak_gflops": max(before, peak(dtype))})
        print(
            f"{way}: {row['prompts_per_second']:.3g} prompts/s",
            file=sys.stderr,
            flush=True,
        )
        return found

    usual = timed(USUAL, generated, model, requests, 1, options.new)
    for _ in range(options.repeats):
        timed(GENERATE, generated, model, requests, 16, options.new)
        timed(ENGINE, engine, model, requests, 128, options.new)
        if source.path.suffix == ".gguf" and find_spec("llama_cpp"):
            timed(
                "llama.cpp, the GGUF file, one at a time, no trace",
                llama_cpp,
                source.path,
                requests,
                options.new,
            )
    for size in SIZES:
        timed(
            f"engine, float32, batch {size}",
            engine,
            model,
            requests,
            size,
            options.new,
        )
    half = loading.load_model(source, "bfloat16")
    timed(
        "engine, bfloat16, batch 128",
        engine,
        half,
        requests,
        128,
        options.new,
        dtype=torch.bfloat16,
    )
    table = pd.DataFrame(table)
    best = table.groupby("way", sort=False)["seconds"].idxmin()
    for column, worst in (
        ("answers_equal", "min"),
        ("labels_changed", "max"),
        ("largest_nll_difference", "max"),
    ):
        table[column] = table.groupby("way")[column].transform(worst)
    table = table.loc[best].assign(
        runs=table["way"].value_counts()[table.loc[best, "way"]].to_numpy()
    )
    rate = table.set_index("way")["prompts_per_second"]
    table.insert(3, "times_usual_loop", table["prompts_per_second"] / rate[USUAL])
    table.insert(4, "times_generate", table["prompts_per_second"] / rate[GENERATE])
    table["prefill_gflops"] = flops / table["prefill_seconds"] / 1e9
    table["prefill_of_peak"] = table["prefill_gflops"] / table["peak_gflops"]
    return table


def prompts(options):
    """Return the prompts to ask: a seeded sample of a CSV's column, or of the recorded
    corpus.
    """
    if options.prompts:
        frame = stores.read_file(options.prompts, "tables").rename(
            columns={options.column: "text"}
        )
    else:
        frame = stores.Store(stores.RECORDED).read("corpus", "paraguard_mini")
    frame = frame.assign(text=frame["text"].str.strip()).drop_duplicates("text")
    frame = frame.sample(min(options.n, len(frame)), random_state=1).reset_index(
        drop=True
    )
    return frame.assign(prompt_id=[f"p{i:05d}" for i in range(len(frame))])[
        ["prompt_id", "text"]
    ]


def main():
    """Measure, print the table and write it with its meta file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--model",
        default="smollm2-135m-instruct",
        help="any name that notebook 02 takes",
    )
    parser.add_argument("--system-prompt", default="safety")
    parser.add_argument(
        "--prompts",
        type=Path,
        help="CSV file of prompts (default: the recorded corpus)",
    )
    parser.add_argument(
        "--column", default="text", help="its column of prompts (default: %(default)s)"
    )
    parser.add_argument(
        "-n",
        type=int,
        default=128,
        help="how many prompts, sampled (default: %(default)s)",
    )
    parser.add_argument(
        "--new", type=int, default=64, help="new tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=2,
        help="runs of the headline ways (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=paths.RESULTS / "benchmarks" / "query_throughput.csv",
    )
    options = parser.parse_args()
    corpus = prompts(options)
    table = measure(options, corpus)
    meta = {
        "model": options.model,
        "instruction": options.system_prompt,
        "prompts": len(corpus),
        "new_tokens": options.new,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    stores.write_file(options.output, table, "tables", meta)
    print(table.to_string(index=False, float_format="%.4g"))
    print(f"written to {paths.display_path(options.output)}")


if __name__ == "__main__":
    main()
