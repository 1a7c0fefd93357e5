"""What measurements make of the faults of users."""
