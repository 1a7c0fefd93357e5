"""The Proposer: writes executable tasks for a directive and accepts only those that pass ten
checks.

sources        the failed rollouts to follow and the existing tasks, from the tables
proposer       candidates by three modes, until a directive's quotas are full
candidate      a candidate with the facts that its checks need
verification   the checks V1 to V11, each a function (docs/proposing.md)
buffer         which tasks a training job draws, and how often
"""
