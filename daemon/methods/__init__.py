"""Methods, each in a room of its own. Rooms use the core; the core uses rooms in few modules."""
