"""What an entry of `data/guards.yaml`, or of a user's file, says of a guard, and how
its output is read; no model.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from paraguard_utils import registry
from paraguard_utils.errors import SettingsError
from paraguard_utils.guards.contract import GUARD_AXES

# Of an entry of a kind; no kind is a function's or a score file's
REQUIRED_FIELDS: dict[str, tuple[str, ...]] = {
    "": (), "package": ("version",), "yes_no": ("model",), "exemplars": ("exemplars",),
    "classifier": ("labels",), "first_token": ("tokens",), "regex": ("tokens", "pattern"), "json": ("tokens", "key"),
    "endpoint": ("call",), "any_guardrail": ("guardrail",), "refused": ("about",), "refusal": ("model",)
}  # fmt: skip

UNSCORED_FIELDS = (  # they change no score
    "match", "name", "axis", "licence", "citation", "about", "unverified", "wording", "checked", "threshold", "model",
    "version", "answers"
)  # fmt: skip

_ENVIRONMENT = ImmutableSandboxedEnvironment(keep_trailing_newline=True)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ChatMessage(_Strict):
    """A chat message; `content` is a template of `text` and `answer` (`""` where no
    answer is judged).
    """

    role: str
    content: str


class LabelTokens(_Strict):
    """First tokens of the labels, with the space that they begin with."""

    unsafe: tuple[str, ...]
    safe: tuple[str, ...]


class ServiceCall(_Strict):
    """How a moderation service is asked, and where the scores are in its reply."""

    base: str = ""
    variable: str
    path: str
    key: str
    headers: dict[str, str]
    body: dict[str, Any]
    results: str = ""
    score: str


class GuardEntry(_Strict):
    """An entry of a guard; the head of `data/guards.yaml` says what the fields mean."""

    match: Annotated[
        tuple[str, ...],
        BeforeValidator(lambda one: (one,) if isinstance(one, str) else one),
    ] = ()
    name: Annotated[str, Field(min_length=1)] = ""
    kind: str = ""
    axis: str = "policy"
    licence: str = "unstated"
    citation: str = "unstated"
    about: str = "a guard of your own"
    unverified: str = ""
    wording: str = ""
    checked: str = ""
    threshold: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.5
    model: str = ""
    version: Annotated[str, BeforeValidator(str)] = ""
    function: Annotated[str, Field(pattern=rf"^{registry.FUNCTION}$")] = ""
    scores: str = ""
    sha256: str = ""
    files: dict[str, str] = {}
    system_prompt: str = ""
    exemplars: str = ""
    rejects: float = Field(0.05, gt=0, lt=1)
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
    options: dict[str, Any] = {}
    answers: dict[str, Any] = {}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.axis not in GUARD_AXES:
            raise ValueError(
                f"axis is one of {', '.join(GUARD_AXES)}, not {self.axis!r}"
            )
        if self.kind not in REQUIRED_FIELDS:
            raise ValueError(
                f"kind is one of {', '.join(filter(None, REQUIRED_FIELDS))}, not"
                f" {self.kind!r}"
            )
        if not (self.kind or self.function or self.scores):
            raise ValueError("its entry has neither function, scores nor model")
        if missing := [
            field for field in REQUIRED_FIELDS[self.kind] if not getattr(self, field)
        ]:
            raise ValueError(f"{missing[0]}: a guard of kind {self.kind} needs it")
        if self.kind == "regex" and "label" not in re.compile(self.pattern).groupindex:
            raise ValueError("pattern: a group (?P<label>...) is needed")
        re.compile(self.after)
        for message in self.messages:
            _ENVIRONMENT.parse(message.content)
        return self

    @property
    def described(self) -> dict[str, Any]:
        """What a reader of the guard's scores must know, as fields of `contract.Guard`."""
        unverified = f"; unverified: {self.unverified}" if self.unverified else ""
        known = self.model_dump(include={"threshold", "axis", "licence", "citation"})
        return known | {"about": self.about + unverified}

    @property
    def judging_answers(self) -> "GuardEntry":
        """The entry with the fields that hold when answers are judged."""
        return GuardEntry.model_validate(
            {**self.model_dump(exclude_unset=True), **self.answers, "answers": {}}
        )

    @property
    def shape(self) -> str:
        """Everything besides the weights that decides a score."""
        return json.dumps(
            self.model_dump(exclude=set(UNSCORED_FIELDS)) | {"answers": self.answers},
            sort_keys=True,
        )


def parse_guard_entry(name: str, raw: Mapping[str, Any]) -> GuardEntry:
    """Check an entry; raise SettingsError where a field, also in `answers`, is missing,
    unknown or of another type.
    """
    try:
        entry = GuardEntry.model_validate(raw)
        entry.judging_answers  # noqa: B018
    except ValidationError as error:
        first = error.errors()[0]
        where, reason = (
            ".".join(map(str, first["loc"])),
            first["msg"].removeprefix("Value error, "),
        )
        problem = f"{where}: {reason}" if where else reason
        raise SettingsError(
            f"the guard {name}: {problem}; see the head of data/guards.yaml"
        ) from None
    except (re.error, TemplateError) as error:
        where = "pattern" if isinstance(error, re.error) else "messages"
        raise SettingsError(f"the guard {name}: {where}: {error}") from None
    return entry


def render_turns(entry: GuardEntry, text: str, answer: str) -> list[dict[str, Any]]:
    """Return what a guard is asked about a request, or about the answer to it.

    Messages that would be empty go.
    """
    filled = [
        (message.role, fill_template(message.content, text=text, answer=answer))
        for message in entry.messages
    ]
    turns = [{"role": role, "content": content} for role, content in filled if content]
    if entry.content == "parts":
        return [
            turn | {"content": [{"type": "text", "text": turn["content"]}]}
            for turn in turns
        ]
    return turns


