"""Find the language in which an answer opens.

Scripts and frequent words decide most; py3langid, which takes a second to load, reads
only what they leave open. English is what nothing speaks against: code, names, numbers
and lists have no language.
"""

import html
import math
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

ENGLISH = "en"
UNSURE = ""

_SAMPLE_CHARS = 400
_CODE = re.compile(
    r"(?s)```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+|<[^<>]{1,60}>|\$[^$\n]+\$"
)
_MAY_HAVE_CODE = re.compile(r"[`<$]|://")
_CODE_MARKS = re.compile(r"[{}();=<>_\\\[\]|/#]")
_MAX_CODE_SHARE = 0.06
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?\u3002\uff01\uff1f\u0964\u061f\n])")
# A sentence of so many letters has a language; one of an ideographic script, of a third
_OPENING_LETTERS = 24

_STRONG = {
    ENGLISH: """
        the and you your yours that this these those with are isn't not from
        they their there here what which would should could cannot can't i'm
        i'll i've it's don't won't let's help sorry how please have has had
        was were been be my but if about into will who when why use make
        sure some any other than then them while each more most also such
        may might must
    """,
    "de": """
        ich und nicht die der das ist sie wir ihnen ihre mit eine einen
        einem einer auf für dass aber kann können leider tut mir leid diese
        dieser dieses bei zu den dem wenn oder auch sind werden wird zum zur
        nach über dazu keine kein
    """,
    "es": """
        el los las que por una del pero puedo con para lo siento como esta
        este esto está su sus usted ayudarte ayudarle información muy más
        también al si es son no te le tu un en se
    """,
    "fr": """
        je ne pas les des est une vous pour dans que qui avec sur cette ce
        ces mais désolé suis peux puis votre au aux du il elle nous voici
        comme sont être plus un le la et en c'est j'ai n'est d'une qu'il
    """,
    "it": """
        il che non di per una sono con questo questa della delle dei degli
        mi dispiace posso aiutarti come gli ma più è le lo un nel alla anche
        si
    """,
    "pt": """
        não que uma para com os as por isso este esta eu você posso mas mais
        é são ajudar desculpe sinto muito do da dos das em um como no na ao
    """,
    "nl": """
        ik het een van niet dat met voor je kan deze dit zijn maar om te aan
        ook wordt geen sorry helaas helpen daar mij mijn naar bij of kunt uw
        als er de en
    """,
    "fi": """
        en voi ja on ei että se tämä tässä olen valitettavasti mutta auttaa
        voin sitä ole kun tai myös joka pahoillani minä pysty vastata
    """,
}
_WEAK_ENGLISH_WORDS = """
    a an in is to of for on or as by we i can do no so at me all it one its
"""
_WEAK_ENGLISH = frozenset(_WEAK_ENGLISH_WORDS.split())
_WORDS_OF: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split()) for language, words in _STRONG.items()
}
_QUICK_WORDS = 14
# Accents that are all but absent from English prose
_ACCENTED = re.compile(r"[\u00c0-\u024f\u1e00-\u1eff]")
_MAX_ACCENTED = 0.03  # of the characters of English prose
_QUOTATION = re.compile(
    r"\"[^\"\n]*\"|\u201c[^\u201d\n]*\u201d|\u00ab[^\u00bb\n]*\u00bb"
)
_MIN_WEAK = 3  # English words that other languages have too, if there are no others
_MIN_UNQUOTED = 3  # words besides a quotation that tell a language
_MIN_WORDS = 4
# Of more capitals, a text is a list of names
_MAX_CAPITALS = 0.6

