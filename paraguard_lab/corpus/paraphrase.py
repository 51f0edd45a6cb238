"""Write candidate paraphrases of any seed by rules (`docs/method.md`, Corpus).

The rules need no model: a candidate is one sentence of the text in a frame of
`data/generation/frames.yaml`, or in none, with substitutions from
`data/generation/lexicon.csv`. A generator seeded with the text chooses both, so a seed
always gets the same candidates. Where it is in doubt whether the result is English,
words are left alone.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from string import Formatter
from typing import Any, NamedTuple, TypeAlias

import lemminflect
import numpy as np
import pandas as pd
import yaml

from paraguard_lab.functions import load_function
from paraguard_utils import paths
from paraguard_utils.core.estimates import SEED
from paraguard_utils.core.strategies import TABLE, Strategy
from paraguard_utils.text import content_words, match_key

LEXICON_FILE = paths.DATA / "generation" / "lexicon.csv"
FRAMES_FILE = paths.DATA / "generation" / "frames.yaml"
RULES_VERSION = "rules-2"
RULES_GENERATOR = "rules"  # what the column `generator` holds for these candidates

TONES = ("formal", "chatty")
"""Kinds of words in the lexicon; a frame in a tone has a rule's name that begins so."""

MIN_TONE_WORDS = 2
"""Words of another tone that shift the register of a text without a frame."""

# The shares of a text's replaceable words that are replaced, in turn
_REPLACED_SHARES = (1.0, 0.6, 0.8, 0.4)
# The same of the words beside the charged ones in a softening or hardening
_REPLACED_SHARES_BESIDE_CHARGED = (0.0, 0.15, 0.3)

_Span: TypeAlias = tuple[int, int]  # start, end
_Replacements: TypeAlias = dict[str, list[str]]  # replacements by kind
_Place: TypeAlias = tuple[int, int, list[str]]  # start, end, replacements
_Base: TypeAlias = tuple[str, str, list[_Span]]
"""What substitutions start from: a rule's name, a text, and the spans to keep."""

_TOKEN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[^\w\s]|_")
_QUOTATION = re.compile(r"([\"“«'‘`]).*?([\"”»'’`])(?=\W|$)")
_SENTENCE_END = re.compile(r"(?<=[\w)\"'][\w)\"'][.!?])\s+")
_SENTENCE = re.compile(r"(?s)\A(.*?)[\s,;:]*([.!?]*)\Z")  # body, end
_INVERTED_QUESTION = re.compile(
    r"(?i)(?:how|why|when|where)"
    r" (?:am|are|can|could|did|do|does|is|should|was|were|will|would)\b"
)
_TRAILING_QUESTION = re.compile(
    r"(?i)\b(?:and|or) (?:how|if|what|when|where|whether|why)\b"
)
_NEXT_ORDER = re.compile(
    r"(?:\b(?:and|or|then|but)|[,;])\s+(?:then |also |please |do )?([a-z]+)"
)
_ASKED_VERB = re.compile(r"\{(?:ASK|DO|ORDER)\} ?\{VP\}")
_ARTICLE = re.compile(r"\b([Aa])n? \Z")


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_BEFORE_VERB = _word_set(
    """
    can could i let's may might must not please shall should they to we who will would
    you
    """
)
_BEFORE_NOUN = _word_set(
    """
    a an any each every her his its my no of our some that the their these this those
    your
    """
)
_BEFORE_PARTICIPLE = _BEFORE_NOUN | _word_set(
    """
    about and as at by for from in on or over to under with
    """
)
_BEFORE_TO_VERB = _word_set(
    """
    able going how like looking me need order steps trying try us used want wants way
    ways where you
    """
)
_BE_HAVE = _word_set(
    """
    am are be been being get gets getting got had has have having is was were
    """
)
_NO_NOUN = _word_set("how why what when where who whether which if that to")
_NAMES = _word_set("I I'm I'd I've AI")
_OPENERS = _word_set(
    """
    a an any are as at by can could did do does for from generally had has have her his
    how hypothetically i've if imagine in is it its may might my on our should some
    suppose that the their there these this those to was were what when where whether
    which while who why will with without would your
    """
)
_ORDERS = _word_set(
    """
    act add address advise analyse analyze answer apply argue assemble assess assist
    assume brainstorm break build calculate check clarify code come compare compile
    compose conceive conduct construct contrast convert convince correct count craft
    create critique debug define deliver demonstrate describe design detail determine
    develop devise direct discover discuss display do draft draw edit elaborate
    enlighten enlist enumerate establish estimate evaluate examine exemplify expand
    explain explore extract find fix format formulate generate give guess guide help
    hypothesize identify illustrate imagine imitate implement improve inform input
    instruct interpret invent investigate itemize let list make map name narrate offer
    optimize outline paint paraphrase perform plan play point predict prepare present
    pretend process produce program proofread propose provide put quote rank rate read
    recite recommend reflect remind render rephrase report research respond review
    rewrite role-play roleplay scan search select send share show simulate sketch solve
    speak specify spell start state suggest summarise summarize supply talk teach tell
    think trace train transform translate try turn update use verify visualize walk
    write
    """
)
"""Verbs with which a request may begin; other words at the start of a sentence may be
nouns."""
_SECOND_ORDERS = _ORDERS | _word_set("ensure include use keep avoid do")


