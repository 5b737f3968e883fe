"""Planning: which machines, how long, for how much; and afterwards the bill. Pure functions over dated catalogues."""
