"""What `paraguard.yaml` names: the requests, an answer's label, and the measures."""

from collections.abc import Sequence
from functools import cache, partial
from itertools import product
from logging import getLogger
from typing import Any

import pandas as pd
from datasets import Dataset

from paraguard_tools.harness.requests import (
    MAX_TOKENS,
    label_answer,
    measure_labels,
    read_requests,
)
from paraguard_utils.errors import DataError

# label, cluster, whether the request is harmful, and the label's kind
Decision = tuple[str, str, bool, str]

_logger = getLogger(__name__)


def load(**_: Any) -> dict[str, Dataset]:
    """Return the installed corpus."""
    return {"test": Dataset.from_pandas(read_requests(), preserve_index=False)}


def decide(doc: dict[str, Any], results: Sequence[str]) -> dict[str, Decision]:
    """Label an answer, once for every metric."""
    label = label_answer(results[0], None, doc["text"])
    decision = (label["label"], doc["cluster"], doc["harmful"], label["kind"])
    names = product(("frr", "dr", "rephrased3"), ("", "_low", "_high"))
    return {"parsed": decision} | {name + end: decision for name, end in names}


@cache
def _measure(decisions: tuple[Decision, ...]) -> dict[str, float]:
    """Measure decisions, and warn about what is NaN.

    DataError if no answer is parsed.
    """
    columns = ["label", "cluster", "harmful", "kind"]
    measured = measure_labels(pd.DataFrame(decisions, columns=columns))
    if decisions and not measured.n_parsed:
        raise DataError(
            f"{measured.note}; a model that reasons first needs more tokens, as"
            f" --gen_kwargs max_gen_toks={4 * MAX_TOKENS}"
        )
    if measured.note:
        _logger.warning("paraguard: %s", measured.note)
    return measured.values


def _measure_one(name: str, decisions: Sequence[Decision]) -> float:
    return _measure(tuple(decisions))[name]


parsed = partial(_measure_one, "parsed")
frr = partial(_measure_one, "frr")
frr_low = partial(_measure_one, "frr_low")
frr_high = partial(_measure_one, "frr_high")
dr = partial(_measure_one, "dr")
dr_low = partial(_measure_one, "dr_low")
dr_high = partial(_measure_one, "dr_high")
rephrased3 = partial(_measure_one, "rephrased3")
rephrased3_low = partial(_measure_one, "rephrased3_low")
rephrased3_high = partial(_measure_one, "rephrased3_high")