@cache
def _lexicon() -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Read the lexicon: (replacement, kind) by part of speech and term."""
    lexicon = defaultdict(list)
    for row in pd.read_csv(LEXICON_FILE).itertuples(index=False):
        lexicon[row.pos, row.term].append((row.replacement, row.kind))
    return dict(lexicon)


@cache
def _longest_term() -> int:
    return max(len(term.split()) for _, term in _lexicon())


@cache
def _frames() -> dict[str, list[dict[str, Any]]]:
    """Read the frames of each strategy and compile their patterns."""
    content = yaml.safe_load(FRAMES_FILE.read_text(encoding="utf-8"))
    frames = defaultdict(list)
    for frame in content["frames"]:
        pattern = frame["pattern"]
        for name, macro in content["macros"].items():
            pattern = pattern.replace(f"{{{name}}}", macro)
        frame["regex"] = re.compile(pattern, re.IGNORECASE)
        frames[frame["strategy"]].append(frame)
    return dict(frames)


def rules_digest() -> str:
    """Return 16 hex digits over the rules' data, version and added functions."""
    content = RULES_VERSION.encode()
    content += LEXICON_FILE.read_bytes() + FRAMES_FILE.read_bytes()
    for strategy in TABLE:
        if ":" in strategy.generator:
            _, digest = load_function(strategy.generator, "the generator")
            content += digest.encode()
    return hashlib.sha256(content).hexdigest()[:16]


@cache
def _lemma(word: str, pos: str) -> str:
    return next(iter(lemminflect.getLemma(word, pos, lemmatize_oov=False)), word)


@cache
def _inflected(word: str, tag: str) -> str:
    return next(iter(lemminflect.getInflection(word, tag)), word)


@cache
def _can_be_verb(word: str) -> bool:
    """Return whether a word is the base form of a verb."""
    return word in lemminflect.getLemma(word, "VERB", lemmatize_oov=False)


@cache
def _articles() -> Any:
    import inflect  # takes seconds

    return inflect.engine()


class _ByPlace(dict[int, str]):
    """Texts by place, "" outside."""

    def __missing__(self, place: int) -> str:
        return ""


class _Tokens(NamedTuple):
    """The tokens of a text.

    Attributes
    ----------
    matches : list of re.Match
    words : dict of int to str
        In lower case, typographic apostrophes made plain.
    tags : dict of int to str
        Their Penn tags; "" if the tagger splits the text otherwise.
    stays : list of bool
        Whether a token must not be replaced.
    """

    matches: list[re.Match[str]]
    words: _ByPlace
    tags: _ByPlace
    stays: list[bool]


