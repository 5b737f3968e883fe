"""What can be rented, all placements of a run, and the choice among them."""
