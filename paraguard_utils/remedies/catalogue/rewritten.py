"""A rewritten wrapper: the safety wrapper, with the advice to answer what is harmless in context (ours)."""

from functools import partial

from paraguard_utils.models.prompting import Decoding, PromptContext
from paraguard_utils.registry import wrappers
from paraguard_utils.remedies.asking import Remedied, ask
from paraguard_utils.remedies.contract import Remedy, Target
from paraguard_utils.remedies.splits import Third
from paraguard_utils.remedies.untouched import Untouched

WRAPPER = "permissive"


class Rewritten(Remedied):
    """A model under the other wrapper."""

    def context(self, wrapper_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        return super().context(self.parameters["text"], decoding)


def apply(base: Untouched, train: Third, validation: Third) -> Target:
    """Ask under the other wrapper."""
    parameters = {"text": wrappers()[WRAPPER]["text"]}

    def respondent() -> Rewritten:
        return Rewritten(base.local, parameters)

    return Target(partial(ask, base, "rewritten", parameters, respondent), respondent)


REMEDIES = (Remedy("rewritten", "decision", "ours", apply, asks=True),)
