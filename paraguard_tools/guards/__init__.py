"""Guards that people deploy: chat models, classifiers, moderation servers."""
