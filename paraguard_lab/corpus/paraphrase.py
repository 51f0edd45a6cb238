"""Candidate paraphrases of any seed, by rules or by a model (`docs/method.md`, Corpus).

The rules need no model: a candidate is one sentence of the text in a frame of
`data/generation/frames.yaml`, or in none, with substitutions from
`data/generation/lexicon.csv`. A generator seeded with the text chooses both, so a seed
always gets the same candidates. Where it is in doubt whether the result is English,
words are left alone.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from string import Formatter
from typing import Any, TypeAlias

import lemminflect
import numpy as np
import pandas as pd
import yaml
from textblob.en import tag as part_of_speech_tags

from paraguard_utils import paths, stores, unsafe
from paraguard_utils.core.estimates import SEED
from paraguard_utils.models import backends, loading, prompting, trace_store
from paraguard_utils.schemas import STRATEGIES
from paraguard_utils.text import (
    THINKING_BLOCK,
    content_words,
    match_key,
    replace_control,
)

LEXICON_FILE = paths.DATA / "generation" / "lexicon.csv"
FRAMES_FILE = paths.DATA / "generation" / "frames.yaml"
RULES_VERSION = "rules-2"

_Span: TypeAlias = tuple[int, int]  # start, end
_Replacements: TypeAlias = dict[str, list[str]]  # replacements by kind

_TOKEN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[^\w\s]|_")
_QUOTATION = re.compile(r"([\"“«'‘`]).*?([\"”»'’`])(?=\W|$)")
_SENTENCE_END = re.compile(r"(?<=[\w)\"'][\w)\"'][.!?])\s+")
_PREAMBLE = re.compile(
    r"(?i)^(?:sure|certainly|of"
    r" course|here|re-?written|paraphrased?|new|request|version)[^:?]*:\W*"
)
_INVERTED_QUESTION = re.compile(
    r"(?i)(?:how|why|when|where)"
    r" (?:am|are|can|could|did|do|does|is|should|was|were|will|would)\b"
)
_TRAILING_QUESTION = re.compile(
    r"(?i)\b(?:and|or) (?:how|if|what|when|where|whether|why)\b"
)
_ASKED_VERB = re.compile(r"\{(?:ASK|DO|ORDER)\} ?\{VP\}")
_ARTICLE = re.compile(r"\b([Aa])n? \Z")

MAX_CANDIDATES = {
    "lexical": 4,
    "register": 6,
    "softening": 6,
    "hardening": 6,
    "rewrite": 8,
}
"""Candidates by strategy, at most: more than a cluster needs, so that the gates can
choose.
"""

MIN_TONE_WORDS = (
    2  # words of another tone that make a register shift where no frame fits
)
_REPLACED_SHARES = (
    1.0,
    0.6,
    0.8,
    0.4,
)  # of a text's replaceable words that are replaced, in turn
_REPLACED_SHARES_BESIDE_CHARGED = (
    0.0,
    0.15,
    0.3,
)  # of the other words of a softening or hardening


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_BEFORE_VERB = _word_set(
    "can could i let's may might must not please shall should they to we who will"
    " would you"
)
_BEFORE_NOUN = _word_set(
    "a an any each every her his its my no of our some that the their these this those"
    " your"
)
_BEFORE_PARTICIPLE = _BEFORE_NOUN | _word_set(
    "about and as at by for from in on or over to under with"
)
_BEFORE_TO_VERB = _word_set(
    "able going how like looking me need order steps trying try us used want wants way"
    " ways where you"
)
_BE_HAVE = _word_set(
    "am are be been being get gets getting got had has have having is was were"
)


@cache
def _lexicon() -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Read the lexicon: (replacement, kind) by part of speech and term."""
    rows = pd.read_csv(LEXICON_FILE).groupby(["pos", "term"], sort=False)[
        ["replacement", "kind"]
    ]
    return {key: list(own.itertuples(index=False, name=None)) for key, own in rows}


@cache
def _longest_term() -> int:
    return max(len(term.split()) for _, term in _lexicon())


