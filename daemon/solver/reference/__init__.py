"""Training and evaluation of the reference policy (adapter)."""
