"""SmoothLLM: let copies with random characters vote.

(Robey et al., arXiv 2310.03684)
"""

import hashlib
import string
from functools import cache

import numpy as np

from paraguard_lab.corpus.reword import COPY_SEPARATOR
from paraguard_lab.remedies.asking import vote_by_majority
from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    Split,
    UntouchedSystem,
)
from paraguard_utils.core.estimates import SEED
from paraguard_utils.schemas import Corpus, Labels

N_COPIES = 3  # of a prompt; the paper has up to 10
SWAPPED_SHARE = 0.1  # share of characters that is swapped (the paper's)

# The paper has space too.
SWAP_ALPHABET = np.array(
    list(string.ascii_letters + string.digits + string.punctuation)
)


@cache  # every system is asked the same copies
def perturb_text(text: str, copy: int) -> str:
    """Swap `SWAPPED_SHARE` of a text's characters for random ones, at least one.

    Parameters
    ----------
    text : str
        Not empty.
    copy : int
        Number of the copy; with the text it is the seed.
    """
    digest = hashlib.sha256(f"{SEED}\x1f{copy}\x1f{text}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    letters = np.array(list(text))
    count = max(1, int(len(letters) * SWAPPED_SHARE))
    places = rng.choice(len(letters), count, replace=False)
    letters[places] = rng.choice(SWAP_ALPHABET, len(places))
    return "".join(letters)


def copy_prompts(prompts: Corpus) -> Corpus:
    """Return perturbed copies of each prompt, with ids of their own (`x~1`, `x~2`).

    The `N_COPIES` of a prompt follow one another; all other columns are the prompt's.
    """
    copies = prompts.loc[prompts.index.repeat(N_COPIES)].reset_index(drop=True)
    number = copies.groupby("prompt_id").cumcount()
    texts = map(perturb_text, copies["text"], number)
    suffix = COPY_SEPARATOR + (number + 1).astype(str)
    return copies.assign(prompt_id=copies["prompt_id"] + suffix, text=list(texts))


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Ask perturbed copies and let them vote."""
    parameters = {"copies": N_COPIES, "share": SWAPPED_SHARE}
    of_copies = RemediedSystem.asking(base, "smooth-llm", parameters)

    def decide(corpus_name: str, prompts: Corpus | None) -> Labels:
        copies = None if prompts is None else copy_prompts(prompts)
        labels = base.decide(corpus_name, prompts)
        votes = of_copies.decide(corpus_name, copies)
        return vote_by_majority(labels, votes, with_own=False)

    return RemediedSystem(decide)


REMEDIES = (
    Remedy("smooth-llm", "defence", "2310.03684", apply, asks=True, queries=N_COPIES),
)
