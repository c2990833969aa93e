"""Policies as packed decoders: the slim Llama / Qwen decoder, the transformers fallback, loading and saving."""
