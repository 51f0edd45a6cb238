"""How a deployed guard is asked and how its output is read: the entries of `data/guards.yaml`, without any model."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from paraguard_utils.errors import DataError
from paraguard_utils.guards.contract import GUARD_AXES

ChatTurns: TypeAlias = list[dict[str, Any]]
"""Chat messages, as chat templates take them."""

REQUIRED_FIELDS = {
    "classifier": ("labels",),
    "first_token": ("tokens",),
    "regex": ("tokens", "pattern"),
    "json": ("tokens", "key"),
    "endpoint": (),
}
"""Fields that an entry of a kind cannot do without."""

UNSCORED_FIELDS = (
    "match", "name", "axis", "licence", "citation", "about", "unverified", "threshold", "model", "version", "answers"
)  # fmt: skip
"""Fields that change no score."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ChatMessage(_Strict):
    """A chat message; `content` is a template of `text` and `answer` (`""` where no answer is judged)."""

    role: str
    content: str


class LabelTokens(_Strict):
    """First tokens of the labels, with the space that they begin with."""

    unsafe: tuple[str, ...]
    safe: tuple[str, ...]


class GuardEntry(_Strict):
    """An entry of `deployed` in `data/guards.yaml`; the head of that file says what the fields mean."""

    match: tuple[str, ...] = ()
    name: str = ""
    kind: Literal["classifier", "first_token", "regex", "json", "endpoint"]
    axis: str
    licence: str
    citation: str
    about: str
    unverified: str = ""
    threshold: float = 0.5
    model: str = ""
    version: str = ""
    messages: tuple[ChatMessage, ...] = (
        ChatMessage(role="user", content="{{ text }}"),
        ChatMessage(role="assistant", content="{{ answer }}"),
    )
    content: Literal["text", "parts"] = "text"
    template: str = ""
    arguments: dict[str, Any] = {}
    runs: tuple[dict[str, Any], ...] = ({},)
    forced: str = ""
    tokens: LabelTokens | None = None
    before: str = ""
    pattern: str = ""
    key: str = ""
    after: str = ""
    max_new_tokens: int = 32
    labels: tuple[str, ...] = ()
    independent: bool | None = None
    answers: dict[str, Any] = {}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.axis not in GUARD_AXES:
            raise ValueError(f"axis: one of {', '.join(GUARD_AXES)}")
        if missing := [field for field in REQUIRED_FIELDS[self.kind] if not getattr(self, field)]:
            raise ValueError(f"{missing[0]}: a guard of kind {self.kind} needs it")
        if self.kind == "regex" and "label" not in re.compile(self.pattern).groupindex:
            raise ValueError("pattern: a group (?P<label>...) is needed")
        return self

    @property
    def judging_answers(self) -> "GuardEntry":
        """The entry with the fields that hold when answers are judged."""
        return GuardEntry(**{**self.model_dump(), **self.answers, "answers": {}})

    @property
    def shape(self) -> str:
        """Everything besides the weights that decides a score."""
        return json.dumps(self.model_dump(exclude=set(UNSCORED_FIELDS)) | {"answers": self.answers}, sort_keys=True)


def parse_guard_entry(name: str, raw: Mapping[str, Any]) -> GuardEntry:
    """Check an entry; raise DataError where a field, also in `answers`, is missing, unknown or of another type."""
    try:
        entry = GuardEntry(**raw)
        entry.judging_answers  # noqa: B018
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        raise DataError(
            f"the guard {name}: {where}{': ' if where else ''}{reason}; see the head of data/guards.yaml"
        ) from error
    except re.error as error:
        raise DataError(f"the guard {name}: pattern: {error}") from error
    return entry


_ENVIRONMENT = ImmutableSandboxedEnvironment(keep_trailing_newline=True)


def render_turns(entry: GuardEntry, text: str, answer: str = "") -> ChatTurns:
    """Return what a guard is asked about a request, or about the answer to it; messages that would be empty go."""
    found: ChatTurns = []
    for message in entry.messages:
        content = _ENVIRONMENT.from_string(message.content).render(text=text, answer=answer)
        if content:
            parts = [{"type": "text", "text": content}]
            found.append({"role": message.role, "content": parts if entry.content == "parts" else content})
    return found


class GuardVerdict(NamedTuple):
    """The label that a guard gave, and all that it wrote before that label."""

    unsafe: bool
    written: str


def read_verdict(entry: GuardEntry, output: str) -> GuardVerdict | None:
    """Read what a guard of kind `regex` or `json` wrote; None where it is not of the guard's form: `unparsed`."""
    head, mark, body = output.rpartition(entry.after) if entry.after else ("", "", output)
    if entry.after and not mark:
        return None
    found = _by_pattern(entry.pattern, body) if entry.kind == "regex" else _by_key(entry.key, body)
    assert entry.tokens is not None  # `GuardEntry` sees to it
    for unsafe, strings in ((True, entry.tokens.unsafe), (False, entry.tokens.safe)):
        if found and found[0].casefold() in [string.strip().casefold() for string in strings]:
            space = strings[0][: len(strings[0]) - len(strings[0].lstrip())]  # it is part of the label's first token
            return GuardVerdict(unsafe, (head + mark + body[: found[1]]).removesuffix(space))
    return None


def _by_pattern(pattern: str, body: str) -> tuple[str, int] | None:
    """Return the label that a pattern finds and where it first stands; None where it finds none or different ones."""
    found = list(re.finditer(pattern, body))
    if len({match["label"].casefold() for match in found}) != 1:
        return None
    return found[0]["label"], found[0].start("label")


def _by_key(key: str, body: str) -> tuple[str, int] | None:
    """Return the string under a key of an output that is one JSON object, and where it stands."""
    try:
        found = json.loads(body, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get(key), str):
        return None
    places = list(re.finditer(rf"{re.escape(json.dumps(key))}\s*:\s*\"", body))
    return (found[key], places[0].end()) if len(places) == 1 else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object of its pairs; a key that stands there twice has no one meaning."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands there twice")
    return dict(pairs)


def max_category_score(result: object) -> float:
    """Return the greatest category score, in [0, 1], of one of an endpoint's `results`; NaN for another form."""
    scores = result.get("category_scores") if isinstance(result, dict) else None
    values = [value for value in scores.values() if value is not None] if isinstance(scores, dict) else []
    if not values or not all(type(value) in (int, float) and 0 <= value <= 1 for value in values):
        return math.nan
    return float(max(values))
