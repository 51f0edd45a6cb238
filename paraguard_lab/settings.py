"""Parameters of the notebooks in `notebooks/beyond/`, and of a run of several."""

from typing import Self

from pydantic import Field, model_validator

from paraguard_utils import settings
from paraguard_utils.errors import SettingsError
from paraguard_utils.settings import (
    RAY_DEVICE,
    AnalysisSettings,
    BuildSettings,
    FrozenParameters,
    Gates,
    GuardChoice,
    QueryOptions,
    StudySettings,
    TwinOptions,
)


def name_reworded(corpus_name: str) -> str:
    """Return the name of decisions on a corpus's rewordings, which 07 makes anew."""
    return name_remedied(corpus_name, "reworded")


def name_remedied(corpus_name: str, remedy: str, third: int = 0) -> str:
    """Return the name of a remedied system's decisions on a corpus.

    `third` numbers the test split, from 1; 0 stands for all of the corpus.
    """
    name = f"{corpus_name}--{remedy}"
    if third:
        name += f"--third-{third}"
    return name


class FollowUpSettings(StudySettings, QueryOptions):
    """Parameters of A0."""

    judge: str = ""
    long_answers: int = Field(0, ge=0)
    draw: int = Field(0, ge=0, strict=True)  # true is no number of clusters
    wordings: bool = False

    @model_validator(mode="after")
    def _judge_is_on_this_machine(self) -> Self:
        if self.device == RAY_DEVICE and self.judge:
            raise SettingsError(
                "parameter 'judge': a judge is asked on this machine, in a run without"
                " device=ray"
            )
        return self


class ValiditySettings(AnalysisSettings):
    """Parameters of 06."""


class RemedySettings(GuardChoice, AnalysisSettings, TwinOptions, QueryOptions):
    """Parameters of 07."""

    xstest: str = ""
    remedies: list[str] = Field([])


class LabelCheckSettings(StudySettings):
    """Parameters of A1."""


class WriterSettings(BuildSettings):
    """Parameters of A2."""

    paraphraser: str = ""


class DetailSettings(AnalysisSettings, TwinOptions):
    """Parameters of A3."""


class DecisionSettings(AnalysisSettings, TwinOptions):
    """Parameters of A4 and A5."""

    xstest: str = ""


class RecordSettings(StudySettings):
    """Parameters of 08."""


class RunSettings(GuardChoice, TwinOptions):
    """What a run of several notebooks must know itself; each takes its own besides."""

    xstest: str = ""


PUBLIC_GATES = Gates(min_strategies=3)
"""Gates of a corpus from public benchmarks: many a prompt there has no word to soften
or harden.
"""

NOTEBOOK_SETTINGS: dict[str, type[FrozenParameters]] = {
    "00": settings.ResultsSettings,
    "01": settings.CorpusSettings,
    "02": settings.QuerySettings,
    "03": settings.ScoringSettings,
    "04": settings.CohortSettings,
    "05": settings.GuardSettings,
    "06": ValiditySettings,
    "07": RemedySettings,
    "08": RecordSettings,
    "A0": FollowUpSettings,
    "A1": LabelCheckSettings,
    "A2": WriterSettings,
    "A3": DetailSettings,
    "A4": DecisionSettings,
    "A5": DecisionSettings,
}
"""The model of each notebook's parameters, by its number."""
