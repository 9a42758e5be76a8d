"""Tasks where a program makes rollouts: `hone.rl(agent=…)`, `--agent`, `--agent-command`."""

REQUIRES = ("server",)
EXPORTS = {"environments.agent_task": "hone.extensions.agents.task"}
