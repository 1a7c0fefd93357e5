"""Events of the data engine: how tasks are written and judged, and whose fault a failure was."""
