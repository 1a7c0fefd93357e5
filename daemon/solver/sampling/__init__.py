"""Sources of a job's rollouts: this process, an endpoint, or the job's own vLLM (job)."""
