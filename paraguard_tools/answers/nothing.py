"""Find texts in place of an answer: nothing, an error, or a filter's placeholder.

All of a text must be the error: help that speaks of one, or quotes one, is an answer.
"""

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias

import re2

Nothing: TypeAlias = Literal["", "empty", "error", "blocked"]

_BRACKETS = " \t\r\n[](){}<>*_#\"'`|.!-\u2014:"
_PLACEHOLDERS = frozenset(
    {
        "na",
        "n/a",
        "nan",
        "nat",
        "nil",
        "none",
        "null",
        "undefined",
        "empty",
        "missing",
        "no response",
        "no_response",
        "no answer",
        "no_answer",
        "no output",
        "no_output",
        "no content",
        "no_content",
        "empty response",
        "empty_response",
        "not available",
        "no response generated",
        "no response received",
    }
)
_MAX_PLACEHOLDER = 80  # characters

_FILTERED = re2.compile(
    r"(?i)(?:"
    r"(?:(?:content|response|answer|output|message|text|prompt|input|request|safety)"
    r"[ _-]*)?(?:was |were |is |has been |have been |got )?"
    r"(?:filter(?:ed)?|blocked|block|censored|redacted|withheld|moderated|removed)"
    r"(?:[ _-]*(?:by|due to|for|because of)\b[^.\n]{0,60})?"
    r"|(?:blocked|filtered)[ _-]*(?:content|response|output|text|prompt)"
    r"|content[ _-]*(?:policy|filter|safety)[ _-]*(?:violation|triggered|error|hit)?"
    r"|prohibited[ _-]content|safety[ _-](?:filter|block|violation)(?: triggered)?"
    r"|guardrails?[ _-](?:intervened|triggered|blocked)"
    r")"
)

# An error has no advice; the bodies of errors below may have some
_ADVISES = re2.compile(
    r"(?i)\b(?:means?|indicates?|usually|typically|you (?:can|should|could|need|might)"
    r"|to (?:fix|solve|resolve|handle|avoid|prevent)|here(?:'s| is| are)|because"
    r"|such as|for example|steps?|first,|(?:this|the|that) (?:error|message|exception)"
    r"|happens|occurs when|tells you|is (?:an?|the|when|caused|returned|raised|thrown)"
    r"|check (?:that|whether|if)|make sure|look(?:s)? like|let me|try (?:to|the"
    r"|a|using|"
    r"running|restarting|increasing))\b"
)
_MAX_ERROR = 600  # characters of an error in words
_MAX_BODY = 20_000  # characters of an error's body, a traceback or a page

