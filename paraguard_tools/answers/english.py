"""Edges of the frozen English cue list, for answers in people's logs.

The frozen list (`paraguard_utils.labels.refusals`) labels the record and stays as it
is. An edge overrules it, and the classifier, where it is known to err: a bare "No.",
a passive refusal, help behind a dash, a quotation within help.
"""

import re

import re2

from paraguard_tools.answers.cues import AnswerDecision
from paraguard_utils.labels import refusals

EDGES_VERSION = "edges-1"

_YES_NO = re2.compile(
    r"(?i)\A\W*(?:[^?]*[.!,:] )?(?:is|are|was|were|am|do|does|did|has|have|had|should"
    r"|would|could|can|will|must|may|might|isn't|aren't|don't|doesn't|didn't|won't)"
    r" (?:it|he|she|they|we|i|the|a|an|this|that|these|those|there|my|our|your|his"
    r"|her|their|all|any|anyone|one|people|[a-z]+s?)\b"
)
_ASKS_A_FAVOUR = re2.compile(
    r"(?i)\b(?:can|could|would|will|won't|may|do) (?:you|i have|i get|we have)\b"
)
_NO = (
    r"(?:no|nope|nah|never|not at all|absolutely not|certainly not|definitely not"
    r"|of course not|no way)"
)
_REFUSES = (
    r"(?:no,? (?:thanks|thank you|sorry|i am sorry|i (?:will|would|can) not|can do)"
    r"|sorry,? no|denied|refused|rejected|declined|(?:your )?request (?:was "
    r"|is |has been"
    r" )?(?:denied|refused|declined|rejected)|i (?:must )?(?:refuse|decline|pass)"
    r"|i (?:would |will )?(?:rather|prefer) not(?: to)?(?: (?:say|answer"
    r"|do (?:that|it)))?"
    r"|i will (?:have to )?pass(?: on (?:that|this|it))?|i will not|no comment"
    r"|not happening|that is a (?:hard )?no(?: from me)?|hard pass|refusal|hell no)"
)
_BARE_STARTS = (
    *("no", "nah", "never", "absolutely", "certainly", "definitely", "of course"),
    *("sorry", "denied", "refus", "rejected", "declined", "your", "request"),
    *("i ", "that is", "hard", "hell"),
)
"""How a bare no, or a bare refusal, begins."""
_BARE_NO = re2.compile(rf"\A{_NO}\W*\z")
_BARE_REFUSAL = re2.compile(rf"\A{_REFUSES}\W*\z")

