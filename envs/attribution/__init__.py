"""Say whose fault a failure was: of the task, of the user that was played, or of the agent."""
