"""Text for GitHub. Pure.

Whatever comes from outside (titles, branches, case names, messages) passes through `outside` or `escaped`.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Sequence

# Letters, digits and what can begin nothing in Markdown: everything else of ASCII is written as a character reference,
# which is text wherever it stands, in a table cell too.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 /=-")
OUTSIDE_CHARACTERS = 200
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"})  # invisible, or turns the writing direction over


def outside(text: str, characters: int = OUTSIDE_CHARACTERS) -> str:
    """Return a text from outside as code on one line: no markup, link, image, mention or reference comes out of it."""
    return f"<code>{escaped(text, characters)}</code>"


def escaped(text: str, characters: int = OUTSIDE_CHARACTERS) -> str:
    """Return a text from outside on one line, every character that Markdown or HTML could read as a reference."""
    shown = text if len(text) <= characters else text[: characters - 1] + "…"
    return "".join(_one(character) for character in shown)


def _one(character: str) -> str:
    if character in _PLAIN:
        return character
    if unicodedata.category(character) in {
        "Cc",
        "Cf",
        "Cs",
        "Zl",
        "Zp",
        "Co",
        "Cn",
    }:  # invisible, or turns the rest over
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
    rule = ["---", *["---:"] * (len(headings) - 2), "---"]
    return "\n".join([f"| {' | '.join(headings)} |", f"| {' | '.join(rule)} |", *rows]) + "\n"


def line(cells: Sequence[str]) -> str:
    """Return a line of a table; the cells are escaped already."""
    return f"| {' | '.join(cells)} |"


def details(summary: str, body: str) -> str:
    """Return something to be unfolded."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n</details>\n"


def command(*words: str) -> str:
    """Return a command line for a shell."""
    return shlex.join(words)
