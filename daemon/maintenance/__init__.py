"""Commands that check, repair, trim or erase stored data (event)."""
