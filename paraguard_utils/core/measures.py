"""The measures of a system: how each is headed, and what it needs.

`docs/method.md`, Metrics, defines them.
"""

from typing import NamedTuple


class Measure(NamedTuple):
    """A measure: a column with its interval (`x`, `x_low`, `x_high`) in tables.

    Attributes
    ----------
    heading : str
        Its name in the tables of the study.
    plain : str
        Its name in an audit, whose readers know no such names; "" if it has none.
    needs_refusals : bool
        Whether it says nothing about a system that refuses fewer than
        `estimates.MIN_REFUSALS` prompts.
    headline : bool
        Whether every two systems are compared by it.
    """

    heading: str
    plain: str = ""
    needs_refusals: bool = True
    headline: bool = False


MEASURES = {
    "frr": Measure("FRR", "refused (FRR)", needs_refusals=False, headline=True),
    "flip_rate": Measure("flip rate", needs_refusals=False, headline=True),
    "dr": Measure("DR", "disagreement ratio (DR)", headline=True),
    "ci": Measure("CI", headline=True),
    "cr60": Measure("CR@0.60"),
    "cr75": Measure("CR@0.75"),
    "cd": Measure("CD"),
    "excess": Measure("excess", headline=True),
    "refused_once": Measure(
        "refused once", "meanings refused in one wording or more", needs_refusals=False
    ),
    "refused_always": Measure(
        "refused always", "meanings refused in all", needs_refusals=False
    ),
    "rephrased1": Measure("rephrased1", "answered at the first rewording"),
    "rephrased3": Measure("rephrased3", "within three"),
    "dr_few_words": Measure("DR, few words in common", "DR, few words in common"),
    "dr_most_words": Measure("DR, most words in common", "DR, most words in common"),
    "harmful_refused": Measure(
        "harmful refused", "harmful requests refused", needs_refusals=False
    ),
    "rephrased3_harmful": Measure(
        "rephrased3 harmful", "harmful ones answered within three"
    ),
    "rephrased3_difference": Measure("rephrased3 difference", "harmless minus harmful"),
    "frr_aside": Measure(
        "FRR, blocked aside", "refused, filters set aside", needs_refusals=False
    ),
    "dr_aside": Measure("DR, blocked aside", "DR, filters set aside"),
    "frr_read": Measure(
        "FRR, corrected", "refused, as readings correct it", needs_refusals=False
    ),
    "dr_read": Measure("DR, corrected", "DR, as readings correct it"),
}
"""Every measure by the name of its column, in the order of an audit's table."""

HEADLINE_MEASURES = tuple(
    name for name, measure in MEASURES.items() if measure.headline
)
"""The measures by which every two systems are compared."""
