"""TRACE: skills, panels of adapters, and the routers that choose a member."""