_STATUS = r"\(?\b[45]\d\d\b\)?"
_WORDS = (
    r"internal server error|bad gateway|gateway time-?out"
    r"|service (?:is )?(?:temporarily"
    r" |currently )?unavailable|too many requests|request entity too large"
    r"|upstream (?:connect|request|service|server|error)|no healthy upstream"
    r"|(?:the )?(?:read|connect(?:ion)?|request|operation|response|model|server|api"
    r"|query|call|inference|generation|stream) (?:has )?timed? ?-?out"
    r"|connection (?:error|refused|reset|aborted|closed|failed|broken)"
    r"|rate[ _-]?limit(?:ed|s)?(?:[ _-](?:reached|exceeded|error|hit))?"
    r"|(?:request|token|daily|monthly|api|usage) (?:rate )?(?:limit|quota)"
    r" (?:reached|exceeded)|quota (?:exceeded|exhausted)|resource[ _]exhausted"
    r"|you(?:'ve| have)? (?:exceeded|reached|hit) (?:your|the) (?:current "
    r"|monthly |daily "
    r"|rate |usage |request )*(?:quota|limit)|you didn't provide an api key"
    r"|insufficient[ _](?:balance|quota|credits?|funds)|account (?:is |has been )?"
    r"(?:deactivated|suspended|in arrears|overdue|not active)|billing hard limit"
    r"|(?:invalid|incorrect|missing|expired|no)[ _](?:api[ _-]?key|authentication"
    r"|credentials?|access token|token)|authentication (?:failed|error|required)"
    r"|permission[ _-]denied|access denied|unauthori[sz]ed|overloaded(?:_error)?"
    r"|(?:the )?(?:model|server|engine|service|system) (?:`[^`]{1,80}` |'[^']{1,80}' )?"
    r"(?:is |are )?(?:currently |temporarily )?(?:overloaded|busy|loading|unavailable"
    r"|down|not found|not available|does not exist|error|crashed)"
    r"|model_not_found|context[ _]length[ _]exceeded"
    r"|this model's maximum context length"
    r"|(?:torch\.)?(?:cuda )?out of memory|outofmemoryerror|network error|fetch failed"
    r"|(?:failed|unable|could not|error) (?:to )?(?:fetch|connect|reach|retrieve|load"
    r"|parse|decode|get|generate|generating|fetching|processing)\b"
    r"|e(?:connrefused|connreset|timedout|notfound|pipe)\b"
    r"|max(?:imum)? retries exceeded"
    r"|https?connectionpool|(?:remote end|remote host|server) (?:closed|disconnected)"
    r"|an error (?:has )?occurred|an (?:unexpected|internal|unknown) error"
    r"|(?:oops[,!]? )?something went wrong|there was an error|request failed"
    r"|bad request|payment required|not found|forbidden|unexpected (?:error|eof|token)"
    r"|socket hang up|read error|ssl(?:error)?\b|name resolution|getaddrinfo"
    r"|expecting value: line|server error|client error|unknown error|timeout|timed out"
    r"|服务器繁忙|请求过于频繁|请求超时|网络错误|余额不足|系统繁忙|服务暂时不可用"
)
# A name before the error itself: "Error code: 429 -", "openai.APITimeoutError:"
_PREFIX = (
    r"(?:(?:(?:api|http|server|client|network|model|fatal|llm|request|unknown) ?)?"
    r"(?:[a-z_]+\.){0,6}[a-z_]{0,40}(?:error|exception|failure|failed|timeout|err)"
    r"(?:[ _-]?code)?|status(?:[ _]code)?|http(?:/[\d.]+)?|code)"
)
_PREFIXES = rf"\W{{0,6}}(?:{_PREFIX}(?:\W{{1,4}}|\z)){{0,3}}(?:{_STATUS}\W{{0,6}})?"
# What follows the words of an error, if they are not the beginning of a sentence
_TAIL = (
    r"(?:[\W\d]*\z|\W*(?:please\b|try again|retry|for (?:model|url|gpt|claude|requests?"
    r"|organi[sz]ation|the model|user|key)|while |when calling|during"
    r"|reset reason|due to"
    r"|in organi[sz]ation|limit|after \d|by peer|with (?:status|code|url|error)|or disc"
    r"|generating|a? ?(?:valid )?response|check your plan|exceeded"
    r"|to (?:the )?(?:server"
    r"|api|host|openai)|[a-z.]*(?:error|exception|timeout)\b|status|code|\d{3}\b|\("
    r"|\{|\[|https?:|read timeout|request id|contact|on our end|has been logged).*)"
)
_IN_WORDS = re2.compile(
    rf"(?is)\A{_PREFIXES}(?:the (?:request|server|model|call) (?:failed|returned)"
    rf"[^.\n]{{0,60}}|{_WORDS}){_TAIL}"
)
_STATUS_ALONE = re2.compile(
    rf"(?i)\A\W{{0,4}}(?:{_PREFIX})\W{{1,4}}{_STATUS}(?:\W.{{0,120}})?\z"
)
_PREFIXED = re2.compile(
    rf"(?is)\A\W{{0,4}}(?:{_PREFIX})\W{{0,4}}[:\]] ?\W{{0,4}}(?P<rest>.*)\z"
)
_MAX_PREFIXED = 200  # characters of an error that only its prefix shows
_SPEAKS = re2.compile(
    r"(?i)\b(?:you|your|we|i|add|use|replace|change|remove|should|must|write|put)\b"
)
_MARKED = re2.compile(
    r"(?is)\A\W{0,4}[\[<(]\s*(?:api[ _]|http[ _]|model[ _]|request[ _])?"
    r"(?:error|exception|failure|failed|timeout|err)\b[^\]>)]{0,300}[\]>)](?P<rest>.*)"
)
_BARE_ERRORS = frozenset(
    {"error", "api error", "api_error", "exception", "failed", "failure", "timeout"}
)
_TECHNICAL = re2.compile(
    rf"(?is){_STATUS}|[a-z]+(?:Error|Exception)\b|\w+\(.*=.*\)|{_WORDS}"
)

_ANY_ERROR = "|".join(
    f"(?:{one.pattern})" for one in (_MARKED, _IN_WORDS, _STATUS_ALONE, _PREFIXED)
)
_MAY_ERR = re2.compile(_ANY_ERROR.replace("(?P<rest>", "(?:"))
"""Whether any of these is there: one look instead of four."""

_BODY = re2.compile(
    r"(?is)\A\s*(?:[\w. ]*(?:error|exception|code|status|http)\b[^{}\n]{0,160})?"
    r"\{.*[\"']?(?:error|errors|detail|message|msg|code|fault)[\"']?\s*[:=].*\}\s*\z"
)
_BODY_OPENS = re2.compile(
    r"(?is)\A\s*(?:[\w. ]*(?:error|exception|code|status|http)\b[^{}\n]{0,160}\{"
    r"|\{\s*[\"'](?:error|errors|fault|detail|status_?code|code|message|request_?id"
    r"|success|ok|status|timestamp)[\"']\s*:|\{\s*[\"']type[\"']\s*:\s*[\"']error)"
)
_BODY_ERRS = re2.compile(
    r"(?is)[\"'](?:error|errors|fault|error_?(?:code|msg|message)|detail)[\"']\s*:"
    r"|[\"']?(?:code|status|statusCode|status_code)[\"']?\s*:\s*[\"']?[45]\d\d\b"
)

