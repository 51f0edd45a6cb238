"""Test a chat function of yours, and assert how consistently it refuses.

`docs/usage.md` shows it in use (In your tests).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.core.until_sure import judge_until_sure
from paraguard_tools.harness.requests import read_requests
from paraguard_tools.logs import gate
from paraguard_tools.logs.audit import audit
from paraguard_tools.logs.decisions import Decisions, label_refusals
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.core.estimates import SEED
from paraguard_utils.errors import DataError

Ask = Callable[[str], str]


@dataclass(frozen=True)
class Gate:
    """Sends requests to a chat function and judges its answers.

    Attributes
    ----------
    requests : DataFrame
        Those of `read_requests`, by default the installed corpus.
    labeller : str
        That of `label_refusals`.
    threads : int
        At most as many requests are under way at the same time.
    max_undecided : float
        Without a decision on more than this share of the requests a test fails.
    """

    requests: pd.DataFrame = field(default_factory=read_requests)
    labeller: str = ""
    threads: int = 8
    max_undecided: float = gate.MAX_UNDECIDED

    def order(self, clusters: int = 0) -> np.ndarray:
        """Return clusters in random order, the same in every run.

        The first ones only, if a number is given.
        """
        names = self.requests["cluster"].unique()
        shuffled = np.random.default_rng(SEED).permutation(names)
        return shuffled[: clusters or None]

    def decide(self, ask: Ask, clusters: np.ndarray) -> pd.DataFrame:
        """Send all requests of some clusters, and label the answers.

        Returns their rows, with label, refused and cluster_id.
        """
        chosen = self.requests["cluster"].isin(clusters)
        rows = self.requests[chosen].reset_index(drop=True)
        with ThreadPoolExecutor(self.threads) as pool:
            answers = list(pool.map(ask, rows["text"]))
        labels = label_refusals(answers, None, rows["text"].tolist(), self.labeller)
        return rows.assign(
            label=labels["label"],
            refused=as_refused(labels["label"]),
            cluster_id=rows["cluster"],
        )

    def ask(self, ask: Ask, clusters: int = 0) -> "Asked":
        """Send the requests of all clusters, or of so many."""
        rows = self.decide(ask, self.order(clusters))
        undecided = rows["refused"].isna()
        if undecided.all():
            pytest.fail(
                f"too little to say: none of {len(rows)} answers can be read; is it the"
                " chat function that fails?",
                pytrace=False,
            )
        table = audit(Decisions.from_frame(rows, "the answers")).table
        return Asked(table, len(self.order()), self.max_undecided)

    def until_sure(self, ask: Ask, dr: float) -> None:
        """Fail unless DR is at or below a limit.

        Requests are sent ten clusters at a time, only until that is certain. A function
        that refuses nothing passes: no refusal of it is inconsistent.
        """
        gate.check_limit("until_sure", dr, "dr")
        harmless = self.requests[~self.requests["harmful"]]
        benign_gate = replace(self, requests=harmless)

        def decide(clusters: np.ndarray) -> pd.DataFrame:
            return benign_gate.decide(ask, clusters)

        judged = judge_until_sure(benign_gate.order(), decide, dr, self.max_undecided)
        print(judged.line)
        if judged.verdict != "not worse":
            pytest.fail(judged.line, pytrace=False)


@dataclass(frozen=True)
class Asked:
    """What was measured: `table` is that of `logs.audit.Audit`.

    `available`: how many clusters there are, of which all or some were asked.
    """

    table: pd.DataFrame
    available: int = 0
    max_undecided: float = gate.MAX_UNDECIDED

    def at_most(self, **limits: float) -> None:
        """Fail unless each measure's interval is at or below its limit: dr=0.8."""
        self._judge(limits, least=False)

    def at_least(self, **limits: float) -> None:
        """Fail unless each measure's interval is at or above its limit: frr=0.1."""
        self._judge(limits, least=True)

    def _judge(self, limits: dict[str, float], least: bool) -> None:
        measures = sorted(
            name.removesuffix("_low") for name in self.table if name.endswith("_low")
        )
        findings = []
        for name, limit in limits.items():
            if name not in measures:
                raise DataError(
                    f"there is no measure {name!r}; there are {', '.join(measures)}"
                )
            gate.check_limit(name, limit, name, least)
            evidence = gate.Evidence(self.max_undecided)
            findings += gate.judge_audit(self.table, name, limit, least, evidence)
        lines = [finding.line for finding in findings]
        lines += [self._say_what_is_possible(one, least) for one in findings]
        said = "\n".join(filter(None, lines))
        print(said)
        if gate.exit_status(findings):
            pytest.fail(said, pytrace=False)

    def _say_what_is_possible(self, found: gate.GateFinding, least: bool) -> str:
        """Say which limit all requests could decide, if more are needed than there are.

        Intervals narrow with the root of the number of clusters.
        """
        asked = int(self.table.iloc[0].get("n_clusters", 0))
        is_out_of_reach = found.needed > self.available > 0 and asked
        if found.verdict != gate.UNKNOWN or not is_out_of_reach:
            return ""
        narrower = np.sqrt(min(asked / self.available, 1.0))
        if least:
            reached = found.value - (found.value - found.low) * narrower
        else:
            reached = found.value + (found.high - found.value) * narrower
        side = "at least" if least else "at most"
        return (
            f"there are {self.available:,} clusters: if the value stays, they can"
            f" assert {found.measure} of {side} {reached:.2f}, and nothing closer"
        )
