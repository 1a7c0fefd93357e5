"""The inner loop of a job: its own rollouts diagnosed, tasks written, pools shifted (Rounds)."""
