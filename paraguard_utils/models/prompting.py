"""Turn a prompt into what a model reads (`docs/method.md`, Asking).

System prompts, chat templates, decoding and keys are here.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paraguard_utils.errors import DataError, ModelError
from paraguard_utils.parts import WHOLE, Shard
from paraguard_utils.schemas import Corpus

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

# For chat templates that ask for one, so that no prompt changes overnight
TEMPLATE_DATE = "01 Jan 2025"
BATCH_SIZE = 64  # prompts in a batch; a kill loses one batch at most
_PLACEHOLDER = "PARAGUARD-USER-TEXT"

# A template may open a thinking block: then the answer begins inside it
OPEN_THOUGHT_PATTERN = re.compile(r"(<think(?:ing)?>)\s*\Z")


@dataclass(frozen=True)
class Decoding:
    """How answers are generated: greedily, without a stop at refusal cues.

    The fields are part of every key.
    """

    max_new_tokens: int = 64
    method: str = "greedy"

    def choose(self, logits: "Tensor", keys: Sequence[str], step: int) -> "Tensor":
        """Return the next token of each row of logits: the likeliest.

        Other decodings may look at the `keys` of the requests and at the step.
        """
        return logits.argmax(-1)


@dataclass(frozen=True)
class PromptContext:
    """What decides an answer beside the user's words.

    `prefix` and `suffix` are the rendered text around them.
    """

    weights_id: str
    dtype: str
    prefix: str
    suffix: str
    decoding: Decoding

    @cached_property
    def _decoding_key(self) -> str:
        return repr(sorted(asdict(self.decoding).items()))

    def render(self, text: str) -> str:
        """Return a prompt as the model reads it."""
        return self.prefix + text + self.suffix

    def key(self, text: str) -> str:
        """Return the key of one prompt: 32 hex digits.

        A trace with this key answers this text, by these weights, under this system
        prompt, with this decoding and dtype.
        """
        parts = (self.weights_id, self.render(text), self._decoding_key, self.dtype)
        return hashlib.sha256("\x1f".join(parts).encode("utf-8")).hexdigest()[:32]


@dataclass(frozen=True)
class Request:
    """One rendered and tokenized prompt.

    `user_start` to `user_end` is the half-open range of the user's own tokens.
    """

    prompt_id: str
    key: str
    token_ids: tuple[int, ...]
    user_start: int
    user_end: int


@dataclass(frozen=True, eq=False)
class Workload:
    """The prompts that a backend has to answer.

    Those with a `known` prompt_id are left out; of a `shard` (i, n), a backend answers
    the i-th of n parts. `title` names the progress bar; "" shows none.
    """

    prompts: Corpus
    known: Collection[str] = frozenset()
    batch: int = BATCH_SIZE
    shard: Shard = WHOLE
    title: str = ""


def make_system_name(model_name: str, system_prompt: str) -> str:
    """Return the name under which a model's answers with a system prompt are stored."""
    return f"{model_name}--{system_prompt}"


def model_of_system(system: str) -> str:
    """Return the model's part of a system name."""
    return system.rpartition("--")[0]


def render_chat(
    tokenizer: "PreTrainedTokenizerBase",
    turns: list[dict[str, Any]],
    template: str = "",
    **variables: Any,
) -> str:
    """Render chat turns by a template, or else by the tokenizer's own.

    Both get `TEMPLATE_DATE` instead of the clock.
    """
    template = template or tokenizer.get_chat_template()
    if "strftime_now" in template:
        # A macro of that name hides the clock that transformers offers to templates
        macro = "{%- macro strftime_now(format) -%}" + TEMPLATE_DATE + "{%- endmacro %}"
        template = macro + template
    variables.setdefault("date_string", TEMPLATE_DATE)
    rendered = tokenizer.apply_chat_template(
        turns, tokenize=False, chat_template=template, **variables
    )
    return str(rendered)


def render_system_prompt(
    tokenizer: "PreTrainedTokenizerBase",
    system_prompt_text: str,
    earlier: Sequence[dict[str, str]] = (),
) -> tuple[str, str]:
    """Render a system prompt; return the text before and after the user's words.

    Without a system prompt an empty system turn may keep a template from inserting its
    own. `earlier` turns come before the user's. A template that changes the user's
    text, or puts nothing before it, raises `ModelError`.
    """
    from jinja2.exceptions import TemplateError

    def render(system: str | None, user: str) -> str:
        turns = [*earlier, {"role": "user", "content": user}]
        if system is not None:
            turns.insert(0, {"role": "system", "content": system})
        # If a template offers thinking: the first token must be the answer's
        return render_chat(
            tokenizer, turns, add_generation_prompt=True, enable_thinking=False
        )

    try:
        with_system_turn = render(system_prompt_text, _PLACEHOLDER)
    except TemplateError:
        with_system_turn = ""
    rendered = with_system_turn
    if not system_prompt_text:
        without_system_turn = render(None, _PLACEHOLDER)
        if not rendered or len(without_system_turn) <= len(rendered):
            rendered = without_system_turn
    elif system_prompt_text not in rendered:
        # Some templates drop a system turn silently
        rendered = render(None, f"{system_prompt_text}\n\n{_PLACEHOLDER}")
    before, _, after = rendered.partition(_PLACEHOLDER)
    if rendered.count(_PLACEHOLDER) != 1 or system_prompt_text not in before:
        raise ModelError(
            "the chat template does not render the user's text once and as it is"
        )
    if not before:
        raise ModelError(
            "the chat template puts nothing before the user's text, so its first word"
            " has no probability; let the template begin with the model's start token"
        )
    return before, after


def count_shared(first: Sequence[object], second: Sequence[object]) -> int:
    """Return how many leading items two sequences share."""
    shared = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        shared += 1
    return shared


def check_prompts(
    corpus: Corpus, tokenizer: "PreTrainedTokenizerBase | None" = None
) -> None:
    """Raise `DataError` if a model cannot read a text as it is.

    A text may not start or end with white space, nor contain a control token of the
    tokenizer.
    """
    specials = sorted(set(tokenizer.all_special_tokens)) if tokenizer else []
    for row in corpus.itertuples():
        if row.text != row.text.strip():
            raise DataError(
                f"prompt {row.prompt_id}: text starts or ends with white space;"
                " strip it"
            )
        for special in specials:
            if special in row.text:
                raise DataError(
                    f"prompt {row.prompt_id}: text contains the control token"
                    f" {special!r}; remove the row"
                )


def tokenize_prompts(
    corpus: Corpus, tokenizer: "PreTrainedTokenizerBase", context: PromptContext
) -> list[Request]:
    """Render and tokenize every prompt (prompt_id, text), by a fast tokenizer."""
    encoded = tokenizer(
        [context.render(text) for text in corpus["text"]],
        add_special_tokens=False,
        return_offsets_mapping=True,
    )
    requests = []
    start = len(context.prefix)
    columns = (encoded["input_ids"], encoded["offset_mapping"])
    for row, token_ids, offsets in zip(corpus.itertuples(), *columns, strict=True):
        # Those with a character of the user's
        user_tokens = [
            number
            for number, (first, behind) in enumerate(offsets)
            if start < behind != first < start + len(row.text)
        ]
        requests.append(
            Request(
                row.prompt_id,
                context.key(row.text),
                tuple(token_ids),
                user_tokens[0],
                user_tokens[-1] + 1,
            )
        )
    return requests
