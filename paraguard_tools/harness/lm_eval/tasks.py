"""What `paraguard.yaml` names: the requests, an answer's label, and the measures."""

from collections.abc import Sequence
from functools import cache, partial
from itertools import product
from typing import Any

import pandas as pd
from datasets import Dataset

from paraguard_tools.harness.requests import measure_decisions, read_requests
from paraguard_tools.logs.decisions import label_refusals

Decision = tuple[str, str, bool]  # label, cluster, and whether it is harmful


def load(**_: Any) -> dict[str, Dataset]:
    """Return the installed corpus."""
    return {"test": Dataset.from_pandas(read_requests(), preserve_index=False)}


def decide(doc: dict[str, Any], results: Sequence[str]) -> dict[str, Decision]:
    """Label an answer, once for every metric."""
    labels = label_refusals(list(results[:1]), None, [doc["text"]])
    label = labels["label"].iloc[0]
    decision = (label, doc["cluster"], doc["harmful"])
    names = product(("frr", "dr", "rephrased3"), ("", "_low", "_high"))
    return {name + end: decision for name, end in names}


@cache
def _measure(decisions: tuple[Decision, ...]) -> dict[str, float]:
    return measure_decisions(
        pd.DataFrame(decisions, columns=["label", "cluster", "harmful"])
    )


def _measure_one(name: str, decisions: Sequence[Decision]) -> float:
    return _measure(tuple(decisions))[name]


frr = partial(_measure_one, "frr")
frr_low = partial(_measure_one, "frr_low")
frr_high = partial(_measure_one, "frr_high")
dr = partial(_measure_one, "dr")
dr_low = partial(_measure_one, "dr_low")
dr_high = partial(_measure_one, "dr_high")
rephrased3 = partial(_measure_one, "rephrased3")
rephrased3_low = partial(_measure_one, "rephrased3_low")
rephrased3_high = partial(_measure_one, "rephrased3_high")
