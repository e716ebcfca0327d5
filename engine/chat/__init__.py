"""Conversations as prompts: renders the chat templates of models in a sandbox, and tells which line wrote which
token."""
