"""What retail and airline share: tau2-bench's tool conventions, loader, replay and gold (rollout).

toolset.py       how its tools answer: error texts, rendering, the two generic tools
arithmetic.py    its calculator, which can never hang
benchmark.py     reads the operator's folder of real tasks
environment.py   an environment that generates tasks and also runs the real ones
golden.py        replays recorded calls and compares everything
gold.py          plays the gold actions of real tasks through whole episodes
"""
