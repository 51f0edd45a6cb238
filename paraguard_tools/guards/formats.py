"""Entries of deployed guards, and how their output is read; no model is loaded here."""

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from paraguard_lab.guards.entries import GuardEntry
from paraguard_tools.logs.names import show_name

UNSCORED_FIELDS = {  # they change no score
    *GuardEntry.model_fields,
    "match",
    "model",
} - {"kind"}

_ENVIRONMENT = ImmutableSandboxedEnvironment(keep_trailing_newline=True)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ChatMessage(_Strict):
    """A chat message; `content` is a template of `text`."""

    role: str
    content: str


class LabelTokens(_Strict):
    """First tokens of the labels, with the space that they begin with."""

    unsafe: tuple[str, ...]
    safe: tuple[str, ...]


KEY_VARIABLE = r"[A-Z][A-Z0-9_]*_(API|GUARD|SAFETY)_KEY"
"""Environment variables whose value an entry may send to a service. Keys of clouds,
hubs and code hosts (`AWS_SECRET_ACCESS_KEY`, `HF_TOKEN`) are not among them."""

ADDRESS_VARIABLE = r"[A-Z][A-Z0-9_]*_(BASE_URL|ENDPOINT)"
"""Environment variables that may name the address of a service."""


class ServiceCall(_Strict):
    """How a moderation service is called, and where the scores are in its reply."""

    base: str = ""
    variable: str
    path: str
    key: str
    headers: dict[str, str]
    body: dict[str, Any]
    results: str = ""
    score: str

    @model_validator(mode="after")
    def _check_variables(self) -> Self:
        if not re.fullmatch(KEY_VARIABLE, self.key):
            raise ValueError(
                "key: an environment variable such as MY_API_KEY, MY_GUARD_KEY or"
                f" MY_SAFETY_KEY, not {show_name(self.key)!r}"
            )
        if not re.fullmatch(ADDRESS_VARIABLE, self.variable):
            raise ValueError(
                "variable: an environment variable such as MY_BASE_URL or MY_ENDPOINT,"
                f" not {show_name(self.variable)!r}"
            )
        return self


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


REQUIRED_FIELDS = {
    "classifier": ("labels",),
    "first_token": ("tokens",),
    "regex": ("tokens", "pattern"),
    "json": ("tokens", "key"),
    "endpoint": ("call",),
    "any_guardrail": ("guardrail",),
    "refused": ("about",),
}
"""By kind of guard, the fields that must not be empty."""


class DeployedEntry(GuardEntry):
    """An entry of a guard that people deploy."""

    match: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = ()
    model: str = ""
    messages: tuple[ChatMessage, ...] = (
        ChatMessage(role="user", content="{{ text }}"),
    )
    content: Literal["text", "parts"] = "text"
    template: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    runs: tuple[dict[str, Any], ...] = ({},)
    forced: str = ""
    tokens: LabelTokens | None = None
    least: float = Field(0.5, ge=0, le=1)
    before: str = ""
    pattern: str = ""
    key: str = ""
    after: str = ""
    max_new_tokens: int = Field(32, ge=1)
    labels: tuple[str, ...] = ()
    independent: bool | None = None
    respace: bool = False
    call: ServiceCall | None = None
    guardrail: str = ""
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_required_fields(self) -> Self:
        if self.kind not in REQUIRED_FIELDS:
            known = ", ".join(REQUIRED_FIELDS)
            raise ValueError(f"kind is one of {known}, not {self.kind!r}")
        for field in REQUIRED_FIELDS[self.kind]:
            if not getattr(self, field):
                raise ValueError(f"{field}: a guard of kind {self.kind} needs it")
        return self

    @model_validator(mode="after")
    def _check_patterns(self) -> Self:
        try:
            groups = re.compile(self.pattern).groupindex
            re.compile(self.after)
        except re.error as error:
            raise ValueError(f"pattern: {error}") from None
        if self.kind == "regex" and "label" not in groups:
            raise ValueError("pattern: a group (?P<label>...) is needed")
        try:
            for message in self.messages:
                _ENVIRONMENT.parse(message.content)
        except TemplateError as error:
            raise ValueError(f"messages: {error}") from None
        return self

    @property
    def shape(self) -> str:
        """Everything besides the weights that decides a score."""
        return json.dumps(self.model_dump(exclude=UNSCORED_FIELDS), sort_keys=True)


def render_turns(entry: DeployedEntry, text: str) -> list[dict[str, Any]]:
    """Return the messages about a request.

    Examples
    --------
    >>> entry = DeployedEntry(kind="classifier", labels=("unsafe",))
    >>> render_turns(entry, "How do I kill a process?")
    [{'role': 'user', 'content': 'How do I kill a process?'}]
    """
    turns = []
    for message in entry.messages:
        content = fill_template(message.content, text=text)
        if entry.content == "parts":
            content = [{"type": "text", "text": content}]
        turns.append({"role": message.role, "content": content})
    return turns


def fill_template(value: Any, **variables: Any) -> Any:
    """Return a tree of dicts and lists with its templates filled in.

    `{{ texts }}` alone becomes the list of them.
    """
    if isinstance(value, dict):
        return {key: fill_template(item, **variables) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_template(item, **variables) for item in value]
    if value == "{{ texts }}":
        return variables["texts"]
    if isinstance(value, str):
        return _ENVIRONMENT.from_string(value).render(**variables)
    return value


