"""The models that play users: the setting, and an adapter of role `user` with its job and gate.

An adapter of role `user` answers no client. Its job belongs to no cycle, so no cycle waits for it.
"""