def fill_template(value: Any, **given: Any) -> Any:
    """Return a tree of dicts and lists with its templates filled in.

    `{{ texts }}` alone becomes the list of them.
    """
    if isinstance(value, dict):
        return {key: fill_template(one, **given) for key, one in value.items()}
    if isinstance(value, list):
        return [fill_template(one, **given) for one in value]
    if value == "{{ texts }}":
        return given["texts"]
    return (
        _ENVIRONMENT.from_string(value).render(**given)
        if isinstance(value, str)
        else value
    )


def read_choice(
    entry: GuardEntry, choice: Mapping[str, Any] | None
) -> tuple[float, float]:
    """Read a server's answer.

    Return the probability of unsafe, and the labels' share of the token's at their
    place.

    Where the server tells no probabilities, the former is 1 or 0. Both are NaN where
    the answer cannot be read, and the former also where the share is too small.
    """
    output = str((choice or {"message": {}})["message"].get("content") or "")
    # Many servers keep the reasoning apart.
    verdict = read_verdict(entry, output) or read_verdict(
        entry.model_copy(update={"after": ""}), output
    )
    if choice is None or verdict is None or entry.tokens is None:
        return math.nan, math.nan
    before, place = "", list[dict[str, Any]]()
    for token in (choice.get("logprobs") or {}).get("content") or []:
        place = (
            token["top_logprobs"]
            if before.strip() == verdict.written.strip()
            else place
        )
        before += token["token"]
    chances = pd.DataFrame(place, columns=["token", "logprob"])
    sides = (
        [string.strip() for string in side]
        for side in (entry.tokens.unsafe, entry.tokens.safe)
    )
    unsafe, safe = (
        np.exp(chances["logprob"][chances["token"].str.strip().isin(side)]).sum()
        for side in sides
    )
    if not place:
        return float(verdict.unsafe), math.nan
    mass = float(unsafe + safe)
    return (float(unsafe) / mass if mass and mass >= entry.least else math.nan), mass


class GuardVerdict(NamedTuple):
    """The label that a guard gave, and all that it wrote before that label."""

    unsafe: bool
    written: str


def read_verdict(entry: GuardEntry, output: str) -> GuardVerdict | None:
    """Read what a guard that answers in words wrote.

    None where it is not of the guard's form: `unparsed`.

    A pattern says itself which labels there are, so that of its labels the beginnings
    are compared. Without one, an answer begins with `forced` and a label.
    """
    starts = (
        [mark.end() for mark in re.finditer(entry.after, output)]
        if entry.after
        else [0]
    )
    if entry.tokens is None or not starts:
        return None
    labels = "|".join(
        re.escape(string.strip())
        for string in (*entry.tokens.unsafe, *entry.tokens.safe)
    )
    first_word = rf"\A\s*{re.escape(entry.forced.strip())}\s*(?P<label>{labels})\b"
    found = (_by_key if entry.key else _by_pattern)(
        entry.key or entry.pattern or first_word, output[starts[-1] :]
    )
    if found is None:
        return None
    for unsafe, strings in ((True, entry.tokens.unsafe), (False, entry.tokens.safe)):
        for string in strings:
            label, known = found[0].casefold(), string.strip().casefold()
            if label == known or (label.startswith(known) and not entry.key):
                space = string[
                    : len(string) - len(string.lstrip())
                ]  # it is part of the label's first token
                return GuardVerdict(
                    unsafe, output[: starts[-1] + found[1]].removesuffix(space)
                )
    return None


def _by_pattern(pattern: str, body: str) -> tuple[str, int] | None:
    """Return the label that a pattern finds and where it first stands.

    None where it finds none or different ones.
    """
    found = list(re.finditer(pattern, body))
    if len({match["label"].casefold() for match in found}) != 1:
        return None
    return found[0]["label"], found[0].start("label")


def _by_key(key: str, body: str) -> tuple[str, int] | None:
    """Return the string under a key of an output that is one JSON object, fenced or
    not, and where it stands.
    """
    fenced = re.fullmatch(r"\s*```(?:json)?\s*\n(.*?)\s*```\s*", body, flags=re.DOTALL)
    try:
        found = json.loads(fenced[1] if fenced else body, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get(key), str):
        return None
    places = list(re.finditer(rf"{re.escape(json.dumps(key))}\s*:\s*\"", body))
    return (found[key], places[0].end()) if len(places) == 1 else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object of its pairs.

    A key that stands there twice has no one meaning.
    """
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands there twice")
    return dict(pairs)


def read_service_score(call: ServiceCall, result: object) -> float:
    """Return the score, in [0, 1], in a service's result about one text.

    NaN for another form.

    >>> call = ServiceCall(variable="V", path="", key="K", headers={}, body={}, score="result.a.values() | list")
    >>> read_service_score(call, {"a": {"hate": 0.2, "violence": 0.75, "illicit": None}})
    0.75
    """
    try:
        found: Any = _ENVIRONMENT.compile_expression(call.score)(result=result)
    except Exception:  # a result of another form may fail in any way
        return math.nan
    values = [
        one
        for one in (found if isinstance(found, list) else [found])
        if one is not None
    ]
    right = values and all(
        type(one) in (int, float) and 0 <= one <= 1 for one in values
    )
    return float(max(values)) if right else math.nan
