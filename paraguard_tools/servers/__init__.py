"""Models behind a server, on a cluster, or answered by batch files."""
