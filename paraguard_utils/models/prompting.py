"""From a prompt to what a model is asked: wrappers, chat templates, decoding, keys (`docs/method.md`, Asking)."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from paraguard_utils.errors import DataError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


DATE = "01 Jan 2025"
"""The date put into chat templates that ask for one, so that a rendered prompt does not change overnight."""


SERVED = "-served"
"""How the name of a model ends in target names that is behind a server."""


OPEN_THOUGHT = re.compile(r"(<think(?:ing)?>)\s*\Z")
"""A thinking block that a chat template opens by itself, so that the model's answer begins inside it."""

_PLACEHOLDER = "PARAGUARD-USER-TEXT"


@dataclass(frozen=True)
class Decoding:
    """How answers are generated: greedily, with no stop at refusal cues.

    Attributes
    ----------
    max_new_tokens : int
    """

    max_new_tokens: int = 64
    method: str = "greedy"


@dataclass(frozen=True)
class Sampling(Decoding):
    """How answers are drawn: each token from the whole distribution (top-p 1).

    Attributes
    ----------
    temperature : float, > 0
    draw : int
        Number of the draw: the same prompt and draw give the same answer, whatever the batch.
    """

    method: str = "sampling"
    temperature: float = 0.7
    draw: int = 0


def decoding_of(kept: Mapping[str, Any]) -> Decoding:
    """Return the decoding that a meta file tells of."""
    return (Sampling if kept.get("method") == Sampling.method else Decoding)(**kept)


@dataclass(frozen=True)
class PromptContext:
    """What surrounds the user's words in a rendered prompt, and what else decides an answer.

    Attributes
    ----------
    weights_id : str
    dtype : str
    prefix, suffix : str
        Rendered text before and after the user's words.
    decoding : Decoding
    """

    weights_id: str
    dtype: str
    prefix: str
    suffix: str
    decoding: Decoding

    def key(self, text: str) -> str:
        """Return the key of one prompt: 32 hex digits."""
        parts = (
            self.weights_id,
            self.prefix + text + self.suffix,
            repr(sorted(asdict(self.decoding).items())),
            self.dtype,
        )
        return hashlib.sha256("\x1f".join(parts).encode("utf-8")).hexdigest()[:32]


@dataclass(frozen=True)
class Request:
    """One rendered prompt, tokenized.

    Attributes
    ----------
    prompt_id, key : str
    token_ids : tuple of int
        The whole rendered prompt.
    user_start, user_end : int
        Half-open range of the user's own words in `token_ids`.
    """

    prompt_id: str
    key: str
    token_ids: tuple[int, ...]
    user_start: int
    user_end: int


def target_name(model_name: str, wrapper: str) -> str:
    """Return the name under which a model's answers under a wrapper are stored."""
    return f"{model_name}--{wrapper}"


def model_of(target: str) -> str:
    """Return the model's part of a target name."""
    return target.rpartition("--")[0]


def is_served(target: str) -> bool:
    """Return whether a target is a served model's, which tells of itself what its server does."""
    return model_of(target).endswith(SERVED)


def dated(template: str) -> str:
    """Return a chat template that reads `DATE` where it would read the clock."""
    if "strftime_now" not in template:
        return template
    # A macro of that name hides the clock that transformers offers to templates.
    return "{%- macro strftime_now(format) -%}" + DATE + "{%- endmacro %}" + template


def control_strings(tokenizer: "PreTrainedTokenizerBase", frame: str = "") -> list[str]:
    """Return the strings that a tokenizer reads as control tokens, longest first.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    frame : str
        A rendered prompt. What it holds of the tokenizer's added tokens counts too, since some tokenizers do not mark
        the control tokens of their own chat template as special.

    Returns
    -------
    list of str
    """
    added = tokenizer.added_tokens_decoder.values()
    found = {str(token) for token in added if token.special or str(token) in frame} | set(tokenizer.all_special_tokens)
    return sorted((text for text in found if len(text) > 1 and not text.isspace()), key=lambda text: (-len(text), text))


def defused(text: str, strings: Sequence[str]) -> str:
    """Return a text with a space behind the first character of every control string in it, which makes that plain text.

    Parameters
    ----------
    text : str
    strings : sequence of str
        As `control_strings` returns them.

    Returns
    -------
    str
        As it was, where it holds no control string.
    """
    control = re.compile("|".join(map(re.escape, strings)))
    while strings and control.search(text):
        text = control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
    return text