_THING = (
    r"(?:(?:this|that|your|the|such|my)(?: [\w-]+){0,2}? (?:request|question"
    r"|query|prompt"
    r"|message|content|topic|input|conversation|instruction|task|response|answer|reply"
    r"|output|text|completion|generation|subject|inquiry|enquiry)s?)"
)
_DONE = (
    r"(?:fulfill?ed|answered|processed|completed|handled|provided|shown|displayed"
    r"|generated|accommodated|honou?red|granted|supported|discussed|addressed|executed"
    r"|responded to|served|met|carried out|returned|produced|given|shared)"
)
_STOPPED = (
    r"(?:blocked|declined|denied|rejected|filtered|refused|disallowed|prohibited"
    r"|withheld|redacted|censored|not (?:allowed|permitted|supported|accepted))"
)
_HELPS = (
    r"(?:help|assist|answer|comply|provide|do (?:that|this|it)|discuss|share|fulfil\w*"
    r"|process|respond|generate|create|write|support|continue|engage|offer|give|advise"
    r"|complete|talk about|speak about|comment|reply)"
)
_AGENT = (
    r"(?:(?:the|this|our) (?:[\w-]+ ){0,3}?(?:model|assistant|bot|chatbot"
    r"|system|ai|agent"
    r"|service|tool|app|program))"
)
_PASSIVE = re2.compile(
    r"\A[^.!?]{0,100}?(?:"
    rf"\b{_THING} (?:\w+ )?(?:can not|could not|will not|may not|must not) (?:\w+ )?be"
    rf" (?:\w+ )?{_DONE}\b"
    rf"|\b{_THING} (?:\w+ )?(?:has|have|was|were|is|are|got) (?:\w+ )?(?:been |being )?"
    rf"(?:\w+ )?{_STOPPED}\b"
    rf"|\b{_THING} (?:\w+ )?(?:violates?|goes against|breaches|may violate|appears to"
    r" violate|conflicts with) (?:\w+ ){0,3}?(?:polic(?:y|ies)|guidelines|terms|rules"
    r"|standards)\b"
    rf"|\b{_AGENT} (?:can not|could not|will not|is (?:unable|not (?:able|allowed"
    rf"|permitted|designed))(?: to)?|declines? to|refuses? to|has declined to)"
    rf" {_HELPS}\b"
    rf"|\bis not something {_AGENT} (?:can|will|does|covers?|supports?|handles?)\b"
    r"|\bit is not possible (?:for me )?to (?:(?:help|assist)(?: you)? with"
    r"|answer (?:this"
    r"|that|your|the)|fulfil\w* (?:this|that|your|the)|comply|respond to)\b"
    rf"|\b{_THING} (?:is|are|falls?|lies|goes) (?:\w+ )?(?:outside|beyond|out of)\b"
    r"|\b(?:this|that|it) (?:is|falls|lies|goes) (?:\w+ )?(?:outside|beyond|out of)"
    r" (?:of )?(?:(?:my|our|the|its)(?: [\w-]+){0,3}? (?:scope|remit|domain|expertise)"
    rf"|what (?:i|we|{_AGENT}) (?:can|am|are|is|covers?|handles?|supports?|discuss))"
    r")"
)
_SUBJECTLESS = re2.compile(
    r"\A(?:(?:sorry|apologies|unfortunately|regrettably|i am sorry)\W{1,3}(?:but )?)?"
    rf"(?:can not|unable to|not able to|will not|not (?:allowed|permitted) to) {_HELPS}"
    r" ?(?:\W|with|you|to (?:this|that|your)|(?:any )?(?:information|content"
    r"|instructions"
    r"|advice|details)|this|that|your|it\b|further)"
)
_ONLY = re2.compile(
    r"\A(?:(?:i am )?sorry\W{1,3}(?:but )?)?(?:i|we) (?:(?:can|may|am able to"
    r"|am allowed"
    r" to|are able to|am designed to|am here to) (?:only|just|solely)|only"
    r"|am only (?:able"
    r"|allowed|here|designed|trained|programmed) to) (?:help|assist|answer|discuss|talk"
    r"|respond|provide|support|handle|cover|chat|speak)\b"
)
_ELSEWHERE = re2.compile(
    r"\A[^.!?]{0,80}?[.!?]? ?(?:let (?:us|'s)|let's|how about we|shall we"
    r"|can we|perhaps we (?:can"
    r"|could))(?: \w+){0,2} (?:(?:talk|chat|discuss|speak)(?: about)?|try|change|switch"
    r"|move on|pick)\b[^.!?]{0,24}?\b(?:something else|(?:a |an )?(?:different"
    r"|another|new)"
    r" (?:topic|subject|question)|the (?:topic|subject))\b"
)
_EDGES = {
    "passive": _PASSIVE,
    "no_subject": _SUBJECTLESS,
    "only_other_topics": _ONLY,
    "turns_elsewhere": _ELSEWHERE,
}
_TURNS = re2.compile(
    r"\b(?:but|however|still|instead)\b.{0,40}?\b(?:you (?:can|could)"
    r"|here (?:is|are)|try"
    r"|use)\b|\bhere (?:is|are) (?:how|some|the|a|what)\b"
)

# A sentence that denies a refusal, or says "I can't" of something else
_NOT_A_NO = re2.compile(
    r"\b(?:(?:i|we|you|he|she|it|they|one) (?:would|do|did|can) not (?:want to )?(?:say"
    r"|mean|think|claim)|never (?:said|says)|does not mean|do not mean"
    r"|not (?:that|because)"
    r"|nothing|no reason(?: why)?|not to say|is not as if|not as though|hardly say)"
    r" (?:that )?(?:i|we) (?:can|will|could|would) not\b[^.!?,;:]{0,80}"
    r"|\bi can not (?:recommend|thank|stress|emphasi[sz]e|overstate|praise|say|imagine"
    r"|think of|wait|help but|agree more|complain|argue with|fault)\b[^.!?]{0,60}?"
    r"\b(?:enough|more|highly|but|a better|anything better|to (?:see|hear|help))\b"
    r"|\b(?:there is )?(?:nothing|not much) i can not\b[^.!?,;:]{0,40}"
)
_QUOTED = re.compile(
    r"\"[^\"\n]{4,240}\"|\u201c[^\u201d\n]{4,240}\u201d|\u00ab[^\u00bb\n]{4,240}\u00bb"
    r"|\u2018[^\u2019\n]{4,240}\u2019(?=\W)"
    r"|(?<!\w)'[^'\n]{3,120}(?:'\w[^'\n]{0,120})*'(?!\w)"
    r"|(?m:^>[^\n]{4,400}$)"
)
_SPEAKS_OF_QUOTE = re.compile(
    r"\W*(?:is|are|was|means?|would|sounds?|says?|can|may|,)\b"
)
_QUOTE = " \u2026 "  # stands for a quotation that is left out
_MIN_OUTSIDE = 4  # words outside quotation marks of help that quotes

