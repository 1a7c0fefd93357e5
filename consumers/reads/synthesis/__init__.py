"""Typed reads of the data engine: sets of plans, their revisions, and whose fault a failure was."""
