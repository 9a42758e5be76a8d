"""Tasks whose rollouts a program makes: `hone.rl(agent=…)`, `--agent`, `--agent-command`."""

EXPORTS = {"environments.agent_task": "hone.extensions.agents.task"}