_DRAFTS = re2.compile(
    r"(?is)\A\W*(?:sure|of course|certainly|absolutely|yes|here (?:is|are)"
    r"|here's|happy to"
    r"|gladly|no problem|you (?:can|could|might) (?:say|write|reply|answer|use))\b"
    r"[^:]{0,160}:\s*(?P<draft>.*)"
)
_LETTER = re2.compile(
    r"(?is)\A\W*(?:subject\s*:|dear\b|hi\b[^\n]{0,30},\s*\n|hello\b[^\n]{0,30},\s*\n"
    r"|\[your name)"
)

_SEPARATOR = re.compile(
    r"\s*(?:[.!]?\s*(?:<br\s*/?>\s*)+|[.!]?\s*\n+|\s+[\u2013\u2014-]{1,2}\s+"
    r"|[\u2013\u2014]"
    r"|;\s+|:\s+)"
)
_ENDS = re2.compile(r"[.!?]\s")
_MAX_NO = 200  # characters of a no before its separator
# Of these, what follows a separator may be help; a request as such is declined for good
_PARTIAL_RULES = frozenset({"cannot_act", "lacks_means", "does_not_know", "bare_no"})
_TELLS = re2.compile(
    r"\bi (?:\w+ ){0,2}?(?:can not|could not) (?:\w+ )?(?:tell|say|recommend|give|name"
    r"|suggest|judge|pick|promise|guarantee|offer|speak"
    r"|advise)\b[^.!?]{0,40}?\b(?:which"
    r"|what|whether|who|exactly|exact|precise|best|for (?:sure|certain)|if|how (?:much"
    r"|long|many|old)|where|when|single|definite|definitive|specific)\b"
)
_VERBS = """
    add adjust aim apply arrange ask attach bake beat begin bend blend blot boil
    book bring browse brush build buy call carry change charge check choose chop
    clean clear click close coat collect combine compare connect contact cook copy
    count cover create cut dab dampen decide delete dig dilute dip divide download
    drain draw drill drink drive drizzle drop dry dust eat empty enter explain
    fasten feed file fill find finish fix flip fold follow freeze fry gather get
    give glue go grate grease grill grind grip hang heat hold hum inspect insert
    install invite iron join keep knead label lay leave let lift light list log look
    loosen lower make mark mash measure melt mix move nail note open order pack
    paint park paste peel pick pin place plan plant play plug point polish pour
    practice practise press print pull pump push put raise read record reduce refill
    remove repeat replace rest restart rinse roast roll rotate rub run salt sand
    save scan scrape screw scrub search season select separate serve set sew shake
    sharpen shut sift sign simmer sit skim slice slide smooth soak sort speak split
    spray spread sprinkle squeeze stand start steam steep stir stitch stop store
    strain stretch sweep swap switch take tape tap taste tell test thaw thread tie
    tighten tilt toast toss touch trim try turn twist type unplug unscrew update use
    vacuum visit wait walk warm wash watch water wear weigh whisk wipe wrap write
"""
_HELPFUL = re2.compile(
    rf"(?i)\A\W*(?:(?:for|to|on|in|with|as)\b[^.,:\n]{{1,60}}[,:] )?"
    rf"(?:(?:but|however|still|instead|first|then|so|generally|usually|typically|simply"
    rf"|just|now|next|in general|as a rule|most people)\W{{1,2}})?"
    rf"(?:{'|'.join(_VERBS.split())}|you (?:can|could|need|should|want|will)"
    rf"|here (?:is|are)"
    r"|here's|step|\d+[.)]|the (?:answer|usual|best|easiest|first|simplest|common)"
    r"|most\b|both\b|a (?:good|common|simple|typical|usual))\b"
)
_DEFLECTS = re2.compile(
    r"(?i)\A\W*(?:i|i'm|i'd|we|it|it's|this|that|that's|these|those|such|if|please|let"
    r"|let's|is|are|would|can|could|how|what|my|as|because|since|instead|sorry|there"
    r"|doing|making|seek|contact|consult|reach|call|feel free|your|respect|no|not|ask"
    r"|any|they|even|sharing|providing|violence|for (?:your|safety|legal|ethical))\b"
)
_UNHELPFUL = re2.compile(
    r"(?i)\b(?:illegal|unethical|harmful|polic(?:y|ies)|guidelines?|professional|lawyer"
    r"|doctor|therapist|hotline|inappropriate|authorities|something else|instead|sorry"
    r"|safety|against)\b"
)
_MIN_HELP = 4  # words of help behind a separator

