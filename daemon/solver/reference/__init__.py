"""Training and evaluation of the reference policy, a small model for tests (adapter)."""