def read_choice(
    entry: DeployedEntry, choice: Mapping[str, Any] | None
) -> tuple[float, float]:
    """Read a server's answer.

    Returns
    -------
    probability : float
        Of unsafe, in [0, 1]; 1 or 0 if the server returns no probabilities. NaN if the
        answer cannot be read, or the labels' share is too small.
    mass : float
        The share of the next token's probability that the labels hold, in [0, 1]; NaN
        if the server returns none.
    """
    if choice is None or entry.tokens is None:
        return math.nan, math.nan
    output = str(choice["message"].get("content") or "")
    verdict = read_verdict(entry, output)
    if verdict is None:
        # Many servers keep the reasoning apart.
        without_reasoning = entry.model_copy(update={"after": ""})
        verdict = read_verdict(without_reasoning, output)
    if verdict is None:
        return math.nan, math.nan

    # The tokens that could have been written where the label begins
    written = ""
    candidates: list[dict[str, Any]] = []
    for token in (choice.get("logprobs") or {}).get("content") or []:
        if written.strip() == verdict.written.strip():
            candidates = token["top_logprobs"]
        written += token["token"]
    if not candidates:
        return float(verdict.unsafe), math.nan
    unsafe = _sum_probabilities(candidates, entry.tokens.unsafe)
    mass = unsafe + _sum_probabilities(candidates, entry.tokens.safe)
    if mass == 0 or mass < entry.least:
        return math.nan, mass
    return unsafe / mass, mass


def _sum_probabilities(
    candidates: list[dict[str, Any]], strings: tuple[str, ...]
) -> float:
    """Return the probability of tokens that are one of some strings."""
    wanted = {string.strip() for string in strings}
    logprobs = [one["logprob"] for one in candidates if one["token"].strip() in wanted]
    return float(np.exp(logprobs).sum())


class GuardVerdict(NamedTuple):
    """The label that a guard gave, and all that it wrote before that label."""

    unsafe: bool
    written: str


def read_verdict(entry: DeployedEntry, output: str) -> GuardVerdict | None:
    """Read what a guard that answers in words wrote.

    A pattern says itself which labels there are, so that only the beginnings of its
    labels are compared. Without one, an answer begins with `forced` and a label.

    Returns
    -------
    GuardVerdict or None
        None if the output is not of the guard's form: the prompt is `unparsed`.
    """
    if entry.tokens is None:
        return None
    ends = [match.end() for match in re.finditer(entry.after or r"\A", output)]
    if not ends:
        return None
    start = ends[-1]
    body = output[start:]
    if entry.key:
        label = _find_by_key(entry.key, body)
    else:
        label = _find_by_pattern(entry.pattern or _first_word(entry), body)
    if label is None:
        return None
    text, place = label
    given = text.casefold()
    for unsafe, strings in ((True, entry.tokens.unsafe), (False, entry.tokens.safe)):
        for string in strings:
            known = string.strip().casefold()
            if given == known or (given.startswith(known) and not entry.key):
                # A space before it is part of the label's first token.
                space = string[: len(string) - len(string.lstrip())]
                written = output[: start + place].removesuffix(space)
                return GuardVerdict(unsafe, written)
    return None


def _first_word(entry: DeployedEntry) -> str:
    """Return the pattern of an answer that begins with `forced` and a label."""
    assert entry.tokens is not None
    strings = (*entry.tokens.unsafe, *entry.tokens.safe)
    labels = "|".join(re.escape(string.strip()) for string in strings)
    return rf"\A\s*{re.escape(entry.forced.strip())}\s*(?P<label>{labels})\b"


def _find_by_pattern(pattern: str, body: str) -> tuple[str, int] | None:
    """Return the label that a pattern finds, and its first character's place.

    None if it finds none, or different ones.
    """
    matches = list(re.finditer(pattern, body))
    if len({match["label"].casefold() for match in matches}) != 1:
        return None
    return matches[0]["label"], matches[0].start("label")


def _find_by_key(key: str, body: str) -> tuple[str, int] | None:
    """Return the string under a key of one JSON object, and its place.

    The object may be fenced.
    """
    fenced = re.fullmatch(r"\s*```(?:json)?\s*\n(.*?)\s*```\s*", body, flags=re.DOTALL)
    source = fenced[1] if fenced else body
    try:
        content = json.loads(source, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get(key), str):
        return None
    places = list(re.finditer(rf"{re.escape(json.dumps(key))}\s*:\s*\"", body))
    if len(places) != 1:
        return None
    return content[key], places[0].end()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object of its pairs; ValueError if a key occurs twice."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key occurs twice")
    return content


def read_service_score(call: ServiceCall, result: object) -> float:
    """Return the greatest score, in [0, 1], in a service's result about one text.

    NaN if the result has another form.

    >>> call = ServiceCall(
    ...     variable="V", path="", key="K", headers={}, body={},
    ...     score="result.a.values() | list",
    ... )
    >>> read_service_score(call, {"a": {"hate": 0.2, "violence": 0.75, "other": None}})
    0.75
    """
    try:
        value: Any = _ENVIRONMENT.compile_expression(call.score)(result=result)
    except Exception:  # a result of another form may fail in any way
        return math.nan
    values = value if isinstance(value, list) else [value]
    scores = [score for score in values if score is not None]
    if not scores:
        return math.nan
    for score in scores:
        if type(score) not in (int, float) or not 0 <= score <= 1:
            return math.nan
    return float(max(scores))
