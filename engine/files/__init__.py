"""Files that are read completely, up to a size limit, and written atomically. No torch."""
