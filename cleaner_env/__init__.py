"""Tool-use LLM tasks as Gymnasium environments, purified episodes, and agents that learn from them."""
