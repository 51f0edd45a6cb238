"""Pages for readers: the site, the explorer of refusals, advice."""
