"""Guards applied to corpora: loaded, scored, decided (`docs/method.md`, Guards).

Stored scores are read without the guard's package; an extension lets guards score what
is missing. A guard that fails is named, and the others go on.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils import seams
from paraguard_utils.errors import Missing, SettingsError, UserError
from paraguard_utils.guards.contract import Guard, GuardOptions
from paraguard_utils.schemas import Corpus, Labels
from paraguard_utils.stores import CorpusFiles, Store


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
    return seams.load_extension("queries", "guard")(files, prompts, guard, scores)


def _score_key(guard: Guard, text: str) -> str:
    """Return the key under which a guard's score of a text is kept."""
    content = f"{guard.name} {guard.version}\x1f{text}"
    return hashlib.sha256(content.encode()).hexdigest()[:32]


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
