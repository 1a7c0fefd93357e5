"""How often a comparison selects a skill that is planted, and one that is not."""
