"""Conversations as prompts: chat templates of models, rendered in a sandbox, and told line by line."""
