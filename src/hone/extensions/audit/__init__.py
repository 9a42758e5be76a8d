"""Lints a task before it costs money: its reward, its prompts, a model's chat template."""