def render_wrapper(
    tokenizer: "PreTrainedTokenizerBase", wrapper_text: str, earlier: Sequence[dict[str, str]] = ()
) -> tuple[str, str]:
    """Render a wrapper through a chat template and return the text before and after the user's words.

    Without a wrapper, the shorter of two renderings is used: no system turn, or an empty one (which keeps a template
    from injecting a text of its own). A template that has no system turn gets the wrapper as a prefix of the user's
    turn.

    Parameters
    ----------
    tokenizer : transformers tokenizer with a chat template
    wrapper_text : str
    earlier : sequence of dict
        Turns (role, content) of the conversation between the wrapper and the user's words.

    Returns
    -------
    prefix, suffix : str

    Raises
    ------
    ModelError
        The template does not put the user's text into the prompt as it is.
    """
    from jinja2.exceptions import TemplateError

    template = dated(tokenizer.get_chat_template())

    def render(system: str | None, user: str) -> str:
        turns = [{"role": "system", "content": system}] if system is not None else []
        rendered = tokenizer.apply_chat_template(
            [*turns, *earlier, {"role": "user", "content": user}],
            add_generation_prompt=True,
            tokenize=False,
            chat_template=template,
            date_string=DATE,
            enable_thinking=False,  # where a template offers it: the first token of an answer must be the answer's
        )
        return str(rendered)

    try:
        with_system = render(wrapper_text, _PLACEHOLDER)
    except TemplateError:
        with_system = None
    if wrapper_text:
        rendered = with_system or ""
        if wrapper_text not in rendered:  # some templates drop a system turn silently instead of refusing it
            rendered = render(None, f"{wrapper_text}\n\n{_PLACEHOLDER}")
    else:
        rendered = min((r for r in (render(None, _PLACEHOLDER), with_system) if r is not None), key=len)
    before, found, after = rendered.partition(_PLACEHOLDER)
    if not found or _PLACEHOLDER in after or wrapper_text not in before:
        raise ModelError("the chat template does not render the user's text once and as it is")
    if not before:
        raise ModelError(
            "the chat template puts nothing before the user's text, so its first word has no probability; "
            "let the template begin with the model's start token"
        )
    return before, after


def price(texts: pd.Series, decoding: Decoding, around: int = 0, times: int = 1) -> str:
    """Say in words what asking costs.

    Parameters
    ----------
    texts : Series of str
    decoding : Decoding
    around : int
        Characters that a prompt has beside its text.
    times : int
        How often each is asked.
    """
    count = times * len(texts)
    read = times * (texts.str.len().sum() + around * len(texts)) / 4  # about four letters a token
    return (
        f"{count:,} prompts to ask, about {max(round(read, -3), 1000):,.0f} tokens in and at most "
        f"{decoding.max_new_tokens * count:,} out"
    )


def check_prompts(corpus: pd.DataFrame, tokenizer: "PreTrainedTokenizerBase | None" = None) -> None:
    """Refuse prompts that could not be asked as they stand, before any model is loaded.

    Raises
    ------
    DataError
        A text starts or ends with white space, or contains a control token of the tokenizer.
    """
    specials = sorted(set(tokenizer.all_special_tokens)) if tokenizer else []
    for row in corpus.itertuples():
        if row.text != row.text.strip():
            raise DataError(f"prompt {row.prompt_id}: text starts or ends with white space; strip it")
        for special in specials:
            if special in row.text:
                raise DataError(f"prompt {row.prompt_id}: text contains the control token {special!r}; remove the row")


def requests(corpus: pd.DataFrame, tokenizer: "PreTrainedTokenizerBase", context: PromptContext) -> list[Request]:
    """Render and tokenize every prompt of a corpus.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, text.
    tokenizer : transformers fast tokenizer
    context : PromptContext

    Returns
    -------
    list of prompting.Request
    """
    rendered = [context.prefix + text + context.suffix for text in corpus["text"]]
    encoded = tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    asked = []
    for row, ids, offsets in zip(corpus.itertuples(), encoded["input_ids"], encoded["offset_mapping"], strict=True):
        start, end = len(context.prefix), len(context.prefix) + len(row.text)
        own = [i for i, (a, b) in enumerate(offsets) if b > start and a < end and b > a]
        asked.append(Request(row.prompt_id, context.key(row.text), tuple(ids), own[0], own[-1] + 1))
    return asked
