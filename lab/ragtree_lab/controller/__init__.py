"""How far the controller carries: decisions a second, memory of the directory, and bytes over the network."""
