"""What `paraguard audit` does."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from paraguard_utils.errors import SettingsError
from paraguard_utils.logs import audit as audits
from paraguard_utils.logs import gate, page
from paraguard_utils.logs.decisions import Decisions
from paraguard_utils.logs.embedding import embed
from paraguard_utils.logs.records import STDIN
from paraguard_utils.paths import RESULTS, shown

ASSUMED = [(rate, dr) for rate in (0.05, 0.2, 0.5) for dr in (0.3, 0.7)]
"""Refusal rates and DR of a plan without a log."""

WIDTH = 88
"""Columns of what is printed."""

SIZE = 6
"""Wordings of a cluster in a plan without a log."""


class Wanted(NamedTuple):
    """What the command line asks for; columns as `Decisions.from_file` takes them."""

    columns: Mapping[str, str]
    rejects: tuple[str, ...] = ()
    requests: str = ""
    labeller: str = ""
    out: Path | None = None
    baseline: str = ""
    margin: float = 0.0
    fail_above: float | None = None
    measure: str = "dr"

    def read(self, file: str) -> Decisions:
        """Read a log."""
        return Decisions.from_file(file, dict(self.columns), self.rejects, self.requests, self.labeller)


def audited(file: str, wanted: Wanted, files: Mapping[str, Path | None]) -> int:
    """Audit a log, print and write what was found, and return the exit code of the gate.

    Parameters
    ----------
    file : str
    wanted : Wanted
    files : dict of str to Path or None
        Where to write json, junit and summary.
    """
    decisions = wanted.read(file)
    before = wanted.read(wanted.baseline) if wanted.baseline else None
    stem = "stdin" if file == STDIN else Path(file).name.split(".")[0]
    folder = wanted.out or RESULTS / "audit" / stem
    found = audits.audit(decisions, vectors=None if decisions.clustered else embed(decisions, folder))
    if decisions.labelled_by:
        print(f"There is no column of decisions: answers were labelled by {decisions.labelled_by}.\n")
    print("\n".join(textwrap.fill(one, WIDTH) for one in found.sentences), end="\n\n")
    print(page.shown(found.table).to_string(), end="\n\n")
    if notes := page.notes(found.table):
        print("\n".join(textwrap.fill(one, WIDTH) for one in notes), end="\n\n")
    print(f"written: {', '.join(shown(path) for path in page.write(found, folder))}")
    findings = gate.judge(found.table, wanted.measure, wanted.fail_above) if wanted.fail_above is not None else []
    if before is not None:
        findings += gate.judge(audits.compare(before, decisions), wanted.measure, wanted.margin)
    for one in findings:
        print(one.line)
    made = {
        "json": gate.as_json(found.table, found.sentences, findings),
        "junit": gate.as_junit(findings),
        "summary": gate.as_markdown(found.table, found.sentences, findings),
    }
    for name, target in files.items():
        if target is not None:
            with target.open("a" if name == "summary" else "w", encoding="utf-8") as opened:
                opened.write(made[name])
    gated = wanted.fail_above is not None or before is not None
    return gate.status(findings) if gated else 0


def compared(old: str, new: str, wanted: Wanted) -> str:
    """Return the comparison of two logs as a table."""
    table = audits.compare(wanted.read(old), wanted.read(new))
    rows = {}
    for row in table.to_dict("records"):
        rows[row["system"]] = {
            "clusters": row["n_clusters"],
            **{f"{name}, new minus old": audits.told(row, name) for name in ("frr", "dr", "rephrased3")},
            "p (dr)": f"{row['p']:.3f}",
        }
    notes = [f"{row['system']}: {row['note']}" for row in table.to_dict("records") if row["note"]]
    return "\n".join([pd.DataFrame(rows).to_string(), *notes])


def planned(files: Sequence[str], wanted: Wanted) -> str:
    """Say how wide intervals will be: with clusters like those of a log, or under rates that are assumed."""
    if files:
        decisions = wanted.read(files[0])
        if not decisions.clustered:
            raise SettingsError(f"{files[0]}: a plan needs clusters; leave the file out to plan by assumed rates")
        plans = {name: audits.plan(audits.counted(own)) for name, own in decisions.by_system()}
    else:
        plans = {
            f"{SIZE} wordings a cluster, {100 * rate:.0f} % refused, DR {dr}": audits.plan(audits.like(rate, dr, SIZE))
            for rate, dr in ASSUMED
        }
    heading = "Half of the width of a 95 % interval, by clusters; refusals: how many to expect."
    return "\n\n".join([heading, *(f"{name}\n{_rounded(table)}" for name, table in plans.items())])


def _rounded(table: pd.DataFrame) -> str:
    return table.to_string(index=False, float_format="%.3f")
