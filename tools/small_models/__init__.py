"""Trains the small models of models/: text, tokenizers, base models, adapters, speculation heads, expected answers."""
