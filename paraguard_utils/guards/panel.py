"""Guards: functions from prompts to probabilities.

Probabilities are stored by prompt, thresholds come later. A guard's token signals come from a named reference trace, so
its CI describes the prompts it separates, not its insides.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata

import numpy as np
import pandas as pd

from paraguard_utils.errors import Missing
from paraguard_utils.schemas import Labels
from paraguard_utils.stores import Store, frame_hash


def _alt_profanity_check(texts: Sequence[str]) -> np.ndarray:
    from profanity_check import predict_prob

    return predict_prob(list(texts))


def _better_profanity(texts: Sequence[str]) -> list[float]:
    from better_profanity import Profanity

    guard = Profanity()
    return [float(guard.contains_profanity(text)) for text in texts]


@dataclass(frozen=True)
class Guard:
    """A guard that comes as a package.

    Attributes
    ----------
    package : str
        Distribution name; its version is part of a score's key.
    score : callable
        Texts to probabilities of being unsafe, in [0, 1].
    threshold : float
        Probability at which the guard rejects. Its makers' default.
    about : str
    """

    package: str
    score: Callable[[Sequence[str]], Sequence[float] | np.ndarray]
    threshold: float
    about: str


GUARDS = {
    "alt-profanity-check": Guard(
        "alt-profanity-check",
        _alt_profanity_check,
        0.5,
        "linear model over word features, trained on offensive posts",
    ),
    "better-profanity": Guard("better-profanity", _better_profanity, 0.5, "word list with character variants"),
}


def scores(store: Store, corpus_name: str, corpus: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a guard's probabilities, computing what a live store lacks.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus : DataFrame
        Columns prompt_id, text.
    name : str
        A key of `GUARDS`.

    Returns
    -------
    DataFrame
        prompt_id, key, score, in corpus order.

    Raises
    ------
    Missing
        The recorded store lacks the guard, or its scores are for other texts or another version.
    """
    guard = GUARDS[name]
    try:
        version = metadata.version(guard.package)
    except metadata.PackageNotFoundError:
        raise Missing(
            f"the package {guard.package} is not installed; run: python -m pip install {guard.package}"
        ) from None
    keys = [hashlib.sha256(f"{guard.package} {version}\x1f{text}".encode()).hexdigest()[:32] for text in corpus["text"]]
    if store.recorded or store.has("guards", corpus_name, name):
        frame = store.read("guards", corpus_name, name)
        if frame["prompt_id"].tolist() == corpus["prompt_id"].tolist() and frame["key"].tolist() == keys:
            return frame
        if store.recorded:
            raise Missing(
                f"the recorded scores of {name} are for other prompts or another version than {version}; "
                "run 05_guard_comparison with a live store"
            )
    frame = pd.DataFrame({"prompt_id": corpus["prompt_id"], "key": keys, "score": guard.score(corpus["text"])})
    meta = {"guard": name, "package_version": version, "corpus": frame_hash(corpus[["prompt_id", "text"]])}
    store.write("guards", corpus_name, name, frame=frame, meta=meta)
    return store.read("guards", corpus_name, name)


def labels(frame: pd.DataFrame, name: str) -> Labels:
    """Turn probabilities into decisions at the guard's threshold.

    Returns
    -------
    DataFrame
        The columns of a labels file; `response` is null, since a guard answers nothing.
    """
    guard = GUARDS[name]
    rejects = frame["score"] >= guard.threshold
    return pd.DataFrame(
        {
            "prompt_id": frame["prompt_id"],
            "labeller": f"threshold-{guard.threshold:g}",
            "label": rejects.map({True: "reject", False: "accept"}),
            "kind": None,
            "rule": None,
            "p_refusal": np.nan,
            "answer": None,
            "response": None,
        }
    )
