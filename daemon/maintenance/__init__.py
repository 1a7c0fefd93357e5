"""Commands that mend, trim or erase what is stored (event)."""
