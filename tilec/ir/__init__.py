"""The tile IR: types, values, ops, layouts and hardware rows. See `core` first, then `ops`."""
