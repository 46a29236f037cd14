"""A server's ledger and stores, reached over HTTP: what a worker without a database uses."""
