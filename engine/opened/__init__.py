"""A snapshot that is looked at without its model: its rows, its steps, pictures of them, read as they are wanted."""