_SCRIPTS = {
    "han": r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff",
    "kana": r"\u3041-\u30ff\uff66-\uff9f",
    "hangul": r"\uac00-\ud7a3\u1100-\u11ff\u3130-\u318f",
    "cyrillic": r"\u0400-\u052f",
    "arabic": r"\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufeff",
    "devanagari": r"\u0900-\u097f",
    "el": r"\u0370-\u03ff\u1f00-\u1fff",
    "he": r"\u0590-\u05ff",
    "th": r"\u0e00-\u0e7f",
    "bn": r"\u0980-\u09ff",
    "pa": r"\u0a00-\u0a7f",
    "gu": r"\u0a80-\u0aff",
    "or": r"\u0b00-\u0b7f",
    "ta": r"\u0b80-\u0bff",
    "te": r"\u0c00-\u0c7f",
    "kn": r"\u0c80-\u0cff",
    "ml": r"\u0d00-\u0d7f",
    "si": r"\u0d80-\u0dff",
    "lo": r"\u0e80-\u0eff",
    "my": r"\u1000-\u109f",
    "ka": r"\u10a0-\u10ff",
    "am": r"\u1200-\u137f",
    "km": r"\u1780-\u17ff",
    "hy": r"\u0530-\u058f",
    "bo": r"\u0f00-\u0fff",
}
_IN_SCRIPT = {name: re.compile(f"[{marks}]") for name, marks in _SCRIPTS.items()}
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff]")
_IDEOGRAPHIC = ("han", "kana", "hangul")
_ALPHABETS: Mapping[str, Mapping[str, str]] = {
    # Letters that only one of a script's languages has
    "cyrillic": {
        "uk": "іїєґ",
        "be": "ў",
        "sr": "ђћџљњј",
        "mk": "ѓќѕ",
        "kk": "әғқңөұүһ",
    },
    "arabic": {"ur": "ٹڈڑںےھہۓ", "fa": "پچژگکی"},
}
_OF_SCRIPT = {
    "cyrillic": ("ru", "uk", "bg", "sr", "mk", "be", "kk", "ky", "mn"),
    "arabic": ("ar", "fa", "ur", "ps", "ug"),
    "devanagari": ("hi", "mr", "ne"),
}
_MAIN_OF_SCRIPT = {"cyrillic": "ru", "arabic": "ar", "devanagari": "hi"}
# Words of few letters decide between neighbours better than statistics do
_MARKERS = {
    "cyrillic": {
        "ru": "я не что это и в вы как для могу извините мне вам на но или",
        "bg": "не мога да се е на и за съжаление съм това ще",
    },
    "devanagari": {
        "hi": "है हैं नहीं में का की के और मैं से को यह आप हूँ सकता",
        "mr": "आहे नाही मी आणि आहेत मला करू शकत तुम्ही हे",
        "ne": "छ छैन म र हुन्छ गर्न सक्दिन तपाईं हो यो",
    },
}

# By how much another language must be likelier than English, per square root of length
_MIN_MARGIN = 1.5


class Opening(NamedTuple):
    """The opening of an answer: its text, and the script of most of its letters."""

    text: str
    script: str


def find_language(text: str) -> str:
    """Return the ISO 639 code of an answer's language.

    It is `UNSURE` if an answer that is not plainly English is too short, or too unlike
    prose, to be sure: then no list of cues is more right than another.

    Examples
    --------
    >>> find_language("Sure, here is how to do it.")
    'en'
    >>> find_language("Je ne peux pas vous aider.")
    'fr'
    """
    sample = text[:_SAMPLE_CHARS]
    if "&" in sample:
        sample = html.unescape(sample)
    if sample.isascii() and _is_plainly_english(sample):
        return ENGLISH
    opening = find_opening(sample)
    if opening.script != "latin":
        return _find_in_script(opening)
    return _find_latin(opening.text)


def _is_plainly_english(sample: str) -> bool:
    words = _WORD.findall(sample[:160].lower())[:_QUICK_WORDS]
    return sum(word in _WORDS_OF[ENGLISH] for word in words) >= 3


def has_english_words(text: str) -> bool:
    """Return whether the opening of a text has a word that hardly another language has.

    Text without any accented letter and without a frequent word of another language
    counts as English too.
    """
    opening = find_opening(text[:_SAMPLE_CHARS]).text
    words = {word.lower() for word in _WORD.findall(opening.replace("\u2019", "'"))}
    if words & _WORDS_OF[ENGLISH]:
        return True
    others = frozenset.union(
        *(_WORDS_OF[name] for name in _WORDS_OF if name != ENGLISH)
    )
    return not _ACCENTED.search(opening) and not words & (others - _WEAK_ENGLISH)


def find_opening(sample: str) -> Opening:
    """Return the first sentences that have enough letters, without code and links."""
    if _MAY_HAVE_CODE.search(sample):
        sample = _CODE.sub(" ", sample)
    opening = ""
    weight = 0.0
    counts: dict[str, float] = {}
    for sentence in _SENTENCE_END.split(sample):
        opening += sentence
        for script, n in _count_letters(sentence).items():
            counts[script] = counts.get(script, 0) + n
            weight += n
        if weight >= _OPENING_LETTERS:
            break
    script = max(counts, key=lambda name: counts[name]) if counts else "latin"
    return Opening(opening.strip(), script)


