"""The Proposer: writes executable tasks for a directive, and lets in only what passes ten checks.

sources        whom to follow, and what is there already, from the tables
proposing      candidates by both modes, until a directive's quotas are full
examined       a candidate, what it is held against and what it does
reachable      what an agent can know
verification   the checks V1 to V10, each a function (docs/proposing.md)
buffer         which tasks a training job draws, and how often
"""
