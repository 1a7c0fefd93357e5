"""What one adapter keeps of several that were each trained on one weak kind."""
