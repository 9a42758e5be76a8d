"""hone's keys for arguments of TRL's GRPOTrainer and GRPOConfig: for hints, and for docs/python.md."""

from __future__ import annotations

from hone.errors import KEYWORDS

TRL = {
    "train_dataset": ("dataset", ""),
    "eval_dataset": ("eval_dataset", "evaluates on it, every `orchestrator.eval.interval` steps"),
    "args": ("", "give the settings themselves, as keywords or as a TOML file"),
    "processing_class": ("model.name", "the tokenizer is the model's; its template: `model.chat_template`"),
    "tokenizer": ("model.name", "the tokenizer is the model's"),
    "model_init_kwargs": ("precision", "the dtype; a model is loaded from its folder or hub id"),
    "reward_processing_classes": ("", "a reward model is called by a reward function of yours, or by `hone.Judge`"),
    "peft_config": ("model.lora.rank", ""),
    "tools": ("", "tools belong to the task: docs/tasks.md"),
    "rollout_func": ("agent", "an async function that calls the model: docs/agents.md"),
    "environment_factory": ("orchestrator.env.id", "a task file: docs/tasks.md"),
    "callbacks": ("", "`hone.RL` gives you the loop, step by step"),
    "optimizers": ("trainer.optim.type", ""),
    "output_dir": ("output_dir", ""),
    "learning_rate": ("trainer.optim.lr", ""),
    "lr_scheduler_type": ("trainer.scheduler.type", ""),
    "warmup_steps": ("trainer.scheduler.warmup_steps", ""),
    "warmup_ratio": ("trainer.scheduler.warmup_steps", "a number of steps"),
    "weight_decay": ("trainer.optim.weight_decay", ""),
    "max_grad_norm": ("trainer.optim.max_norm", ""),
    "optim": ("trainer.optim.type", "`adamw` or `muon`; moments of 8 bits: `trainer.optim.state`"),
    "num_train_epochs": ("max_steps", "a step of `rl` draws `batch_size / rollouts_per_example` prompts"),
    "per_device_train_batch_size": ("orchestrator.batch_size", "counts the completions of a step, on all devices"),
    "gradient_accumulation_steps": ("trainer.micro_batch_tokens", "a step is split by tokens; the result is the same"),
    "generation_batch_size": ("orchestrator.batch_size", ""),
    "steps_per_generation": ("trainer.minibatches", "optimiser steps on the completions of one step"),
    "num_iterations": ("trainer.updates_per_batch", ""),
    "num_generations": ("orchestrator.rollouts_per_example", ""),
    "num_generations_eval": ("orchestrator.eval.rollouts_per_example", ""),
    "per_device_eval_batch_size": ("orchestrator.eval.num_examples", "the number of examples; batches are made"),
    "eval_strategy": ("orchestrator.eval", "`True` turns evaluation on"),
    "eval_steps": ("orchestrator.eval.interval", ""),
    "max_prompt_length": ("seq_len", "counts prompt and completion; prompts are never cut"),
    "max_completion_length": ("orchestrator.sampling.max_tokens", "`seq_len` counts the prompt too"),
    "temperature": ("orchestrator.sampling.temperature", ""),
    "top_p": ("orchestrator.sampling.top_p", ""),
    "top_k": ("orchestrator.sampling.top_k", ""),
    "min_p": ("orchestrator.sampling.min_p", ""),
    "generation_kwargs": ("orchestrator.sampling", "it has keys for `stop` and the like"),
    "shuffle_dataset": ("orchestrator.curriculum.order", ""),
    "beta": ("trainer.loss.kl_coef", ""),
    "use_bias_correction_kl": ("trainer.loss.kl_bias_correction", "off by default, on in TRL"),
    "epsilon": ("trainer.loss.eps_low", ""),
    "epsilon_high": ("trainer.loss.eps_high", ""),
    "delta": ("trainer.loss.dual_clip", ""),
    "entropy_coef": ("trainer.loss.entropy_coef", ""),
    "loss_type": ("algorithm", "`grpo`, `dapo`, `dr_grpo` or `cispo`"),
    "importance_sampling_level": ("algorithm", '`"sequence"` is `algorithm="gspo"`'),
    "scale_rewards": ("orchestrator.advantage.scale", '`"group"` is `"group_std"`'),
    "reward_weights": ("reward_weights", ""),
    "multi_objective_aggregation": ("orchestrator.advantage.components", '`"normalize_then_sum"` is `"normalize"`'),
    "mask_truncated_completions": ("orchestrator.truncated", '`True` is `"mask"`'),
    "sync_ref_model": ("trainer.loss.reference_interval", ""),
    "ref_model_sync_steps": ("trainer.loss.reference_interval", ""),
    "vllm_importance_sampling_mode": (
        "trainer.correction.type",
        '`"token_truncate"` is `"token"`, `"sequence_truncate"` is `"sequence"`',
    ),
    "vllm_importance_sampling_correction": ("trainer.correction.type", ""),
    "top_entropy_quantile": ("", "all tokens of a completion are trained"),
    "use_liger_kernel": ("", "the loss is computed in pieces anyway; `model.compile` fuses the layers"),
    "use_vllm": ("inference.backend", '`"vllm"`, in a separate server'),
    "vllm_mode": ("inference.backend", "vLLM runs as a separate server"),
    "vllm_gpu_memory_utilization": ("inference.kv_gib", ""),
    "vllm_server_base_url": ("orchestrator.client.base_url", ""),
    "gradient_checkpointing": ("trainer.checkpointing", ""),
    "bf16": ("precision", '`"bf16"`; the default computes products in bf16'),
    "fp16": ("precision", '`"fp32"`, `"bf16_linear"` or `"bf16"`'),
    "save_steps": ("ckpt.interval", ""),
    "save_strategy": ("ckpt", "`True` saves checkpoints"),
    "save_total_limit": ("ckpt.keep_last", ""),
    "resume_from_checkpoint": ("resume", "`True` goes on with the last checkpoint of `output_dir`"),
    "report_to": ("wandb.project", "`wandb=True` or `trackio=True`"),
    "run_name": ("wandb.name", ""),
    "logging_steps": ("", "each step is logged, in metrics.jsonl"),
    "log_completions": ("", "all completions are recorded: `run.samples(step)`"),
    "push_to_hub": ("", "`hf upload USER/NAME outputs/weights/step_100`"),
    "bf16_full_eval": ("precision", ""),
    "seed": ("seed", ""),
}
"""TRL's name → (hone's key or keyword, "" if hone has no such key; a note)."""

KEYS = {keyword: key for key, keyword in KEYWORDS.items()}


def table() -> str:
    """Return the Markdown table for the docs, without arguments that have the same name and meaning in hone."""
    rows = ["| `GRPOTrainer`, `GRPOConfig` | here |", "|---|---|"]
    for name, (key, note) in TRL.items():
        if name != key or note:
            rows.append(f"| `{name}` | {'; '.join(filter(None, [f'`{key}`' if key else '', note]))} |")
    return "\n".join(rows) + "\n"
