"""Facts that follow from a task and from what was said in an episode, by rule."""
