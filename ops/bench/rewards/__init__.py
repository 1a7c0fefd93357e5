"""How fast repairs are rewarded."""
