"""What a graded task is scored by: milestones, and minefields."""