_TRACEBACK = re2.compile(
    r"(?s)\A\s*(?:Traceback \(most recent call last\):"
    r"|Exception in thread \"|panic: |Unhandled(?:Promise)?Rejection|thread '[^']*'"
    r" panicked|(?:[\w.$]+\.)?\w+(?:Error|Exception): [^\n]*\n\s+at )"
)
_TRACEBACK_WORDS = ("Traceback", "panic", "Unhandled", "Error: ", "Exception")
"""Of which every beginning of a traceback has one."""

_FRAME = re.compile(
    r"\s+\S.*|Traceback .*|[\w.$ -]*(?:Error|Exception|Interrupt|Exit|Timeout|Warning"
    r"|Refused|Fault)\b.*|Caused by: .*|During handling .*|The above exception .*"
    r"|Exception in thread .*|panic: .*|goroutine .*|\tat .*|exit status \d+|note: .*"
    r"|stack backtrace:|\[\d+\].*|File .*|For more information .*|.*\(most recent .*|"
)

_PAGE = re2.compile(r"(?is)\A\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype html|html|head|title)")
_PAGE_ERRS = re2.compile(
    r"(?is)<(?:title|h1|h2)[^>]*>[^<]{0,80}(?:\b[45]\d\d\b|bad gateway|unavailable"
    r"|time-?out|forbidden|not found|access denied|too many requests|just a moment"
    r"|attention required|error|blocked)"
)
_GATEWAY = re2.compile(
    r"(?i)nginx|cloudflare|openresty|apache|varnish|envoy|cloudfront|akamai|ray id"
    r"|squid|haproxy|traefik|microsoft-azure|request id|reference #|<center>|<address>"
)
_BARE_PAGE = 700  # characters of a page that says nothing but its error


def find_nothing(text: str) -> Nothing:
    """Say what a text is in place of an answer; "" if it is an answer.

    Examples
    --------
    >>> find_nothing("Error code: 429 - {'error': {'message': 'Rate limit'}}")
    'error'
    >>> find_nothing("[CONTENT_FILTERED]")
    'blocked'
    >>> find_nothing("Error 429 means that you ask too often: wait, then try again.")
    ''
    """
    if len(text) <= _MAX_PLACEHOLDER:
        bare = text.strip(_BRACKETS).lower()
        if not bare or bare in _PLACEHOLDERS:
            return "empty"
        if bare in _BARE_ERRORS:
            return "error"
        if _FILTERED.fullmatch(bare):
            return "blocked"
    return "error" if is_error(text) else ""


def is_error(text: str) -> bool:
    """Return whether a text is the error of a server or a program, and nothing else."""
    if len(text) > _MAX_BODY:
        return False
    start = text.lstrip()[:1]
    may_be_markup = start in ("{", "<") or "{" in text[:200]
    if may_be_markup and (_is_body(text) or _is_page(text)):
        return True
    if _has_any(text, _TRACEBACK_WORDS) and _TRACEBACK.search(text):
        return all(map(_FRAME.fullmatch, text.strip().split("\n")))
    return len(text) <= _MAX_ERROR and _is_error_in_words(text)


def _has_any(text: str, words: Iterable[str]) -> bool:
    return any(word in text for word in words)


def _is_error_in_words(text: str) -> bool:
    if not _MAY_ERR.search(text) or _ADVISES.search(text):
        return False
    marked = _MARKED.search(text)
    if marked:
        return not marked["rest"].strip(_BRACKETS) or bool(_TECHNICAL.search(text))
    if _IN_WORDS.search(text) or _STATUS_ALONE.search(text):
        return True
    prefixed = _PREFIXED.search(text)
    if prefixed is None:
        return False
    if len(text) <= _MAX_PREFIXED and not _SPEAKS.search(text):
        return True
    return bool(_IN_WORDS.search(prefixed["rest"]))


def _is_body(text: str) -> bool:
    """Return whether a text is the body of an error, perhaps behind its status."""
    is_body = _BODY_OPENS.search(text) and _BODY.search(text)
    return bool(is_body and _BODY_ERRS.search(text))


def _is_page(text: str) -> bool:
    """Return whether a text is a gateway's page about an error."""
    if not _PAGE.search(text) or not _PAGE_ERRS.search(text):
        return False
    is_bare = len(text) <= _BARE_PAGE and "<style" not in text.lower()
    return is_bare or bool(_GATEWAY.search(text))
