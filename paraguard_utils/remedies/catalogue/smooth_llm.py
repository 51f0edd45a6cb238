"""SmoothLLM: let copies with random characters vote (Robey et al., arXiv 2310.03684)."""

import hashlib
import string

import numpy as np

from paraguard_utils.core.estimates import SEED
from paraguard_utils.remedies.asking import copy_prompts, vote_by_majority
from paraguard_utils.remedies.contract import RemediedSystem, Remedy, Split, UntouchedSystem
from paraguard_utils.schemas import Corpus, Labels

N_COPIES, SWAPPED_SHARE = 3, 0.1
"""Copies a prompt (the paper has up to 10), and the share of characters that is swapped (the paper's)."""

SWAP_ALPHABET = np.array(list(string.ascii_letters + string.digits + string.punctuation))
"""Characters that are swapped in; the paper has white space too."""


def perturb_text(text: str, copy: int) -> str:
    """Swap `SWAPPED_SHARE` of a text's characters for random ones, seeded by the text and the number of the copy."""
    digest = hashlib.sha256(f"{SEED}\x1f{copy}\x1f{text}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    letters = np.array(list(text))
    places = rng.choice(len(letters), max(1, int(len(letters) * SWAPPED_SHARE)), replace=False)
    letters[places] = rng.choice(SWAP_ALPHABET, len(places))
    return "".join(letters)


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Ask perturbed copies and let them vote."""
    asked = RemediedSystem.asking(base, "smooth-llm", {"copies": N_COPIES, "share": SWAPPED_SHARE})

    def decide(of: str, prompts: Corpus | None) -> Labels:
        copies = None
        if prompts is not None:
            texts = [[perturb_text(text, i) for i in range(N_COPIES)] for text in prompts["text"]]
            copies = copy_prompts(prompts, texts)
        found = asked.decide(of, copies)
        return vote_by_majority(base.decide(of, prompts), found, with_own=False)

    return RemediedSystem(decide)


REMEDIES = (Remedy("smooth-llm", "defence", "2310.03684", apply, asks=True, queries=N_COPIES),)
