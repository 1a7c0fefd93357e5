"""The router of a panel: chooses the member that answers a session."""
