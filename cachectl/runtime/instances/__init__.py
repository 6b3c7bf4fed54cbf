"""The generator's instances as the controller knows them, and what they read at each other's locations."""
