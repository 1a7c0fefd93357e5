"""A model as planner, writer and reviser of tasks: any OpenAI-compatible endpoint.

client       one role's model: its endpoint, its budget of tokens, and why it is asked no more
planner      plans, one after the other, each prompt with the earlier ones
exploration  the model calls tools on a copy of a generated state
gold         the calls of a perfect agent, of those that it made
request      the five fields of a request, and a script made of them by rule
ambiguity    whether the request tells which calls are meant
writer       a task by a plan: exploration, gold, request, criteria by replay
reviser      a plan as its failures revise it
texts        what of a text cannot be kept
parts        the data engine with these in it, which asks for nothing twice

What a model wrote is data: it is parsed by a schema, and the rules of planner.py or the checks of
daemon/proposer/verification.py decide on it; none of it is run. It is shown plans, tools, the
environment's policy and generated states, and no session. Every text that is sent is redacted.
"""
