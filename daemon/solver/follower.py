"""Every process of a job but the first: it only takes part in the updates.

Such a process receives each new learner and each batch (parallel.py), holds the same model and adds
its share of the gradient. Its output goes to stderr.
"""

import torch
from peft import PeftModel

from daemon.engine.chat import Chat
from daemon.solver.base import checkpoint, load_model, new_learner
from daemon.solver.parallel import Anew, End, Update, receive
from daemon.solver.update import Learner
from events.jobs import JobSpec


def follow() -> int:
    """Take part in updates until the first process ends; return the exit code. Raise ProcessLoss,
    and any error of loading and updating: the first process then ends too."""
    model: PeftModel | None = None
    learner: Learner | None = None
    while True:
        word = receive()
        match word:
            case End():
                return word.code
            case Anew():
                model = model or _load_model(word.spec)
                learner = new_learner(word.spec, model, Chat(checkpoint(word.spec)).ends)
            case Update():
                assert learner is not None, "a learner is made before it is asked to learn"
                learner.step(word.batch)


def _load_model(spec: JobSpec) -> PeftModel:
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    return load_model(spec)[0]
