"""Show names and texts of logs, which are data: visible, harmless, and cut.

Whoever writes a log chooses the names in it. On a terminal they could move the cursor
or reverse the order of the letters, in the log of a pipeline begin a line that is a
command to it, and in Markdown become links.
"""

import re

MAX_NAME_CHARS = 40  # of a system's name that readers are shown

_COMMANDS = {"::": r":\x3a", "##[": r"##\x5b"}
"""What a pipeline may take for a command, and how it is shown."""

# No ": " inside, by which a name could be taken for a line of our own
_PLAIN = re.compile(r"\w(?:[\w .,+/@()\[\]=-]|:(?! |\Z))*")

_MARKDOWN = frozenset("\\`*_{}[]<>#|&~!")
_LINK = re.compile(r"(?i)(https?:|ftp:|mailto:|www(?=\.)|@)")


def escape_unprintable(text: str) -> str:
    r"""Replace control characters, line ends and marks of direction by what they are.

    Examples
    --------
    >>> print(escape_unprintable("a\x1b[31m\nb"))
    a\x1b[31m\nb
    """
    marks = []
    for mark in text:
        if not mark.isprintable():
            mark = mark.encode("unicode_escape").decode()
        marks.append(mark)
    return "".join(marks)


def show_name(name: str, most: int = 100) -> str:
    r"""Return a name as it may stand in a line on a terminal or in a log of CI.

    What is not printable (control characters, line ends, marks of direction) becomes a
    visible escape, and so does what begins a command of a workflow (`::` at the start,
    `##[` anywhere). Of a longer name the first `most` characters are shown.

    Examples
    --------
    >>> show_name("evil\n::error::x\u202e")
    'evil\\n::error::x\\u202e'
    """
    shown = name if len(name) <= most else f"{name[:most].rstrip()} ..."
    shown = escape_unprintable(shown).replace("##[", r"\x23#[")
    return rf"\x3a{shown.lstrip()[1:]}" if shown.lstrip()[:2] == "::" else shown


def escape_line(text: str) -> str:
    r"""Make text safe on a terminal, and in the log of a pipeline.

    Examples
    --------
    >>> print(escape_line("a\n::error::b"))
    a\n:\x3aerror:\x3ab
    """
    shown = escape_unprintable(text)
    for command, harmless in _COMMANDS.items():
        shown = shown.replace(command, harmless)
    return shown


def show_system_name(name: object) -> str:
    """Return a name as readers see it: escaped, cut, and quoted if it looks like prose.

    Examples
    --------
    >>> show_system_name("openai/gpt-5"), show_system_name("all rows: not worse: dr")
    ('openai/gpt-5', '"all rows: not worse: dr"')
    """
    shown = escape_line(str(name)[:MAX_NAME_CHARS])
    if _PLAIN.fullmatch(shown):
        return shown
    quoted = shown.replace('"', r"\x22")
    return f'"{quoted}"'


def escape_as_markdown(text: str) -> str:
    """Return text for Markdown: no markup, and no address becomes a link."""
    marks = []
    for mark in escape_unprintable(text):
        marks.append(f"&#{ord(mark)};" if mark in _MARKDOWN else mark)
    return _LINK.sub(r"\1<!-- -->", "".join(marks))
