"""The systems that are measured, and how."""
