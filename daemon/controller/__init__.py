"""The Controller: reads a closed round of failures and writes the directive for the next tasks."""