def _tokenize(text: str, kept: Sequence[_Span]) -> _Tokens:
    """Split a text into tokens, and tag them.

    Tokens in the spans to keep or in quotations stay, and so do names.
    """
    from textblob.en import tag as part_of_speech_tags  # seconds to import

    matches = list(_TOKEN.finditer(text))
    tokens = [match[0] for match in matches]
    words = [token.lower().replace("’", "'") for token in tokens]
    # The tagger reads a slash as a mark of its own.
    spaced = " ".join("-" if token == "/" else token for token in tokens)
    tags = [tag for _, tag in part_of_speech_tags(spaced, tokenize=False)]
    if len(tags) != len(tokens):
        tags = []
    spans = [*kept, *(match.span() for match in _QUOTATION.finditer(text))]
    stays = []
    for i, match in enumerate(matches):
        start, end = match.span()
        inside = any(first <= start and end <= last for first, last in spans)
        stays.append(inside or _is_no_common_word(i, tokens))
    return _Tokens(
        matches, _ByPlace(enumerate(words)), _ByPlace(enumerate(tags)), stays
    )


def _is_no_common_word(i: int, tokens: Sequence[str]) -> bool:
    """Return whether a token is no word, a name or an abbreviation."""
    token = tokens[i]
    begins = i == 0 or tokens[i - 1] in ".!?:"
    is_name = not (token.islower() or begins)
    is_abbreviation = len(token) > 1 and token.isupper()
    return not token[0].isalpha() or is_name or is_abbreviation


@lru_cache(maxsize=1_000)  # the same text is substituted in again and again
def find_substitutions(
    text: str, kept: tuple[_Span, ...] = ()
) -> list[tuple[int, int, _Replacements]]:
    """Find what the lexicon can replace in a text.

    Parameters
    ----------
    text : str
    kept : tuple of (start, end)
        Spans in which nothing is replaced.

    Returns
    -------
    list of (start, end, replacements)
        In text order and without overlaps: where terms overlap, the first and then the
        longest is taken. Replacements are by kind, inflected and capitalised as the
        original.
    """
    tokens = _tokenize(text, kept)
    found = []
    i = 0
    while i < len(tokens.matches):
        free = [*tokens.stays[i:], True].index(True)
        end = i + 1
        for length in range(min(_longest_term(), free), 0, -1):
            options = _options(i, length, tokens)
            if options:
                end = i + length
                start = tokens.matches[i].start()
                found.append((start, tokens.matches[end - 1].end(), options))
                break
        i = end
    return found


def _options(i: int, length: int, tokens: _Tokens) -> _Replacements:
    """Return the replacements of a term by kind.

    The term has `length` tokens from token `i` on. The verb or head noun of a
    replacement is inflected as the term's, and begins with a capital as it does.
    """
    capital = tokens.matches[i][0][0].isupper()
    options: _Replacements = {}
    for pos, form, term in _lookups(i, length, tokens):
        for replacement, kind in _lexicon().get((pos, term), ()):
            words = replacement.split(" ")
            if form:
                head = -1 if pos == "noun" else 0
                words[head] = _inflected(words[head], form)
            new = " ".join(words)
            if capital:
                new = new[0].upper() + new[1:]
            options.setdefault(kind, []).append(new)
    return options


def _lookups(i: int, length: int, tokens: _Tokens) -> list[tuple[str, str, str]]:
    """List what `length` tokens from token `i` on may be looked up by.

    Returns part of speech, inflection ("" for none) and dictionary form; a phrase comes
    first, then what the tags and the words around allow.
    """
    span = [tokens.words[place] for place in range(i, i + length)]
    whole = " ".join(span)
    before = tokens.words[i - 1]
    tag = tokens.tags[i]
    tag_after = tokens.tags[i + length]
    lookups = [("phrase", "", whole)]

    form = _verb_form(i, tokens)
    is_participle = form in ("VBD", "VBN") and before in _BEFORE_PARTICIPLE
    if is_participle and tag_after.startswith(("NN", "JJ")):
        # "on supervised release": an adjective, whose substitutes are not the verb's
        form = ""
    if form:
        verb = " ".join([_lemma(span[0], "VERB"), *span[1:]])
        lookups.append(("verb", form, verb))

    is_noun = tokens.tags[i + length - 1].startswith("NN") and not form
    is_head = not tag_after.startswith("NN") and tag_after != "POS"
    if is_noun and is_head and before not in _BEFORE_VERB:
        lemma = _lemma(span[-1], "NOUN")
        number = "" if lemma == span[-1] else "NNS"
        lookups.append(("noun", number, " ".join([*span[:-1], lemma])))
    if tag.startswith("JJ") and not form:
        lookups.append(("adjective", "", whole))
    if tag.startswith("RB"):
        lookups.append(("adverb", "", whole))
    return lookups


