"""Who is calling, and how much each caller may use."""
