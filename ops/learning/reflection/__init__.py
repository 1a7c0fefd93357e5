"""Does practice in repairing help: nine ways with one budget, on the second reference policy."""
