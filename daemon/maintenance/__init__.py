"""Commands that repair, trim or erase stored data (event)."""
