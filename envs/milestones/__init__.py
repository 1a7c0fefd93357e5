"""The rules that score a graded task: milestones, and minefields."""
