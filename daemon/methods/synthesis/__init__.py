"""The data engine: plans of tasks, the tasks that are written by them, and what failures revise."""
