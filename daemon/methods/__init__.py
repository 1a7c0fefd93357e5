"""Methods beside the core loop, a package for each. The core imports them in few modules."""
