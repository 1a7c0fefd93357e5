"""Split off what an agent says to itself: `<reflect>...</reflect>` around a repair (Structured
Reflection, arXiv 2509.18847).

Guarantees: however a text is cut into pieces, the visible parts and the asides are those of the
whole text. A text without the tag comes back unchanged. Apart from tags, white space in and behind
a block, and empty blocks, each character is in one of the two. An unclosed tag hides what follows
it. Tags are matched without regard to case.
"""

import re
from typing import Final

OPENING: Final = "<reflect>"
CLOSING: Final = "</reflect>"

_TAGS: Final = {
    tag: re.compile(re.escape(tag), re.IGNORECASE | re.ASCII) for tag in (OPENING, CLOSING)
}


class AsideSplitter:
    """A text that may hold asides, in pieces."""

    def __init__(self) -> None:
        self._held = ""
        """The end of the text so far, where it may begin a tag."""
        self._inside = False
        self._trims = False
        """Whether white space is left out until a character comes, because a block has ended."""
        self._pieces: list[str] = []
        self._blocks: list[str] = []

    def feed(self, piece: str) -> str:
        """Return what is visible of a piece, and of what was held back before it."""
        if not self._held and not self._inside and "<" not in piece:
            return self._trim(piece)
        text = self._held + piece
        visible: list[str] = []
        position = 0
        while match := _TAGS[self._tag].search(text, position):
            self._take(text[position : match.start()], visible)
            position = match.end()
            if self._inside:
                self._end_block()
            self._inside = not self._inside
        kept = _measure_overlap(text[position:], self._tag)
        end = len(text) - kept
        self._take(text[position:end], visible)
        self._held = text[end:]
        return "".join(visible)

    def close(self) -> str:
        """Return what is visible of what was held back. The text is over."""
        held, self._held = self._held, ""
        visible: list[str] = []
        self._take(held, visible)
        if self._inside:
            self._end_block()
        return "".join(visible)

    @property
    def aside(self) -> str | None:
        """The blocks that have ended, each on lines of its own; None where none says anything."""
        return "\n".join(self._blocks) or None

    @property
    def _tag(self) -> str:
        return CLOSING if self._inside else OPENING

    def _take(self, text: str, visible: list[str]) -> None:
        if self._inside:
            self._pieces.append(text)
        else:
            visible.append(self._trim(text))

    def _trim(self, text: str) -> str:
        if self._trims and text:
            text = text.lstrip()
            self._trims = not text
        return text

    def _end_block(self) -> None:
        if block := "".join(self._pieces).strip():
            self._blocks.append(block)
        self._pieces = []
        self._trims = True


def split_aside(text: str) -> tuple[str | None, str]:
    """Return the aside of a text, None where it has none, and the visible text."""
    splitter = AsideSplitter()
    visible = splitter.feed(text) + splitter.close()
    return splitter.aside, visible


def write_aside(aside: str) -> str:
    """Return an aside as a model writes it."""
    return f"{OPENING}{aside}{CLOSING}"


def _measure_overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of a text begin a tag, a whole tag not counted."""
    most = min(len(text), len(tag) - 1)
    end = text[len(text) - most :].lower()
    if len(end) != most:
        # A character whose lower case is longer is part of no tag.
        end = "".join(letter.lower() if letter.isascii() else "\0" for letter in text[-most:])
    return next((n for n in range(most, 0, -1) if tag.startswith(end[-n:])), 0)
