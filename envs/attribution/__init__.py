"""Decide whose fault a failure is: the task's, the played user's, or the agent's."""
