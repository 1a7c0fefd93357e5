"""Result of a check."""

Finding = tuple[bool, str]
"""Whether the check passed, and what it found; for a failed one, the remedy as well."""
