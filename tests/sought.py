"""Look for many texts in one that is long, in one pass over it."""

import re


def find_texts(texts, content):
    """Return the texts that are part of `content`.

    A text can be there only if all of its words are, but for the first and the last,
    which may be cut: most texts are ruled out without a search.
    """
    words = set(re.findall(r"\w+", content))
    found = []
    for text in texts:
        whole = re.findall(r"\w+", text)[1:-1]
        if words.issuperset(whole) and text in content:
            found.append(text)
    return found
