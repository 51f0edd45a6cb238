"""Label answers of people's logs: what is no answer, then by language and cues.

Each answer goes through the same steps, of which the first that knows decides: a stop
of the provider, an error, thinking, nothing at all, a fixed line, its language, and at
last the frozen labeller with its edges (`docs/labels.md`).
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_tools.answers import canned, cues, english, languages, nothing
from paraguard_tools.answers.cues import AnswerDecision
from paraguard_tools.answers.thinking import Thinking, split_thinking
from paraguard_utils.labels import refusals

CUES_LABELLER = f"{refusals.CUES_VERSION}+{english.EDGES_VERSION}"

# Reasons of providers to end an answer that is whole
_WHOLE = frozenset(
    {"stop", "end_turn", "eos", "stop_sequence", "complete", "completed"}
)
_MAX_NEIGHBOURLY = 60  # characters of an answer that may be in a neighbouring language
_MAX_SHORT = 40  # characters of an answer that the request gives its meaning
# If so many answers of a system have only the end of their thinking marked, its
# beginning is in the prompt, and an answer without the mark was cut while thinking
_SHARE_CLOSING = 0.5

_EMPTY = AnswerDecision("unparsed", "empty", "empty")
_ERROR = AnswerDecision("unparsed", "error", "error")
_THINKING = AnswerDecision("unparsed", "thinking", "thinking")
_CUT = Thinking("", "cut")  # an answer that ended while its model was thinking


class AnswerReading(NamedTuple):
    """What was read in an answer: the decision, and the text that a classifier reads.

    `text` is "" if the decision is final.
    """

    decision: AnswerDecision
    text: str = ""


def label_logs_by_cues(
    answers: pd.DataFrame, phrases: Sequence[str] = ()
) -> pd.DataFrame:
    """Label answers without the classifier.

    Parameters
    ----------
    answers : DataFrame, n rows
        answer, and perhaps finish_reason, text (the request) and system.
    phrases : sequence of str
        Fixed lines in which the user's own product declines.

    Returns
    -------
    DataFrame, n rows
        label, kind and rule, as `refusals.label_by_cues` returns them. The kind of what
        is unparsed is empty, error, thinking or language; the rule then names the
        language.

    Examples
    --------
    >>> answers = pd.DataFrame({"answer": ["Desculpe, n\u00e3o posso ajudar.", "nan"]})
    >>> label_logs_by_cues(answers)["label"].tolist()
    ['reject', 'unparsed']
    """
    decisions = [reading.decision for reading in read_answers(answers, phrases)]
    return pd.DataFrame(decisions, columns=["label", "kind", "rule"], dtype=object)


def label_with_classifier(
    answers: pd.DataFrame, phrases: Sequence[str] = ()
) -> tuple[pd.DataFrame, str]:
    """Label answers by cues, and the English ones by the classifier too.

    Returns the columns of `label_logs_by_cues`, p_refusal, and the labeller's name.
    ImportError if the classifier is not installed.
    """
    from paraguard_utils.labels import labelling

    readings = read_answers(answers, phrases)
    labels = pd.DataFrame(
        [reading.decision for reading in readings],
        columns=["label", "kind", "rule"],
        dtype=object,
    ).assign(p_refusal=np.nan)
    is_read = np.array([bool(reading.text) for reading in readings], bool)
    texts = [reading.text for reading in readings if reading.text]
    requests = None
    if "text" in answers and answers["text"].notna().any():
        requests = answers["text"].fillna("").to_numpy(object)[is_read]
    found = labelling.label_responses(texts, [None] * len(texts), requests)
    for column in labels:
        labels.loc[is_read, column] = found[column].to_numpy()
    return labels, f"{labelling.LABELLER}+{english.EDGES_VERSION}"


def read_answers(
    answers: pd.DataFrame, phrases: Sequence[str] = ()
) -> list[AnswerReading]:
    """Read answers, in order; equal ones once."""
    texts = answers["answer"].tolist()
    reasons = _column(answers, "finish_reason")
    requests = _column(answers, "text")
    lines = tuple(filter(None, map(canned.normalize_line, phrases)))
    thoughts = {text: split_thinking(text) for text in texts if isinstance(text, str)}
    thinks = _find_thinking_systems(answers, thoughts)
    known: dict[tuple[object, object, object, bool], AnswerReading] = {}
    readings = []
    for text, reason, request, expects in zip(
        texts, reasons, requests, thinks, strict=True
    ):
        is_text = isinstance(text, str)
        # Without a text, nothing but the reason matters; NaN is no key
        asked = request if is_text and len(text) <= _MAX_SHORT else ""
        key = (text if is_text else None, _plain(reason), _plain(asked), expects)
        if key not in known:
            thought = None
            if is_text:
                thought = thoughts[text]
                if not thought.marks and expects and reason not in _WHOLE:
                    thought = _CUT
            known[key] = _read(text, reason, asked, lines, thought)
        readings.append(known[key])
    return readings


def _column(answers: pd.DataFrame, name: str) -> list[object]:
    return answers[name].tolist() if name in answers else [None] * len(answers)


def _plain(value: object) -> object:
    return value if isinstance(value, str) else None


def _find_thinking_systems(
    answers: pd.DataFrame, thoughts: Mapping[str, Thinking]
) -> list[bool]:
    """Say of each answer whether its system marks the end of its thinking only."""
    marks = answers["answer"].map(
        lambda text: thoughts[text].marks if isinstance(text, str) else None
    )
    if not marks.eq("closing").any():
        return [False] * len(answers)
    systems = (
        pd.Series(_column(answers, "system"), answers.index).fillna("").astype(str)
    )
    is_there = marks.notna()
    share = marks[is_there].eq("closing").groupby(systems[is_there]).mean()
    return (systems.map(share).fillna(0.0) >= _SHARE_CLOSING).tolist()


def _read(
    text: object,
    reason: object,
    request: object,
    lines: Sequence[str],
    thought: Thinking | None,
) -> AnswerReading:
    """Read one answer by the first step that knows what it is.

    `thought` is the answer without its thinking, None if it is no text.
    """
    stop = refusals.find_provider_stop(reason, text)
    if stop:
        return AnswerReading(AnswerDecision("blocked", stop.category, stop.value))
    if reason == "error":
        return AnswerReading(_ERROR)
    if thought is None:
        return AnswerReading(_EMPTY)
    answer, marks = thought
    if marks == "cut" or (marks and not answer.strip()):
        return AnswerReading(_THINKING)
    return _read_text(answer, str(request or ""), lines)


def _read_text(answer: str, request: str, lines: Sequence[str]) -> AnswerReading:
    """Read an answer without thinking, of a provider that did not stop it."""
    kind = nothing.find_nothing(answer)
    if kind:
        return AnswerReading(_decide_nothing(answer, kind))
    opening = refusals.normalize_openings([answer])[0]
    if not opening:
        return AnswerReading(_EMPTY)
    if canned.has_phrase(answer, lines):
        return AnswerReading(AnswerDecision("reject", "policy", "phrase"))
    provider = canned.find_line(answer)
    if provider:
        return AnswerReading(AnswerDecision("reject", "policy", f"line: {provider}"))
    language = languages.find_language(answer)
    if language == languages.ENGLISH:
        return _read_english(answer, opening, request)
    if language in cues.read_language_cues():
        return AnswerReading(_decide_in(language, answer))
    if language != languages.UNSURE:
        return AnswerReading(_abstain(language))
    return _read_unsure(answer, opening, request)


def _decide_nothing(answer: str, kind: nothing.Nothing) -> AnswerDecision:
    """Decide what a text in place of an answer is; a filter's error is its stop."""
    if kind == "blocked":
        return AnswerDecision("blocked", "", "placeholder")
    if kind == "empty":
        return _EMPTY if not answer.strip() else _EMPTY._replace(rule="placeholder")
    stop = _find_stop_in_error(answer)
    return AnswerDecision("blocked", stop.category, stop.value) if stop else _ERROR


