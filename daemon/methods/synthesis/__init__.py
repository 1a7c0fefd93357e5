"""The data engine: plans of tasks, the tasks by them, and their revisions after failures."""