@cache
def _frames() -> dict[str, list[dict[str, Any]]]:
    """Read the frames of each strategy and compile their patterns."""
    content = yaml.safe_load(FRAMES_FILE.read_text(encoding="utf-8"))
    frames: dict[str, list[dict[str, Any]]] = {}
    for frame in content["frames"]:
        pattern = re.sub(
            r"\{([A-Z]+)\}", lambda match: content["macros"][match[1]], frame["pattern"]
        )
        frames.setdefault(frame["strategy"], []).append(
            frame | {"regex": re.compile(pattern, re.IGNORECASE)}
        )
    return frames


def rules_digest() -> str:
    """Return 16 hex digits over the rules' data and version."""
    content = (
        RULES_VERSION.encode() + LEXICON_FILE.read_bytes() + FRAMES_FILE.read_bytes()
    )
    return hashlib.sha256(content).hexdigest()[:16]


@lru_cache(maxsize=50_000)
def _lemma(word: str, pos: str) -> str:
    return next(iter(lemminflect.getLemma(word, pos, lemmatize_oov=False)), word)


@lru_cache(maxsize=50_000)
def _inflected(word: str, tag: str) -> str:
    return next(iter(lemminflect.getInflection(word, tag)), word)


@lru_cache(maxsize=50_000)
def _can_be_verb(word: str) -> bool:
    """Return whether a word is the base form of a verb."""
    return word in lemminflect.getLemma(word, "VERB", lemmatize_oov=False)


@cache
def _articles() -> Any:
    import inflect  # takes seconds

    return inflect.engine()


@lru_cache(maxsize=1_000)  # the same text is substituted in again and again
def find_substitutions(
    text: str, kept: tuple[_Span, ...] = ()
) -> list[tuple[int, int, _Replacements]]:
    """Find what the lexicon can replace in a text, outside the spans to be kept, in
    text order and without overlaps.

    Returns start, end, and for each kind the replacements, inflected and capitalised as
    the original. Where terms overlap, the first and then the longest is taken.
    """
    tokens = list(_TOKEN.finditer(text))
    lowered = [token[0].lower().replace("’", "'") for token in tokens]
    tagged = part_of_speech_tags(
        " ".join("-" if token[0] == "/" else token[0] for token in tokens),
        tokenize=False,
    )
    tags = (
        [tag for _, tag in tagged] if len(tagged) == len(tokens) else [""] * len(tokens)
    )
    spans = [*kept, *(match.span() for match in _QUOTATION.finditer(text))]
    stays = [
        _is_no_common_word(i, tokens)
        or any(a <= token.start() and token.end() <= b for a, b in spans)
        for i, token in enumerate(tokens)
    ]
    found, i = [], 0
    while i < len(tokens):
        step, free = 1, [*stays[i:], True].index(True)
        for length in range(min(_longest_term(), free), 0, -1):
            if options := _options(i, length, tokens[i][0][0].isupper(), lowered, tags):
                found.append((tokens[i].start(), tokens[i + length - 1].end(), options))
                step = length
                break
        i += step
    return found


def _is_no_common_word(i: int, tokens: list[re.Match[str]]) -> bool:
    """Say whether a token is no word, a name or an abbreviation."""
    token = tokens[i][0]
    begins = i == 0 or tokens[i - 1][0] in ".!?:"
    return (
        not token[0].isalpha()
        or not (token.islower() or begins)
        or (len(token) > 1 and token.isupper())
    )


def _options(
    i: int, length: int, capital: bool, lowered: list[str], tags: list[str]
) -> _Replacements:
    """Return the replacements of the term of `length` tokens at `i`, its verb or head
    noun inflected.
    """
    options: _Replacements = {}
    for pos, form, term in _annotations(i, length, lowered, tags):
        for replacement, kind in _lexicon().get((pos, term), ()):
            parts = replacement.split(" ")
            if form:
                head = -1 if pos == "noun" else 0
                parts[head] = _inflected(parts[head], form)
            new = " ".join(parts)
            options.setdefault(kind, []).append(
                new[0].upper() + new[1:] if capital else new
            )
    return options


