"""Read models' answers in the form in which engines send them."""
