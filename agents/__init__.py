"""Agents: engines that run language models, training, evaluation, and policies that need no model."""