def _annotations(
    i: int, length: int, lowered: list[str], tags: list[str]
) -> list[tuple[str, str, str]]:
    """List part of speech, inflection and dictionary form under which the tokens may
    stand in the lexicon.
    """
    span, before = lowered[i : i + length], lowered[i - 1] if i else ""
    tag, last_tag, after_tag = (
        tags[j] if j < len(tags) else "" for j in (i, i + length - 1, i + length)
    )
    whole = " ".join(span)
    annotations = [("phrase", "", whole)]
    form = _verb_form(i, lowered, tag)
    if (
        form in ("VBD", "VBN")
        and after_tag.startswith(("NN", "JJ"))
        and before in _BEFORE_PARTICIPLE
    ):
        # "on supervised release": an adjective, whose substitutes are not the verb's
        form = ""
    if form:
        annotations.append(
            ("verb", form, " ".join([_lemma(span[0], "VERB"), *span[1:]]))
        )
    is_head = not after_tag.startswith("NN") and after_tag != "POS"
    if (
        last_tag.startswith("NN")
        and not form
        and is_head
        and before not in _BEFORE_VERB
    ):
        lemma = _lemma(span[-1], "NOUN")
        annotations.append(
            ("noun", "" if lemma == span[-1] else "NNS", " ".join([*span[:-1], lemma]))
        )
    if tag.startswith("JJ") and not form:
        annotations.append(("adjective", "", whole))
    if tag.startswith("RB"):
        annotations.append(("adverb", "", whole))
    return annotations


def _verb_form(i: int, lowered: list[str], tag: str) -> str:
    """Return the Penn tag of a word's verb form in its place, "" where it is no verb or
    in doubt.
    """
    word, lemma = lowered[i], _lemma(lowered[i], "VERB")
    earlier, before, after = (
        lowered[j] if 0 <= j < len(lowered) else "" for j in (i - 2, i - 1, i + 1)
    )
    if not _can_be_verb(lemma) or (word, after) == ("used", "to"):
        return ""
    if word == lemma:
        if before in _BEFORE_NOUN or (
            before == "to" and tag == "NN" and earlier not in _BEFORE_TO_VERB
        ):
            return ""
        if i == 0:  # at the start, a word that may be a noun is in doubt
            return (
                "VB"
                if tag.startswith("VB")
                or not lemminflect.getAllLemmas(word).keys() - {"VERB"}
                else ""
            )
        return "VB" if before in _BEFORE_VERB or tag in ("VB", "VBP") else ""
    if word == _inflected(lemma, "VBG"):
        return "VBG" if tag == "VBG" else ""
    if word == _inflected(lemma, "VBZ"):
        return "VBZ" if tag == "VBZ" and before not in _BEFORE_NOUN else ""
    if tag in ("VBD", "VBN"):
        return "VBN" if before in _BE_HAVE else tag
    return ""


def substitute_words(
    text: str,
    generator: np.random.Generator,
    always: list[str],
    beside: list[str],
    share: float,
    kept: list[_Span],
) -> str:
    """Replace some of a text's words, outside the spans to be kept.

    Replacements of the kinds `always` are used wherever they can be. Those of the kinds
    `beside` are used in a share of the other places, in [0, 1], one place at least. The
    text itself is returned where there is nothing to replace, or only by words that it
    holds already ("laws and rules" must not become "rules and rules").
    """
    needed: list[tuple[int, int, list[str]]] = []
    others: list[tuple[int, int, list[str]]] = []
    for start, end, options in find_substitutions(text, tuple(kept)):
        for kinds, places in ((always, needed), (beside, others)):
            if found := sorted(
                {new for kind in kinds for new in options.get(kind, ())}
            ):
                places.append((start, end, found))
                break
    count = min(len(others), max(1, round(share * len(others))))
    picked = [others[i] for i in generator.permutation(len(others))[:count]]
    for start, end, found in sorted([*needed, *picked], reverse=True):
        around = content_words(f"{text[:start]} {text[end:]}")
        if fresh := [new for new in found if not content_words(new) & around]:
            new = fresh[generator.integers(len(fresh))]
            text = _with_article(text[:start], new) + new + text[end:]
    return text


