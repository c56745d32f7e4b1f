"""Text as GitHub shows it. Pure.

Whatever comes from outside (titles, branches, case names, messages) passes through `outside`; through `plain` where it
nearly always is a number or a word of ours; through `named` where people also read the text in a terminal.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Sequence

# Letters, digits and what can begin nothing in Markdown: everything else of ASCII is written as a character reference,
# which is text wherever it stands, in a table cell too.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ,%/=-")
OUTSIDE_CHARACTERS = 200
# Words with underscores inside, numbers, and the signs around them: nothing that begins a link or a mention.
_WORDS = re.compile(r"(?:[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*|(?<=[0-9])\.|: |[-+–…→%(), ])+")
# What names of cases, kernels and devices are made of, without what GitHub makes links or mentions of.
_NAME = re.compile(r"(?!.*(?:www\.|GH-|__))[A-Za-z0-9](?:[A-Za-z0-9 ./,%=+()…→–-]|_(?=[A-Za-z0-9])|(?<=pu):)*")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"})  # invisible, or turns the writing direction over


def outside(text: str, characters: int = OUTSIDE_CHARACTERS) -> str:
    """Return a text from outside as code on one line: no markup, link, image, mention or reference comes out of it.

    Character references alone would not do: GitHub looks for mentions and issue numbers in what is rendered, but not in
    code.
    """
    shown = text if len(text) <= characters else text[: characters - 1] + "…"
    return f"<code>{''.join(_one(character) for character in shown)}</code>"


def plain(text: str) -> str:
    """Return words and numbers as they are, and anything else as `outside` does."""
    return text if len(text) <= OUTSIDE_CHARACTERS and _WORDS.fullmatch(text) else outside(text)


def named(text: str) -> str:
    """Return a name as it is when nothing in it can act, and anything else as `outside` does."""
    return text if len(text) <= OUTSIDE_CHARACTERS and _NAME.fullmatch(text) else outside(text)


def _one(character: str) -> str:
    if character in _PLAIN:
        return character
    if unicodedata.category(character) in _UNSEEN:
        return " "
    return f"&#{ord(character)};" if character.isascii() else character


def code_block(text: str) -> str:
    """Return a text as a code block whose fence is longer than any run of backticks in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}\n"


def table(headings: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table: the first and the last column are texts, the others numbers; `rows` are finished lines."""
    return _ruled(headings, ["---", *["---:"] * (len(headings) - 2), "---"], rows)


def kernel_table(headings: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table of which the first two columns are texts."""
    return _ruled(headings, ["---", "---", *["---:"] * (len(headings) - 2)], rows)


def _ruled(headings: Sequence[str], rule: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join([line(headings), line(rule), *rows]) + "\n"


def line(cells: Sequence[str]) -> str:
    """Return a line of a table; the cells are escaped already."""
    return f"| {' | '.join(cells)} |"


def details(summary: str, body: str) -> str:
    """Return something to be unfolded."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n</details>\n"


def command(*words: str) -> str:
    """Return a command line for a shell."""
    return shlex.join(words)
