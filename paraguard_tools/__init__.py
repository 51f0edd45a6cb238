"""For people with logs, servers and guards of their own; and the command line."""
