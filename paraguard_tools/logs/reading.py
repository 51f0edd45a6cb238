"""Say what was read of a log, before any rate."""

from collections.abc import Mapping
from dataclasses import dataclass, field

_OPTIONS = {"finish_reason": "", "error": "", "score": "", "id": "", "turn": ""}
_KINDS = {
    "error": "{} an error in place of an answer{}",
    "placeholder": "{} a placeholder in place of an answer{}",
    "language": "{} in a language that the labeller does not read{}",
}


def _number(n: int, one: str, many: str) -> str:
    """Return a number with the words that follow one, or many.

    Examples
    --------
    >>> _number(1, "row is", "rows are")
    '1 row is'
    """
    return f"{n:,} {one if n == 1 else many}"


@dataclass(frozen=True)
class Reading:
    """What was read of a log.

    Attributes
    ----------
    name, format : str
        The file, and what it is.
    rows : int
        Rows that were read, the doubles among them.
    columns : dict of str to str
        The column that was taken for each field.
    doubles, repeated_texts, max_repeats : int
        Rows that only repeat another and are left out, texts that were run more than
        once, and how often at most.
    empty, empty_with_reasoning, at_limit : int
        Answers without text; those of them with reasoning; and those that ended at the
        limit of tokens.
    blocked : int
        Answers that a provider's filter stopped.
    unparsed : dict of (str, str) to int
        Rows that are neither answered nor refused, by kind (error, placeholder,
        language, ... or "") and language ("" where none is known).
    missing : int
        Requests of a batch without a result.
    requests : int
        Requests of the batch's input file.
    no_system : int
        Rows that name no system, in a log where others do.
    by_system : dict of str to (int, int)
        Rows without a decision, and all rows, of each system.
    canned : tuple of str
        Sentences about fixed lines that answer many different requests.
    notes : tuple of str
        Sentences about columns and files.
    """

    name: str = ""
    format: str = ""
    rows: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    doubles: int = 0
    repeated_texts: int = 0
    max_repeats: int = 1
    empty: int = 0
    empty_with_reasoning: int = 0
    at_limit: int = 0
    blocked: int = 0
    unparsed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    missing: int = 0
    requests: int = 0
    no_system: int = 0
    by_system: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    canned: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Plain sentences, one fact each; what did not occur is not mentioned."""
        rows = _number(self.rows, "row", "rows")
        said = [f"Read {rows} of {self.name} ({self.format})."]
        said += self._describe_columns()
        if self.doubles:
            rows = _number(self.doubles, "row is a double", "rows are doubles")
            said.append(
                f"{rows} of an earlier one and left out (--same-text repeats counts"
                " all rows)."
            )
        if self.repeated_texts:
            texts = _number(self.repeated_texts, "text was", "texts were")
            said.append(
                f"{texts} run more than once, up to {self.max_repeats:,} times: runs of"
                " one text show chance, not wording (--same-text doubles or wordings if"
                " they are something else)."
            )
        if self.missing:
            requests = _number(self.requests, "request", "requests")
            said.append(f"{self.missing:,} of {requests} have no result.")
        said += self._describe_undecided()
        if self.blocked:
            answers = _number(self.blocked, "answer was", "answers were")
            said.append(f"{answers} stopped by a provider's filter.")
        if self.no_system:
            rows = _number(self.no_system, "row names", "rows name")
            said.append(
                f"{rows} no system: they count for the only one of the log, or for one"
                " called unknown."
            )
        return [*said, *self.canned, *self.notes]

    def _describe_columns(self) -> list[str]:
        """Say which column was taken for what."""
        if not self.columns:
            return []
        pairs = [f"{one} from {name!r}" for one, name in self.columns.items()]
        first = next((one for one in self.columns if one not in _OPTIONS), "text")
        return [
            f"Columns: {', '.join(pairs)}. If one is wrong: --{first} COLUMN takes"
            f" another, --{first} none takes none, and so on."
        ]

    def _describe_undecided(self) -> list[str]:
        """Say how many rows are neither answered nor refused, and why."""
        said = []
        if self.empty:
            answers = _number(self.empty, "answer is", "answers are")
            said.append(
                f"{answers} empty ({self.empty_with_reasoning:,} with"
                f" reasoning, {self.at_limit:,} ended at the limit of tokens)."
            )
        kinds: dict[str, dict[str, int]] = {}
        for (kind, language), n in self.unparsed.items():
            kinds.setdefault(kind, {})[language] = n
        for kind, counts in kinds.items():
            total = _number(sum(counts.values()), "row is", "rows are")
            shown = [f"{one} {k:,}" for one, k in counts.items() if one]
            listed = f" ({', '.join(shown)})" if shown else ""
            default = f"{{}} neither answered nor refused ({kind or 'no kind'}){{}}"
            said.append(_KINDS.get(kind, default).format(total, listed) + ".")
        shares = {name: k / n for name, (k, n) in self.by_system.items() if n}
        if len(shares) > 1 and max(shares.values()) - min(shares.values()) > 0.1:
            worst = sorted(shares, key=lambda name: -shares[name])[:5]
            parts = [f"{name[:40]} {100 * shares[name]:.0f} %" for name in worst]
            said.append(
                "Rows without a decision are not spread evenly over systems:"
                f" {', '.join(parts)}."
            )
        return said
