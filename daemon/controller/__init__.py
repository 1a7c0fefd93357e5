"""The Controller: reads a closed round and directs the practice of the next tasks."""
