"""From an accepted upload to visible chunks."""
