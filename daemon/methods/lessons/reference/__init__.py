"""A second reference policy, which is shown lessons."""
