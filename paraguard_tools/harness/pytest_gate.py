"""Ask a chat function of yours in a test, and assert how sensibly it refuses
(`docs/usage.md`, In your tests).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import pytest

from paraguard_tools.harness.requests import read_requests
from paraguard_tools.logs import gate
from paraguard_tools.logs.audit import audit
from paraguard_tools.logs.decisions import Decisions, label_refusals
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.core.disagreement import judge_until_sure
from paraguard_utils.core.estimates import SEED
from paraguard_utils.errors import DataError

Ask = Callable[[str], str]


@dataclass(frozen=True)
class Gate:
    """Asks requests and judges what becomes of them.

    `requests` are those of `read_requests`, by default the installed corpus; `labeller`
    is that of `label_refusals`. At most `threads` requests are under way at the same
    time.
    """

    requests: pd.DataFrame = field(default_factory=read_requests)
    labeller: str = ""
    threads: int = 8

    def order(self, clusters: int = 0) -> np.ndarray:
        """Return clusters in random order, the same in every run.

        The first ones only, if a number is given.
        """
        names = self.requests["cluster"].unique()
        return np.random.default_rng(SEED).permutation(names)[: clusters or None]

    def decide(self, ask: Ask, clusters: np.ndarray) -> pd.DataFrame:
        """Ask all requests of some clusters, and label what is answered: their rows,
        with label and refused.
        """
        rows = self.requests[self.requests["cluster"].isin(clusters)].reset_index(
            drop=True
        )
        with ThreadPoolExecutor(self.threads) as pool:
            answers = list(pool.map(ask, rows["text"]))
        label = label_refusals(answers, None, rows["text"].tolist(), self.labeller)[
            "label"
        ]
        return rows.assign(
            label=label, refused=as_refused(label), cluster_id=rows["cluster"]
        )

    def ask(self, ask: Ask, clusters: int = 0) -> "Asked":
        """Ask about all clusters, or so many, for `Asked.at_most` and `Asked.at_least`."""
        rows = self.decide(ask, self.order(clusters))
        return Asked(audit(Decisions.from_frame(rows, "the answers")).table)

    def until_sure(self, ask: Ask, dr: float) -> None:
        """Fail unless DR lies at or below a limit.

        Ask, ten clusters at a time, only until that is sure.
        """
        own = replace(self, requests=self.requests[~self.requests["harmful"]])
        found = judge_until_sure(
            own.order(), lambda clusters: own.decide(ask, clusters), dr
        )
        print(found.line)
        if found.verdict != "not worse":
            pytest.fail(found.line, pytrace=False)


@dataclass(frozen=True)
class Asked:
    """What was found: `table` is that of `logs.audit.Audit`."""

    table: pd.DataFrame

    def at_most(self, **limits: float) -> None:
        """Fail unless the whole interval of each measure lies at or below its limit,
        such as dr=0.8.
        """
        self._judge(limits, least=False)

    def at_least(self, **limits: float) -> None:
        """Fail unless the whole interval of each measure lies at or above its limit,
        such as rephrased3=0.5.
        """
        self._judge(limits, least=True)

    def _judge(self, limits: dict[str, float], least: bool) -> None:
        if unknown := [name for name in limits if f"{name}_low" not in self.table]:
            known = sorted(
                name.removesuffix("_low")
                for name in self.table
                if name.endswith("_low")
            )
            raise DataError(
                f"there is no measure {unknown[0]!r}; there are {', '.join(known)}"
            )
        findings = [
            gate.judge_audit(self.table, name, limit, least)[0]
            for name, limit in limits.items()
        ]
        lines = "\n".join(one.line for one in findings)
        print(lines)
        if gate.exit_status(findings):
            pytest.fail(lines, pytrace=False)
