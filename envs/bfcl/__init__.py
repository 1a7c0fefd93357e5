"""BFCL's multi-turn cases as an executable environment (an extra: nothing else needs it)."""
