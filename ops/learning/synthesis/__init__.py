"""The data engine with a writer whose faults are planted, and what comes of its tasks."""
