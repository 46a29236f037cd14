"""Work sources: where the tasks of a worker come from."""