def _verb_form(i: int, tokens: _Tokens) -> str:
    """Return the Penn tag of a verb in its place, "" if it is no verb or in doubt."""
    word = tokens.words[i]
    lemma = _lemma(word, "VERB")
    if not _can_be_verb(lemma) or (word, tokens.words[i + 1]) == ("used", "to"):
        return ""
    if word == lemma:
        return _base_form(i, tokens)
    tag = tokens.tags[i]
    before = tokens.words[i - 1]
    if word == _inflected(lemma, "VBG"):
        return "VBG" if tag == "VBG" else ""
    if word == _inflected(lemma, "VBZ"):
        return "VBZ" if tag == "VBZ" and before not in _BEFORE_NOUN else ""
    if tag in ("VBD", "VBN"):
        return "VBN" if before in _BE_HAVE else tag
    return ""


def _base_form(i: int, tokens: _Tokens) -> str:
    """Return "VB" if a word that may be a verb's base form surely is one, else ""."""
    word = tokens.words[i]
    tag = tokens.tags[i]
    before = tokens.words[i - 1]
    if before in _BEFORE_NOUN:
        return ""
    if before == "to" and tag == "NN" and tokens.words[i - 2] not in _BEFORE_TO_VERB:
        return ""
    if i == 0:  # at the start, a word that may be a noun is in doubt
        only_verb = not lemminflect.getAllLemmas(word).keys() - {"VERB"}
        return "VB" if tag.startswith("VB") or only_verb else ""
    return "VB" if before in _BEFORE_VERB or tag in ("VB", "VBP") else ""


class Choice(NamedTuple):
    """Which words of a text are replaced.

    Attributes
    ----------
    always : sequence of str
        Kinds of replacements that are used wherever they can be.
    beside : sequence of str
        Kinds that are used in some of the other places.
    share : float
        In which share of these, in [0, 1]; one place at least.
    """

    always: Sequence[str]
    beside: Sequence[str]
    share: float


def substitute_words(
    text: str, generator: np.random.Generator, choice: Choice, kept: Sequence[_Span]
) -> str:
    """Replace some of a text's words.

    Parameters
    ----------
    text : str
    generator : numpy.random.Generator
        Chooses places and replacements.
    choice : Choice
    kept : sequence of (start, end)
        Spans in which nothing is replaced.

    Returns
    -------
    str
        The text itself if there is nothing to replace, or only by words that it holds
        already ("laws and rules" must not become "rules and rules").
    """
    needed: list[_Place] = []
    others: list[_Place] = []
    for start, end, options in find_substitutions(text, tuple(kept)):
        for places, kinds in ((needed, choice.always), (others, choice.beside)):
            replacements: set[str] = set()
            for kind in kinds:
                replacements.update(options.get(kind, ()))
            if replacements:
                places.append((start, end, sorted(replacements)))
                break
    count = min(len(others), max(1, round(choice.share * len(others))))
    picked = [others[i] for i in generator.permutation(len(others))[:count]]
    # From the end, so that the places before stay where they are
    for start, end, replacements in sorted([*needed, *picked], reverse=True):
        around = content_words(f"{text[:start]} {text[end:]}")
        fresh = [new for new in replacements if not content_words(new) & around]
        if fresh:
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