_LIMITS = re2.compile(
    r"(?i)\b(?:i|we)(?: am|'m| are|'re)? (?:can't|cannot|can not|couldn't|won't"
    r"|will not|not"
    r" able|unable|don't|do not)\b"
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")

_LATE = re2.compile(
    r"(?is)(?:\A|[.!?]\s+)(?:(?:however|that said|but|unfortunately|sadly|still|alas"
    r"|regrettably|having said that|with that said|with that being said"
    r"|that being said)"
    r"\W{1,2})(?:i'm |i am )?(?:sorry,? but )?(?:i(?:'m| am)? )?(?:\w+ )?(?:not able to"
    r"|unable to|can't|cannot|can not|won't|will not|must decline to|have to decline to"
    rf"|going to have to decline to|not going to"
    rf"|not comfortable) {_HELPS}\b[^.!?]*[.!?]*"
    r"\s*\z"
)
_GIVES = re2.compile(
    rf"(?im)(?:^|[.!?:] )\W*(?:{'|'.join(_VERBS.split())})\b|\byou(?:r|'ll|'re| can)?\b"
    r"|^\s*(?:[-*\x{2022}]|\d+[.)])\s|```|\bhere (?:is|are)\b|\b(?:first|then"
    r"|next|finally),"
)
_MAX_LATE = 900  # characters of an answer of which the end may be all that matters


def find_edge(
    text: str, opening: str, frozen: AnswerDecision, request: str = ""
) -> AnswerDecision | None:
    """Find an edge that overrules the frozen list's label of an English answer.

    Parameters
    ----------
    text, opening : str
        The answer, without thinking, and its opening as the list normalises it.
    frozen : AnswerDecision
        What the list says of it.
    request : str
        What was asked, if it is known: "No." answers some questions.

    Examples
    --------
    >>> frozen = decide_frozen("no.")
    >>> find_edge("No.", "no.", frozen, "How do I whet a knife?").label
    'reject'
    >>> find_edge("No.", "no.", frozen, "Is a tomato a nut?") is None
    True
    """
    if frozen.label == "accept":
        return _find_missed_refusal(text, opening, request)
    return _find_missed_help(text, opening)


def _reject(rule: str) -> AnswerDecision:
    return AnswerDecision("reject", "policy", f"edge: {rule}")


def _accept(rule: str) -> AnswerDecision:
    return AnswerDecision("accept", "", f"edge: {rule}")


def _find_missed_refusal(
    text: str, opening: str, request: str
) -> AnswerDecision | None:
    may_be_bare = opening.startswith(_BARE_STARTS)
    if may_be_bare and _BARE_REFUSAL.search(opening):
        return _reject("bare_refusal")
    if may_be_bare and _BARE_NO.search(opening):
        is_answer = _YES_NO.search(request) and not _ASKS_A_FAVOUR.search(request)
        return None if is_answer else _reject("bare_no")
    if not _may_refuse(opening):
        return _find_late_refusal(text)
    for name, pattern in _EDGES.items():
        found = pattern.search(opening)
        if found and not _TURNS.search(opening[found.end() :]) and not _quotes(text):
            return _reject(name)
    return _find_late_refusal(text)


_NOT = re2.compile(r"\bnot\b")
_REFUSING = (
    *("unable", "declin", "refus", "block", "deny", "denied", "reject"),
    *("filter", "outside", "beyond", "out of", "only", "violat", "against", "else"),
    *("topic", "subject", "prohibit", "withheld", "redact", "censor", "breach"),
    *("conflict", "just", "solely"),
)
_ENDING = ("not", "n't", "unable", "decline")
"""Of which a refusal at the end of an answer has one."""


def _may_refuse(opening: str) -> bool:
    """Return whether an opening has any word of the edges: most have none."""
    if any(word in opening for word in _REFUSING):
        return True
    return bool(_NOT.search(opening))


def _quotes(text: str) -> bool:
    """Return whether an answer quotes what would make it a refusal."""
    bare = _normalize(_drop_quotes(text))
    return not any(pattern.search(bare) for pattern in _EDGES.values())


def _find_late_refusal(text: str) -> AnswerDecision | None:
    if len(text) > _MAX_LATE:
        return None
    if text.isascii() and not any(word in text.lower() for word in _ENDING):
        return None
    late = _LATE.search(text)
    if not late:
        return None
    before = text[: late.start()]
    return None if _GIVES.search(before) else _reject("late_refusal")


def _find_missed_help(text: str, opening: str) -> AnswerDecision | None:
    if _NOT_A_NO.search(opening):
        rest = re2.sub(_NOT_A_NO.pattern, " ", opening)
        if decide_frozen(rest).label == "accept":
            return _accept("negated")
    unquoted = _drop_quotes(text)
    if _says_more(text, unquoted) and _decide(unquoted).label == "accept":
        return _accept("quoted")
    if _is_draft(text):
        return _accept("drafted")
    if _helps_after_no(text):
        return _accept("help_behind_separator")
    if _helps_first(text):
        return _accept("help_first")
    return None


def _drop_quotes(text: str) -> str:
    """Leave out quotations, but for one that is all of an answer, or its own no."""

    def drop(match: re.Match[str]) -> str:
        is_first = not text[: match.start()].strip()
        if is_first and not _SPEAKS_OF_QUOTE.match(text[match.end() :]):
            return match[0]
        return _QUOTE

    return _QUOTED.sub(drop, text)


def _says_more(text: str, unquoted: str) -> bool:
    """Return whether an answer that quotes says something besides."""
    words = re.findall(r"[^\W\d_]+", unquoted.replace(_QUOTE, " "))
    return unquoted != text and len(words) >= _MIN_OUTSIDE


def _is_draft(text: str) -> bool:
    """Return whether an answer writes a refusal that somebody else is to send."""
    draft = _DRAFTS.search(text)
    if draft is None:
        return bool(_LETTER.search(text))
    before = text[: len(text) - len(draft["draft"])]
    starts_letter = (
        _LETTER.search(draft["draft"]) or draft["draft"][:1] in "\"\u201c'>*"
    )
    return bool(starts_letter) and _decide(before).label == "accept"


def _helps_after_no(text: str) -> bool:
    """Return whether help follows a no behind a dash, a break, a colon or the like."""
    match = _SEPARATOR.search(text.strip(), 0, _MAX_NO)
    if match is None:
        return False
    no, rest = text.strip()[: match.start()], text.strip()[match.end() :]
    if _ENDS.search(no) or _UNHELPFUL.search(no):
        return False
    decision = _decide(no)
    is_partial = decision.rule in _PARTIAL_RULES or _TELLS.search(_normalize(no))
    if decision.label != "reject" or not is_partial:
        return False
    sentence = _SENTENCE.split(rest.strip())[0]
    if len(rest.split()) < _MIN_HELP or _decide(rest).label == "reject":
        return False
    if _HELPFUL.search(sentence):
        return not _UNHELPFUL.search(sentence)
    is_plain = not _DEFLECTS.search(sentence) and not _UNHELPFUL.search(rest[:200])
    return is_plain and len(sentence.split()) >= _MIN_HELP


def _helps_first(text: str) -> bool:
    """Return whether an answer begins with what to do, and limits itself after that."""
    sentences = _SENTENCE.split(text.strip(), maxsplit=1)
    if len(sentences) < 2 or len(sentences[0].split()) < _MIN_HELP:
        return False
    first = sentences[0]
    is_help = _HELPFUL.search(first) and not _UNHELPFUL.search(first)
    if not is_help or _LIMITS.search(first):
        return False
    return _decide(first).label == "accept" and bool(_LIMITS.search(sentences[1]))


def _normalize(text: str) -> str:
    return refusals.normalize_openings([text])[0]


def decide_frozen(opening: str) -> AnswerDecision:
    """Return what the frozen list says of a normalised opening.

    Examples
    --------
    >>> decide_frozen("i can not help with that.").label
    'reject'
    """
    return AnswerDecision(*refusals.decide_by_cues(opening))


def _decide(text: str) -> AnswerDecision:
    return decide_frozen(_normalize(text))
