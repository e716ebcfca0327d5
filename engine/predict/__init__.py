"""How many bytes a cache takes and how many tokens it has room for, before it runs. No torch."""
