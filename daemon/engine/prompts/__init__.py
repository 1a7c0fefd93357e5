"""Render conversations as prompts in which message texts cannot act as control tokens."""
