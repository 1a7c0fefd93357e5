"""What a panel's router costs a session's first call."""