def apply_frames(text: str, strategy: str) -> list[_Base]:
    """Say one sentence of a text in every frame of a strategy that fits it.

    Of several sentences that a frame fits, the first is said in it.

    Parameters
    ----------
    text : str
    strategy : str
        One that has frames.

    Returns
    -------
    list of (rule, text, spans)
        In the file's order: the rule's name, the text that it gives, and where in this
        the frame's own words are.
    """
    sentences = _SENTENCE_END.split(text.strip())
    framed = []
    for frame in _frames()[strategy]:
        for number, sentence in enumerate(sentences):
            said = _say_in_frame(sentence, frame)
            if said is None:
                continue
            new, spans = said
            before = "".join(f"{earlier} " for earlier in sentences[:number])
            whole = " ".join([before + new, *sentences[number + 1 :]])
            shift = len(before)
            shifted = [(start + shift, end + shift) for start, end in spans]
            framed.append((frame["rule"], whole, shifted))
            break
    return framed


def _say_in_frame(
    sentence: str, frame: dict[str, Any]
) -> tuple[str, list[_Span]] | None:
    """Return a sentence in a frame, and the spans of the frame's words.

    None if the sentence is unfit.
    """
    parts = _SENTENCE.match(sentence)
    assert parts is not None  # the pattern matches any text
    body, end = parts.groups()
    match = frame["regex"].fullmatch(body)
    if match is None or not _fits(match.groupdict(), body, frame):
        return None
    return _fill(frame["template"], match.groupdict(), end or ".")


def _fits(groups: dict[str, str], body: str, frame: dict[str, Any]) -> bool:
    """Return whether what a pattern has matched is what it takes it for."""
    pattern = frame["pattern"]
    if "{VP}" in pattern:
        verb = _first_verb(groups["vp"], body)
        if not _can_be_verb(verb):
            return False
        if _ASKED_VERB.search(pattern) and verb not in _ORDERS:
            return False  # "Can you die of it?" asks for nothing to be done
    if groups.get("np", "a").split()[0].lower() in _NO_NOUN:
        return False
    # A question that hangs on a question stays one; behind a noun or a statement it
    # would not be English.
    to_question = frame["template"].endswith("?") and "wh" not in groups
    behind = groups.get("np", "") if to_question else body
    if _TRAILING_QUESTION.search(behind):
        return False
    clause = groups.get("clause", "")
    if _INVERTED_QUESTION.match(clause):
        return False
    return not (_has_second_order(groups.get("np", "")) or _has_second_order(clause))


def _first_verb(phrase: str, body: str) -> str:
    """Return the word of a verb phrase that should be the verb, "" if it is a name."""
    first, *rest = phrase.split()
    if not first.islower() and not body.startswith(first):
        return ""
    is_adverb = first.endswith("ly") and not _can_be_verb(first.lower())
    return (rest[0] if rest and is_adverb else first).lower()


def _has_second_order(phrase: str) -> bool:
    """Return whether a phrase adds another order: "a story, and give it a title"."""
    return not _SECOND_ORDERS.isdisjoint(_NEXT_ORDER.findall(phrase))


def _fill(
    template: str, groups: dict[str, str | None], end: str
) -> tuple[str, list[_Span]]:
    """Fill a template with what its pattern has matched.

    Parameters
    ----------
    template : str
        With the names of groups as fields; a title ("Np") asks for a capital.
    groups : dict of str to str
        What the pattern has matched; None where a group has no part.
    end : str
        The mark at the end of the sentence.

    Returns
    -------
    str
        The sentence.
    list of (start, end)
        The spans of the template's own words.
    """
    parts = {"end": end}
    for name, value in groups.items():
        if value is not None:
            phrase = _lower_first(value)
            parts[name] = phrase.lower() if name in ("modal", "be", "aux") else phrase
            parts[name.title()] = phrase[0].upper() + phrase[1:]
    new = ""
    spans = []
    for literal, field, *_ in Formatter().parse(template):
        spans.append((len(new), len(new) + len(literal)))
        new += literal
        if field:
            new += parts[field]
    return new[0].upper() + new[1:], spans


