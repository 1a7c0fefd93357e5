"""Lessons: practice in repairing a call that went wrong.

trajectories   conversations in which a task was done right, and the places of their calls
values         what an agent has seen at a place
operators      wrong calls in place of a right one
repairs        what the oracle does behind a wrong call, and whether it still succeeds
reflections    what was wrong, in two sentences
gold           what a right agent writes, as text
checks         whether a task with a lesson is a good one
making         lessons from trajectories and recordings, with what was discarded
"""
