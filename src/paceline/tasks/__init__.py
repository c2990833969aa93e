"""Tasks: where prompts and golds come from."""
