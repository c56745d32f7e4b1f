"""Statistics of verdicts: pure functions on frozen records; numpy, and scipy where first needed."""
