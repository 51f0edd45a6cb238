"""Ask under a system prompt that adds to the safety instruction: answer what is harmless in context (ours)."""

from paraguard_utils.models.prompting import Decoding, PromptContext
from paraguard_utils.registry import wrappers
from paraguard_utils.remedies.asking import RemediedModel
from paraguard_utils.remedies.contract import RemediedSystem, Remedy
from paraguard_utils.remedies.splits import Split
from paraguard_utils.remedies.untouched import UntouchedSystem

REWRITTEN_PROMPT = "permissive"


class RewrittenModel(RemediedModel):
    """A model with the other system prompt."""

    def context(self, wrapper_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        return super().context(self.parameters["text"], decoding)


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Ask with the other system prompt."""
    parameters = {"text": wrappers()[REWRITTEN_PROMPT]["text"]}
    return RemediedSystem.asking(base, "rewritten", parameters, lambda: RewrittenModel(base.local, parameters))


REMEDIES = (Remedy("rewritten", "decision", "ours", apply, asks=True),)
