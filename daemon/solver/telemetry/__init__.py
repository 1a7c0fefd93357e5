"""What a job reports while it trains: metrics, progress and trackers (job)."""
