"""The reference policy: a tiny model that serves shop well, and has known weaknesses."""