@cache
def _find_stop_in_error(text: str):  # type: ignore[no-untyped-def]
    from paraguard_tools.servers import stops

    return stops.find_stop_in_error(text, text)


def _read_english(answer: str, opening: str, request: str) -> AnswerReading:
    frozen = english.decide_frozen(opening)
    edge = english.find_edge(answer, opening, frozen, request)
    return AnswerReading(edge) if edge else AnswerReading(frozen, answer)


def _decide_in(language: str, answer: str) -> AnswerDecision:
    """Label an answer by its language's list, a short one by its neighbours' too."""
    decision = cues.decide_by_language_cues(answer, language)
    is_short = len(answer) <= _MAX_NEIGHBOURLY and language in cues.LATIN_LANGUAGES
    if decision.rule != "no_cue" or not is_short:
        return decision
    return cues.decide_by_any(answer, cues.LATIN_LANGUAGES)


def _read_unsure(answer: str, opening: str, request: str) -> AnswerReading:
    """Read an answer in Latin script that is too short to tell its language."""
    reading = _read_english(answer, opening, request)
    if reading.decision.label == "reject":
        return reading
    decision = cues.decide_by_any(answer, cues.LATIN_LANGUAGES)
    if decision.label == "reject":
        return AnswerReading(decision)
    if languages.has_english_words(answer):
        return reading
    return AnswerReading(_abstain("unknown"))


def _abstain(language: str) -> AnswerDecision:
    return AnswerDecision("unparsed", "language", f"language {language}")
