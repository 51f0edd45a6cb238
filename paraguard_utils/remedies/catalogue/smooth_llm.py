"""SmoothLLM: let copies with random characters vote (Robey et al., arXiv 2310.03684)."""

import hashlib
import string

import numpy as np

from paraguard_utils.core.estimates import SEED
from paraguard_utils.remedies.asking import Remedied, ask, copied, voted
from paraguard_utils.remedies.contract import Remedy, Target
from paraguard_utils.remedies.splits import Third
from paraguard_utils.remedies.untouched import Untouched
from paraguard_utils.schemas import Corpus, Labels

COPIES, SHARE = 3, 0.1
"""Copies a prompt (the paper has up to 10), and the share of characters that is swapped (the paper's)."""

ALPHABET = np.array(list(string.ascii_letters + string.digits + string.punctuation))
"""Characters that are swapped in; the paper has white space too."""


def perturbed(text: str, copy: int) -> str:
    """Swap `SHARE` of a text's characters for random ones, seeded by the text and the number of the copy."""
    digest = hashlib.sha256(f"{SEED}\x1f{copy}\x1f{text}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    letters = np.array(list(text))
    places = rng.choice(len(letters), max(1, int(len(letters) * SHARE)), replace=False)
    letters[places] = rng.choice(ALPHABET, len(places))
    return "".join(letters)


def apply(base: Untouched, train: Third, validation: Third) -> Target:
    """Ask perturbed copies and let them vote."""
    parameters = {"copies": COPIES, "share": SHARE}

    def decide(of: str, prompts: Corpus | None) -> Labels:
        texts = None
        if prompts is not None:
            texts = copied(prompts, [[perturbed(text, i) for i in range(COPIES)] for text in prompts["text"]])
        found = ask(base, "smooth-llm", parameters, lambda: Remedied(base.local, parameters), of, texts)
        return voted(base.decide(of, prompts), found, with_own=False)

    return Target(decide)


REMEDIES = (Remedy("smooth-llm", "defence", "2310.03684", apply, asks=True, queries=COPIES),)
