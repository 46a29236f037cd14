"""Object stores: a local folder, memory, and the clouds. `keys` says which keys they take."""
