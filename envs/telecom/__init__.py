"""Telecom customer service with a user who holds a phone: tau2-bench's dual-control domain.

database.py      the company's records and the phone as tables; generated ones
phone.py         how the phone behaves, and what company and phone tell each other
tools.py         what the agent can call
user_tools.py    what the user can call
functions.py     what only a task can call: faults to begin with, assertions about the end
environment.py   the environment: real tasks, generated ones, solo
faults.py        what may be wrong: how it is made, how it is repaired
kinds.py         the kinds of generated task
customer.py      a scripted user who acts
oracle.py        the perfect agent of real and generated tasks
policy.py        the rules in our words, and which of them a transcript breaks
phrases.py       what customers say
"""
