"""Conversations as prompts: which tokens are the template's, and which texts spell them."""
