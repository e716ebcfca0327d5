"""What can be seen of a cache: pictures for the screen, statistics, largest values."""
