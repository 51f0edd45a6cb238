"""Strings in a text that a tokenizer would read as control tokens."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def find_control_strings(
    tokenizer: "PreTrainedTokenizerBase", frame: str = ""
) -> list[str]:
    """Return the strings that a tokenizer reads as control tokens, longest first.

    Any added token in `frame` is one: some tokenizers do not mark the control tokens of
    their own chat template as special.
    """
    strings = set(tokenizer.all_special_tokens)
    for token in tokenizer.added_tokens_decoder.values():
        if token.special or str(token) in frame:
            strings.add(str(token))
    strings = {text for text in strings if len(text) > 1 and not text.isspace()}
    return sorted(strings, key=lambda text: (-len(text), text))


def defuse_control_strings(text: str, strings: Sequence[str]) -> str:
    """Turn control strings in a text into plain text.

    A space after the first character does so.
    """
    control = re.compile("|".join(map(re.escape, strings)))
    while strings and control.search(text):
        text = control.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
    return text
