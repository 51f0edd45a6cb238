"""The strategies by which a seed is paraphrased: a new one is one row of this table.

The schemas, the gates, the cohorts, the comparison of wordings and the generators read
the table; no other module lists strategies (`docs/method.md`, Corpus).
"""

from typing import NamedTuple

SEED_STRATEGY = "seed"  # what the column `strategy` holds for a seed itself


class Strategy(NamedTuple):
    """A strategy by which paraphrases are written.

    Attributes
    ----------
    name : str
        As in the column `strategy`.
    paper : str
        The paper's strategy that it belongs to. A cluster needs several of these.
    near_copy : bool
        Whether the paraphrase keeps the seed's words but charged ones, and is not a
        free rewording.
    direction : int
        -1 if the paraphrase must lower the risk of its seed, 1 if it must raise the
        risk, 0 if neither. One with a direction must keep its seed's word order.
    generator : str
        What writes candidates for `candidates=rules`: "rules", which are the lexicon
        and the frames of `data/generation/`; `module:function`, which returns a list
        of paraphrases of a text; or "" if the rules write none.
    max_candidates : int
        How many candidates per seed the generator writes at most: more than a cluster
        needs, so that the gates can choose.
    """

    name: str
    paper: str
    near_copy: bool
    direction: int
    generator: str
    max_candidates: int = 6


TABLE = (
    Strategy("lexical", "lexical", False, 0, "rules", 4),
    Strategy("register", "register", False, 0, "rules", 6),
    Strategy("softening", "keywords", True, -1, "rules", 6),
    Strategy("hardening", "keywords", True, 1, "rules", 6),
    Strategy("rewrite", "rewrite", False, 0, "rules", 8),
)
"""The paper's four strategies; softening and hardening are one of them."""

STRATEGIES = tuple(row.name for row in TABLE)
NEAR_COPIES = tuple(row.name for row in TABLE if row.near_copy)
FREE_REWORDINGS = tuple(row.name for row in TABLE if not row.near_copy)
PAPER_STRATEGY = {row.name: row.paper for row in TABLE}
DIRECTION = {row.name: row.direction for row in TABLE if row.direction}
