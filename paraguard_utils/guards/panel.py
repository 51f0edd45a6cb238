"""Guards applied to corpora: loaded, scored, decided (`docs/method.md`, Guards).

Stored scores are read without the guard's package. A guard that fails is named, and the
others go on.
"""

import hashlib
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from paraguard_utils import seams, stores
from paraguard_utils.errors import DataError, Missing, SettingsError, UserError
from paraguard_utils.guards.contract import Guard, GuardOptions, check_probabilities
from paraguard_utils.schemas import Corpus, Labels
from paraguard_utils.stores import CorpusFiles, Store, frame_hash

MAX_FIRST_FAILURES = 20  # a guard that fails on its first texts gets no more than these
TEXTS_PER_STEP = 256  # texts that a guard which costs something gets at a time


class GuardScores(NamedTuple):
    """A guard and its scores on one corpus (prompt_id, key, score)."""

    guard: Guard
    scores: pd.DataFrame

    @property
    def labels(self) -> Labels:
        """The guard's decisions at its own threshold."""
        return label_by_threshold(self.scores, self.guard.threshold)

    @property
    def probabilities(self) -> pd.Series:
        """The guard's probabilities of being unsafe, by prompt_id."""
        return self.scores.set_index("prompt_id")["score"]


def load_guard(name: str, options: GuardOptions | None = None) -> Guard:
    """Return a guard by name, loaded by the extension `guard` of the list `loaders`.

    `paraguard_lab.guards.makers.find_guard` says which names there are.
    """
    load = seams.load_extension("loaders", "guard")
    guard: Guard = load(name, options)
    return guard


def ask_guards(
    store: Store,
    corpora: Mapping[str, Corpus],
    guards: Sequence[str | Guard],
    options: GuardOptions | None = None,
    needed: str = "",
) -> dict[str, dict[str, GuardScores]]:
    """Return guards with their scores, by corpus and by the guard's name.

    A guard that fails is named on stderr. Each is loaded once for all corpora, with
    `options`, to which store and corpora are added.

    Parameters
    ----------
    store : Store
        Where scores are kept.
    corpora : mapping of str to Corpus
        By name; the first is the harmless corpus.
    guards : sequence of str or Guard
        Guards, or names for `load_guard`.
    options : GuardOptions, optional
        How they are loaded.
    needed : str, optional
        The name of a corpus that at least one guard must score, or the first guard's
        error is raised.

    Raises
    ------
    SettingsError
        If a name is unknown or an entry is wrong.
    """
    options = replace(options or GuardOptions(), store=store, corpora=corpora)
    scored: dict[str, dict[str, GuardScores]] = {name: {} for name in corpora}
    errors: list[UserError] = []
    for named in guards:
        guard = named if isinstance(named, Guard) else None
        for corpus_name, prompts in corpora.items():
            try:
                if guard is None:
                    guard = load_guard(str(named), options)
                if guard.by_prompt and isinstance(named, str):
                    alone = replace(options, corpora={corpus_name: prompts})
                    guard = load_guard(named, alone)
                files = CorpusFiles(store, corpus_name)
                scores = score_with_guard(files, prompts, guard)
            except SettingsError:  # the name is wrong, rather than the guard missing
                raise
            except UserError as error:
                print(f"left out: {error}", file=sys.stderr)
                if corpus_name == needed:
                    errors.append(error)
                continue
            scored[corpus_name][guard.name] = GuardScores(guard, scores)
    if needed and errors and not scored[needed]:
        raise errors[0]
    return scored


def score_with_guard(files: CorpusFiles, prompts: Corpus, guard: Guard) -> pd.DataFrame:
    """Return a guard's probabilities of being unsafe, prompt by prompt.

    A live store computes what it lacks, and keeps it by the guard's version and the
    text.

    Parameters
    ----------
    files : CorpusFiles
        Where scores are kept.
    prompts : Corpus
        The corpus or a part of it (prompt_id, text).
    guard : Guard
        A guard, ready to score.

    Returns
    -------
    DataFrame
        prompt_id, key and score, in the order of `prompts`; a score that the guard did
        not give is NaN.

    Raises
    ------
    Missing
        If the recorded store lacks the guard or has scores for other texts or another
        version, or if the guard's package is missing.
    UserError
        If the guard cannot score.
    """
    scores = pd.DataFrame(
        {
            "prompt_id": prompts["prompt_id"].to_numpy(),
            "key": [_score_key(guard, text) for text in prompts["text"]],
            "score": np.nan,
        }
    )
    if files.recorded or files.has("guards", guard.name):
        stored = files.read("guards", guard.name)
        is_same = stored[["prompt_id", "key"]].equals(scores[["prompt_id", "key"]])
        if is_same and (files.recorded or stored["score"].notna().all()):
            return stored
        if files.recorded:
            raise Missing(
                f"the recorded scores of {guard.name} are for other prompts or another"
                f" version than {guard.version}; run 05_guard_comparison with a live"
                " store"
            )
        by_key = stored.drop_duplicates("key").set_index("key")["score"]
        scores["score"] = scores["key"].map(by_key)
    return _score_missing(files, prompts, guard, scores)


def _score_key(guard: Guard, text: str) -> str:
    """Return the key under which a guard's score of a text is kept."""
    content = f"{guard.name} {guard.version}\x1f{text}"
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _score_missing(
    files: CorpusFiles, prompts: Corpus, guard: Guard, scores: pd.DataFrame
) -> pd.DataFrame:
    """Compute the scores that are NaN, and write all of them."""
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


def label_by_threshold(scores: pd.DataFrame, threshold: float) -> Labels:
    """Turn scores (prompt_id, score) into labels.

    A prompt is rejected from the threshold on, and `unparsed` if its score is NaN.
    """
    score = scores["score"]
    conditions = [score.isna(), score >= threshold]
    return scores[["prompt_id"]].assign(
        labeller=f"threshold-{threshold:g}",
        label=np.select(conditions, ["unparsed", "reject"], "accept"),
        kind=None,
        rule=None,
        p_refusal=np.nan,
        answer=None,
        response=None,
    )
