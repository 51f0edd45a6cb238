"""Answer a rewording instead of the request (Jain et al., arXiv 2309.00614), or let rewordings vote (ours)."""

from paraguard_utils.corpus import reword
from paraguard_utils.remedies.asking import COPY, Remedied, ask, voted
from paraguard_utils.remedies.contract import Remedy, Target
from paraguard_utils.remedies.splits import Third
from paraguard_utils.remedies.untouched import Untouched
from paraguard_utils.schemas import Corpus, Labels

ASKED = "rewordings"
"""Name of the answers to all rewordings, which several remedies share."""

PARAMETERS = {"most": reword.MOST, "by": "rules"}


def asked(base: Untouched, of: str, prompts: Corpus | None) -> Labels:
    """Return labels of the answers to all rewordings."""
    texts = None
    place = ("labels", base.folder(of, ASKED), base.name)
    if base.store.recorded and not base.store.has(*place):
        base.store.read(*place)  # an error before rewording, which takes a while
    if prompts is not None:
        texts = reword.reworded(prompts)
        kept = prompts.drop(columns=["text", "strategy"], errors="ignore").rename(columns={"cluster_id": "own_cluster"})
        texts = texts.merge(kept.rename(columns={"prompt_id": "cluster_id"}), on="cluster_id", how="left")
    return ask(base, ASKED, PARAMETERS, lambda: Remedied(base.local, PARAMETERS), of, texts)


def paraphrased(base: Untouched, train: Third, validation: Third) -> Target:
    """Answer the first rewording instead of the request, if the rules make any."""

    def decide(of: str, prompts: Corpus | None) -> Labels:
        found = asked(base, of, prompts)
        return voted(base.decide(of, prompts), found[found["prompt_id"].str.endswith(f"{COPY}1")], with_own=False)

    return Target(decide)


def vote(base: Untouched, train: Third, validation: Third) -> Target:
    """Ask the request and its rewordings; the majority decides, and in a tie the request itself."""

    def decide(of: str, prompts: Corpus | None) -> Labels:
        return voted(base.decide(of, prompts), asked(base, of, prompts), with_own=True)

    return Target(decide)


REMEDIES = (
    Remedy("paraphrased", "defence", "2309.00614", paraphrased, asks=True, asked=ASKED),
    Remedy("vote", "decision", "ours", vote, asks=True, queries=1 + reword.MOST, asked=ASKED),
)
