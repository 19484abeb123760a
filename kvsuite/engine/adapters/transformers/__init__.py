"""Hugging Face transformers: the block management behind `generate_batch`, driven without a model."""

from kvsuite.engine.adapters.transformers.engine import TransformersEngine as TransformersEngine
