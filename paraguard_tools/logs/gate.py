"""Judge an audit by a limit, for a pipeline: worse, not worse, or too little to say."""

import json
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import pandas as pd

from paraguard_tools.logs.audit import format_interval

EXIT_CODES = {
    "worse": 3,
    "too little to say": 4,
    "not worse": 0,
}  # worst first; 1 is an error, 2 a wrong command line


class GateFinding(NamedTuple):
    """What a gate says of one system: the verdict is one of `EXIT_CODES`.

    `value` with its interval is the measure if it was judged by a limit, and the
    change, new minus old, if it was judged by a baseline. `needed`: clusters that are
    enough for a verdict if the value stays; 0 if unknown.
    """

    system: str
    measure: str
    value: float
    low: float
    high: float
    limit: float
    verdict: str
    needed: int

    @property
    def found(self) -> str:
        """The value with its interval."""
        return format_interval(self.value, self.low, self.high)

    @property
    def line(self) -> str:
        """One line for a log."""
        said = (
            f"{self.system}: {self.verdict}: {self.measure} {self.found} against"
            f" {self.limit:g}"
        )
        if self.verdict == "too little to say":
            enough = "nobody can tell how many clusters would be enough"
            if self.needed:
                enough = f"about {self.needed:,} clusters would be enough"
            said += f"; {enough}"
        return said


def judge_audit(
    table: pd.DataFrame, measure: str, limit: float, least: bool = False
) -> list[GateFinding]:
    """Judge each system's interval of a measure, such as dr, by a limit.

    The table is that of an audit, or of a comparison, whose measures are changes. A
    system is worse if its whole interval lies above the limit, not worse if it lies at
    or below it; the other way round if the limit is the `least` that is wanted. All
    else, and a measure that is undefined or has no interval, is too little to say.

    Examples
    --------
    >>> row = {"system": "a", "dr": 0.5, "dr_low": 0.4, "dr_high": 0.6}
    >>> rows = pd.DataFrame([row | {"n_clusters": 100}])
    >>> print(judge_audit(rows, "dr", 0.55)[0].line)  # doctest: +NORMALIZE_WHITESPACE
    a: too little to say: dr 0.50 [0.40, 0.60] against 0.55;
    about 400 clusters would be enough
    """
    findings = []
    for row in table.to_dict("records"):
        value, low, high = (
            float(row.get(f"{measure}{end}", np.nan)) for end in ("", "_low", "_high")
        )
        beyond, within = low > limit, high <= limit
        if least:
            beyond, within = high < limit, low >= limit
        verdict = "worse" if beyond else "not worse" if within else "too little to say"
        needed = 0
        if np.isfinite(high - low) and value != limit:
            half = max(high - value, value - low) / abs(value - limit)
            needed = int(np.ceil(row.get("n_clusters", 0) * half**2))
        system = str(row["system"])
        findings.append(
            GateFinding(system, measure, value, low, high, limit, verdict, needed)
        )
    return findings


def exit_status(findings: Sequence[GateFinding]) -> int:
    """Return the exit code: the worst verdict's; a gate without a system fails too."""
    verdicts = {one.verdict for one in findings} or {"too little to say"}
    return next(code for verdict, code in EXIT_CODES.items() if verdict in verdicts)


def gate_json(
    table: pd.DataFrame, sentences: Sequence[str], findings: Sequence[GateFinding]
) -> str:
    """Return what was found as JSON; what is unknown is null."""
    gate = pd.DataFrame(findings, columns=GateFinding._fields)
    systems, judged = (
        json.loads(frame.to_json(orient="records", double_precision=6))
        for frame in (table, gate)
    )
    found = {"systems": systems, "sentences": list(sentences), "gate": judged}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def gate_junit(findings: Sequence[GateFinding]) -> str:
    """Return findings as JUnit's XML.

    Worse is a failure, too little to say an error.
    """
    suite = ElementTree.Element("testsuite", name="paraguard", tests=str(len(findings)))
    for one in findings:
        name = f"{remove_unprintable(one.system)} {one.measure}"
        case = ElementTree.SubElement(
            suite, "testcase", classname="paraguard", name=name
        )
        if kind := {"worse": "failure", "too little to say": "error"}.get(one.verdict):
            message = remove_unprintable(one.line)
            ElementTree.SubElement(case, kind, message=message)
    for kind in ("failure", "error"):
        suite.set(f"{kind}s", str(len(suite.findall(f"testcase/{kind}"))))
    return ElementTree.tostring(suite, encoding="unicode") + "\n"


def remove_unprintable(text: str) -> str:
    """Remove what XML and fonts cannot hold."""
    return "".join(mark for mark in text if mark.isprintable())


def gate_markdown(sentences: Sequence[str], findings: Sequence[GateFinding]) -> str:
    """Return a summary for the page of a job, with names escaped."""
    lines = ["### How sensibly does it refuse?", ""]
    lines += [f"- {_escape(one)}" for one in sentences]
    if findings:
        lines += ["", "| system | verdict | found | limit |", "|---|---|---|---|"]
    for one in findings:
        lines.append(
            f"| {_escape(one.system)} | **{one.verdict}** | {one.measure} {one.found} |"
            f" {one.limit:g} |"
        )
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return "".join(
        f"&#{ord(mark)};" if mark in "\\`*_{}[]<>#|&" else mark
        for mark in remove_unprintable(text)
    )
