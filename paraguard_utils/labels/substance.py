"""Which answers are degenerate: loops, echoes and the like? (`docs/method.md`, Labels).

"Accepted" says only that an answer does not refuse; a small model may accept and loop.
Only readers could judge whether an answer is any good (`labels.readings`).
"""

from collections.abc import Sequence

import numpy as np
from py3langid import langid
from rapidfuzz.distance import LCSseq

from paraguard_utils.core.words import split_words
from paraguard_utils.text import ENGLISH_CODES

_RUN_WORDS = 4
# An answer is a loop from this share of runs of `_RUN_WORDS` words that stood before
_MIN_REPEATED = 0.2
# An answer repeats the request from this share of words that are the request's, in its
# order
_MIN_ECHOED = 0.6
# Below, no language or echo is judged: a short right answer may consist of the
# request's words
_MIN_JUDGED_WORDS = 8


def degenerate_answers(
    responses: Sequence[object], requests: Sequence[str]
) -> np.ndarray:
    """Call each answer "degenerate" or "on_topic".

    What is not a string is an empty answer.
    """
    texts = [text if isinstance(text, str) else "" for text in responses]
    pairs = zip(texts, requests, strict=True)
    return np.array(
        ["degenerate" if _is_degenerate(*pair) else "on_topic" for pair in pairs],
        dtype=object,
    )


def _is_degenerate(response: str, request: str) -> bool:
    """Return whether an answer is empty, a loop, the request repeated, or in another
    language than the request.
    """
    own = split_words(response)
    if not own or repeated_share(own) >= _MIN_REPEATED:
        return True
    if len(own) < _MIN_JUDGED_WORDS:
        return False
    return echoed_share(own, split_words(request)) >= _MIN_ECHOED or _english(
        response
    ) != _english(request)


def repeated_share(own: Sequence[str]) -> float:
    """Return the share, in [0, 1], of runs of `_RUN_WORDS` words that stood before.

    0 for shorter texts.
    """
    runs = [tuple(own[at : at + _RUN_WORDS]) for at in range(len(own) - _RUN_WORDS + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def echoed_share(own: Sequence[str], request: Sequence[str]) -> float:
    """Return the share of an answer's words that stand in the request in the same
    order, in [0, 1].
    """
    return float(LCSseq.similarity(own, request)) / len(own) if own else 0.0


def _english(text: str) -> bool:
    return langid.classify(text)[0] in ENGLISH_CODES