def _count_letters(text: str) -> dict[str, float]:
    """Return the letters of each script; those of Chinese, Japanese, Korean thrice."""
    counts: dict[str, float] = {"latin": len(_LATIN.findall(text))}
    if not text.isascii():
        for name, letters in _IN_SCRIPT.items():
            n = len(letters.findall(text))
            if n:
                counts[name] = n * (3 if name in _IDEOGRAPHIC else 1)
    return {name: n for name, n in counts.items() if n}


def _find_in_script(opening: Opening) -> str:
    text = opening.text
    if opening.script in ("han", "kana"):
        return "ja" if _IN_SCRIPT["kana"].search(text) else "zh"
    if opening.script == "hangul":
        return "ko"
    if opening.script not in _OF_SCRIPT:
        return opening.script
    lowered = text.lower()
    for language, letters in _ALPHABETS.get(opening.script, {}).items():
        if sum(letter in letters for letter in lowered) >= 2:
            return language
    words = _WORD.findall(lowered) if opening.script == "cyrillic" else lowered.split()
    bare = [word.strip("।,") for word in words]
    counts = {}
    for language, said in _MARKERS.get(opening.script, {}).items():
        markers = said.split()
        counts[language] = sum(word in markers for word in bare)
    main = _MAIN_OF_SCRIPT[opening.script]
    best = max(counts, key=lambda name: counts[name], default=main)
    if counts and counts[best] > counts[main]:
        return best
    if len(words) < _MIN_WORDS or counts.get(main):
        return main
    return _rank(text, _OF_SCRIPT[opening.script])[0]


def _find_latin(opening: str) -> str:
    words = _list_words(opening)
    lowered = [word.lower() for word in words]
    english = len(_WORDS_OF[ENGLISH].intersection(lowered))
    weak = len(_WEAK_ENGLISH.intersection(lowered))
    if len(_ACCENTED.findall(opening)) > _MAX_ACCENTED * len(opening):
        weak = 0
    others = {
        language: len(of_it.intersection(lowered))
        for language, of_it in _WORDS_OF.items()
        if language != ENGLISH
    }
    best = max(others, key=lambda name: others[name])
    if english and english + weak / 2 >= others[best]:
        return ENGLISH
    if weak >= _MIN_WEAK and not others[best]:
        return ENGLISH
    if not words or _is_code(opening):
        return ENGLISH
    if others[best] < 2 and len(words) < _MIN_WORDS:
        return UNSURE
    if others[best] < 2 and not _is_prose(words):
        return ENGLISH
    likeliest, margin = _rank(opening)
    if likeliest == ENGLISH:
        return ENGLISH if others[best] < 2 else UNSURE
    if others.get(likeliest, 0):
        return likeliest
    if others[best] >= 3 and others[best] * 5 >= len(words):
        # A neighbour of it, by statistics: Galician for Spanish, Afrikaans for Dutch
        return best
    if likeliest in others or margin < _MIN_MARGIN or not _is_prose(words):
        return UNSURE
    return UNSURE if english else likeliest


def _list_words(opening: str) -> list[str]:
    """Return the words of an opening, without quotations if there are others."""
    plain = opening.replace("\u2019", "'")
    words = _WORD.findall(_QUOTATION.sub(" ", plain))
    return words if len(words) >= _MIN_UNQUOTED else _WORD.findall(plain)


def _is_code(text: str) -> bool:
    return len(_CODE_MARKS.findall(text)) > _MAX_CODE_SHARE * len(text)


def _is_prose(words: Collection[str]) -> bool:
    capitals = sum(word[0].isupper() for word in words)
    n_different = len({word.lower() for word in words})
    return n_different >= _MIN_WORDS and capitals <= _MAX_CAPITALS * len(words)


def _rank(text: str, among: Collection[str] = ()) -> tuple[str, float]:
    """Return the likeliest language, and by how much it is likelier than English."""
    from py3langid import langid  # a second to load

    ranked = langid.rank(text)
    scores = dict(ranked)
    best = next(name for name, _ in ranked if not among or name in among)
    # Chatty lower-case English is close to Nigerian Pidgin
    if best == "pcm":
        best = ENGLISH
    length = math.sqrt(len(text.encode("utf-8", "replace")) or 1)
    return best, (scores[best] - scores[ENGLISH]) / length
