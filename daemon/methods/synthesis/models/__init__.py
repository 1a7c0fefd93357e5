"""A model as planner, writer and reviser of tasks, at any OpenAI-compatible endpoint.

A model's text is data: a schema parses it, and the rules of planner.py or the checks of
daemon/proposer/verification.py decide on it; none of it is run. The model sees plans, tools, the
environment's policy and generated states, and no session. Every text that is sent is redacted.
"""