def _with_article(before: str, new: str) -> str:
    """Make an article at the end of the text before a replacement fit it."""
    if not new[0].isalpha():
        return before
    return _ARTICLE.sub(
        lambda match: f"{match[1]}{_articles().a(new).split()[0][1:]} ", before
    )


def apply_frames(text: str, strategy: str) -> list[tuple[str, str, list[_Span]]]:
    """Say one sentence of a text in every frame of a strategy, "register" or "rewrite",
    that fits it.

    Returns rules' names, the texts they give, and where in these the frames' own words
    stand, in the file's order.
    """
    sentences = _SENTENCE_END.split(text.strip())
    found = []
    for frame in _frames()[strategy]:
        for number, sentence in enumerate(sentences):
            ((body, end),) = re.findall(r"(?s)\A(.*?)[\s,;:]*([.!?]*)\Z", sentence)
            match = frame["regex"].fullmatch(body)
            if match and _fits(match, body, frame):
                new, own = _filled(frame["template"], match, end or ".")
                before = "".join(f"{earlier} " for earlier in sentences[:number])
                whole = " ".join([before + new, *sentences[number + 1 :]])
                found.append(
                    (
                        frame["rule"],
                        whole,
                        [(len(before) + a, len(before) + b) for a, b in own],
                    )
                )
                break
    return found


def _fits(match: re.Match[str], body: str, frame: dict[str, Any]) -> bool:
    """Say whether the parts that a pattern has matched are what it takes them for."""
    groups, pattern = match.groupdict(), frame["pattern"]
    if "{VP}" in pattern:
        first, *rest = groups["vp"].split()
        verb = (
            rest[0]
            if rest and first.endswith("ly") and not _can_be_verb(first.lower())
            else first
        )
        if (not first.islower() and not body.startswith(first)) or not _can_be_verb(
            verb.lower()
        ):
            return False
        if _ASKED_VERB.search(pattern) and verb.lower() not in _ORDERS:
            return False  # "Can you die of it?" asks for nothing to be done
    if groups.get("np", "a").split()[0].lower() in _NO_NOUN:
        return False
    # A question that hangs on a question stays one; behind a noun or a statement it
    # would not be English.
    behind = (
        groups.get("np", "")
        if frame["template"].endswith("?") and "wh" not in groups
        else body
    )
    if _INVERTED_QUESTION.match(groups.get("clause", "")) or _TRAILING_QUESTION.search(
        behind
    ):
        return False
    return not any(
        _second_verb(groups[name]) for name in ("np", "clause") if name in groups
    )


_NO_NOUN = _word_set("how why what when where who whether which if that to")
_ORDERS = _word_set(
    """act add address advise analyse analyze answer apply argue assemble assess assist assume brainstorm break
    build calculate check clarify code come compare compile compose conceive conduct construct contrast convert
    convince correct count craft create critique debug define deliver demonstrate describe design detail
    determine develop devise direct discover discuss display do draft draw edit elaborate enlighten enlist
    enumerate establish estimate evaluate examine exemplify expand explain explore extract find fix format
    formulate generate give guess guide help hypothesize identify illustrate imagine imitate implement improve
    inform input instruct interpret invent investigate itemize let list make map name narrate offer optimize
    outline paint paraphrase perform plan play point predict prepare present pretend process produce program
    proofread propose provide put quote rank rate read recite recommend reflect remind render rephrase report
    research respond review rewrite role-play roleplay scan search select send share show simulate sketch solve
    speak specify spell start state suggest summarise summarize supply talk teach tell think trace train
    transform translate try turn update use verify visualize walk write"""
)
"""Verbs with which a request may begin; other words at the start of a sentence may be
nouns.
"""


