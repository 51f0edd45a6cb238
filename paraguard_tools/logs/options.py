"""The options of `paraguard audit`, by what they are for: reading, judging, writing.

Each group knows which of its options were given, and what is wrong with them.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import typer

from paraguard_tools.answers.canned import read_phrases
from paraguard_tools.logs import audit as audits
from paraguard_tools.logs import files, gate, records
from paraguard_tools.logs.decisions import Decisions
from paraguard_tools.logs.repeats import SameText
from paraguard_utils.errors import DataError, SettingsError

DEFAULT_MARGIN = 0.05
"""How much worse than a baseline is still not worse: no log can show that nothing at
all changed.
"""

LABELLERS = ("cues", "combined")

FOR_A_LIMIT = ("dr",)
FOR_A_BASELINE = ("frr", "dr")
"""What is judged, if nothing is named: refusing more, and refusing less consistently,
are two ways to get worse.
"""


class ReadingOptions(NamedTuple):
    """How logs are read (`Decisions.from_files`)."""

    columns: Mapping[str, str]
    rejects: tuple[str, ...]
    requests: str
    errors: str
    labeller: str
    side_by_side: bool
    same_text: SameText
    refusal_phrases: Path | None

    @property
    def given(self) -> dict[str, Any]:
        """The options by name; what was not given is empty."""
        options: dict[str, Any] = {}
        for name, column in self.columns.items():
            options[f"--{name}"] = column
        return options | {
            "--rejects": self.rejects,
            "--input": self.requests,
            "--labeller": self.labeller,
            "--errors": self.errors,
            "--side-by-side": self.side_by_side,
            "--refusal-phrases": self.refusal_phrases,
        }

    def check_given(self, named: Sequence[str]) -> None:
        """Raise an error about the labeller, or about standard input that is twice."""
        if [*named].count(records.STDIN) > 1:
            raise typer.BadParameter("standard input (-) can be read once")
        if self.labeller:
            check_choice("--labeller", [self.labeller], LABELLERS)

    def read(self, *names: str) -> Decisions:
        """Read files as one log."""
        if records.STDIN in names and sys.stdin is None:
            raise DataError("-: standard input is closed; name a file, or open it")
        phrases: Sequence[str] = ()
        if self.refusal_phrases:
            phrases = read_phrases(self.refusal_phrases)
        return Decisions.from_files(
            names,
            self.columns,
            self.rejects,
            self.requests,
            self.labeller,
            side_by_side=self.side_by_side,
            same_text=self.same_text,
            refusal_phrases=phrases,
        )


class Reports(NamedTuple):
    """Where to write, beside what an audit prints."""

    out: Path | None
    json_file: Path | None
    junit: Path | None
    summary: Path | None

    @property
    def given(self) -> dict[str, Any]:
        """The options by name; None if one was not given."""
        return {
            "--out": self.out,
            "--json": self.json_file,
            "--junit": self.junit,
            "--summary": self.summary,
        }

    def make_way(self, pages: Iterable[Path], inputs: Iterable[str]) -> None:
        """Remove reports of an earlier run.

        Raises SettingsError if a report or a page would be written over an input.
        """
        reports = [one for one in (self.json_file, self.junit) if one]
        appended = [self.summary] if self.summary else []
        files.check_outputs([*reports, *pages, *appended], filter(None, inputs))
        for report in reports:
            files.remove_file(report)

    def write(self, found: audits.Audit, findings: Sequence[gate.GateFinding]) -> None:
        """Write what was found, for other programs and for the page of a job."""
        if self.json_file:
            content = gate.gate_json(found.table, found.sentences, findings)
            files.write_whole_text(self.json_file, content)
        if self.junit:
            files.write_whole_text(self.junit, gate.gate_junit(findings))
        if self.summary:
            counted = f"Read {audits.count_rows(found.decisions)}."
            with self.summary.open("a", encoding="utf-8", errors="replace") as opened:
                opened.write(gate.gate_markdown(counted, found.sentences, findings))


class JudgingOptions(NamedTuple):
    """What an audit is judged by, as it was given."""

    baseline: str
    fail_above: float | None
    margin: float | None
    measures: tuple[str, ...]
    max_undecided: float | None
    min_shared: float | None

    @property
    def given(self) -> dict[str, Any]:
        """The options by name; what was not given is empty."""
        return {
            "--baseline": self.baseline,
            "--fail-above": self.fail_above,
            "--margin": self.margin,
            "--measure": self.measures,
            "--max-undecided": self.max_undecided,
            "--min-shared": self.min_shared,
        }

    def check_given(self, reports: Reports) -> None:
        """Raise an error of usage about options that do not apply."""
        if not self.baseline:
            only = {"--margin": self.margin, "--min-shared": self.min_shared}
            refuse_options(only, "without --baseline")
        if self.fail_above is None and not self.baseline:
            refuse_options(
                self.given | {"--junit": reports.junit},
                "without --fail-above or --baseline",
            )
        check_choice("--measure", self.measures, FOR_A_BASELINE)

    def make_limits(self) -> "Limits":
        """Return the limits, or raise SettingsError if one is none."""
        evidence = gate.Evidence(
            gate.MAX_UNDECIDED if self.max_undecided is None else self.max_undecided,
            gate.MIN_SHARED if self.min_shared is None else self.min_shared,
        )
        limits = Limits(
            self.fail_above,
            self.baseline,
            DEFAULT_MARGIN if self.margin is None else self.margin,
            self.measures,
            evidence,
        )
        limits.check()
        return limits


class Limits(NamedTuple):
    """What an audit is judged by; without measures, by those that are usual."""

    fail_above: float | None
    baseline: str
    margin: float
    measures: tuple[str, ...]
    evidence: gate.Evidence

    @property
    def given(self) -> bool:
        """Whether there is anything to judge by."""
        return self.fail_above is not None or bool(self.baseline)

    def check(self) -> None:
        """Raise SettingsError if a limit is none."""
        if self.fail_above is not None:
            for measure in self.measures or FOR_A_LIMIT:
                gate.check_limit("--fail-above", self.fail_above, measure)
        if not 0 <= self.margin < 1:
            raise SettingsError(
                f"--margin {self.margin}: it is a change, from 0 to less than 1"
            )

    def judge(
        self, found: audits.Audit, before: Decisions | None
    ) -> list[gate.GateFinding]:
        """Judge an audit by the limit, and by the log before it."""
        findings = []
        if self.fail_above is not None:
            for measure in self.measures or FOR_A_LIMIT:
                findings += gate.judge_audit(
                    found.table, measure, self.fail_above, evidence=self.evidence
                )
        if before is not None:
            compared = audits.compare(before, found.decisions)
            for measure in self.measures or FOR_A_BASELINE:
                judged = compared
                if measure == "dr" and not self.measures:
                    judged = compared[~_refuses_nothing(compared)]
                findings += gate.judge_audit(
                    judged, measure, self.margin, evidence=self.evidence
                )
        return findings


def _refuses_nothing(compared: pd.DataFrame) -> pd.Series:
    """Return which systems of a comparison refuse nothing in the new log.

    Their DR is undefined, and cannot be worse: unless it was asked for, refusals alone
    are judged.
    """
    return (compared["frr_new"] == 0) & compared["dr"].isna()


def refuse_options(given: Mapping[str, Any], why: str) -> None:
    """Raise an error of usage about options that were given but do not apply."""
    for option, value in given.items():
        was_given = (
            value is not None and value is not False and value not in ("", (), [])
        )
        if was_given:
            raise typer.BadParameter(f"{option} does not apply {why}")


def check_choice(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise an error of usage about a value that is none of those known."""
    for value in given:
        if value not in known:
            raise typer.BadParameter(f"{option} {value}: choose {' or '.join(known)}")
