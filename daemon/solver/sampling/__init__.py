"""Where a job's rollouts come from: this process, an endpoint, or its own vLLM (job)."""
