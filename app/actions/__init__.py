"""What the user can do by menu, key and palette, and the dialogs that this opens."""
