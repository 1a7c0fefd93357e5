"""Who plays users: the setting, the adapter of role `user`, its job, its gate, its replicas.

    find_user(connection, settings, alias, base)    who plays them now (players.py)
    next_user_step(view)                            what an adapter for them needs next
    build_request(app, pair)                        the job that the leader requests (request.py)
    UserWorker(app, fleet, runner).advance(breaks)  gate, staging, retirement (worker.py)
    read_user_practices(connection, settings)       all this, for display (practice.py)

An adapter of role `user` answers no client. Its job belongs to no cycle, so no cycle waits for it
or ends with it.
"""
