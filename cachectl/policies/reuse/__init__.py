"""The chance that a path is used again, learnt from the traffic."""
