"""What a request costs besides computing, with a model that computes next to nothing."""
