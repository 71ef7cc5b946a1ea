"""What descent is made of: labels, spaces, objectives, priors, directions, projections, schedules, optimisers."""