def _lower_first(phrase: str) -> str:
    """Lower the first letter, unless the word is a name or "I"."""
    first = phrase.split()[0]
    word = first.rstrip(",").lower()
    is_abbreviation = len(first) > 1 and first.isupper()
    is_common = word in _OPENERS or _can_be_verb(word)
    if first in _NAMES or is_abbreviation or not is_common:
        return phrase
    return phrase[0].lower() + phrase[1:]


def paraphrase_by_rules(seeds: pd.DataFrame) -> pd.DataFrame:
    """Write candidates for seeds by rules.

    Parameters
    ----------
    seeds : pandas.DataFrame
        Columns seed_id, text.

    Returns
    -------
    pandas.DataFrame
        seed_id, strategy, text, rule (the frame's name, or the kind of substitution);
        no two of a seed alike.
    """
    rows = []
    for seed_id, text in zip(seeds["seed_id"], seeds["text"], strict=True):
        for strategy, rule, new in paraphrase_text(text):
            rows.append((seed_id, strategy, new, rule))
    return pd.DataFrame(rows, columns=["seed_id", "strategy", "text", "rule"])


def paraphrase_text(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield strategy, rule and text of a text's candidates, each when it is wanted."""
    known = {match_key(text)}
    for strategy in TABLE:
        for rule, new in _write(text, strategy):
            key = match_key(new)
            if key not in known:
                known.add(key)
                yield strategy.name, rule, new


def _write(text: str, strategy: Strategy) -> Iterator[tuple[str, str]]:
    """Yield rule and text of what a strategy's generator writes, repetitions too."""
    if strategy.generator == RULES_GENERATOR:
        yield from _write_by_rules(text, strategy)
    elif strategy.generator:
        function, _ = load_function(strategy.generator, "the generator")
        for new in function(text)[: strategy.max_candidates]:
            yield strategy.name, new


def _write_by_rules(text: str, strategy: Strategy) -> Iterator[tuple[str, str]]:
    """Yield rule and text of candidates that the rules write in a strategy.

    A strategy with a direction replaces a charged word at least; without one in the
    text, it has no candidates.
    """
    kinds: Counter[str] = Counter()
    for _, _, options in find_substitutions(text):
        kinds.update(options.keys())
    is_charged = strategy.direction != 0
    if is_charged and not kinds[strategy.name]:
        return
    content = f"{SEED}\x1f{strategy.name}\x1f{text}".encode()
    digest = hashlib.sha256(content).digest()
    generator = np.random.default_rng(np.frombuffer(digest, np.uint32))
    shares = _REPLACED_SHARES_BESIDE_CHARGED if is_charged else _REPLACED_SHARES
    bases = _list_bases(text, strategy, kinds, generator)
    for number, (rule, base, kept) in enumerate(bases):
        always = [strategy.name] if is_charged else _tones(rule)
        beside = ["lexical"] if always else ["lexical", "formal"]
        choice = Choice(always, beside, shares[number % len(shares)])
        yield rule, substitute_words(base, generator, choice, kept)


def _tones(rule: str) -> list[str]:
    """Return the tone of a rule in a list, which is empty if it has none."""
    return [tone for tone in TONES if rule.partition("-")[0] == tone]


def _list_bases(
    text: str, strategy: Strategy, kinds: Counter[str], generator: np.random.Generator
) -> list[_Base]:
    """List what substitutions start from: frames, tones in turn, or the text itself.

    There are as many as the strategy may have candidates; if fewer are different, they
    are repeated in turn.
    """
    count = strategy.max_candidates
    frames = _frames().get(strategy.name)
    if not frames:
        return [(strategy.name, text, [])] * count
    framed = apply_frames(text, strategy.name)
    bases = [framed[i] for i in generator.permutation(len(framed))]
    if any(_tones(frame["rule"]) for frame in frames):
        for tone in TONES:
            if kinds[tone] >= MIN_TONE_WORDS:
                bases.append((tone, text, []))
    # In turn: the first of each tone, then the second of each, and so on
    tones = [_tones(rule) for rule, _, _ in bases]
    turns = [tones[:i].count(tone) for i, tone in enumerate(tones)]
    bases = [bases[i] for i in np.argsort(turns, kind="stable")]
    return (bases * count)[:count]
