"""A second reference policy, which is trained with lessons."""
