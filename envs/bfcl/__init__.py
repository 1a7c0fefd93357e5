"""BFCL's multi-turn cases as an environment. It is optional: no other package needs it."""
