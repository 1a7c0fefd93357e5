"""The Controller: looks at a closed round and says what the next tasks shall stress.

evidence    what of the round a directive is written from (consumers/reads/evidence.py, the log)
sampling    which rollouts are looked at, and how much of each
analyzer    what a model finds in them, where one is configured
refusals    how far each pattern stands on calls that tools refused
directive   how many tasks each pattern is given, and what their writer is told
directing   all of it, for one cycle
"""
