"""Cues of refusals in other languages than English (`data/refusal_cues_languages.csv`).

The logic is that of the frozen English list (`paraguard_utils.labels.refusals`): the
first cue that an opening has decides, unless what `unless` says follows.
"""

import html
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import pandas as pd
import re2

from paraguard_utils import paths
from paraguard_utils.labels.refusals import Cue, build_cues

LANGUAGE_CUES_FILE = paths.DATA / "refusal_cues_languages.csv"
LANGUAGE_CUES_VERSION = "languages-1"

_PATTERN_BYTES = 64 << 20  # letters of all scripts make large automata
_RAW_CHARS = 640
_CUE_CHARS = 320  # characters of a normalised opening that cues read
_DENSE_CHARS = 160  # of Chinese, Japanese and Korean, which say more with one
_DENSE = frozenset({"zh", "ja", "ko"})
LATIN_LANGUAGES = ("de", "es", "fr", "it", "pt", "nl", "fi")

_STEPS = (
    ("[\u2018\u2019\u201b\u02bc\u00b4`\u2032\uff07]", "'"),
    ("<[^<>]{1,60}>|[*_#~|>\u00ad\u200b-\u200f\u2060\ufeff\u061c]+", ""),
    (r"[\s\x{a0}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{3000}]+", " "),
    (
        r"\A(?:(?:assistant|answer|response|antwort|respuesta|réponse|risposta|resposta"
        r"|antwoord|ответ|回答|答案|回复|答|答え|답변|الاجابه|उत्तर) ?[:：] ?"
        r"|\d{1,3}[.)] |[^\p{L}\p{M}\p{N}]+)*",
        "",
    ),
)
_LETTERS = str.maketrans(
    {"ß": "ss", "œ": "oe", "æ": "ae", "ø": "o", "ł": "l", "đ": "d", "ı": "i"}
)
_ARABIC = str.maketrans(
    {"أ": "ا", "إ": "ا", "آ": "ا", "ٱ": "ا", "ى": "ي", "ة": "ه", "ـ": None}
    | {chr(mark): None for mark in (*range(0x064B, 0x0653), 0x0670)}
)
_HINDI = str.maketrans({"\u093c": None, "\u0901": "\u0902"})
_RUSSIAN = str.maketrans({"ё": "е"})
# Traditional characters of the cues, and their simplified forms
_CHINESE = str.maketrans(
    "無沒這個問題關幫對於為來說話請該內違規協類學習還種們換討論議滿絕過資訊網導給讓應從實時"
    "現會間動辦權難創寫製編輯觸準則確語數據據獲檢測連結檔圖創傳範圍職責價觀負錯誤見諒請願"
    "歉遺憾預評譯續進參與處執務實獎勵揚釋講談聊樂應體驗歷經視頻個適當陳述軟嚴電腦達撰將只"
    "當後點樣聽讀開覽識別聯絡點證慮恆須轉移產運營擇決識醫療險業義舉變顯聲繪畫詢隱歡屬犯"
    "敘並藝術臺灣國際條約權衝擊單純陰謀",
    "无没这个问题关帮对于为来说话请该内违规协类学习还种们换讨论议满绝过资讯网导给让应从实时"
    "现会间动办权难创写制编辑触准则确语数据据获检测连结档图创传范围职责价观负错误见谅请愿"
    "歉遗憾预评译续进参与处执务实奖励扬释讲谈聊乐应体验历经视频个适当陈述软严电脑达撰将只"
    "当后点样听读开览识别联络点证虑恒须转移产运营择决识医疗险业义举变显声绘画询隐欢属犯"
    "叙并艺术台湾国际条约权冲击单纯阴谋",
)


_TABLES: Mapping[str, Any] = {
    "ar": _ARABIC,
    "hi": _HINDI,
    "ru": _RUSSIAN,
    "zh": _CHINESE,
}


class AnswerDecision(NamedTuple):
    """Label, kind and rule, as `refusals.label_by_cues` has them."""

    label: str
    kind: str
    rule: str


@cache
def read_language_cues() -> dict[str, list[Cue]]:
    """Return each language's cues in order (`refusals.build_cues`)."""
    frame = pd.read_csv(LANGUAGE_CUES_FILE, keep_default_na=False)
    by_language = {}
    for language, rows in frame.groupby("language", sort=False):
        by_language[str(language)] = build_cues(rows)
    return by_language


@cache
def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.max_mem = _PATTERN_BYTES
    return re2.compile(pattern, options)


def normalize_opening(text: str, language: str) -> str:
    """Return the opening of an answer as the cues of its language expect it.

    It is in lower case with single spaces and plain apostrophes, and without markup,
    without accents in Latin script, vowel signs in Arabic, and dots below in Hindi.
    Chinese is simplified.

    Examples
    --------
    >>> normalize_opening("**D\u00e9sol\u00e9**, je ne peux pas.", "fr")
    'desole, je ne peux pas.'
    """
    opening = text.lstrip()[:_RAW_CHARS].encode("utf-8", "replace").decode()
    if "&" in opening:
        opening = html.unescape(opening)
    opening = unicodedata.normalize("NFKC", opening).lower()
    for pattern, replacement in _STEPS:
        opening = _compile(pattern).sub(replacement, opening)
    opening = _fold(opening, language)
    return opening[: _DENSE_CHARS if language in _DENSE else _CUE_CHARS]


def _fold(opening: str, language: str) -> str:
    """Write the letters of a language in one way."""
    if language in LATIN_LANGUAGES:
        marks = unicodedata.normalize("NFD", opening)
        plain = "".join(mark for mark in marks if not unicodedata.combining(mark))
        return plain.translate(_LETTERS)
    return opening.translate(_TABLES.get(language, {}))


def decide_by_language_cues(text: str, language: str) -> AnswerDecision:
    """Label an answer by the first cue of its language that it opens with.

    Examples
    --------
    >>> decide_by_language_cues("Lo siento, no puedo ayudarte con eso.", "es").label
    'reject'
    >>> decide_by_language_cues("Lo siento por la demora. Abra la ventana.", "es").label
    'accept'
    """
    opening = normalize_opening(text, language)
    for cue in read_language_cues()[language]:
        if not _compile(cue.pattern).search(opening):
            continue
        if not (cue.unless and _compile(cue.unless).search(opening)):
            label = "reject" if cue.kind else "accept"
            return AnswerDecision(label, cue.kind, f"{language}: {cue.rule}")
    return AnswerDecision("accept", "", "no_cue")


def decide_by_any(text: str, languages: Sequence[str]) -> AnswerDecision:
    """Label an answer of which only the script is known.

    The first list with a cue for refusing decides.
    """
    for language in languages:
        decision = decide_by_language_cues(text, language)
        if decision.label == "reject":
            return decision
    return AnswerDecision("accept", "", "no_cue")
