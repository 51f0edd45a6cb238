"""Answer a rewording instead of the request (Jain et al., arXiv 2309.00614), or let rewordings vote (ours)."""

from paraguard_utils.corpus import reword
from paraguard_utils.remedies.asking import COPY_SEPARATOR, RemediedModel, ask_remedied, vote_by_majority
from paraguard_utils.remedies.contract import RemediedSystem, Remedy
from paraguard_utils.remedies.splits import Split
from paraguard_utils.remedies.untouched import UntouchedSystem
from paraguard_utils.schemas import Corpus, Labels

REWORDINGS_FOLDER = "rewordings"
"""Name of the answers to all rewordings, which several remedies share."""

REWORDING_PARAMETERS = {"most": reword.MAX_REWORDINGS, "by": "rules"}


def label_rewordings(base: UntouchedSystem, of: str, prompts: Corpus | None) -> Labels:
    """Return labels of the answers to all rewordings."""
    texts = None
    place = ("labels", base.folder(of, REWORDINGS_FOLDER), base.name)
    if base.store.recorded and not base.store.has(*place):
        base.store.read(*place)  # an error before rewording, which takes a while
    if prompts is not None:
        texts = reword.reword_prompts(prompts)
        kept = prompts.drop(columns=["text", "strategy"], errors="ignore").rename(columns={"cluster_id": "own_cluster"})
        texts = texts.merge(kept.rename(columns={"prompt_id": "cluster_id"}), on="cluster_id", how="left")
    return ask_remedied(
        base,
        REWORDINGS_FOLDER,
        REWORDING_PARAMETERS,
        lambda: RemediedModel(base.local, REWORDING_PARAMETERS),
        of,
        texts,
    )


def apply_paraphrased(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Answer the first rewording instead of the request, if the rules make any."""

    def decide(of: str, prompts: Corpus | None) -> Labels:
        found = label_rewordings(base, of, prompts)
        return vote_by_majority(
            base.decide(of, prompts), found[found["prompt_id"].str.endswith(f"{COPY_SEPARATOR}1")], with_own=False
        )

    return RemediedSystem(decide)


def apply_vote(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Ask the request and its rewordings; the majority decides, and in a tie the request itself."""

    def decide(of: str, prompts: Corpus | None) -> Labels:
        return vote_by_majority(base.decide(of, prompts), label_rewordings(base, of, prompts), with_own=True)

    return RemediedSystem(decide)


REMEDIES = (
    Remedy("paraphrased", "defence", "2309.00614", apply_paraphrased, asks=True, asked=REWORDINGS_FOLDER),
    Remedy(
        "vote", "decision", "ours", apply_vote, asks=True, queries=1 + reword.MAX_REWORDINGS, asked=REWORDINGS_FOLDER
    ),
)
