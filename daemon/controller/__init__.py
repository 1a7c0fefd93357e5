"""The Controller: reads a closed round and directs what the next tasks shall practise."""