def _second_verb(phrase: str) -> bool:
    """Say whether a phrase goes on with another order: "a story, and give it a title"."""
    after = re.findall(
        r"(?:\b(?:and|or|then|but)|[,;])\s+(?:then |also |please |do )?([a-z]+)", phrase
    )
    return any(
        word in _ORDERS or word in ("ensure", "include", "use", "keep", "avoid", "do")
        for word in after
    )


def _filled(template: str, match: re.Match[str], end: str) -> tuple[str, list[_Span]]:
    """Fill a template with what its pattern has matched.

    Return the sentence and the spans of the template's words.
    """
    parts = {
        name: value for name, value in match.groupdict().items() if value is not None
    }
    parts = {name: _lowered(value) for name, value in parts.items()} | {"end": end}
    parts |= {
        name.title(): parts[name][0].upper() + parts[name][1:]
        for name in ("tail", "main")
        if name in parts
    }
    parts |= {
        name: parts[name].lower() for name in ("modal", "be", "aux") if name in parts
    }
    new, own = "", []
    for literal, field, *_ in Formatter().parse(template):
        own.append((len(new), len(new) + len(literal)))
        new += literal + (parts[field] if field else "")
    return new[0].upper() + new[1:], own


def _lowered(phrase: str) -> str:
    """Lower the first letter, unless the word is a name or "I"."""
    first = phrase.split()[0]
    plain = first.rstrip(",").lower()
    name = first in ("I", "I'm", "I'd", "I've", "AI") or (
        len(first) > 1 and first.isupper()
    )
    return (
        phrase
        if name or not (plain in _OPENERS or _can_be_verb(plain))
        else phrase[0].lower() + phrase[1:]
    )


_OPENERS = _word_set(
    """a an any are as at by can could did do does for from generally had has have her his how hypothetically i've
    if imagine in is it its may might my on our should some suppose that the their there these this those to
    was were what when where whether which while who why will with without would your"""
)


def paraphrase_by_rules(seeds: pd.DataFrame, seed: int = SEED) -> pd.DataFrame:
    """Write candidates for seeds (seed_id, text) by rules.

    Another `seed` gives other choices.

    Returns seed_id, strategy, text, rule (the frame's name, or the kind of
    substitution); no two of a seed alike.
    """
    rows = [
        (seed_id, strategy, new, rule)
        for seed_id, text in zip(seeds["seed_id"], seeds["text"], strict=True)
        for strategy, rule, new in paraphrase_text(text, seed)
    ]
    return pd.DataFrame(rows, columns=["seed_id", "strategy", "text", "rule"])


def paraphrase_text(text: str, seed: int = SEED) -> Iterator[tuple[str, str, str]]:
    """Yield strategy, rule and text of the candidates of `paraphrase_by_rules` for one
    text, as they are wanted.
    """
    known = {match_key(text)}
    kinds = Counter(
        kind for _, _, options in find_substitutions(text) for kind in options
    )
    for strategy in STRATEGIES:
        content = f"{seed}\x1f{strategy}\x1f{text}".encode()
        generator = np.random.default_rng(
            np.frombuffer(hashlib.sha256(content).digest(), np.uint32)
        )
        charged = strategy in ("softening", "hardening")
        if charged and not kinds[strategy]:
            continue
        shares = _REPLACED_SHARES_BESIDE_CHARGED if charged else _REPLACED_SHARES
        for number, (rule, base, kept) in enumerate(
            _bases(text, strategy, kinds, generator)
        ):
            always = (
                [strategy]
                if charged
                else [rule.partition("-")[0]]
                if strategy == "register"
                else []
            )
            beside = ["lexical"] if always else ["lexical", "formal"]
            new = substitute_words(
                base, generator, always, beside, shares[number % len(shares)], kept
            )
            if match_key(new) not in known:
                known.add(match_key(new))
                yield strategy, rule, new


