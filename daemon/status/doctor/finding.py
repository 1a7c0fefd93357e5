"""What a check says."""

Finding = tuple[bool, str]
"""Whether it is well, and what was found; where it is not, what to do as well."""
