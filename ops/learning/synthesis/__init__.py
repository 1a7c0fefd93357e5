"""What the data engine brings with a writer whose faults are known."""
