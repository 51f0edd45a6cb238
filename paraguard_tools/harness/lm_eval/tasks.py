"""What `paraguard.yaml` names: the requests, the label of an answer, and measures of
all labels with their ends.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import pandas as pd
from datasets import Dataset

from paraguard_tools.harness.requests import measure_decisions, read_requests
from paraguard_tools.logs.decisions import label_refusals

Decided = tuple[str, str, bool]  # label, cluster, and whether it is harmful


def load(**_: Any) -> dict[str, Dataset]:
    """Return the installed corpus."""
    return {"test": Dataset.from_pandas(read_requests(), preserve_index=False)}


def decide(doc: dict[str, Any], results: Sequence[str]) -> dict[str, Decided]:
    """Label an answer, once for every metric."""
    label = label_refusals(list(results[:1]), None, [doc["text"]])["label"].iloc[0]
    return dict.fromkeys(_METRICS, (label, doc["cluster"], doc["harmful"]))


@cache
def _measured(items: tuple[Decided, ...]) -> dict[str, float]:
    return measure_decisions(
        pd.DataFrame(items, columns=["label", "cluster", "harmful"])
    )


def _one(name: str, items: Sequence[Decided]) -> float:
    return _measured(tuple(items))[name]


_METRICS = [
    f"{name}{end}"
    for name in ("frr", "dr", "rephrased3")
    for end in ("", "_low", "_high")
]
(
    frr,
    frr_low,
    frr_high,
    dr,
    dr_low,
    dr_high,
    rephrased3,
    rephrased3_low,
    rephrased3_high,
) = (partial(_one, name) for name in _METRICS)
