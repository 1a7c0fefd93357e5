"""The learning cycle: when it is due, its next step, and the roles' code that takes the steps."""
