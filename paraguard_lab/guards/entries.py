"""Entries of guards: what `data/guards.yaml`, or a user's file, says about a guard."""

from collections.abc import Mapping
from typing import Annotated, Any, Protocol, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from paraguard_utils.errors import SettingsError
from paraguard_utils.guards.contract import Guard, GuardOptions

GUARD_AXES = ("toxicity", "injection", "harm", "policy")
"""What a guard looks for: rude words, attacks on the instructions, harmful requests,
breaches of a given policy.
"""

FUNCTION = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
"""The name of a guard that is a user's function, `module:function`."""


class GuardMaker(Protocol):
    """A function that makes the guards of a kind from their entries."""

    def __call__(
        self, name: str, fields: Mapping[str, Any], options: GuardOptions
    ) -> Guard:
        """Return the guard of an entry with these fields.

        Raise SettingsError if they do not fit its kind.
        """


class GuardEntry(BaseModel):
    """The fields of every guard's entry; a kind adds fields of its own.

    The head of `data/guards.yaml` says what the fields mean.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = ""
    name: Annotated[str, Field(min_length=1)] = ""
    title: str = ""
    default: bool = False
    axis: str = "policy"
    licence: str = "unstated"
    citation: str = "unstated"
    about: str = "a guard of your own"
    unverified: str = ""
    wording: str = ""
    checked: str = ""
    threshold: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.5
    version: Annotated[str, BeforeValidator(str)] = ""

    @model_validator(mode="after")
    def _check_axis(self) -> Self:
        if self.axis not in GUARD_AXES:
            known = ", ".join(GUARD_AXES)
            raise ValueError(f"axis is one of {known}, not {self.axis!r}")
        return self

    @property
    def described(self) -> dict[str, Any]:
        """What a reader of the scores must know, as fields of `contract.Guard`."""
        fields = self.model_dump(include={"threshold", "axis", "licence", "citation"})
        fields["about"] = self.about
        if self.unverified:
            fields["about"] += f"; unverified: {self.unverified}"
        return fields


class FunctionEntry(GuardEntry):
    """A guard that is a function of the user, `module:function`."""

    function: Annotated[str, Field(pattern=rf"^{FUNCTION}$")]


Entry = TypeVar("Entry", bound=GuardEntry)


def parse_guard_entry(name: str, fields: Mapping[str, Any], form: type[Entry]) -> Entry:
    """Check an entry against the form of its kind.

    Raise SettingsError if a field is missing, unknown or of another type.
    """
    try:
        return form.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    problem = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing" and field in form.model_fields:
        problem = f"a guard of kind {fields.get('kind')} needs it"
    if field:
        problem = f"{field}: {problem}"
    raise entry_error(name, problem)


def entry_error(name: str, problem: str) -> SettingsError:
    """Return the error about an entry that does not fit."""
    return SettingsError(
        f"the guard {name}: {problem}; see the head of data/guards.yaml"
    )
