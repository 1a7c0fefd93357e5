"""Result of a check."""

Finding = tuple[bool, str]
"""Whether the check passed, and its finding, with the remedy if it failed."""