def _bases(
    text: str, strategy: str, kinds: Counter[str], generator: np.random.Generator
) -> list[tuple[str, str, list[_Span]]]:
    """List what substitutions start from (rule, text, spans to keep): frames, tones in
    turn, or the text itself.
    """
    count = MAX_CANDIDATES[strategy]
    if strategy not in _frames():
        return [(strategy, text, [])] * count
    found = apply_frames(text, strategy)
    order = [found[i] for i in generator.permutation(len(found))]
    if strategy == "register":
        order += [
            (tone, text, [])
            for tone in ("formal", "chatty")
            if kinds[tone] >= MIN_TONE_WORDS
        ]
    tones = [
        rule.partition("-")[0] if strategy == "register" else "" for rule, *_ in order
    ]
    turns = [tones[:i].count(tone) for i, tone in enumerate(tones)]
    order = [order[i] for i in np.argsort(turns, kind="stable")]
    return (order * count)[:count]


def paraphrase_by_model(
    store: stores.Store,
    name: str,
    seeds: pd.DataFrame,
    model: backends.Backend | loading.LoadedModel,
    wordings: str,
    decodings: Mapping[str, prompting.Decoding],
) -> pd.DataFrame:
    """Ask a model for paraphrases of each seed in each strategy, once for each wording
    of the request and decoding.

    The wordings are a key of `read_model_prompts`; a live store keeps the answers as
    traces of the corpora `<name>-paraphrases<key of the decoding>`. Returns seed_id,
    strategy, text, rule (the model's name), decoding after decoding; a text may come
    more than once, and an answer that was cut off or holds no paraphrase is left out.
    Raise DataError where the seeds ask for harm: a model might answer instead, and what
    it writes is kept. Where the requests lie in files and not all have been answered,
    the program ends with status 0.
    """
    unsafe.refuse_unsafe(seeds, "paraphrases by a model")
    asked = make_paraphrase_prompts(seeds, read_model_prompts()[wordings])
    frames = [
        trace_store.query_model(
            store, f"{name}-paraphrases{key}", asked, model, "none", decoding
        )
        for key, decoding in decodings.items()
    ]
    traces = pd.concat(frames, ignore_index=True)
    if len(traces) < len(asked) * len(frames):
        raise SystemExit(0)  # which papermill takes as an end and not as a fault
    keys = traces["prompt_id"].str.rsplit("--", n=2, expand=True)
    found = (
        traces["response"].fillna("").map(extract_paraphrase)
    )  # a request that failed has no response
    rows = pd.DataFrame(
        {"seed_id": keys[0], "strategy": keys[1], "text": found, "rule": model.name}
    )
    finished = traces["finish_reason"] == "stop"  # half a paraphrase is no paraphrase
    return rows[finished & (rows["text"] != "")].reset_index(drop=True)


def make_paraphrase_prompts(
    seeds: pd.DataFrame, wordings: Mapping[str, str | Sequence[str]]
) -> pd.DataFrame:
    """Return what a model is asked for seeds: prompt_id (`SEED--STRATEGY--NUMBER of the
    wording`) and text.
    """
    by_strategy = {
        name: [found] if isinstance(found, str) else found
        for name, found in wordings.items()
    }
    rows = [
        (f"{seed_id}--{strategy}--{number}", wording.format(text=text))
        for seed_id, text in zip(seeds["seed_id"], seeds["text"], strict=True)
        for strategy in STRATEGIES
        for number, wording in enumerate(by_strategy[strategy])
    ]
    return pd.DataFrame(rows, columns=["prompt_id", "text"])


@cache
def read_model_prompts() -> dict[str, Any]:
    """Read what models are asked: `writer`, a prompt a strategy.

    `judge`, questions; `compared`, two a strategy.
    """
    return yaml.safe_load(
        (paths.DATA / "generation" / "model_prompts.yaml").read_text(encoding="utf-8")
    )


def extract_paraphrase(answer: str) -> str:
    """Return the first line of an answer that is no announcement, without quotation
    marks; "" where there is none.
    """
    for line in THINKING_BLOCK.sub("", replace_control(answer)).splitlines():
        line = re.sub(r"^\W*(?:\d+[.)]\s+)?", "", line)
        line = _PREAMBLE.sub("", line).strip(' \t*"“”`-')
        if line and not line.endswith(":"):
            return line
    return ""
