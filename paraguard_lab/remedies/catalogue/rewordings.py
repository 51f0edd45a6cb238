"""Answer a rewording instead of the request, or let rewordings vote.

The first is from Jain et al. (arXiv 2309.00614), the second is ours.
"""

from functools import partial

from paraguard_lab.corpus import reword
from paraguard_lab.corpus.reword import COPY_SEPARATOR
from paraguard_lab.remedies.asking import vote_by_majority
from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    Split,
    UntouchedSystem,
)
from paraguard_utils.schemas import Corpus, Labels

# Name of the answers to all rewordings, which several remedies share
REWORDINGS_FOLDER = "rewordings"
MAX_QUERIES = 1 + reword.MAX_REWORDINGS
REWORDING_PARAMETERS = {"most": reword.MAX_REWORDINGS, "by": "rules"}


def label_rewordings(
    base: UntouchedSystem, corpus_name: str, prompts: Corpus | None
) -> Labels:
    """Return labels of the answers to all rewordings.

    Recorded ones are taken as they are, for rewording takes long.

    Parameters
    ----------
    base : UntouchedSystem
    corpus_name : str
    prompts : Corpus or None
        Those that are reworded; None: all whose rewordings the store has.
    """
    texts = None
    if prompts is not None and not base.store.recorded:
        texts = reword.reword_prompts(prompts)
        # The cluster of a rewording is the request that it rewords.
        replaced = ["text", "strategy", "cluster_id"]
        requests = prompts.drop(columns=replaced, errors="ignore")
        requests = requests.rename(columns={"prompt_id": "cluster_id"})
        texts = texts.merge(requests, on="cluster_id", how="left")
    system = RemediedSystem.asking(base, REWORDINGS_FOLDER, REWORDING_PARAMETERS)
    return system.decide(corpus_name, texts)


def apply(
    base: UntouchedSystem, train: Split, validation: Split, vote: bool
) -> RemediedSystem:
    """Let the first rewording, if the rules make any, decide.

    If `vote`, the request and all rewordings decide by majority.
    """

    def decide(corpus_name: str, prompts: Corpus | None) -> Labels:
        reworded = label_rewordings(base, corpus_name, prompts)
        if not vote:
            is_first = reworded["prompt_id"].str.endswith(f"{COPY_SEPARATOR}1")
            reworded = reworded[is_first]
        labels = base.decide(corpus_name, prompts)
        return vote_by_majority(labels, reworded, with_own=vote)

    return RemediedSystem(decide)


REMEDIES = (
    Remedy(
        "paraphrased",
        "defence",
        "2309.00614",
        partial(apply, vote=False),
        asks=True,
        asked=REWORDINGS_FOLDER,
    ),
    Remedy(
        "vote",
        "decision",
        "ours",
        partial(apply, vote=True),
        asks=True,
        queries=MAX_QUERIES,
        asked=REWORDINGS_FOLDER,
    ),
)
