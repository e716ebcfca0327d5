"""One model, its sequences and their caches, and what was."""
