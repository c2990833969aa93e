"""A run directory made readable: one offline page (`report`), and what it waits for and what went wrong (`doctor`)."""
