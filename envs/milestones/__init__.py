"""The rules that score a task with a graded reward: milestones and minefields."""
