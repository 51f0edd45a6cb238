"""Find the answer behind a model's thinking, by the marks of many model families."""

from typing import NamedTuple

import re2

_TAGS = (
    r"(?:seed:)?(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad|analysis)"
)

_OPENING = (
    rf"<{_TAGS}>",
    r"\[think\]",
    "◁think▷",
    r"<\|start_thinking\|>",
    r"<\|begin_of_thought\|>",
    # Channels of gpt-oss, and of Gemma
    r"<\|?channel\|?> ?(?:analysis|commentary|thought)\b",
    # The same without its special tokens
    r"analysis[A-Z]",
)
_CLOSING = (
    rf"</{_TAGS}>",
    r"\[/think\]",
    "◁/think▷",
    r"<\|end_thinking\|>",
    r"<\|end_of_thought\|>",
    r"<\|?channel\|?> ?final ?<\|message\|>",
    r"<channel\|>",
    r"assistantfinal",
    r"\[begin final response\]",
)
_START = rf"(?i)\A\s*(?:<\|start\|>assistant)?(?:{'|'.join(_OPENING[:-1])})"
# Case matters where a word has no brackets
_OPENS = re2.compile(rf"(?:{_START})|\A\s*(?-i:{_OPENING[-1]})")
# A mark in backquotes or quotation marks is spoken of, and closes nothing
_CLOSES = re2.compile(rf"(?i)(?:\A|[^`'\"])(?:{'|'.join(_CLOSING)})")

_STEPS = re2.compile(
    r"(?is)\A\s*here (?:is my thought process|are my reasoning steps):"
    r".*?\bhere is my response:"
)


class Thinking(NamedTuple):
    """An answer without its thinking.

    `answer` is what follows the last closing mark. `marks` is "" without any, "both",
    "closing" if only the end of thinking is marked, or "cut" if it has no end.
    """

    answer: str
    marks: str


_BRACKETS = ("<", "[", "\u25c1")
_STARTS = ("analysis", "here is my", "here are my")


def _may_think(text: str) -> bool:
    """Return whether a text may have a mark: most have none, which is seen faster."""
    if not text.isascii() or any(bracket in text for bracket in _BRACKETS):
        return True
    lowered = text.lower()
    return "assistantfinal" in lowered or lowered.lstrip().startswith(_STARTS)


def split_thinking(text: str) -> Thinking:
    r"""Split an answer from the thinking before it.

    Examples
    --------
    >>> split_thinking("Hm, a knife.\n</think>\nUse a thin blade.")
    Thinking(answer='\nUse a thin blade.', marks='closing')
    >>> split_thinking("<think>Hm, a kn")
    Thinking(answer='', marks='cut')
    """
    if not _may_think(text):
        return Thinking(text, "")
    end = 0
    for mark in _CLOSES.finditer(text):
        end = mark.end()
    answer = text[end:]
    if _OPENS.search(answer):
        return Thinking("", "cut")
    if end:
        return Thinking(answer, "both" if _OPENS.search(text) else "closing")
    steps = _STEPS.search(text)
    if steps:
        return Thinking(text[steps.end() :], "both")
    return Thinking(text, "")
