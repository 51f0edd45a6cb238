"""Answer a rewording instead of the request (Jain et al., arXiv 2309.00614), or let
rewordings vote (ours).
"""

from functools import partial

from paraguard_lab.corpus import reword
from paraguard_lab.remedies.asking import vote_by_majority
from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    Split,
    UntouchedSystem,
)
from paraguard_utils.schemas import COPY_SEPARATOR, Corpus, Labels

# Name of the answers to all rewordings, which several remedies share
REWORDINGS_FOLDER = "rewordings"
MAX_QUERIES = 1 + reword.MAX_REWORDINGS
_PARAMETERS = {"most": reword.MAX_REWORDINGS, "by": "rules"}


def label_rewordings(base: UntouchedSystem, of: str, prompts: Corpus | None) -> Labels:
    """Return labels of the answers to all rewordings.

    Recorded ones are taken as they are, for rewording takes long.
    """
    texts = None
    if prompts is not None and not base.store.recorded:
        texts = reword.reword_prompts(prompts)
        kept = prompts.drop(columns=["text", "strategy"], errors="ignore").rename(
            columns={"cluster_id": "own_cluster"}
        )
        texts = texts.merge(
            kept.rename(columns={"prompt_id": "cluster_id"}),
            on="cluster_id",
            how="left",
        )
    return RemediedSystem.asking(base, REWORDINGS_FOLDER, _PARAMETERS).decide(of, texts)


def apply(
    base: UntouchedSystem, train: Split, validation: Split, vote: bool
) -> RemediedSystem:
    """Let the first rewording, if the rules make any, decide.

    Or let the request and all rewordings `vote`.
    """

    def decide(of: str, prompts: Corpus | None) -> Labels:
        found = label_rewordings(base, of, prompts)
        if not vote:
            found = found[found["prompt_id"].str.endswith(f"{COPY_SEPARATOR}1")]
        return vote_by_majority(base.decide(of, prompts), found, with_own=vote)

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
