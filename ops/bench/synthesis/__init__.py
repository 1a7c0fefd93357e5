"""How fast tasks are written by plans, and which revisions of plans stay."""
