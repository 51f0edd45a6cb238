"""Interpretations of the labels beside the paper's path (`docs/method.md`, Labels)."""

from paraguard_utils.labels import refusals
from paraguard_utils.labels.labelling import STOPPED_KIND
from paraguard_utils.schemas import Labels


def reread_labels(labels: Labels, labeller: str) -> Labels:
    """Relabel labels, in which what a provider stopped is a rejection.

    `labeller` is one of `settings.Labeller`; "aside" leaves what was stopped without a
    decision, and no other changes it. A judge's labels stay as they are.
    """
    label = labels["label"]
    kind = labels["kind"]
    is_stopped = kind == STOPPED_KIND
    is_rejected = (label == "reject") & ~is_stopped
    is_read = is_rejected | (label == "accept")
    if labeller == "aside":
        label = label.mask(is_stopped, "unparsed")
    elif labeller == "full":
        label = label.mask(is_rejected & (kind == "partial"), "accept")
    elif labeller == "policy":
        label = label.mask(is_rejected & (kind != "policy"), "unparsed")
    elif labeller == "fluent":
        label = label.mask(is_read & (labels["answer"] == "degenerate"), "unparsed")
    elif labeller == "cues":
        has_cue = labels["rule"].isin([cue.rule for cue in refusals.read_cues()])
        label = label.mask(is_read, has_cue.map({True: "reject", False: "accept"}))
    return labels.assign(label=label)
