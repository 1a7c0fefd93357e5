"""The learner: a job turns tasks and the current policy into a LoRA adapter (job, adapter)."""
