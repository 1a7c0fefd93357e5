"""Reports of a training job: metrics, progress and trackers (job)."""
