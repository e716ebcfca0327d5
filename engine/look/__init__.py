"""What can be seen of a cache: tiles for the screen, statistics, largest values."""
