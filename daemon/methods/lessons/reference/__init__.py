"""A second reference policy: a small model that is also trained on lessons."""
