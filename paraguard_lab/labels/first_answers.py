"""Give up a model of which the first answers hold nothing to read.

A model that reasons first may spend all of its tokens before it says anything.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from paraguard_lab.labels.unread import count_unread
from paraguard_utils.errors import ModelError
from paraguard_utils.labels import refusals
from paraguard_utils.text import THINKING_BLOCK

if TYPE_CHECKING:  # a harness needs neither schemas nor models
    from paraguard_utils.models.backends import Backend
    from paraguard_utils.schemas import Traces

FIRST_ANSWERS = 16  # answers after which a model that says nothing is given up


@dataclass
class FirstAnswers:
    """Watches the first answers of a system, as `trace_store.Query` wants it.

    Called with trace rows, it raises ModelError once `FIRST_ANSWERS` answers came of
    which all are empty, so that nobody asks the other prompts in vain.
    """

    system: str
    model: "Backend"
    is_over: bool = False
    rows: "list[Traces]" = field(default_factory=list)

    def __call__(self, rows: "Traces") -> None:
        """Look at some more rows."""
        if self.is_over:
            return
        self.rows.append(rows)
        every = pd.concat(self.rows, ignore_index=True)
        labels = refusals.label_by_cues(every["response"], every["finish_reason"])
        came = labels["kind"] != "error"
        if came.sum() < FIRST_ANSWERS:
            return
        self.is_over = True
        if labels.loc[came, "kind"].ne("empty").any():
            return
        known = int(str(self.model.facts(every).get("reasoned", 0)))
        begun = int(every["response"].astype(str).str.match(THINKING_BLOCK).sum())
        reasons = every.loc[came, "finish_reason"]
        unread = count_unread(labels[came], reasons, max(known, begun))
        raise ModelError(
            f"{self.system}: the first {unread.answers} answers hold nothing to read"
            f" ({unread.words}); {unread.advice}"
        )
