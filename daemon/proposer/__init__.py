"""The Proposer: writes executable tasks for a directive, and lets in only what passes ten checks.

verification   the checks V1 to V10, each a pure function (docs/proposing.md)
proposing      candidates by both modes, until a directive's quotas are full
buffer         which tasks a training job draws, and how often
"""
