"""Kinds of files that only this package reads and writes: their columns and places.

They join those of `paraguard_utils` as stores are imported, by an entry point of the
group `paraguard.kinds`.
"""

import pandera.pandas as pa

from paraguard_utils.core.decisions import LABELS
from paraguard_utils.core.strategies import STRATEGIES
from paraguard_utils.schemas import (
    ANSWER_KINDS,
    SCHEMAS,
    count,
    free_text,
    number,
    one_of,
    schema,
    text,
    unit,
)
from paraguard_utils.stores import KINDS, FileKind

THREE_LABELS = ("full_compliance", "full_refusal", "partial_refusal")
"""XSTest's three labels of an answer."""

READ_ANSWERS = ("usable", "poor", "off_topic", "degenerate")
"""What a reader says of an answer (`docs/reading.md`)."""

_read_refusal = one_of((*THREE_LABELS, "unclear"))
_read_answer = one_of(READ_ANSWERS)

SCHEMAS.update(
    {
        "generated": schema(
            seed_id=text(),
            strategy=one_of(STRATEGIES),
            text=text(),
            generator=text(),
            rule=text(),
        ),
        "neutral": schema(prompt_id=text(unique=True), text=text(unique=True)),
        "drifts": schema(
            ["first_hash", "second_hash"],
            first_hash=text(),
            second_hash=text(),
            drift=number(unit),
        ),
        "verdicts": schema(
            prompt_id=text(unique=True),
            labeller=text(),
            label=one_of(LABELS),
            kind=free_text(),
            rule=free_text(),
            response=free_text(),
        ),
        "annotations": schema(
            ["system", "prompt_id"],
            system=text(),
            prompt_id=text(),
            first_refusal=_read_refusal,
            second_refusal=_read_refusal,
            first_answer=_read_answer,
            second_answer=_read_answer,
            response=text(),
        ),
        "answers": schema(
            prompt_id=text(unique=True),
            key=text(),
            response=free_text(),
            finish_reason=text(),
            label=one_of(LABELS),
            declined_later=pa.Column(bool),
            sample=pa.Column(bool),
        ),
        "samples": schema(
            ["prompt_id", "temperature", "draw"],
            prompt_id=text(),
            temperature=number(),
            draw=count(),
            key=text(),
            label=one_of(LABELS),
            answer=one_of(ANSWER_KINDS, nullable=True),
            response=free_text(),
        ),
        "blind_annotations": schema(
            ["corpus", "system", "prompt_id"],
            kind=one_of(("twins", "wordings", "reworded", "remedied")),
            corpus=text(),
            system=text(),
            prompt_id=text(),
            label=one_of(LABELS),
            label_again=one_of(LABELS),
            first_refusal=_read_refusal,
            first_answer=_read_answer,
            second_refusal=_read_refusal,
            second_answer=_read_answer,
        ),
        "training_answers": schema(
            answer_id=text(unique=True),
            source=text(),
            prompt=text(),
            response=text(),
            first_label=one_of(THREE_LABELS),
            second_label=one_of(THREE_LABELS),
        ),
    }
)

KINDS.update(
    {
        "generated": FileKind("generated/{}.csv", "A2_writers", "promoted"),
        "drifts": FileKind("vectors/{1}/{0}.drifts.parquet", "06_validity", "promoted"),
        "verdicts": FileKind(
            "verdicts/{}/{}.csv", "A0_asked_again with judge=MODEL", "on request"
        ),
        "answers": FileKind(
            "answers/{}/{}.csv", "A0_asked_again with long_answers=200", "on request"
        ),
        "samples": FileKind(
            "samples/{}/{}.parquet", "A0_asked_again with draw=60", "on request"
        ),
        "tuning": FileKind("tuning/{}/{}.jsonl", "A4_decisions", "derived"),
    }
)
