"""`hone audit ENV`: tests a task's reward with right answers in many styles, and with known reward hacks.

hone audit gsm8k -a '{"mode": "sparse"}'
hone audit gsm8k -m outputs/weights/step_100 -t 256 --html audit.html
hone audit --template Qwen/Qwen3-0.6B
"""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import redirect_stdout
from dataclasses import replace

from rich.text import Text

from hone.commands.status import Status, print_json
from hone.config.eval import MAX_TOKENS
from hone.environments.loading import configured
from hone.extensions.audit.config import AuditConfig
from hone.extensions.audit.environment import allowing, audit_environment
from hone.extensions.audit.report import Check, Report, Verdict, report_page, show_report
from hone.runs.files import write_file
from hone.runs.outputs import check_target
from hone.terminal import make_console


def run(config: AuditConfig) -> int:
    """Audit and report. Return 0 if nothing fails, else 1."""
    if config.html is not None:
        check_target(config.html, "--html")
    status = Status(sys.stderr)
    # The output of a task that is imported is no part of the report.
    with redirect_stdout(sys.stderr):
        try:
            if (template := config.template) is None:
                report = _task(config, status)
            else:
                from hone.extensions.audit.template import audit_template

                report = allowing(audit_template(template, config.chat_template), config.allow)
        finally:
            status.clear()
    if config.html is not None:
        write_file(config.html, report_page(report))
    if config.as_json:
        print_json(json.dumps(report.record(), ensure_ascii=False, indent=2))
    else:
        console = make_console(highlight=False, width=None if sys.stdout.isatty() else 120)
        show_report(console, report)
        following = ""
        if report.failures:
            following = f"fix the failures, or allow what is intended: --allow.{report.failures[0].name} REASON"
        elif config.env is not None:
            args = ["--orchestrator.env.args", json.dumps(config.env_args)] if config.env_args else []
            words = ["rl", "--orchestrator.env.id", config.env, *args, "--model.name", config.model or "MODEL"]
            following = shlex.join(words)
        if following:
            console.print(Text(f"next        {following}"), soft_wrap=True)
        if config.html is not None:
            console.print(Text(f"page        {config.html}"), soft_wrap=True)
    return int(report.verdict is Verdict.FAIL)


def _task(config: AuditConfig, status: Status) -> Report:
    assert config.env is not None
    env = configured(config.env, config.env_args, config.env_template, "env_template")
    env.progress = lambda words: status(f"auditing {env.label}: {words}") if words else None
    count, more = None, []
    if (model := config.model) is not None:
        from hone.extensions.audit.policy import policy_check
        from hone.inference.types import SamplingParams
        from hone.loops.evaluating import evaluate_weights, load_weights

        env.check_rollouts()
        env.split("eval")  # a task without one is refused before the model is loaded
        policy = load_weights(model, config.precision, config.seed, config.chat_template, config.threads)
        longest = config.max_tokens or MAX_TOKENS
        count = lambda text: len(policy.renderer.tokenizer.encode(text, add_special_tokens=False).ids)  # noqa: E731

        def check() -> Check:
            result = evaluate_weights(
                policy,
                env,
                SamplingParams(longest, config.temperature),
                num_examples=config.num_examples,
                rollouts_per_example=config.rollouts_per_example,
                max_tokens=longest,
                seed=config.seed,
                progress=lambda done, total: status(f"sampling from {model}: {done} of {total} examples"),
            )
            return policy_check(result, longest)

        more.append(check)
    report = audit_environment(
        env,
        num_examples=config.num_examples,
        seed=config.seed,
        split=config.split,
        timeout=config.timeout,
        max_tokens=config.max_tokens,
        count_tokens=count,
        allows=config.allow,
        more=more,
        progress=lambda words: status(f"auditing {env.label}: {words}"),
    )
    return replace(report, subject=f"{env.label} {json.dumps(config.env_args)}") if config.env_args else report
