"""The players of users: the setting, the adapter of role `user`, its job, its gate, its replicas.

An adapter of role `user` answers no client. Its job belongs to no cycle, so no cycle waits for it.
"""
