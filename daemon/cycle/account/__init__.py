"""The gain of a finished cycle: five stages, and each one's loss."""
