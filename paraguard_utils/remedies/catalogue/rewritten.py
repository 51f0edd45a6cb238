"""Another system prompt: the safety instruction, and to answer what is harmless in context (ours)."""

from paraguard_utils.models.prompting import Decoding, PromptContext
from paraguard_utils.registry import wrappers
from paraguard_utils.remedies.asking import Remedied
from paraguard_utils.remedies.contract import Remedy, Target
from paraguard_utils.remedies.splits import Third
from paraguard_utils.remedies.untouched import Untouched

WRAPPER = "permissive"


class Rewritten(Remedied):
    """A model with the other system prompt."""

    def context(self, wrapper_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        return super().context(self.parameters["text"], decoding)


def apply(base: Untouched, train: Third, validation: Third) -> Target:
    """Ask with the other system prompt."""
    parameters = {"text": wrappers()[WRAPPER]["text"]}
    return Target.asking(base, "rewritten", parameters, lambda: Rewritten(base.local, parameters))


REMEDIES = (Remedy("rewritten", "decision", "ours", apply, asks=True),)
