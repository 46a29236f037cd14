"""Object stores: a local folder and memory. `keys` says which keys they take."""
