"""Writing a corpus: rules, models and public benchmarks; needs the extra `corpus`."""
