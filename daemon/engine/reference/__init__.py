"""The reference policy: a tiny model that solves the environment shop, with known weaknesses."""
