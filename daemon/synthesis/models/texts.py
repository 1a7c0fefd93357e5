"""Texts of a model before they are kept (pure)."""


def check_text(text: str) -> str:
    """Return a text that can be stored. Raises ValueError for one with the character NUL, which no
    table holds."""
    if "\x00" in text:
        raise ValueError("a text has the character NUL; leave it out")
    return text


def clean_line(text: str) -> str:
    """Return a text on one line, without characters that no table holds or no terminal shows."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
