"""A screen of the learner's defaults: one change at a time, on jobs as a first cycle makes them."""
