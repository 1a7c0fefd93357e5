"""The learner: from tasks and the current policy to a LoRA adapter (job, adapter)."""
