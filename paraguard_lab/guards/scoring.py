"""Let a guard score the prompts of which a live store lacks the score."""

import sys
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from tqdm import tqdm

from paraguard_utils import stores
from paraguard_utils.errors import DataError, UserError
from paraguard_utils.guards.contract import Guard
from paraguard_utils.schemas import Corpus
from paraguard_utils.stores import CorpusFiles, frame_hash

MAX_FIRST_FAILURES = 20  # a guard that fails on its first texts gets no more than these
TEXTS_PER_STEP = 256  # texts that a guard which costs something gets at a time


def score_missing(
    files: CorpusFiles, prompts: Corpus, guard: Guard, scores: pd.DataFrame
) -> pd.DataFrame:
    """Compute the scores that are NaN, write all of them, and return these.

    Parameters and errors are those of `panel.score_with_guard`, which calls this by an
    entry point; `scores` are what it returns, as far as a live store has them.
    """
    is_missing = scores["score"].isna().to_numpy()
    texts = prompts["text"][is_missing]
    if guard.asks and len(texts):
        print(
            f"the guard {guard.name}: {len(texts):,} prompts of {files.name} to ask,"
            f" {guard.asks}",
            file=sys.stderr,
        )
    started = time.monotonic()
    scores.loc[is_missing, "score"], failures = _score_texts(guard, texts.tolist())
    seconds = time.monotonic() - started
    unparsed = scores.loc[scores["score"].isna(), "prompt_id"].tolist()
    if unparsed:
        reason = next(iter(failures), "it gave no probability")
        print(
            f"the guard {guard.name}: {len(unparsed)} of {len(scores)} prompts are"
            f" unparsed, {unparsed[0]} first ({reason})",
            file=sys.stderr,
        )
    meta = {
        "guard": guard.name,
        "version": guard.version,
        "corpus": frame_hash(prompts[["prompt_id", "text"]]),
        "asked_now": int(is_missing.sum()),
        "seconds": round(seconds, 1),
        "unparsed": len(unparsed),
        # Without messages, which may quote the text
        "failed": Counter(failure.partition(":")[0] for failure in failures),
    }
    if guard.notes:
        earlier = stores.read_meta(files.path("guards", guard.name))
        meta |= guard.notes.describe(prompts, is_missing, earlier)
    files.write("guards", guard.name, frame=scores, meta=meta)
    return files.read("guards", guard.name)


def _score_texts(guard: Guard, texts: list[str]) -> tuple[np.ndarray, list[str]]:
    """Return probabilities, NaN for a text on which the guard fails, and the failures.

    A step that fails is halved until the text is found. Raise DataError if the guard
    always fails.
    """
    scores = np.full(len(texts), np.nan)
    failures: list[str] = []
    succeeded = False
    rows = range(len(texts))
    size = TEXTS_PER_STEP if guard.asks else max(len(texts), 1)
    pending = [rows[start : start + size] for start in rows[::size]]
    disable = len(pending) < 2
    bar = tqdm(total=len(texts), desc=guard.name, unit="prompt", disable=disable)
    while pending:
        chosen = pending.pop(0)
        try:
            values = guard.score([texts[row] for row in chosen])
            scores[chosen] = check_probabilities(guard.name, values, len(chosen))
            succeeded = True
            bar.update(len(chosen))
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            if len(chosen) > 1:  # find the text on which it fails
                middle = len(chosen) // 2
                pending = [chosen[:middle], chosen[middle:], *pending]
                continue
            line = str(error).strip().partition("\n")[0]
            failures.append(f"{type(error).__name__}: {line}")
            gives_up = len(failures) >= MAX_FIRST_FAILURES or not pending
            if not succeeded and gives_up:
                raise DataError(
                    f"the guard {guard.name} fails on every text ({len(failures)}"
                    f" tried): {failures[0]}"
                ) from error
    return scores, failures


def check_probabilities(
    name: str, values: np.ndarray | Sequence[float], expected: int
) -> np.ndarray:
    """Return a guard's probabilities as floats, shape (expected,).

    Raise DataError unless there are `expected`, all in [0, 1] or NaN.
    """
    probabilities = np.asarray(values, dtype=float)
    if probabilities.shape != (expected,):
        raise DataError(
            f"the guard {name} was given {expected} texts and returned"
            f" {probabilities.size} probabilities"
        )
    outside = (probabilities < 0) | (probabilities > 1)
    if outside.any():
        first = outside.argmax()
        raise DataError(
            f"the guard {name} gives {probabilities[first]:g} for text {first + 1}; a"
            " probability lies in [0, 1]"
        )
    return probabilities
