"""Weight stores behind `ports.weights`."""
