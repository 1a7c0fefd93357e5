"""The Proposer: writes executable tasks for a directive and accepts only those that pass ten
checks.

sources        the failed rollouts to follow and the existing tasks, from the tables
proposing      candidates by three modes, until a directive's quotas are full
examined       a candidate with the facts that its checks need
reachable      what an agent can know
verification   the checks V1 to V11, each a function (docs/proposing.md)
buffer         which tasks a training job draws, and how often
"""
