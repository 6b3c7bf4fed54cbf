"""The checks of a doctor, by what they examine."""
