"""From a question to a verdict: plan, run, store, check, judge."""
