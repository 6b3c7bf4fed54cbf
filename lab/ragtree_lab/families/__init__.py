"""Families of models: what each keeps of a prompt, and whether that is exact and fast from every tier."""
