"""The client's side: data, models, and what a participant does in a round."""
