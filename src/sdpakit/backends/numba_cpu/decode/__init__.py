"""Short queries against long keys: keys and values are read once, where they lie, in chunks."""
