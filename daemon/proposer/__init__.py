"""The Proposer: writes executable tasks for a directive and accepts only those that pass ten checks
(docs/proposing.md)."""
