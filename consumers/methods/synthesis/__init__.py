"""Folds and reads of plans, tasks written from them and verdicts on their rollouts."""
