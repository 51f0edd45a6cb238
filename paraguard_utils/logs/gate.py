"""A gate for a pipeline: worse, not worse, or too little to say, and how many clusters would be enough."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pandas as pd

from paraguard_utils.logs.audit import told

Verdict = Literal["worse", "not worse", "too little to say"]

STATUS = {"not worse": 0, "worse": 3, "too little to say": 4}
"""Exit codes: 1 is an error, 2 a wrong command line."""

TITLES = {
    "dr": "DR, the disagreement ratio (0: meaning decides, 1: it does not)",
    "frr": "false refusal rate",
    "rephrased3": "refused requests answered within three other wordings",
}


class Finding(NamedTuple):
    """What a gate says of one system.

    Attributes
    ----------
    system, measure : str
    value, low, high : float
        Against a limit: the measure; against a baseline: the change, new minus old.
    limit : float
    verdict : str
    needed : int
        Clusters that would be enough for a verdict if the value stays, where it is too little to say; 0 where nobody
        can tell.
    """

    system: str
    measure: str
    value: float
    low: float
    high: float
    limit: float
    verdict: Verdict
    needed: int

    @property
    def found(self) -> str:
        """The value with its interval."""
        row = {self.measure: self.value, f"{self.measure}_low": self.low, f"{self.measure}_high": self.high}
        return told(row, self.measure)

    @property
    def line(self) -> str:
        """One line for a log."""
        said = f"{self.system}: {self.verdict}: {self.measure} {self.found} against {self.limit:g}"
        enough = (
            f"about {self.needed:,} clusters would be enough" if self.needed else "nobody can tell how many would do"
        )
        return f"{said}; {enough}" if self.verdict == "too little to say" else said


def judge(table: pd.DataFrame, measure: str, limit: float) -> list[Finding]:
    """Judge each system's interval by a limit.

    Parameters
    ----------
    table : DataFrame
        Of an audit, or of a comparison, whose `measure` is the change.
    measure : str
        dr, frr or rephrased3.
    limit : float
        The whole interval above it is worse, the whole interval at or below it is not; anything else, and a measure
        that is undefined or has no interval, is too little to say.

    Examples
    --------
    >>> rows = pd.DataFrame({"system": ["a"], "dr": [0.5], "dr_low": [0.4], "dr_high": [0.6], "n_clusters": [100]})
    >>> judge(rows, "dr", 0.55)[0].line
    'a: too little to say: dr 0.50 [0.40, 0.60] against 0.55; about 400 clusters would be enough'
    """
    return [_judged(row, measure, limit) for row in table.to_dict("records")]


def _judged(row: Mapping[str, Any], measure: str, limit: float) -> Finding:
    value, low, high = (float(row.get(f"{measure}{end}", np.nan)) for end in ("", "_low", "_high"))
    verdict: Verdict = "too little to say"
    if low > limit:
        verdict = "worse"
    elif high <= limit:
        verdict = "not worse"
    needed = 0
    if verdict == "too little to say" and np.isfinite(high - low) and value != limit:
        half = max(high - value, value - low)
        needed = int(np.ceil(row.get("n_clusters", 0) * (half / abs(value - limit)) ** 2))
    return Finding(str(row["system"]), measure, value, low, high, limit, verdict, needed)


def status(findings: Sequence[Finding]) -> int:
    """Return the exit code: the worst verdict's; a gate without a system fails too."""
    verdicts = {one.verdict for one in findings} or {"too little to say"}
    return next(STATUS[one] for one in ("worse", "too little to say", "not worse") if one in verdicts)


def as_json(table: pd.DataFrame, sentences: Sequence[str], findings: Sequence[Finding]) -> str:
    """Return what was found as JSON; what is unknown is null."""
    rows = json.loads(table.to_json(orient="records", double_precision=6))
    judged = [one._asdict() for one in findings]
    known = [
        {name: None if isinstance(v, float) and not np.isfinite(v) else v for name, v in one.items()} for one in judged
    ]
    return (
        json.dumps({"systems": rows, "sentences": list(sentences), "gate": known}, indent=1, ensure_ascii=False) + "\n"
    )


def as_junit(findings: Sequence[Finding]) -> str:
    """Return findings as JUnit's XML: worse is a failure, too little to say an error."""
    counts = {kind: sum(one.verdict == kind for one in findings) for kind in STATUS}
    about = {"failures": counts["worse"], "errors": counts["too little to say"], "tests": len(findings)}
    suite = ElementTree.Element("testsuite", {"name": "paraguard"} | {name: str(n) for name, n in about.items()})
    for one in findings:
        case = ElementTree.SubElement(
            suite, "testcase", classname="paraguard", name=f"{plain(one.system)} {one.measure}"
        )
        if one.verdict != "not worse":
            kind = "failure" if one.verdict == "worse" else "error"
            ElementTree.SubElement(case, kind, message=plain(one.line))
    return ElementTree.tostring(suite, encoding="unicode") + "\n"


def plain(text: str) -> str:
    """Return a text without what XML and fonts cannot hold."""
    return "".join(mark for mark in text if mark.isprintable())


def as_markdown(table: pd.DataFrame, sentences: Sequence[str], findings: Sequence[Finding]) -> str:
    """Return a summary for the page of a job: what files say is escaped."""
    names = {name: title for name, title in TITLES.items() if name in table}
    lines = ["### How sensibly does it refuse?", ""]
    lines += [f"- {_escaped(one)}" for one in sentences]
    if findings:
        lines += ["", "| system | verdict | found | limit |", "|---|---|---|---|"]
        for one in findings:
            lines.append(f"| {_escaped(one.system)} | **{one.verdict}** | {one.found} | {one.limit:g} |")
    lines += ["", f"| system | {' | '.join(names.values())} |", "|---|" + "---|" * len(names)]
    for row in table.to_dict("records"):
        lines.append(f"| {_escaped(str(row['system']))} | {' | '.join(told(row, name) for name in names)} |")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return "".join(f"&#{ord(mark)};" if mark in "\\`*_{}[]<>#|&" else mark for mark in plain(text))
