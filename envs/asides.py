"""Split off what an agent says to itself: `<reflect>...</reflect>` around a repair (Structured
Reflection, arXiv 2509.18847).

Guarantees: the result does not depend on how a text is cut into pieces. A text without the tag
comes back unchanged. Every character goes to the visible text or to an aside. The exceptions are
tags, white space around or after a block's text, and empty blocks. An unclosed tag hides all text
after it. Upper and lower case of tags do not matter.
"""

import re
from typing import Final

OPENING: Final = "<reflect>"
CLOSING: Final = "</reflect>"

_TAGS: Final = {
    tag: re.compile(re.escape(tag), re.IGNORECASE | re.ASCII) for tag in (OPENING, CLOSING)
}


class AsideSplitter:
    """Separates visible text from asides while a text arrives in pieces."""

    def __init__(self) -> None:
        self._held = ""
        """The end of the text so far, held back because it may be the beginning of a tag."""
        self._inside = False
        self._trims = False
        """Whether a block has just ended, so that the next white space is dropped."""
        self._pieces: list[str] = []
        self._blocks: list[str] = []

    def feed(self, piece: str) -> str:
        """Take the next piece and return the text that is now known to be visible. A possible
        beginning of a tag at its end is held back."""
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
        """End the text. Return the part of the held-back text that is visible."""
        held, self._held = self._held, ""
        visible: list[str] = []
        self._take(held, visible)
        if self._inside:
            self._end_block()
        return "".join(visible)

    @property
    def aside(self) -> str | None:
        """The texts of all blocks that have ended, joined by line breaks. None if there is none."""
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
    """Return the aside of a text (None if it has none) and its visible text."""
    splitter = AsideSplitter()
    visible = splitter.feed(text) + splitter.close()
    return splitter.aside, visible


def write_aside(aside: str) -> str:
    """Wrap an aside in tags, as a model writes it."""
    return f"{OPENING}{aside}{CLOSING}"


def _measure_overlap(text: str, tag: str) -> int:
    """Return the length of the longest proper beginning of `tag` with which `text` ends."""
    most = min(len(text), len(tag) - 1)
    end = text[len(text) - most :].lower()
    if len(end) != most:
        # A character whose lower case is longer is part of no tag.
        end = "".join(letter.lower() if letter.isascii() else "\0" for letter in text[-most:])
    return next((n for n in range(most, 0, -1) if tag.startswith(end[-n:])), 0)
