"""Turn a prompt into what a model is asked: system prompts, chat templates, decoding, keys
(`docs/method.md`, Asking).
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from paraguard_utils.errors import DataError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# For chat templates that ask for one, so that no prompt changes overnight
TEMPLATE_DATE = "01 Jan 2025"
SERVED_SUFFIX = "-served"  # the ending of a served model's name in system names
_PLACEHOLDER = "PARAGUARD-USER-TEXT"

OPEN_THOUGHT_PATTERN = re.compile(
    r"(<think(?:ing)?>)\s*\Z"
)  # the template opens it: the answer begins inside it


@dataclass(frozen=True)
class Decoding:
    """How answers are generated: greedily, without a stop at refusal cues.

    The fields are part of every key.
    """

    max_new_tokens: int = 64
    method: str = "greedy"


@dataclass(frozen=True)
class Sampling(Decoding):
    """How answers are sampled: each token from the whole distribution (top-p 1) at a
    temperature > 0.
    """

    method: str = "sampling"
    temperature: float = 0.7
    # The same prompt and the same number give the same answer, whatever the batch
    draw: int = 0


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

    def key(self, text: str) -> str:
        """Return the key of one prompt: 32 hex digits."""
        parts = (
            self.weights_id,
            self.prefix + text + self.suffix,
            self._decoding_key,
            self.dtype,
        )
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


def make_system_name(model_name: str, system_prompt: str) -> str:
    """Return the name under which a model's answers with a system prompt are stored."""
    return f"{model_name}--{system_prompt}"


def model_of_system(system: str) -> str:
    """Return the model's part of a system name."""
    return system.rpartition("--")[0]


def is_served_system(system: str) -> bool:
    """Return whether a system's model is behind a server."""
    return model_of_system(system).endswith(SERVED_SUFFIX)


def render_chat(
    tokenizer: "PreTrainedTokenizerBase",
    turns: list[dict[str, Any]],
    template: str = "",
    **given: Any,
) -> str:
    """Render chat turns by a template, else by the tokenizer's own.

    Both get `TEMPLATE_DATE` instead of the clock.
    """
    template = template or tokenizer.get_chat_template()
    if (
        "strftime_now" in template
    ):  # a macro of that name hides the clock that transformers offers to templates
        template = (
            "{%- macro strftime_now(format) -%}"
            + TEMPLATE_DATE
            + "{%- endmacro %}"
            + template
        )
    given = {"date_string": TEMPLATE_DATE, **given}
    return str(
        tokenizer.apply_chat_template(
            turns, tokenize=False, chat_template=template, **given
        )
    )


def find_control_strings(
    tokenizer: "PreTrainedTokenizerBase", frame: str = ""
) -> list[str]:
    """Return the strings that a tokenizer reads as control tokens, longest first.

    Any added token in `frame` is one.
    """
    # Some tokenizers do not mark the control tokens of their own chat template as
    # special.
    added = tokenizer.added_tokens_decoder.values()
    found = {
        str(token) for token in added if token.special or str(token) in frame
    } | set(tokenizer.all_special_tokens)
    return sorted(
        (text for text in found if len(text) > 1 and not text.isspace()),
        key=lambda text: (-len(text), text),
    )


def defuse_control_strings(text: str, strings: Sequence[str]) -> str:
    """Turn control strings in a text into plain text by a space after their first
    character.
    """
    control = re.compile("|".join(map(re.escape, strings)))
    while strings and control.search(text):
        text = control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
    return text


def render_system_prompt(
    tokenizer: "PreTrainedTokenizerBase",
    system_prompt_text: str,
    earlier: Sequence[dict[str, str]] = (),
) -> tuple[str, str]:
    """Render a system prompt through a chat template.

    Return the text before and after the user's words.

    Without a system prompt an empty system turn may keep a template from inserting its
    own. `earlier` turns stand before the user's. A template that changes the user's
    text, or puts nothing before it, raises `ModelError`.
    """
    from jinja2.exceptions import TemplateError

    def render(system: str | None, user: str) -> str:
        turns = [{"role": "system", "content": system}] if system is not None else []
        turns += [*earlier, {"role": "user", "content": user}]
        # If a template offers thinking: the first token must be the answer's.
        return render_chat(
            tokenizer, turns, add_generation_prompt=True, enable_thinking=False
        )

    try:
        with_system = render(system_prompt_text, _PLACEHOLDER)
    except TemplateError:
        with_system = None
    if system_prompt_text:
        rendered = with_system or ""
        if (
            system_prompt_text not in rendered
        ):  # some templates drop a system turn silently
            rendered = render(None, f"{system_prompt_text}\n\n{_PLACEHOLDER}")
    else:
        rendered = min(
            (r for r in (render(None, _PLACEHOLDER), with_system) if r is not None),
            key=len,
        )
    before, found, after = rendered.partition(_PLACEHOLDER)
    if not found or _PLACEHOLDER in after or system_prompt_text not in before:
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
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def describe_cost(
    texts: pd.Series, decoding: Decoding, around: int = 0, times: int = 1
) -> str:
    """Say in words what asking texts costs: each `times` times, with `around` more
    characters in a prompt.
    """
    count = times * len(texts)
    read = (
        times * (texts.str.len().sum() + around * len(texts)) / 4
    )  # about four letters in a token
    return (
        f"{count:,} prompts to ask, about {max(round(read, -3), 1000):,.0f} tokens in"
        f" and at most {decoding.max_new_tokens * count:,} out"
    )


def check_prompts(
    corpus: pd.DataFrame, tokenizer: "PreTrainedTokenizerBase | None" = None
) -> None:
    """Raise `DataError` if a text starts or ends with white space, or contains a
    control token of the tokenizer.
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
    corpus: pd.DataFrame, tokenizer: "PreTrainedTokenizerBase", context: PromptContext
) -> list[Request]:
    """Render and tokenize every prompt of a corpus (columns prompt_id, text) with a
    fast tokenizer.
    """
    rendered = [context.prefix + text + context.suffix for text in corpus["text"]]
    encoded = tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    asked = []
    for row, ids, offsets in zip(
        corpus.itertuples(),
        encoded["input_ids"],
        encoded["offset_mapping"],
        strict=True,
    ):
        start, end = len(context.prefix), len(context.prefix) + len(row.text)
        own = [i for i, (a, b) in enumerate(offsets) if b > start and a < end and b > a]
        asked.append(
            Request(
                row.prompt_id, context.key(row.text), tuple(ids), own[0], own[-1] + 1
            )
        )
    return asked
