"""Choose the member of a panel that answers a call."""
